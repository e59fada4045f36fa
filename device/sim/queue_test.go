package sim

import (
	"errors"
	"slices"
	"strings"
	gosync "sync"
	"testing"

	"offload/device"
)

// logger registers a kernel "log" that appends its argument to the list returned.
func logger(r *rig) *[]int64 {
	list := new([]int64)
	r.dev.Register("log", func(c *Call) error {
		*list = append(*list, c.Arg(0).Int)
		return nil
	})
	return list
}

func logOp(s device.Stream, n int64) device.Op {
	return device.Op{Kind: device.Launch, Stream: s, Kernel: &device.Kernel{Name: "log", Args: []device.Arg{{Int: n}}}}
}

// TestSeedsReachEveryOrder counts the orders that seeds choose.
func TestSeedsReachEveryOrder(t *testing.T) {
	tests := []struct {
		name string
		want int
		ops  func(r *rig) []device.Op
	}{
		// Of 7 places, 3 belong to the first stream: 7 over 3.
		{"three and four independent operations", 35, func(r *rig) []device.Op {
			return []device.Op{logOp(r.a, 1), logOp(r.a, 2), logOp(r.a, 3), logOp(r.b, 4), logOp(r.b, 5), logOp(r.b, 6), logOp(r.b, 7)}
		}},
		// 4 comes after 2: the 4 operations of the second stream follow 1 and 2,
		// and 3 has 5 places among them.
		{"the second stream waits for two of three", 5, func(r *rig) []device.Op {
			e := r.ids.Event()
			return []device.Op{logOp(r.a, 1), logOp(r.a, 2), record(r.a, e), logOp(r.a, 3), wait(r.b, e),
				logOp(r.b, 4), logOp(r.b, 5), logOp(r.b, 6), logOp(r.b, 7)}
		}},
		{"one after the other", 1, func(r *rig) []device.Op {
			e := r.ids.Event()
			return []device.Op{logOp(r.a, 1), logOp(r.a, 2), record(r.a, e), wait(r.b, e), logOp(r.b, 3)}
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			orders := make(map[string]bool)
			for seed := range uint64(3000) {
				r := newRig(t, Config{Seed: seed})
				list := logger(r)
				r.must(tt.ops(r)...)
				r.must(join(r.a), join(r.b))
				var b strings.Builder
				for _, n := range *list {
					b.WriteByte(byte('0' + n))
				}
				orders[b.String()] = true
			}
			if len(orders) != tt.want {
				t.Errorf("got %d orders, want %d", len(orders), tt.want)
			}
		})
	}
}

// TestOnlyWhatIsNeededRuns: a synchronisation makes its own stream run, and
// whether others do is left to the seed.
func TestOnlyWhatIsNeededRuns(t *testing.T) {
	behind, level := false, false
	for seed := range uint64(50) {
		r := newRig(t, Config{Seed: seed})
		list := logger(r)
		r.must(logOp(r.a, 1), logOp(r.b, 2), join(r.a))
		if !slices.Contains(*list, 1) {
			t.Fatalf("seed %d: got %v after a synchronisation with the stream of 1", seed, *list)
		}
		behind = behind || len(*list) == 1
		level = level || len(*list) == 2
		if err := r.dev.Close(); err != nil {
			t.Fatal(err)
		}
		if len(*list) != 2 {
			t.Fatalf("seed %d: got %v after Close, want both", seed, *list)
		}
	}
	if !behind || !level {
		t.Errorf("the other stream was behind under some seed: %v, level under some: %v; want both", behind, level)
	}
}

func TestEagerRunsBeforeSubmitReturns(t *testing.T) {
	r := newRig(t, Config{Order: Eager})
	list := logger(r)
	r.must(logOp(r.a, 1), logOp(r.b, 2))
	if len(*list) != 2 {
		t.Errorf("got %v, want both operations run", *list)
	}
}

// TestMemoryOfTheDeviceIsBounded: what the device keeps depends on what is alive
// and not on what has happened.
func TestMemoryOfTheDeviceIsBounded(t *testing.T) {
	for name, order := range map[string]chooser{"seeded": newSeeded(0), "never before it must": last{}} {
		t.Run(name, func(t *testing.T) { testBounded(t, order) })
	}
}

// last is an order that runs nothing during Submit and prefers the last stream.
type last struct{}

func (last) pick(ready []*stream) int { return len(ready) - 1 }
func (last) burst(int) int            { return 0 }

