package offload_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"offload"
	"offload/device"
	"offload/device/sim"
	"offload/fsm"
	"offload/tests/rig"
)

// One storage is copied once, however often and wherever it is pushed.
func TestPushedTwice(t *testing.T) {
	rig.EachDispatch(t, func(t *testing.T, d offload.Dispatch) {
		b := manual(t, d)
		defer b.close()
		p := b.begin()
		x, y := b.Tensor(b.Compute, "x", 4096), b.Tensor(b.Compute, "y", 4096)
		half := x // a view of the second half
		half.Shape, half.Offset = []int{2048}, 2048
		s0, s1 := b.forward(p, 0), b.forward(p, 1)
		saved, err := s0.Push(x, y, x, half)
		b.must(err)
		again := b.pushTensor(s1, x)
		if saved[0] == saved[2] {
			t.Error("two pushes of one tensor gave one Saved")
		}
		for _, s := range []*offload.Slot{s0, s1} {
			b.must(s.StartOffload())
			b.must(s.Release())
		}
		if m := b.engine.Metrics(); m.CopiesOut != 2 || m.BytesOut != 8192 || m.StoragesHeld != 2 {
			t.Errorf("got %d copies of %d bytes for %d storages, want 2 of 8192 for 2", m.CopiesOut, m.BytesOut, m.StoragesHeld)
		}
		if got := b.Sim.Usage().InUse; got != 0 {
			t.Errorf("%d bytes on the device after the release, want none", got)
		}
		b.must(s1.Reload())
		b.pop(s1, again, "x")
		b.must(s0.Reload()) // x is there already
		ts, err := s0.Pop(saved...)
		b.must(err)
		b.Check(b.Compute, ts[0], "x")
		b.Check(b.Compute, ts[1], "y")
		if ts[0].Range() != ts[2].Range() || !ts[0].Range().Contains(ts[3].Range()) || ts[3].Range().Offset != 2048 {
			t.Errorf("views of one storage are at %v, %v and %v", ts[0].Range(), ts[2].Range(), ts[3].Range())
		}
		if m := b.engine.Metrics(); m.CopiesIn != 2 || m.BytesIn != 8192 {
			t.Errorf("got %d copies of %d bytes back, want 2 of 8192", m.CopiesIn, m.BytesIn)
		}
		b.must(s1.Reset()) // x is still needed by layer 0
		b.pop(s0, saved[0], "x")
		b.must(p.End())
	})
}

// A storage pushed to two layers leaves the device when both have released it,
// and its host memory is given back when neither will reload it.
func TestSharedByTwoLayers(t *testing.T) {
	rig.EachDispatch(t, func(t *testing.T, d offload.Dispatch) {
		b := manual(t, d)
		defer b.close()
		p := b.begin()
		x := b.Tensor(b.Compute, "x", 4096)
		s0, s1 := b.forward(p, 0), b.forward(p, 1)
		v0, v1 := b.pushTensor(s0, x), b.pushTensor(s1, x)
		b.must(s0.StartOffload())
		b.must(s0.Release())
		if got := b.Sim.Usage().InUse; got != 4096 {
			t.Errorf("%d bytes on the device while layer 1 needs them, want 4096", got)
		}
		b.pop(s1, v1, "x")
		b.must(s1.Reset()) // nobody needs them there now
		if got := b.Sim.Usage().InUse; got != 0 {
			t.Errorf("%d bytes on the device, want none", got)
		}
		if m := b.engine.Metrics(); m.StoragesHeld != 1 || m.HostInUse == 0 {
			t.Errorf("the bytes of layer 0 are gone: %+v", m)
		}
		b.must(s0.Reload())
		b.pop(s0, v0, "x")
		b.must(p.End())
		if m := b.engine.Metrics(); m.StoragesHeld != 0 || m.HostInUse != 0 {
			t.Errorf("held after the end: %+v", m)
		}
	})
}

