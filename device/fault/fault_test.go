package fault_test

import (
	"errors"
	"fmt"
	"sync"
	"testing"

	"offload/device"
	"offload/device/devicetest"
	"offload/device/fault"
	"offload/device/sim"
)

// With an empty plan the device does what the one behind it does.
func TestConformance(t *testing.T) {
	devicetest.Run(t, func(t *testing.T, o devicetest.Options) device.Device {
		c := sim.Config{MemoryLimit: o.MemoryLimit}
		if !o.Unclean {
			c.OnFinding = func(f sim.Finding) { t.Errorf("finding: %v", f) }
		}
		return fault.Wrap(sim.New(c), nil)
	})
}

// bench is a device with faults and one stream.
type bench struct {
	*fault.Device
	sim *sim.Device
	ids *device.IDs
	s   device.Stream
}

func newBench(t *testing.T, plan fault.Plan) *bench {
	t.Helper()
	b := &bench{sim: sim.New(sim.Config{})}
	b.Device = fault.Wrap(b.sim, nil)
	b.ids = device.NewIDs(b)
	b.s = b.ids.Stream()
	if err := b.do(device.Op{Kind: device.OpenStream, Stream: b.s}); err != nil {
		t.Fatal(err)
	}
	b.Arm(plan)
	b.sim.ResetStats()
	return b
}

var origin = device.Origin{Action: "test", Pass: 7, Layer: 2}

func (b *bench) do(ops ...device.Op) error {
	return b.Submit(&device.Batch{Origin: origin, Ops: ops})
}

// batch allocates, records, waits and frees.
func (b *bench) batch() []device.Op {
	x := device.Range{Buffer: b.ids.Buffer(device.OnDevice), Bytes: 64}
	e := b.ids.Event()
	return []device.Op{
		{Kind: device.Alloc, Stream: b.s, Dst: x},
		{Kind: device.Record, Stream: b.s, Event: e},
		{Kind: device.Wait, Stream: b.s, Event: e},
		{Kind: device.Free, Stream: b.s, Dst: x},
	}
}

// Whichever operation is struck, and in whatever way, what is said to be
// enqueued is.
func TestWhatIsEnqueued(t *testing.T) {
	for how := range fault.Hows {
		how := fault.How(how)
		for nth := 1; nth <= 4; nth++ {
			b := newBench(t, fault.Plan{{Nth: nth, How: how}})
			ops := b.batch()
			err, panicked := caught(func() error { return b.do(ops...) })
			if want := how == fault.PanicBefore || how == fault.PanicMidway; panicked != want {
				t.Errorf("%v %d: panicked: %v, want %v", how, nth, panicked, want)
			}
			index, enqueued := nth-1, nth-1
			switch how {
			case fault.RefuseBatch:
				index, enqueued = 0, 0
			case fault.PanicBefore:
				index, enqueued = -1, 0
			case fault.LoseLate:
				index, enqueued = -1, 4
			}
			if got := total(b.sim.Stats()); got != enqueued {
				t.Errorf("%v %d: %d operations are enqueued, want %d", how, nth, got, enqueued)
			}
			var failed *device.Error
			switch {
			case index < 0 && errors.As(err, &failed):
				t.Errorf("%v %d: got %v, want no *device.Error", how, nth, err)
			case index >= 0 && !errors.As(err, &failed):
				t.Errorf("%v %d: got %v, want a *device.Error", how, nth, err)
			case index >= 0 && (failed.Index != index || failed.Op != ops[index] || failed.Origin != origin):
				t.Errorf("%v %d: got %v, want it to name operation %d (%v) of %v", how, nth, failed, index, ops[index], origin)
			}
			if (err == nil) != (how == fault.LoseLate) || err != nil && !errors.Is(err, fault.ErrInjected) {
				t.Errorf("%v %d: got %v, want it to be ErrInjected", how, nth, err)
			}
			if struck := b.Struck(); len(struck) != 1 || struck[0].Index != nth-1 || struck[0].Op != ops[nth-1] {
				t.Errorf("%v %d: struck %v, want operation %d", how, nth, struck, nth-1)
			}
		}
	}
}

