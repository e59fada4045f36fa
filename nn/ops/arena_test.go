package ops_test

import (
	"errors"
	"strings"
	"testing"

	"offload/device"
	"offload/device/sim"
	"offload/nn/ops"
)

// bench is an arena on a simulated device that counts batches and can refuse
// one operation.
type bench struct {
	device.Device
	t       *testing.T
	sim     *sim.Device
	arena   *ops.Arena
	stream  device.Stream
	batches int
	refuse  func(device.Op) bool // refuse the first operation for which this holds
}

var errRefused = errors.New("refused by the test")

func newBench(t *testing.T, limit int64) *bench {
	s := sim.New(sim.Config{MemoryLimit: limit})
	s.Register(ops.FillName, func(c *sim.Call) error {
		clear(c.Write(c.Arg(0).Range))
		return nil
	})
	b := &bench{Device: s, t: t, sim: s}
	b.stream = device.NewIDs(s).Stream()
	b.op(device.Op{Kind: device.OpenStream, Stream: b.stream})
	b.arena = ops.NewArena(b, b.stream)
	return b
}

// Submit refuses as devices do: what is before the refused operation is enqueued.
func (b *bench) Submit(batch *device.Batch) error {
	b.batches++
	for i, op := range batch.Ops {
		if b.refuse != nil && b.refuse(op) {
			b.refuse = nil
			if err := b.Device.Submit(&device.Batch{Origin: batch.Origin, Ops: batch.Ops[:i]}); err != nil {
				return err
			}
			return &device.Error{Origin: batch.Origin, Index: i, Op: op, Err: errRefused}
		}
	}
	return b.Device.Submit(batch)
}

func (b *bench) op(op device.Op) {
	b.t.Helper()
	if err := b.sim.Submit(&device.Batch{Ops: []device.Op{op}}); err != nil {
		b.t.Fatal(err)
	}
}

// end closes the arena; nothing may be left and nothing may have been found.
func (b *bench) end() {
	b.t.Helper()
	if err := b.arena.Close(); err != nil {
		b.t.Errorf("close: %v", err)
	}
	b.op(device.Op{Kind: device.CloseStream, Stream: b.stream})
	for _, l := range b.sim.Leaks() {
		b.t.Errorf("left on the device: %v", l)
	}
	if err := b.sim.Close(); err != nil {
		b.t.Error(err)
	}
	for _, f := range b.sim.Findings() {
		b.t.Error(f)
	}
}

func (b *bench) flush() error { return b.arena.Flush(device.Origin{Action: "test"}) }

func alloc(s *ops.Scope, name string, n int) device.Tensor {
	return s.Alloc(name, device.Activation, device.Float32, n)
}

func TestFlushIsOneBatch(t *testing.T) {
	b := newBench(t, 0)
	s := b.arena.Scope()
	for _, name := range []string{"x", "y", "z"} {
		x := alloc(s, name, 100)
		b.arena.Launch(ops.Fill(x, 0))
		if name == "y" {
			s.Free(x)
		}
	}
	if b.batches != 0 {
		t.Errorf("%d batches before Flush, want 0", b.batches)
	}
	for _, want := range []int{1, 1} { // the second Flush has nothing to submit
		if err := b.flush(); err != nil || b.batches != want {
			t.Errorf("Flush: %v, %d batches; want no error, %d", err, b.batches, want)
		}
	}
	if got := b.sim.Usage().InUse; got != 2*512 || s.Held() != 2 {
		t.Errorf("%d bytes in use, %d tensors held; want %d and 2", got, s.Held(), 2*512)
	}
	b.end()
}

func TestMemoryError(t *testing.T) {
	b := newBench(t, 1024)
	s := b.arena.Scope()
	alloc(s, "small", 128)
	large := alloc(s, "block 3 pre", 1000)
	last := alloc(s, "last", 1)
	b.arena.Launch(ops.Fill(large, 0))
	err := b.flush()
	var m *ops.MemoryError
	if !errors.As(err, &m) || !errors.Is(err, device.ErrOutOfMemory) {
		t.Fatalf("error is %v, want a *MemoryError that wraps ErrOutOfMemory", err)
	}
	want := ops.MemoryError{Name: "block 3 pre", Place: device.OnDevice, Need: 4000, InUse: 512, Limit: 1024, Err: m.Err}
	if *m != want {
		t.Errorf("error is %+v, want %+v", *m, want)
	}
	text := "out of memory: block 3 pre needs 4000 bytes of device memory; 512 are in use and the limit is 1024"
	if got := err.Error(); got != text {
		t.Errorf("message is %q, want %q", got, text)
	}
	// The rest of the batch was dropped; the arena works on.
	b.arena.Launch(ops.Fill(last, 0))
	if err := b.flush(); !errors.Is(err, ops.ErrShape) {
		t.Errorf("launch on a tensor that was not allocated: %v, want ErrShape", err)
	}
	s.Free(large, last)
	b.arena.Launch(ops.Fill(alloc(s, "fits", 100), 0))
	if err := b.flush(); err != nil {
		t.Errorf("after a refused allocation: %v", err)
	}
	b.end()
}

