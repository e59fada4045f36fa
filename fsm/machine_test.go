package fsm_test

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"unsafe"

	"offload/fsm"
)

const layer = 3

// refused marks a cell of want that is not legal.
const refused = fsm.State(fsm.States)

// want is every cell of event x state, written out by hand so that a slip in
// the table of the package cannot hide.
var want = [fsm.Events][fsm.States]fsm.State{
	// The columns are Resident, Offloading, Offloaded, Reloading, Failed.
	fsm.Push:         {fsm.Resident, refused, refused, refused, refused},
	fsm.StartOffload: {fsm.Offloading, refused, refused, refused, refused},
	fsm.Release:      {refused, fsm.Offloaded, refused, refused, refused},
	fsm.Reload:       {refused, refused, fsm.Reloading, refused, refused},
	fsm.Pop:          {fsm.Resident, refused, refused, fsm.Reloading, refused},
	fsm.Revive:       {refused, fsm.Resident, refused, refused, refused},
	fsm.Fail:         {fsm.Failed, fsm.Failed, fsm.Failed, fsm.Failed, fsm.Failed},
	fsm.Reset:        {fsm.Resident, fsm.Resident, fsm.Resident, fsm.Resident, fsm.Resident},
}

// ways leads a new machine into each state.
var ways = [fsm.States][]fsm.Event{
	fsm.Resident:   {},
	fsm.Offloading: {fsm.Push, fsm.StartOffload},
	fsm.Offloaded:  {fsm.Push, fsm.StartOffload, fsm.Release},
	fsm.Reloading:  {fsm.Push, fsm.StartOffload, fsm.Release, fsm.Reload},
	fsm.Failed:     {fsm.Fail},
}

func machineIn(t testing.TB, state fsm.State) *fsm.Machine {
	t.Helper()
	m := fsm.NewMachine(layer)
	for _, e := range ways[state] {
		if err := m.Fire(e); err != nil {
			t.Fatalf("on the way to %v: %v", state, err)
		}
	}
	if m.State() != state {
		t.Fatalf("the way to %v ended in %v", state, m.State())
	}
	return m
}

func TestEveryCell(t *testing.T) {
	for e := range fsm.Event(fsm.Events) {
		for s := range fsm.State(fsm.States) {
			t.Run(fmt.Sprintf("%v in %v", e, s), func(t *testing.T) {
				m := machineIn(t, s)
				next := want[e][s]
				legal := next != refused
				if got := m.Can(e); got != legal {
					t.Errorf("Can = %v, want %v", got, legal)
				}
				if err := m.Check(e); (err == nil) != legal {
					t.Errorf("Check = %v, want legal %v", err, legal)
				}
				if m.State() != s {
					t.Fatalf("asking moved the machine to %v", m.State())
				}
				err := m.Fire(e)
				if legal {
					if err != nil || m.State() != next {
						t.Fatalf("Fire = %v and state %v, want success and %v", err, m.State(), next)
					}
					checkAllowed(t, m, next)
					return
				}
				checkRefusal(t, err, e, s)
				if m.State() != s {
					t.Fatalf("a refused event moved the machine to %v", m.State())
				}
				checkAllowed(t, m, s)
			})
		}
	}
}

// checkAllowed checks that looplab's copy is in the state the machine reports.
func checkAllowed(t *testing.T, m *fsm.Machine, s fsm.State) {
	t.Helper()
	for e := range fsm.Event(fsm.Events) {
		if got, wanted := m.Can(e), want[e][s] != refused; got != wanted {
			t.Errorf("in %v, Can(%v) = %v, want %v", s, e, got, wanted)
		}
	}
}

func checkRefusal(t *testing.T, err error, e fsm.Event, s fsm.State) {
	t.Helper()
	var order *fsm.OrderError
	if !errors.As(err, &order) {
		t.Fatalf("Fire = %v, want an *OrderError", err)
	}
	if !errors.Is(fmt.Errorf("pass 1: %w", err), fsm.ErrOrder) {
		t.Error("the error is not ErrOrder")
	}
	if order.Layer != layer || order.Event != e || order.State != s {
		t.Errorf("got layer %d, %v, %v, want layer %d, %v, %v", order.Layer, order.Event, order.State, layer, e, s)
	}
	var allowed []fsm.Event
	for e := range fsm.Event(fsm.Events) {
		if want[e][s] != refused {
			allowed = append(allowed, e)
		}
	}
	if fmt.Sprint(order.Allowed) != fmt.Sprint(allowed) {
		t.Errorf("Allowed = %v, want %v", order.Allowed, allowed)
	}
	text := err.Error()
	if !strings.HasPrefix(text, fmt.Sprintf("%v layer %d: it is %v; allowed now: ", e, layer, s)) {
		t.Errorf("%q does not begin with what was asked and found", text)
	}
	if _, advice, _ := strings.Cut(text, "allowed now: "); strings.HasSuffix(advice, "; ") {
		t.Errorf("%q does not say what to do", text)
	}
}