func testBounded(t *testing.T, order chooser) {
	r := newRig(t, Config{})
	r.dev.order = order
	h := r.pinned(4096)
	r.must(hostWrite(h))
	longest := 0
	for i := range int64(4_000) {
		x, e, f := r.buffer(r.a, 256), r.ids.Event(), r.ids.Event()
		part := h.Sub(i%16*256, 256)
		r.must(record(r.a, e), wait(r.b, e), in(r.b, x, part), record(r.b, f), wait(r.a, f), out(r.a, part, x),
			record(r.a, r.ids.Event()), free(r.a, x))
		e2 := r.ids.Event()
		r.must(record(r.a, e2), wait(r.b, e2))
		r.ids.PutBuffer(x.Buffer)
		for _, e := range []device.Event{e, f, e2} {
			r.must(retire(e))
			r.ids.PutEvent(e)
		}
		longest = max(longest, r.dev.queued)
	}
	if longest > maxQueued {
		t.Errorf("got %d operations queued after a Submit, want at most %d", longest, maxQueued)
	}
	for _, s := range r.dev.lanes[1:] {
		if n := cap(s.queue); n > 4*maxQueued {
			t.Errorf("got room for %d operations in the queue of %v, want at most %d", n, s.id, 4*maxQueued)
		}
	}
	if got := r.dev.Findings(); len(got) > 0 {
		t.Fatalf("got findings %v, want none", got)
	}
	sh := r.dev.slot(h.Buffer).live.shadow
	reads := 0
	for _, g := range sh {
		reads += len(g.reads)
	}
	if len(sh) > 16 || reads > 32 {
		t.Errorf("got %d segments with %d reads, want at most 16 and 32", len(sh), reads)
	}
	if n := len(r.dev.spaces[1].buffers[device.OnDevice]); n != 1 {
		t.Errorf("got %d slots for device buffers, want 1", n)
	}
	if got, limit := r.dev.heap.live+r.dev.heap.cached, 2*r.dev.heap.peak+heapSlack; got > limit {
		t.Errorf("got %d bytes of real memory, want at most %d", got, limit)
	}
}

// TestLanesAreUsedAgain: a stream that was closed after a synchronisation leaves
// its lane to a later one; one whose end the host has not seen does not, since
// the later one is not ordered after it.
func TestLanesAreUsedAgain(t *testing.T) {
	r := newRig(t, Config{})
	x := r.shared(64)
	for range 100 {
		s := r.ids.Stream()
		r.must(open(s), set(s, x, 1), join(s), shut(s))
	}
	if got := len(r.dev.lanes); got != 4 {
		t.Errorf("got %d lanes, want 4: the host, two streams, and one for a hundred", got)
	}
	if got := r.dev.Findings(); len(got) > 0 {
		t.Fatalf("got findings %v, want none", got)
	}
	s, u := r.ids.Stream(), r.ids.Stream()
	r.must(open(s), set(s, x, 1), shut(s), open(u), set(u, x, 2))
	if got, want := r.rules(), []Rule{WriteAfterWrite}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v: closing a stream does not wait for it", r.dev.Findings(), want)
	}
}