// A storage that the caller retains is copied, stays on the device, and is the
// caller's after the pass.
func TestRetained(t *testing.T) {
	rig.EachDispatch(t, func(t *testing.T, d offload.Dispatch) {
		b := window(t, d, 3, 1)
		defer b.close()
		p := b.begin()
		x := b.Tensor(b.Compute, "x", 4096)
		at := x.Range()
		b.Keep(x)
		saved := b.pushTensor(b.forward(p, 0), x)
		b.forward(p, 1)
		slot := b.forward(p, 2)
		if got := b.Sim.Usage().InUse; got != 4096 {
			t.Errorf("%d bytes on the device, want 4096", got)
		}
		b.Check(b.Compute, x, "x")
		if slot.State() != fsm.Resident {
			t.Errorf("layer 2 is %v", slot.State())
		}
		b.backward(p, 2)
		b.backward(p, 1)
		if got := b.pop(b.backward(p, 0), saved, "x"); got.Range() != at {
			t.Errorf("it came back at %v, want %v, where it stayed", got.Range(), at)
		}
		b.must(p.End())
		if m := b.engine.Metrics(); m.CopiesOut != 1 || m.CopiesIn != 0 {
			t.Errorf("%d copies out and %d in, want 1 and 0", m.CopiesOut, m.CopiesIn)
		}
		if x.Storage.Holders() != 1 || x.Range() != at {
			t.Errorf("%d hold it at %v, want 1 at %v", x.Storage.Holders(), x.Range(), at)
		}
		// The caller may write to it, or free it, on its stream at once.
		b.Fill(b.Compute, x, "something else")
		b.Drop(b.Compute, x)
	})
}

// A tensor that is changed between its push and its copy is not copied, nor is
// anything else of the slot.
func TestChanged(t *testing.T) {
	rig.EachDispatch(t, func(t *testing.T, d offload.Dispatch) {
		b := manual(t, d)
		defer b.close()
		p := b.begin()
		slot := b.forward(p, 0)
		saved := b.push(slot, "x")
		y := b.Tensor(b.Compute, "y", 4096)
		b.pushTensor(slot, y)
		y.Storage.Touch()
		if err := b.unchanged("start-offload", slot, slot.StartOffload); !errors.Is(err, offload.ErrChanged) {
			t.Errorf("got %v, want ErrChanged", err)
		}
		other := b.forward(p, 1)
		err := b.unchanged("push", other, func() error { _, err := other.Push(y); return err })
		if !errors.Is(err, offload.ErrChanged) {
			t.Errorf("saving it in another layer: got %v, want ErrChanged", err)
		}
		b.pop(slot, saved, "x")
		b.must(p.End())
	})
}

// A plan that cannot start the offload says so at the boundary, and the pass
// can be given up.
func TestChangedUnderAWindow(t *testing.T) {
	b := window(t, offload.Inline, 3, 1)
	defer b.close()
	p := b.begin()
	x := b.Tensor(b.Compute, "x", 4096)
	b.pushTensor(b.forward(p, 0), x)
	x.Storage.Touch()
	if _, err := p.Forward(1); !errors.Is(err, offload.ErrChanged) {
		t.Errorf("got %v, want ErrChanged", err)
	}
	b.must(p.Abort())
	if m := b.engine.Metrics(); m.CopiesOut != 0 || m.StoragesHeld != 0 {
		t.Errorf("got %+v", m)
	}
}

// The second pop of a tensor on a stream is ordered already; on another stream
// it is not. The buffer is the same.
func TestPopTwice(t *testing.T) {
	rig.EachDispatch(t, func(t *testing.T, d offload.Dispatch) {
		b := window(t, d, 2, 1)
		defer b.close()
		side := b.Stream()
		p := b.begin()
		saved := b.push(b.forward(p, 0), "x")
		b.forward(p, 1)
		b.backward(p, 1)
		slot := b.backward(p, 0)
		first := b.pop(slot, saved, "x")
		before := b.Sim.Stats()
		again, err := slot.Pop(saved, saved)
		b.must(err)
		if got := b.Sim.Stats(); got != before {
			t.Errorf("the second pop asked the device for something:\ngot  %v\nwant %v", got, before)
		}
		elsewhere, err := slot.On(side).Pop(saved)
		b.must(err)
		b.Check(side, elsewhere[0], "x")
		if got := b.Sim.Stats().Count(device.Wait) - before.Count(device.Wait); got != 1 {
			t.Errorf("%d waits for the pop on another stream, want 1", got)
		}
		if first.Range() != again[0].Range() || first.Range() != again[1].Range() || first.Range() != elsewhere[0].Range() {
			t.Errorf("pops gave %v, %v, %v and %v", first.Range(), again[0].Range(), again[1].Range(), elsewhere[0].Range())
		}
		b.must(p.End())
	})
}

