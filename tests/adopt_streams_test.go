package tests

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"offload"
	"offload/device"
	"offload/device/sim"
	"offload/fsm"
	"offload/schedule"
	"offload/tests/rig"
)

// Memory that one stream filled and others saved and read is given back on the
// stream of the call that gives it back, after all of them.
func TestAdoptedMemoryOnSeveralStreams(t *testing.T) {
	eachOrder(t, offload.Options{}, func(s *stage) {
		left, right := s.Stream(), s.Stream()
		moved := s.adoptOn(left, "moved", 4096, nil)
		kept := s.adoptOn(right, "kept", 4096, nil)
		kept.tensor.Keep = true
		slot := s.forward(0)
		saved := s.push(slot.On(left), moved.tensor)
		saved = append(saved, s.push(slot.On(right), kept.tensor)...)
		s.pop(slot, right, saved[:1], moved.tensor) // read before it leaves
		s.must(slot.StartOffload())
		s.must(slot.On(right).Release())
		if want := []device.Stream{right}; !slices.Equal(moved.back, want) || len(kept.back) != 0 {
			t.Errorf("after the release: given back on %v and %v, want %v and none", moved.back, kept.back, want)
		}
		s.must(slot.On(left).Reload())
		for _, stream := range []device.Stream{s.Compute, left, right} {
			s.pop(slot, stream, saved, moved.tensor, kept.tensor)
		}
		s.must(slot.On(left).Reset())
		if want := []device.Stream{left}; !slices.Equal(kept.back, want) || len(moved.back) != 1 {
			t.Errorf("after the reset: given back on %v and %v, want %v once more", moved.back, kept.back, want)
		}
	})
}

// Views of one storage move as one, and the memory behind all of them is given
// back once.
func TestViewsOfAdoptedMemory(t *testing.T) {
	eachOrder(t, offload.Options{}, func(s *stage) {
		a := s.adopt("theirs", 4096, nil)
		rows, columns := a.tensor, a.tensor
		rows.Shape, rows.Offset = []int{512}, 1024
		columns.Shape, columns.Strides, columns.Offset = []int{64, 8}, []int{64, 1}, 3
		slot := s.forward(0)
		saved := s.push(slot, rows, columns)
		s.reach(fsm.Offloaded, slot)
		a.given("after the release", 1)
		s.reach(fsm.Reloading, slot)
		ts, err := slot.Pop(saved...)
		s.must(err)
		for _, x := range ts {
			s.CheckView(s.Compute, x, "theirs")
		}
	})
}

// Memory of the caller is not the device's: it counts in no limit, and what is
// reloaded does.
func TestAdoptedMemoryIsNotCounted(t *testing.T) {
	rig.EachDispatch(t, func(t *testing.T, d offload.Dispatch) {
		s := newStage(t, offload.Options{Dispatch: d, DeviceBudget: 4096}, sim.Config{MemoryLimit: 4096})
		defer s.close()
		var all []*adopted
		var ts []device.Tensor
		for i := range 3 {
			all = append(all, s.adopt(fmt.Sprint("theirs ", i), 4096, nil))
			ts = append(ts, all[i].tensor)
		}
		first, rest, stays := s.forward(0), s.forward(1), s.forward(2)
		saved := s.push(first, ts[0])
		s.push(rest, ts[1:]...)
		s.push(stays, s.adopt("theirs, large", 1<<20, nil).tensor)
		s.reach(fsm.Offloaded, first, rest)
		if got := s.Sim.Usage(); got.Peak != 0 {
			t.Errorf("%d bytes of the device were in use for memory of the caller", got.Peak)
		}
		s.reach(fsm.Reloading, first)
		s.pop(first, s.Compute, saved, ts[0])
		if got := s.Sim.Usage().InUse; got != 4096 {
			t.Errorf("%d bytes in use after the reload, want 4096", got)
		}
		var full *offload.BudgetError
		if err := rest.Reload(); !errors.As(err, &full) {
			t.Fatalf("a second reload: got %v, want a BudgetError", err)
		}
		if len(full.Top) != 1 || full.Top[0].Layer != 0 || full.Top[0].Bytes != 4096 {
			t.Errorf("most is held by %+v, want layer 0 with 4096 bytes and nobody else", full.Top)
		}
		for _, a := range all {
			a.given("after the release", 1)
		}
	})
}

// An inference pass takes nothing over.
func TestAdoptedMemoryInInference(t *testing.T) {
	eachOrder(t, offload.Options{}, func(s *stage) {
		a := s.adopt("theirs", 4096, nil)
		p, err := s.engine.Begin(context.Background(), offload.Inference, s.Compute)
		s.must(err)
		slot, err := p.Forward(0)
		s.must(err)
		s.push(slot, a.tensor)
		s.must(p.End())
		a.given("after the pass", 0)
		s.Drop(s.Compute, a.tensor)
		a.given("by its owner", 1)
	})
}

// lender has a fixed number of blocks of its own, which it lends to the engine in
// every pass, and uses again as soon as they are given back: in the order of the
// stream that it is told, and in no other.
type lender struct {
	*rig.Rig
	blocks []*sim.External
	lent   []bool          // by block
	back   []device.Stream // by block: on which it was given back, if it was
	fills  int
	told   int // give-backs
}

