package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"

	"offload"
	"offload/device"
	"offload/device/sim"
	"offload/schedule"
)

// world is a simulated device with an engine and what a loop needs around them.
type world struct {
	r       *rand.Rand
	dev     *sim.Device
	under   device.Device // what the engine is opened on
	ids     *device.IDs
	streams []device.Stream
	engine  *offload.Engine
	layers  int
	manual  bool
	wrong   error // the first comparison that failed
	serial  int64
}

// lifecycle plays a few random passes of the seed on a device of their own.
func lifecycle(t *tally, seed uint64) error {
	dev := sim.New(sim.Config{ID: 1, Seed: seed})
	t.lifecycles++
	return live(t, dev, dev, seed, 3)
}

// live plays up to most random passes of the seed on dev, with an engine on
// under, and closes both.
func live(t *tally, dev *sim.Device, under device.Device, seed uint64, most int) (err error) {
	w := &world{r: rand.New(rand.NewPCG(seed, 1)), dev: dev, under: under}
	w.register()
	w.ids = device.NewIDs(w.dev)
	for range 1 + w.r.IntN(2) {
		s := w.ids.Stream()
		if err := w.dev.Submit(&device.Batch{Ops: []device.Op{{Kind: device.OpenStream, Stream: s}}}); err != nil {
			return err
		}
		w.streams = append(w.streams, s)
	}
	if err := w.open(); err != nil {
		return err
	}
	for range 1 + w.r.IntN(most) {
		t.passes++
		if err = w.pass(); err != nil {
			break
		}
	}
	return errors.Join(err, w.close())
}

func (w *world) register() {
	w.dev.Register("fill", func(c *sim.Call) error {
		pattern(c.Write(c.Arg(0).Range), c.Arg(1).Int)
		return nil
	})
	w.dev.Register("check", func(c *sim.Call) error {
		got := c.Read(c.Arg(0).Range)
		want := make([]byte, len(got))
		pattern(want, c.Arg(1).Int)
		if !bytes.Equal(got, want) && w.wrong == nil {
			w.wrong = fmt.Errorf("%w: wrong bytes in %v", errFound, c.Arg(0).Range)
		}
		return nil
	})
}

// pattern fills b with bytes that only n gives.
func pattern(b []byte, n int64) {
	x := uint64(n)*0x9e3779b97f4a7c15 + 1
	for i := range b {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		b[i] = byte(x)
	}
}

func (w *world) open() (err error) {
	w.layers = 1 + w.r.IntN(5)
	w.manual = w.r.IntN(3) == 0
	opts := offload.Options{
		MinElements: int64(1 + w.r.IntN(2)*2000), SlabBytes: 8 << 10,
		CopyAtPush: w.r.IntN(4) == 0, Explain: w.r.IntN(4) == 0, RetainHost: w.r.IntN(6) == 0,
	}
	if w.r.IntN(4) == 0 {
		opts.HostBudget = int64(1+w.r.IntN(6)) * 4096
	}
	if w.r.IntN(3) == 0 {
		opts.CoalesceBytes = 1024
	}
	if w.r.IntN(16) == 0 {
		opts.Dispatch = offload.Goroutines
	}
	if w.manual {
		opts.Layers = w.layers
	} else if opts.Plan, err = schedule.Window(w.layers, w.r.IntN(w.layers)); err != nil {
		return err
	}
	w.engine, err = offload.Open(w.under, opts)
	return err
}

// saved is what a layer has saved.
type saved struct {
	value  offload.Saved
	serial int64
	lo     int64 // of the view within its storage
}

// pass plays a pass, which may be given up anywhere.
func (w *world) pass() error {
	pass, err := w.engine.Begin(context.Background(), offload.Train, w.streams[0])
	if err != nil {
		if errors.Is(err, offload.ErrBudget) {
			return nil // the budget is too small for anything
		}
		return err
	}
	layers := make([][]saved, w.layers)
	end := pass.End
	giveUp := w.r.IntN(5) == 0
	err = w.play(pass, layers, func() bool { return giveUp && w.r.IntN(6) == 0 })
	if errors.Is(err, errGivenUp) || tolerable(err) == nil && err != nil {
		end, err = pass.Abort, nil
	}
	if err == nil {
		err = end()
	}
	if err != nil {
		return errors.Join(err, pass.Abort(), pass.Abort()) // the second one in case a fault strikes the first
	}
	return nil
}

var errGivenUp = errors.New("given up")

