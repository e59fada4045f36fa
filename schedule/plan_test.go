package schedule_test

import (
	"fmt"
	"runtime"
	"testing"

	"offload/schedule"
)

func ExampleWindow() {
	plan, err := schedule.Window(5, 2)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Print(plan)
	// Output:
	// window: 5 layers, 2 offloaded
	// boundary    directives         sets on device
	// forward 0   -                  1
	// forward 1   start-offload 0    2
	// forward 2   start-offload 1    3
	// forward 3   release 0          3
	// forward 4   release 1          3
	// backward 4  -                  3
	// backward 3  reset 4, reload 1  3
	// backward 2  reset 3, reload 0  3
	// backward 1  reset 2            2
	// backward 0  reset 1            1
	// end         reset 0            0
}

func TestIndexOf(t *testing.T) {
	plan := window(t, 5, 2)
	for i := range plan.Len() {
		if got := plan.IndexOf(plan.Boundary(i)); got != i {
			t.Errorf("IndexOf(%v) = %d, want %d", plan.Boundary(i), got, i)
		}
	}
	for _, b := range []schedule.Boundary{
		{Phase: schedule.Forward, Layer: 5},
		{Phase: schedule.Forward, Layer: -1},
		{Phase: schedule.Backward, Layer: 2, Occurrence: 1},
		{Phase: schedule.End, MicroBatch: 1},
	} {
		if got := plan.IndexOf(b); got != -1 {
			t.Errorf("IndexOf(%v) = %d, want -1", b, got)
		}
	}
}

func TestBoundariesAgreeWithAt(t *testing.T) {
	plan := window(t, 8, 3)
	i := 0
	for b, directives := range plan.Boundaries() {
		if b != plan.Boundary(i) || list(directives) != list(plan.At(i)) {
			t.Errorf("boundary %d: got %v: %s, want %v: %s", i, b, list(directives), plan.Boundary(i), list(plan.At(i)))
		}
		i++
	}
	if i != plan.Len() {
		t.Errorf("got %d boundaries, want %d", i, plan.Len())
	}
	for range plan.Boundaries() {
		break // an early end is legal
	}
}

// TestAppendLeavesThePlan appends to what At returns, which must not write
// over the directives of the next boundary.
func TestAppendLeavesThePlan(t *testing.T) {
	plan := window(t, 5, 2)
	before := plan.String()
	for i := range plan.Len() {
		_ = append(plan.At(i), schedule.Directive{Action: schedule.Reload, Layer: 4})
	}
	if after := plan.String(); after != before {
		t.Errorf("got\n%swant\n%s", after, before)
	}
}

func TestNames(t *testing.T) {
	for _, tc := range []struct {
		got  fmt.Stringer
		want string
	}{
		{schedule.Boundary{Phase: schedule.Forward, Layer: 3}, "forward 3"},
		{schedule.Boundary{Phase: schedule.Backward, Layer: 3, Occurrence: 1}, "backward 3#1"},
		{schedule.Boundary{Phase: schedule.End, MicroBatch: 2}, "micro-batch 2 end"},
		{schedule.Directive{Layer: 4}, "reset 4"},
		{schedule.Directive{Action: schedule.Reload, MicroBatch: 1, Layer: 3, Occurrence: 2, Group: 1}, "micro-batch 1 reload 3#2 group 1"},
		{schedule.Phase(9), "phase(9)"},
		{schedule.Action(9), "action(9)"},
	} {
		if got := tc.got.String(); got != tc.want {
			t.Errorf("got %q, want %q", got, tc.want)
		}
	}
}

func TestAskingAPlanAllocatesNothing(t *testing.T) {
	plan := window(t, 12, 5)
	total := 0
	if got := testing.AllocsPerRun(100, func() {
		for i := range plan.Len() {
			total += len(plan.At(i)) + plan.IndexOf(plan.Boundary(i))
		}
	}); got != 0 {
		t.Errorf("following a plan allocates %v times, want 0", got)
	}
}

// TestLargePlan checks that the memory of a plan grows with its layers and not
// with their square.
func TestLargePlan(t *testing.T) {
	const layers, perLayer = 10_000, 1024
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	plan := window(t, layers, 9_000)
	runtime.ReadMemStats(&after)
	if got := after.TotalAlloc - before.TotalAlloc; got > layers*perLayer {
		t.Errorf("the plan took %d bytes to make, want at most %d", got, layers*perLayer)
	}
	if got, want := list(plan.At(plan.IndexOf(schedule.Boundary{Phase: schedule.Backward, Layer: 9_500}))), "reset 9501, reload 8501"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}