// lend adopts block i, which is not lent, and fills it in the order of stream,
// which comes after the block's last give-back and nothing else. The name of what
// is in it is returned as well.
func (l *lender) lend(i int, stream device.Stream) (x device.Tensor, name string) {
	l.T.Helper()
	l.fills++
	name = fmt.Sprint("fill ", l.fills)
	bytes := int(l.blocks[i].MemSize())
	storage, op := l.IDs.AdoptStorage(name, device.Activation, l.blocks[i], stream, func(back device.Stream) {
		if !l.lent[i] {
			l.T.Errorf("%s: given back twice", name)
		}
		l.lent[i], l.back[i] = false, back
		l.told++
	})
	l.Submit(op)
	l.lent[i] = true
	if back := l.back[i]; back != stream && !back.IsZero() {
		l.Order(back, stream)
	}
	x = device.Tensor{Storage: storage, DType: device.Uint8, Shape: []int{bytes}}
	l.Fill(stream, x, name)
	return x, name
}

// Whatever is lent, saved in whatever layers, kept, retained or given up: the
// bytes come back, every block is given back once, and what its owner does next
// with it is no race.
func TestAnyAdoptedMemory(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		layers := rapid.IntRange(1, 4).Draw(rt, "layers")
		opts := offload.Options{Layers: layers, MinElements: 64, SlabBytes: 16 << 10,
			CopyAtPush: rapid.Bool().Draw(rt, "copy at push"),
			Dispatch:   rapid.SampledFrom([]offload.Dispatch{offload.Inline, offload.Goroutines}).Draw(rt, "dispatch")}
		if offloaded := rapid.IntRange(-1, layers-1).Draw(rt, "offloaded (-1: a manual plan)"); offloaded >= 0 {
			plan, err := schedule.Window(layers, offloaded)
			if err != nil {
				rt.Fatal(err)
			}
			opts.Plan = plan
		}
		l := &lender{Rig: rig.New(rt, sim.Config{Seed: rapid.Uint64().Draw(rt, "seed")})}
		side := l.Stream()
		for range rapid.IntRange(1, 5).Draw(rt, "blocks") {
			l.blocks = append(l.blocks, l.Sim.External(rapid.Int64Range(1, 600).Draw(rt, "bytes")))
		}
		l.lent, l.back = make([]bool, len(l.blocks)), make([]device.Stream, len(l.blocks))
		engine := l.Open(opts)
		for range rapid.IntRange(1, 3).Draw(rt, "passes") {
			l.pass(rt, engine, side)
		}
		if err := engine.Close(); err != nil {
			rt.Error(err)
		}
		if l.told != l.fills || slices.Contains(l.lent, true) {
			rt.Errorf("lent %d times and given back %d times", l.fills, l.told)
		}
		l.Sync()
		for _, b := range l.blocks {
			b.Read() // a finding if anything may still use it
		}
		l.Close()
	})
}

// pass runs one pass, to its end or until it is given up.
func (l *lender) pass(rt *rapid.T, engine *offload.Engine, side device.Stream) {
	must := func(err error) {
		rt.Helper()
		if err != nil {
			rt.Fatal(err)
		}
	}
	type item struct {
		saved  offload.Saved
		name   string
		stream device.Stream
	}
	type lent struct {
		tensor device.Tensor
		name   string
		stream device.Stream
	}
	manual := engine.Plan().IsManual()
	pass, err := engine.Begin(context.Background(), offload.Train, l.Compute)
	must(err)
	var slots []*offload.Slot
	var retained []lent
	items := make(map[int][]item)
	var before []lent // what the layer before has saved and not released; the next one may save it as well
	quit := rapid.IntRange(0, 2*engine.Plan().Layers()+3).Draw(rt, "calls before it is given up")
	giveUp := func() bool { quit--; return quit < 0 }
	finish := func(end func() error) {
		must(end())
		if len(retained) > 0 {
			l.Order(side, l.Compute) // what a holder gives back comes after what he did with it
		}
		for _, r := range retained {
			l.Drop(l.Compute, r.tensor)
		}
	}
	for layer := range engine.Plan().Layers() {
		if giveUp() {
			finish(pass.Abort)
			return
		}
		slot, err := pass.Forward(layer)
		must(err)
		slots = append(slots, slot)
		var here []lent
		for _, again := range before {
			if !again.tensor.Storage.Buffer().IsZero() && rapid.Bool().Draw(rt, "saved again") {
				here = append(here, again)
			}
		}
		for i := range l.blocks {
			if l.lent[i] || rapid.IntRange(0, 2).Draw(rt, "lend") == 0 {
				continue
			}
			stream := rapid.SampledFrom([]device.Stream{l.Compute, side}).Draw(rt, "stream")
			x, name := l.lend(i, stream)
			x.Keep = rapid.IntRange(0, 4).Draw(rt, "keep") == 0
			if rapid.IntRange(0, 4).Draw(rt, "retain") == 0 {
				l.Keep(x)
				retained = append(retained, lent{x, name, stream})
			}
			here = append(here, lent{x, name, stream})
		}
		for _, x := range here {
			saved, err := slot.On(x.stream).Push(x.tensor)
			must(err)
			items[layer] = append(items[layer], item{saved[0], x.name, x.stream})
		}
		before = here
		if manual && rapid.Bool().Draw(rt, "offload") {
			must(slot.StartOffload())
			if rapid.Bool().Draw(rt, "release") {
				must(slot.Release())
				before = nil
			}
		}
	}
	for layer := len(slots) - 1; layer >= 0; layer-- {
		if giveUp() {
			finish(pass.Abort)
			return
		}
		slot, err := pass.Backward(layer)
		must(err)
		switch slot.State() {
		case fsm.Offloading:
			must(slot.Revive())
		case fsm.Offloaded:
			must(slot.Reload())
		}
		for _, it := range items[layer] {
			for _, stream := range []device.Stream{it.stream, l.Compute} {
				ts, err := slot.On(stream).Pop(it.saved)
				must(err)
				l.Check(stream, ts[0], it.name)
			}
		}
	}
	finish(pass.End)
}