func caught(f func() error) (err error, panicked bool) {
	defer func() {
		if v := recover(); v != nil {
			err, panicked = v.(error), true
		}
	}()
	return f(), false
}

func total(s sim.Stats) int {
	n := 0
	for k := range device.Kinds {
		n += int(s.Count(device.Kind(k)))
	}
	return n
}

// A lost device stays lost until Close, and says what lost it.
func TestLost(t *testing.T) {
	for _, how := range []fault.How{fault.Lose, fault.LoseLate} {
		b := newBench(t, fault.Plan{{Kind: device.Wait, How: how}})
		ops := b.batch()
		if err := b.do(ops...); errors.Is(err, device.ErrLost) != (how == fault.Lose) {
			t.Errorf("%v: got %v", how, err)
		}
		sync := device.Op{Kind: device.SyncStream, Stream: b.s}
		err := b.do(sync)
		var failed *device.Error
		if !errors.Is(err, device.ErrLost) || !errors.Is(err, fault.ErrInjected) || !errors.As(err, &failed) || failed.Op != sync {
			t.Errorf("%v: the next call returned %v, want ErrLost, its cause and the operation that was refused", how, err)
		}
		var cause *device.Error
		if how == fault.LoseLate && (!errors.As(failed.Err, &cause) || cause.Op != ops[2]) {
			t.Errorf("%v: the next call returned %v, want it to name %v", how, err, ops[2])
		}
		if _, err := b.Lookup(ops[0].Dst.Buffer); !errors.Is(err, device.ErrLost) {
			t.Errorf("%v: Lookup returned %v, want ErrLost", how, err)
		}
		b.Arm(nil)
		if err := b.do(sync); !errors.Is(err, device.ErrLost) {
			t.Errorf("%v: a call after Arm returned %v, want ErrLost", how, err)
		}
		if err := b.Close(); !errors.Is(err, device.ErrLost) {
			t.Errorf("%v: Close returned %v, want ErrLost", how, err)
		}
		if err := b.do(sync); !errors.Is(err, device.ErrClosed) {
			t.Errorf("%v: a call after Close returned %v, want ErrClosed", how, err)
		}
		if err := b.Close(); !errors.Is(err, device.ErrClosed) {
			t.Errorf("%v: the second Close returned %v, want ErrClosed", how, err)
		}
	}
}

// A fault counts the operations of its kind, whatever batch they are in.
func TestCounting(t *testing.T) {
	cause := errors.New("the cause")
	for _, tt := range []struct {
		fault.Fault
		want string // for each of five batches, whether it got through
	}{
		{fault.Fault{}, "-++++"},
		{fault.Fault{Nth: 6}, "+-+++"},
		{fault.Fault{Kind: device.Wait, Nth: 3}, "++-++"},
		{fault.Fault{Kind: device.Wait, Nth: 2, Times: 2}, "+--++"},
		{fault.Fault{Kind: device.Free, Nth: 3, Times: -1}, "++---"},
		{fault.Fault{Kind: device.Pin}, "+++++"},
	} {
		tt.Err = cause
		b := newBench(t, fault.Plan{{Kind: device.Pin, Nth: 9}, tt.Fault})
		got := ""
		for range 5 {
			switch err := b.do(b.batch()...); {
			case err == nil:
				got += "+"
			case errors.Is(err, cause):
				got += "-"
			default:
				t.Errorf("%v: got %v", tt.Fault, err)
			}
		}
		if got != tt.want {
			t.Errorf("%v: got %s, want %s", tt.Fault, got, tt.want)
		}
	}

	b := newBench(t, fault.Plan{{Kind: device.Wait, Nth: 2}})
	if err := b.do(b.batch()...); err != nil {
		t.Fatal(err)
	}
	if err := b.do(b.batch()...); err == nil {
		t.Error("the fault did not strike")
	}
	c := b.Counts()
	if c.Total() != 7 || c[device.Alloc] != 2 || c[device.Wait] != 2 || c[device.Free] != 1 {
		t.Errorf("got %v, want 4 operations and 3, with the one that was struck", c)
	}
	b.Arm(nil)
	if c := b.Counts(); c.Total() != 0 || len(b.Struck()) != 0 {
		t.Errorf("after Arm: got %v and %v, want nothing", c, b.Struck())
	}
}