func TestRefusals(t *testing.T) {
	tests := []struct {
		name string
		err  error
		op   func(r *rig) device.Op
	}{
		{"no kind", device.ErrInvalid, func(r *rig) device.Op { return device.Op{} }},
		{"a kind that does not exist", device.ErrInvalid, func(r *rig) device.Op { return device.Op{Kind: device.Kind(device.Kinds)} }},
		{"no stream", device.ErrInvalid, func(r *rig) device.Op { return device.Op{Kind: device.SyncStream} }},
		{"a stream that was not opened", device.ErrUnknown, func(r *rig) device.Op { return join(r.ids.Stream()) }},
		{"a stream that was closed", device.ErrUnknown, func(r *rig) device.Op { r.must(shut(r.b)); return join(r.b) }},
		{"a stream that is opened twice", device.ErrInvalid, func(r *rig) device.Op { return open(r.a) }},
		{"an id space that was not opened", device.ErrUnknown, func(r *rig) device.Op {
			return open(device.Stream{Device: r.dev.Info().ID, Space: 99})
		}},
		{"an index that no pool mints", device.ErrUnknown, func(r *rig) device.Op {
			return open(device.Stream{Device: r.dev.Info().ID, Space: 1, Index: 1 << 31})
		}},
		{"no event", device.ErrInvalid, func(r *rig) device.Op { return record(r.a, device.Event{}) }},
		{"retire of an event that was not recorded", device.ErrUnknown, func(r *rig) device.Op { return retire(r.ids.Event()) }},
		{"retire of an event that was retired", device.ErrUnknown, func(r *rig) device.Op {
			e := r.ids.Event()
			r.must(record(r.a, e), retire(e))
			return retire(e)
		}},
		{"retire of no event", device.ErrInvalid, func(r *rig) device.Op { return retire(device.Event{}) }},
		{"wait for no event", device.ErrInvalid, func(r *rig) device.Op { return wait(r.a, device.Event{}) }},
		{"alloc of no buffer", device.ErrInvalid, func(r *rig) device.Op { return alloc(r.a, device.Range{Bytes: 8}) }},
		{"read of a buffer that was not made", device.ErrUnknown, func(r *rig) device.Op {
			return sum(r.a, r.shared(8), device.Range{Buffer: r.ids.Buffer(device.OnDevice), Bytes: 8})
		}},
		{"no buffer", device.ErrInvalid, func(r *rig) device.Op { return free(r.a, device.Range{}) }},
		{"a buffer that was not made", device.ErrUnknown, func(r *rig) device.Op {
			return free(r.a, device.Range{Buffer: r.ids.Buffer(device.OnDevice)})
		}},
		{"a buffer that is made twice", device.ErrInvalid, func(r *rig) device.Op { return alloc(r.a, r.buffer(r.a, 8)) }},
		{"a buffer of an old generation that is made again", device.ErrUnknown, func(r *rig) device.Op {
			x := r.buffer(r.a, 8)
			r.must(free(r.a, x))
			return alloc(r.a, x)
		}},
		{"alloc of host memory", device.ErrInvalid, func(r *rig) device.Op {
			return alloc(r.a, device.Range{Buffer: r.ids.Buffer(device.OnHost), Bytes: 8})
		}},
		{"pin of device memory", device.ErrInvalid, func(r *rig) device.Op {
			return pin(device.Range{Buffer: r.ids.Buffer(device.OnDevice), Bytes: 8})
		}},
		{"alloc of nothing", device.ErrInvalid, func(r *rig) device.Op {
			return alloc(r.a, device.Range{Buffer: r.ids.Buffer(device.OnDevice)})
		}},
		{"copy out to the device", device.ErrInvalid, func(r *rig) device.Op { return out(r.a, r.shared(8), r.shared(8)) }},
		{"copy in from the device", device.ErrInvalid, func(r *rig) device.Op { return in(r.a, r.shared(8), r.shared(8)) }},
		{"copy within from the host", device.ErrInvalid, func(r *rig) device.Op { return move(r.a, r.shared(8), r.pinned(8)) }},
		{"copy of different lengths", device.ErrInvalid, func(r *rig) device.Op { return out(r.a, r.pinned(9), r.shared(8)) }},
		{"copy onto itself", device.ErrInvalid, func(r *rig) device.Op { x := r.shared(8); return move(r.a, x.Sub(0, 5), x.Sub(4, 4).Sub(-1, 5)) }},
		{"launch without a kernel", device.ErrInvalid, func(r *rig) device.Op { return device.Op{Kind: device.Launch, Stream: r.a} }},
		{"host read of device memory", device.ErrInvalid, func(r *rig) device.Op { return hostRead(r.shared(8)) }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t, Config{})
			op := tt.op(r)
			before, usage := r.dev.Stats(), r.dev.Usage()
			list := logger(r)
			err := r.do(logOp(r.a, 1), op, logOp(r.a, 2))
			var e *device.Error
			if !errors.Is(err, tt.err) || !errors.As(err, &e) {
				t.Fatalf("got %v, want a *device.Error with %v", err, tt.err)
			}
			if e.Index != 1 || e.Op.String() != op.String() {
				t.Errorf("got operation %d (%v), want 1 (%v)", e.Index, e.Op, op)
			}
			if got := r.dev.Usage(); got != usage {
				t.Errorf("got %v, want %v: nothing has changed", got, usage)
			}
			if got, want := r.dev.Stats().Total(), before.Total()+1; got != want {
				t.Errorf("got %d operations enqueued, want %d: the one before alone", got, want)
			}
			if err := r.dev.Close(); err != nil {
				t.Fatal(err)
			}
			if want := []int64{1}; !slices.Equal(*list, want) {
				t.Errorf("got %v run, want %v", *list, want)
			}
		})
	}
}