func TestOrderErrorText(t *testing.T) {
	for _, tc := range []struct {
		name  string
		event fsm.Event
		state fsm.State
		want  string
	}{
		{"a release before its copy is refused with the order to keep", fsm.Release, fsm.Resident,
			"release layer 3: it is Resident; allowed now: push, start-offload, pop; call StartOffload first"},
		{"a failed group names the only way out", fsm.Pop, fsm.Failed,
			"pop layer 3: it is Failed; allowed now: fail, reset; abort the pass, which drains and resets it"},
		{"an unknown event is refused like any other", fsm.Event(fsm.Events), fsm.Offloaded,
			"event(8) layer 3: it is Offloaded; allowed now: reload; no such event"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			err := machineIn(t, tc.state).Check(tc.event)
			if err == nil || err.Error() != tc.want {
				t.Errorf("got  %v\nwant %s", err, tc.want)
			}
		})
	}
}

// TestTableIsWhole compares the published table with the one written out above.
func TestTableIsWhole(t *testing.T) {
	got := [fsm.Events][fsm.States]fsm.State{}
	for e := range got {
		for s := range got[e] {
			got[e][s] = refused
		}
	}
	for _, tr := range fsm.Transitions() {
		if got[tr.Event][tr.From] != refused {
			t.Errorf("%v in %v is listed twice", tr.Event, tr.From)
		}
		got[tr.Event][tr.From] = tr.To
	}
	if got != want {
		t.Errorf("got  %v\nwant %v", got, want)
	}
	fsm.Transitions()[0].To = fsm.Failed
	if fsm.Transitions()[0].To == fsm.Failed {
		t.Error("a caller can change the table")
	}
}

func TestMachinesAreIndependent(t *testing.T) {
	a, b := fsm.NewMachine(0), fsm.NewMachine(1)
	if err := a.Fire(fsm.StartOffload); err != nil {
		t.Fatal(err)
	}
	if a.State() != fsm.Offloading || b.State() != fsm.Resident || !b.Can(fsm.Push) {
		t.Errorf("after moving one machine, they are in %v and %v, want Offloading and Resident", a.State(), b.State())
	}
}

func TestInitReuses(t *testing.T) {
	m := machineIn(t, fsm.Failed)
	m.Init(9)
	checkAllowed(t, m, fsm.Resident)
	var order *fsm.OrderError
	if err := m.Fire(fsm.Release); !errors.As(err, &order) || order.Layer != 9 {
		t.Errorf("after Init(9), Fire(Release) = %v, want an *OrderError of layer 9", err)
	}
}

func TestNamesOfUnknownValues(t *testing.T) {
	if got := fsm.State(fsm.States).String(); got != "state(5)" {
		t.Errorf("got %q, want state(5)", got)
	}
	if got := fsm.Event(fsm.Events).String(); got != "event(8)" {
		t.Errorf("got %q, want event(8)", got)
	}
}

// round is one life of a group, every kind of legal move but Fail.
var round = []fsm.Event{
	fsm.Push, fsm.StartOffload, fsm.Revive, fsm.StartOffload, fsm.Release, fsm.Reload, fsm.Pop, fsm.Pop, fsm.Reset,
}

func TestLegalPathAllocatesNothing(t *testing.T) {
	m := fsm.NewMachine(layer)
	if got := testing.AllocsPerRun(100, func() {
		m.Init(layer)
		for _, e := range round {
			if m.Check(e) != nil || m.Fire(e) != nil {
				t.Fatalf("%v was refused in %v", e, m.State())
			}
		}
	}); got != 0 {
		t.Errorf("a round allocates %v times, want 0", got)
	}
}

func TestMachineIsSmall(t *testing.T) {
	if got := unsafe.Sizeof(fsm.Machine{}); got > 136 {
		t.Errorf("a machine takes %d bytes, want at most 136", got)
	}
}

func BenchmarkFire(b *testing.B) {
	m := fsm.NewMachine(layer)
	b.ReportAllocs()
	for b.Loop() {
		for _, e := range round {
			if err := m.Fire(e); err != nil {
				b.Fatal(err)
			}
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(round)), "ns/event")
}

func BenchmarkNewMachine(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		fsm.NewMachine(layer)
	}
}

// TestMachinesInParallel lets -race see machines made and used side by side,
// and the diagram drawn meanwhile: all of them read the one prototype.
func TestMachinesInParallel(t *testing.T) {
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			m := fsm.NewMachine(layer)
			for _, e := range round {
				if err := m.Fire(e); err != nil {
					t.Error(err)
				}
			}
			fsm.Diagram()
		})
	}
	all.Wait()
}