// Tensors made and used on several streams, which nothing but the engine orders.
func TestStreams(t *testing.T) {
	rig.EachDispatch(t, func(t *testing.T, d offload.Dispatch) {
		for seed := range uint64(20) {
			b := &bench{Rig: rig.New(t, sim.Config{Seed: seed}), t: t}
			b.engine = b.Open(offload.Options{Layers: 2, Dispatch: d, MinElements: 1, SlabBytes: 64 << 10})
			left, right := b.Stream(), b.Stream()
			p := b.begin()
			moves, stays := b.forward(p, 0), b.forward(p, 1)
			var saved, kept []offload.Saved
			for i, s := range []device.Stream{b.Compute, left, right} {
				v, err := moves.On(s).Push(b.Tensor(s, fmt.Sprint("moves", i), 4096))
				b.must(err)
				saved = append(saved, v...)
				v, err = stays.On(s).Push(b.Tensor(s, fmt.Sprint("stays", i), 4096))
				b.must(err)
				kept = append(kept, v...)
			}
			b.must(moves.On(left).StartOffload())
			b.must(moves.On(right).Release())
			b.must(moves.On(left).Reload())
			for i := range saved {
				for _, s := range []device.Stream{right, b.Compute, left} {
					ts, err := moves.On(s).Pop(saved[i])
					b.must(err)
					b.Check(s, ts[0], fmt.Sprint("moves", i))
					ts, err = stays.On(s).Pop(kept[i])
					b.must(err)
					b.Check(s, ts[0], fmt.Sprint("stays", i))
				}
			}
			b.must(p.End())
			b.close()
		}
	})
}

// A tensor larger than a slab, and many tensors of one slot, come back as one.
func TestSizes(t *testing.T) {
	rig.EachDispatch(t, func(t *testing.T, d offload.Dispatch) {
		b := manual(t, d)
		defer b.close()
		for round := range 3 {
			p := b.begin()
			slot := b.forward(p, 0)
			var saved []offload.Saved
			sizes := []int64{1, 4095, 4096, 4097, 65535, 65536, 65537, 200001}
			for i, n := range sizes {
				saved = append(saved, b.pushTensor(slot, b.Tensor(b.Compute, fmt.Sprint(round, i), n)))
			}
			b.reach(slot, fsm.Reloading)
			for i := range sizes {
				b.pop(slot, saved[i], fmt.Sprint(round, i))
			}
			b.must(p.End())
		}
		if m := b.engine.Metrics(); m.Pins == 0 || m.EventsLive > 16 {
			t.Errorf("after three passes: %+v", m)
		}
	})
}

// Nothing grows from pass to pass.
func TestManyPasses(t *testing.T) {
	const layers, passes = 4, 200
	b := window(t, offload.Inline, layers, 2)
	defer b.close()
	var settled offload.Metrics
	for round := range passes {
		p := b.begin()
		var saved [layers]offload.Saved
		for i := range layers {
			saved[i] = b.push(b.forward(p, i), fmt.Sprint("x", i))
		}
		for i := layers - 1; i >= 0; i-- {
			b.pop(b.backward(p, i), saved[i], fmt.Sprint("x", i))
		}
		b.must(p.End())
		m := b.engine.Metrics()
		if round == 2 {
			settled = m
		}
		if round > 2 && (m.EventsLive != settled.EventsLive || m.HostHeld != settled.HostHeld || m.Pins != settled.Pins || m.StoragesHeld != 0) {
			t.Fatalf("pass %d:\ngot  %+v\nwant %+v", round, m, settled)
		}
	}
}

// Two engines on one device, and one engine on two devices, keep apart.
func TestTwoEngines(t *testing.T) {
	rig.EachDispatch(t, func(t *testing.T, d offload.Dispatch) {
		b := manual(t, d)
		defer b.close()
		second := &bench{Rig: b.Rig, t: t, engine: b.Open(offload.Options{Layers: 3, Dispatch: d, MinElements: 1, SlabBytes: 64 << 10})}
		p1, p2 := b.begin(), second.begin()
		s1, s2 := b.forward(p1, 0), b.forward(p2, 0)
		v1, v2 := b.push(s1, "first"), b.push(s2, "second")
		b.reach(s1, fsm.Offloaded)
		b.reach(s2, fsm.Offloaded)
		b.must(s1.Reload())
		b.pop(s1, v1, "first")
		b.must(s2.Reload())
		b.pop(s2, v2, "second")
		b.must(p1.End())
		b.must(p2.End())
		b.must(second.engine.Close())
		if m := b.engine.Metrics(); m.CopiesOut != 1 || m.PassesBegun != 1 {
			t.Errorf("one engine counts what the other did: %+v", m)
		}
	})
}