// TestLateFailure: a kernel that fails is named by whatever is submitted next,
// and the device is lost.
func TestLateFailure(t *testing.T) {
	cause := errors.New("illegal address")
	tests := []struct {
		name   string
		kernel KernelFunc
		text   string
	}{
		{"error", func(*Call) error { return cause }, "illegal address"},
		{"panic", func(c *Call) error { c.Arg(5); return nil }, `kernel panicked at call.go:`},
		{"index out of range", func(c *Call) error { c.Read(device.Range{})[c.Args()]++; return nil }, `kernel panicked at queue_test.go:`},
	}
	for _, tt := range tests {
		for seed := range uint64(4) {
			r := newRig(t, Config{Seed: seed})
			r.dev.Register("bad", tt.kernel)
			list := logger(r)
			bad := device.Origin{Action: "backward", Layer: 4, Pass: 2}
			b := &device.Batch{Origin: bad, Ops: []device.Op{logOp(r.a, 1), call(r.a, "bad", device.Range{}, nil, nil), logOp(r.a, 2)}}
			if err := r.dev.Submit(b); err != nil {
				t.Fatal(err)
			}
			b.Ops[1].Kernel.Name = "another" // the batch is the caller's again
			for range 2 {
				err := r.do(join(r.a))
				var now, then *device.Error
				if !errors.Is(err, device.ErrLost) || !errors.As(err, &now) || !errors.As(now.Err, &then) {
					t.Fatalf("%s, seed %d: got %v, want an error about the operation that failed", tt.name, seed, err)
				}
				if now.Op.Kind != device.SyncStream || then.Origin != bad || then.Index != 1 || then.Op.Kernel.Name != "bad" {
					t.Errorf("%s, seed %d: got %v, want the failure of operation 1 of %v", tt.name, seed, err, bad)
				}
				if !strings.Contains(err.Error(), tt.text) {
					t.Errorf("%s, seed %d: got %v, want %q in it", tt.name, seed, err, tt.text)
				}
				if tt.name == "error" && !errors.Is(err, cause) {
					t.Errorf("seed %d: got %v, want it to wrap the kernel's error", seed, err)
				}
			}
			if want := []int64{1}; !slices.Equal(*list, want) {
				t.Errorf("%s, seed %d: got %v run, want %v", tt.name, seed, *list, want)
			}
			if _, err := r.dev.Lookup(device.Buffer{}); !errors.Is(err, device.ErrLost) {
				t.Errorf("%s, seed %d: got %v from Lookup, want %v", tt.name, seed, err, device.ErrLost)
			}
			if err := r.dev.Close(); !errors.Is(err, device.ErrLost) {
				t.Errorf("%s, seed %d: got %v from Close, want %v", tt.name, seed, err, device.ErrLost)
			}
			if err := r.do(join(r.a)); !errors.Is(err, device.ErrClosed) {
				t.Errorf("%s, seed %d: got %v after Close, want %v", tt.name, seed, err, device.ErrClosed)
			}
		}
	}
}

// TestConcurrentCallers: clients with their own id spaces do not disturb each other.
func TestConcurrentCallers(t *testing.T) {
	r := newRig(t, Config{})
	var wg gosync.WaitGroup
	for n := range 8 {
		wg.Go(func() {
			c := &rig{t: t, dev: r.dev, ids: device.NewIDs(r.dev)}
			s := c.ids.Stream()
			h := device.Range{Buffer: c.ids.Buffer(device.OnHost), Bytes: 64}
			x := device.Range{Buffer: c.ids.Buffer(device.OnDevice), Bytes: 64}
			err := c.do(open(s), pin(h), alloc(s, x))
			for i := range 200 {
				value := byte(n*31 + i)
				err = errors.Join(err, c.do(set(s, x, int64(value)), out(s, h, x)), c.do(join(s), hostRead(h)))
				m, lookup := r.dev.Lookup(h.Buffer)
				if err = errors.Join(err, lookup); err != nil {
					t.Error(err)
					return
				}
				if m.Host[63] != value {
					t.Errorf("client %d, round %d: got %d, want %d", n, i, m.Host[63], value)
					return
				}
			}
			if err := c.do(free(s, x), join(s), unpin(h), shut(s)); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if got := r.dev.Findings(); len(got) > 0 {
		t.Errorf("got findings %v, want none", got)
	}
}