// TestEveryRefusal refuses each operation of a batch in turn: nothing leaks,
// and the arena can be used afterwards.
func TestEveryRefusal(t *testing.T) {
	for n := 0; ; n++ {
		b := newBench(t, 0)
		h, err := b.arena.Pin("host", 400)
		if err != nil {
			t.Fatal(err)
		}
		s := b.arena.Scope()
		kept := alloc(s, "kept", 100)
		b.arena.Launch(ops.Fill(kept, 0))
		if err := b.flush(); err != nil {
			t.Fatal(err)
		}
		count := 0
		b.refuse = func(device.Op) bool { count++; return count > n }

		x := alloc(s, "x", 100)
		y := alloc(s, "y", 100)
		b.arena.Launch(ops.Fill(x, 0))
		h.CopyIn(y, 0)
		s.Free(x, kept)
		h.CopyOut(0, y)
		e := b.arena.Mark()
		err = b.flush()
		refused := b.refuse == nil
		b.refuse = nil
		if refused != errors.Is(err, errRefused) {
			t.Fatalf("operation %d: refused %t, error %v", n, refused, err)
		}
		s.Close()
		if err := errors.Join(b.flush(), b.arena.Sync(), b.arena.Await(e)); err != nil {
			t.Errorf("operation %d refused, then: %v", n, err)
		}
		if got := b.sim.Usage().InUse; got != 0 {
			t.Errorf("operation %d refused: %d bytes are left", n, got)
		}
		b.end()
		if !refused {
			if n != 9 {
				t.Errorf("%d operations were refused in turn, want all 9", n)
			}
			return
		}
	}
}

// TestScopeOwnership: the last holder frees.
func TestScopeOwnership(t *testing.T) {
	b := newBench(t, 0)
	s := b.arena.Scope()
	taken, mine := alloc(s, "taken", 64), alloc(s, "mine", 64)
	taken.Storage.Take() // as an engine does
	s.Free(taken)
	s.Close()
	if err := b.flush(); err != nil {
		t.Fatal(err)
	}
	if got, want := b.sim.Usage().InUse, int64(256); got != want || !mine.Storage.Buffer().IsZero() {
		t.Errorf("%d bytes in use, want the %d of what was taken", got, want)
	}
	s = b.arena.Scope()
	s.Free(mine)
	if err := b.flush(); err == nil || !strings.Contains(err.Error(), "not in the scope") {
		t.Errorf("freeing a tensor of a closed scope: %v", err)
	}
	if !taken.Storage.Release() {
		t.Error("what was taken has two holders")
	}
	b.op(device.Op{Kind: device.Free, Stream: b.stream, Dst: taken.Range()})
	taken.Storage.Freed()
	b.end()
}

func TestAwaitOnce(t *testing.T) {
	b := newBench(t, 0)
	e := b.arena.Mark()
	if err := errors.Join(b.flush(), b.arena.Await(e)); err != nil {
		t.Fatal(err)
	}
	if err := b.arena.Await(e); err == nil {
		t.Error("awaiting a mark twice: no error")
	}
	b.arena.Mark() // never awaited: Close retires it
	if err := b.flush(); err != nil {
		t.Fatal(err)
	}
	b.end()
}

func TestHostRefuses(t *testing.T) {
	b := newBench(t, 0)
	h, err := b.arena.Pin("host", 256)
	if err != nil {
		t.Fatal(err)
	}
	s := b.arena.Scope()
	x := alloc(s, "x", 64)
	for _, row := range []struct {
		name string
		do   func()
	}{
		{"copy in beyond the end", func() { h.CopyIn(x, 4) }},
		{"copy out before the start", func() { h.CopyOut(-4, x) }},
		{"absent tensor", func() { h.CopyIn(device.Tensor{}, 0) }},
		{"no bytes to allocate", func() { alloc(s, "none", 0) }},
	} {
		row.do()
		if err := b.flush(); err == nil {
			t.Errorf("%s: no error", row.name)
		}
		if err := b.flush(); err != nil {
			t.Errorf("%s: the error came back twice: %v", row.name, err)
		}
	}
	if _, err := h.Read(0, 257); err == nil {
		t.Error("reading beyond the end: no error")
	}
	b.end()
}

func TestPinOutOfMemory(t *testing.T) {
	s := sim.New(sim.Config{HostLimit: 1024})
	a := ops.NewArena(s, device.NewIDs(s).Stream())
	_, err := a.Pin("batch", 4096)
	var m *ops.MemoryError
	if !errors.As(err, &m) || m.Name != "batch" || m.Place != device.OnHost || m.Need != 4096 || !errors.Is(err, device.ErrOutOfMemory) {
		t.Errorf("error is %v, want a *MemoryError about 4096 bytes of host memory for batch", err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}