func TestTwoDevices(t *testing.T) {
	rig.EachDispatch(t, func(t *testing.T, d offload.Dispatch) {
		left, right := rig.New(t, sim.Config{}), rig.New(t, sim.Config{})
		defer left.Close()
		defer right.Close()
		e, err := offload.OpenAll([]device.Device{left.Sim, right.Sim},
			offload.Options{Layers: 1, Dispatch: d, MinElements: 1, SlabBytes: 64 << 10})
		if err != nil {
			t.Fatal(err)
		}
		var passes []*offload.Pass
		for _, r := range []*rig.Rig{left, right} {
			b := &bench{Rig: r, t: t, engine: e}
			p := b.begin()
			slot := b.forward(p, 0)
			saved := b.push(slot, "x")
			b.reach(slot, fsm.Reloading)
			if x := b.pop(slot, saved, "x"); x.Range().Buffer.Device != r.IDs.Device() {
				t.Errorf("it came back on device %d, want %d", x.Range().Buffer.Device, r.IDs.Device())
			}
			passes = append(passes, p)
		}
		for _, r := range []*rig.Rig{left, right} {
			if got := r.Sim.Stats(); got.BytesOut != 4096 || got.BytesIn != 4096 {
				t.Errorf("one of the devices: %v", got)
			}
		}
		for _, p := range passes {
			if err := p.End(); err != nil {
				t.Error(err)
			}
		}
		if m := e.Metrics(); m.CopiesOut != 2 || m.BytesIn != 8192 {
			t.Errorf("got %+v, want the sums of both devices", m)
		}
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
}

// A storage that is saved in two engines stays on the device until the last of
// them is done.
func TestSharedByTwoEngines(t *testing.T) {
	b := manual(t, offload.Inline)
	defer b.close()
	second := b.Open(offload.Options{Layers: 1, MinElements: 1, SlabBytes: 64 << 10})
	p1 := b.begin()
	p2, err := second.Begin(context.Background(), offload.Train, b.Compute)
	b.must(err)
	x := b.Tensor(b.Compute, "x", 4096)
	s1, s2 := b.forward(p1, 0), b.forward(p2, 0)
	v1, v2 := b.pushTensor(s1, x), b.pushTensor(s2, x)
	b.reach(s1, fsm.Offloaded)
	b.pop(s2, v2, "x")
	b.must(s1.Reload())
	b.pop(s1, v1, "x")
	b.must(p1.End())
	b.pop(s2, v2, "x")
	b.must(p2.End())
	b.must(second.Close())
}

// A storage that is on its way back may be saved in another layer. Its stream is
// ordered after the copy in, although nobody has popped it there.
func TestPushedWhileReloading(t *testing.T) {
	rig.EachDispatch(t, func(t *testing.T, d offload.Dispatch) {
		b := manual(t, d)
		defer b.close()
		p := b.begin()
		x := b.Tensor(b.Compute, "x", 4096)
		s0, s1 := b.forward(p, 0), b.forward(p, 1)
		v1 := b.pushTensor(s1, x)
		b.reach(s1, fsm.Reloading)
		v0 := b.pushTensor(s0, x)
		b.pop(s0, v0, "x") // where it was pushed: this asks the device for nothing
		b.must(s0.StartOffload())
		b.pop(s1, v1, "x")
		b.must(p.End())
	})
}

// A tensor that was allocated on another stream than it is saved on is freed
// after both: the stream of its allocation may still be using it.
func TestAllocatedElsewhere(t *testing.T) {
	rig.EachDispatch(t, func(t *testing.T, d offload.Dispatch) {
		b := manual(t, d)
		defer b.close()
		side := b.Stream()
		p := b.begin()
		for layer, state := range []fsm.State{fsm.Offloaded, fsm.Resident} { // freed by Release, and by End
			name := fmt.Sprint("x", layer)
			x := b.Tensor(side, name, 4096)
			b.Order(side, b.Compute)
			b.Check(side, x, name)
			slot := b.forward(p, layer)
			b.pushTensor(slot, x)
			b.reach(slot, state)
		}
		b.must(p.End())
	})
}