// A failure of the device behind, ahead of a fault, is what the caller gets.
func TestFailureOfTheDeviceBehind(t *testing.T) {
	for _, how := range []fault.How{fault.Refuse, fault.PanicMidway, fault.Lose, fault.LoseLate} {
		b := newBench(t, fault.Plan{{Kind: device.Free, How: how}})
		ops := b.batch()
		ops[1].Event = device.Event{}
		var failed *device.Error
		if err := b.do(ops...); !errors.As(err, &failed) || failed.Index != 1 || !errors.Is(err, device.ErrInvalid) {
			t.Errorf("%v: got %v, want ErrInvalid for operation 1", how, err)
		}
		if err := b.do(device.Op{Kind: device.SyncStream, Stream: b.s}); err != nil {
			t.Errorf("%v: the device is gone: %v", how, err)
		}
	}
	b := newBench(t, nil)
	if err := b.do(device.Op{Kind: device.Kind(device.Kinds)}); !errors.Is(err, device.ErrInvalid) {
		t.Errorf("an operation of no kind: got %v, want ErrInvalid", err)
	}
}

// An error is the caller's to keep, while its kernel is used again.
func TestErrorHasItsOwnKernel(t *testing.T) {
	b := newBench(t, fault.Plan{{}})
	k := &device.Kernel{Name: "k", Args: []device.Arg{{Int: 1}}}
	err := b.do(device.Op{Kind: device.Launch, Stream: b.s, Kernel: k})
	k.Name, k.Args[0].Int = "other", 2
	var failed *device.Error
	if !errors.As(err, &failed) || failed.Op.Kernel == nil || failed.Op.Kernel.Name != "k" || failed.Op.Kernel.Args[0].Int != 1 {
		t.Errorf("got %v, want the kernel as it was", err)
	}
}

// Each of many goroutines gets through or is struck, and the counts add up.
func TestConcurrentUse(t *testing.T) {
	const goroutines, batches, struck = 16, 50, 100
	b := newBench(t, fault.Plan{{Kind: device.Record, Nth: 200, Times: struck}})
	var all sync.WaitGroup
	failed := make([]int, goroutines)
	for i := range failed {
		all.Go(func() {
			for range batches {
				if err := b.do(b.batch()...); err != nil {
					failed[i]++
				}
			}
		})
	}
	all.Wait()
	sum := 0
	for _, n := range failed {
		sum += n
	}
	if c := b.Counts(); sum != struck || len(b.Struck()) != struck || c[device.Record] != goroutines*batches || c[device.Free] != goroutines*batches-struck {
		t.Errorf("%d batches failed and %d operations were struck, want %d; counts %v", sum, len(b.Struck()), struck, c)
	}
}

func TestStrings(t *testing.T) {
	for _, tt := range []struct {
		got  fmt.Stringer
		want string
	}{
		{fault.Fault{}, "refuse operation 1"},
		{fault.Fault{Kind: device.CopyOut, Nth: 3, How: fault.PanicMidway}, "panic midway copy-out 3"},
		{fault.Fault{Kind: device.Pin, Nth: 2, Times: 2}, "refuse pin 2 to 3"},
		{fault.Fault{Kind: device.Pin, Times: -1, How: fault.LoseLate}, "lose late pin 1 and all after it"},
		{fault.How(9), "how(9)"},
	} {
		if got := tt.got.String(); got != tt.want {
			t.Errorf("got %q, want %q", got, tt.want)
		}
	}
}