func (w *world) play(pass *offload.Pass, layers [][]saved, stop func() bool) error {
	slots := make([]*offload.Slot, w.layers)
	var shared device.Tensor
	var sharedSerial int64
	for i := range w.layers {
		if stop() {
			return errGivenUp
		}
		slot, err := pass.Forward(i)
		if err != nil {
			return err
		}
		slots[i] = slot
		for range w.r.IntN(4) {
			stream := w.streams[w.r.IntN(len(w.streams))]
			x, serial, lo := shared, sharedSerial, int64(0)
			if x.IsNil() || w.r.IntN(4) > 0 || x.Storage.Buffer().IsZero() {
				if x, err = w.tensor(stream); err != nil {
					return err
				}
				serial = w.serial
				shared, sharedSerial = x, serial
			} else {
				stream = x.Storage.Home()
			}
			if w.r.IntN(4) == 0 { // a view of some of it
				lo = int64(w.r.IntN(x.Shape[0]))
				x.Offset, x.Shape = lo, []int{1 + w.r.IntN(x.Shape[0]-int(lo))}
			}
			values, err := slot.On(stream).Push(x)
			if errors.Is(err, offload.ErrMoved) {
				continue
			}
			if err != nil {
				return err
			}
			layers[i] = append(layers[i], saved{values[0], serial, lo})
		}
		if w.manual && w.r.IntN(4) > 0 {
			if err := tolerable(slot.StartOffload()); err != nil {
				return err
			}
		}
	}
	if w.manual {
		if err := w.leave(slots); err != nil {
			return err
		}
	}
	for i := range slices.Backward(slots) {
		if stop() {
			return errGivenUp
		}
		slot, err := pass.Backward(i)
		if err != nil {
			return err
		}
		if w.manual {
			if err := w.fetch(slot); err != nil {
				return err
			}
		}
		for _, v := range layers[i] {
			if w.r.IntN(6) == 0 {
				continue // never used
			}
			stream := w.streams[w.r.IntN(len(w.streams))]
			back, err := slot.On(stream).Pop(v.value)
			if err != nil {
				return err
			}
			if err := w.check(stream, back[0], v); err != nil {
				return err
			}
		}
	}
	return nil
}

// tolerable takes refusals of budgets and retained memory for answers.
func tolerable(err error) error {
	if errors.Is(err, offload.ErrBudget) || errors.Is(err, offload.ErrShape) {
		return nil
	}
	return err
}

// leave releases some of the slots of a manual plan, and gives up some offloads.
func (w *world) leave(slots []*offload.Slot) error {
	for _, s := range slots {
		if s.State().String() != "Offloading" {
			continue
		}
		switch w.r.IntN(4) {
		case 0:
			if err := s.Revive(); err != nil {
				return err
			}
		case 1:
		default:
			if err := s.Release(); err != nil {
				return err
			}
		}
	}
	return nil
}

// fetch brings a slot of a manual plan back.
func (w *world) fetch(s *offload.Slot) error {
	switch s.State().String() {
	case "Offloading":
		return s.Revive()
	case "Offloaded":
		return s.Reload()
	}
	return nil
}

// tensor makes a storage of random size, filled on its stream.
func (w *world) tensor(stream device.Stream) (device.Tensor, error) {
	n := 256 + w.r.IntN(12)*512
	s := w.ids.NewStorage("x", device.Activation, int64(n), stream)
	x := device.Tensor{Storage: s, DType: device.Uint8, Shape: []int{n}}
	w.serial++
	k := &device.Kernel{Name: "fill", Args: []device.Arg{{Range: x.Range()}, {Int: w.serial}}, Writes: []device.Range{x.Range()}}
	return x, w.dev.Submit(&device.Batch{Ops: []device.Op{
		{Kind: device.Alloc, Stream: stream, Dst: x.Range()},
		{Kind: device.Launch, Stream: stream, Kernel: k},
	}})
}

// check compares a popped view on a stream. Views of some bytes are compared by
// the whole pattern up to their end.
func (w *world) check(stream device.Stream, x device.Tensor, v saved) error {
	if v.lo != 0 {
		k := &device.Kernel{Name: "touch", Reads: []device.Range{x.Range()}}
		return w.dev.Submit(&device.Batch{Ops: []device.Op{{Kind: device.Access, Stream: stream, Kernel: k}}})
	}
	k := &device.Kernel{Name: "check", Args: []device.Arg{{Range: x.Range()}, {Int: v.serial}}, Reads: []device.Range{x.Range()}}
	return w.dev.Submit(&device.Batch{Ops: []device.Op{{Kind: device.Launch, Stream: stream, Kernel: k}}})
}

// errFound is what the simulator has found, or what is left or wrong.
var errFound = errors.New("found")

// close ends the world. Nothing may be left, unless closing the engine failed,
// and nothing may have been found.
func (w *world) close() error {
	m := w.engine.Metrics()
	failed := w.engine.Close()
	errs := []error{failed}
	if m.StoragesHeld != 0 || m.SlotsHeld != 0 || m.PassesOpen != 0 {
		errs = append(errs, fmt.Errorf("%w: held after the last pass: %d storages, %d slots, %d passes", errFound, m.StoragesHeld, m.SlotsHeld, m.PassesOpen))
	}
	for _, s := range w.streams {
		errs = append(errs, w.dev.Submit(&device.Batch{Ops: []device.Op{{Kind: device.CloseStream, Stream: s}}}))
	}
	errs = append(errs, w.dev.Close())
	for _, f := range w.dev.Findings() {
		if failed == nil || f.Rule != sim.Leak {
			errs = append(errs, fmt.Errorf("%w: %v", errFound, f))
		}
	}
	return errors.Join(append(errs, w.wrong)...)
}
