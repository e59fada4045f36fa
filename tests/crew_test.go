package tests

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"

	"offload"
	"offload/device"
	"offload/fsm"
	"offload/tests/rig"
)

// crew is a loop with several micro-batches, each of which has a hand. What a
// hand does follows from a seed: it leaves layers out, runs them twice, does not
// use what it saved, is told to stop, or gives up.
type crew struct {
	*rig.Rig
	engine *offload.Engine
	opts   offload.Options
	layers int
	alone  bool // one hand at a time

	mu     sync.Mutex
	passes []*offload.Pass
	broken []string // invariants
}

// hand runs the pass of one micro-batch.
type hand struct {
	*crew
	name   string
	r      *rand.Rand
	calm   bool // it does everything, and nothing else
	stream device.Stream
	ctx    context.Context
	cancel context.CancelCauseFunc
	pass   *offload.Pass
	slots  []*offload.Slot
	kept   map[*offload.Slot][]keptTensor
}

type keptTensor struct {
	offload.Saved
	name string
}

var (
	errGaveUp = errors.New("the hand gives up")
	errToStop = errors.New("the hand was told to stop")
	handSizes = []int64{500, 4096, 6000, 9 << 10, 20 << 10}
)

// chance is true once in n times, and never for a calm hand.
func (h *hand) chance(n int) bool { return !h.calm && h.r.IntN(n) == 0 }

// call is made before every call on the pass.
func (h *hand) call() error {
	if h.alone {
		h.invariants()
	}
	switch {
	case h.chance(60):
		return errGaveUp
	case h.chance(60):
		h.cancel(errToStop)
	}
	return nil
}

// invariants that hold at every instant.
func (c *crew) invariants() {
	m, host := c.engine.Metrics(), c.Sim.HostUsage()
	if m.HostHeld != host.InUse || m.HostInUse > m.HostHeld || c.opts.HostBudget > 0 && host.Peak > c.opts.HostBudget {
		c.report(fmt.Sprintf("%d of %d bytes of host memory are in use, the device says %d and at most %d; the budget is %d",
			m.HostInUse, m.HostHeld, host.InUse, host.Peak, c.opts.HostBudget))
	}
	if n := m.PassesBegun - m.PassesEnded - m.PassesAborted; n != m.PassesOpen {
		c.report(fmt.Sprintf("%d passes are open, want %d", m.PassesOpen, n))
	}
}

func (c *crew) report(what string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.broken = append(c.broken, what)
}

// reloaded checks the device budget after a reload.
func (c *crew) reloaded(i offload.BatchInfo) {
	if i.Err != nil || i.Batch.Origin.Action != fsm.Reload.String() || c.opts.DeviceBudget == 0 || !c.alone {
		return
	}
	if use := c.Sim.Usage().InUse; use > c.opts.DeviceBudget {
		c.report(fmt.Sprintf("%d bytes of device memory are in use after a reload, the budget is %d", use, c.opts.DeviceBudget))
	}
}

func (c *crew) hand(name string, seed uint64, calm bool, stream device.Stream) *hand {
	h := &hand{crew: c, name: name, r: rand.New(rand.NewPCG(seed, 0)), calm: calm, stream: stream, kept: make(map[*offload.Slot][]keptTensor)}
	h.ctx, h.cancel = context.WithCancelCause(context.Background())
	return h
}

// begun takes up a pass.
func (h *hand) begun(p *offload.Pass) {
	h.pass = p
	h.mu.Lock()
	defer h.mu.Unlock()
	h.passes = append(h.passes, p)
}

// refusal reports whether err is an answer that a loop has to live with.
func refusal(err error) bool {
	return errors.Is(err, offload.ErrBudget) || errors.Is(err, offload.ErrShape)
}

func (h *hand) forward() error {
	for layer := range h.layers {
		runs := 1
		switch {
		case h.chance(8):
			runs = 0
		case h.chance(8):
			runs = 2
		}
		for range runs {
			if err := h.call(); err != nil {
				return err
			}
			slot, err := h.pass.Forward(layer)
			if refusal(err) && h.r.IntN(2) == 0 { // the layer before stays
				slot, err = h.pass.Forward(layer)
			}
			if err != nil {
				return err
			}
			if err := h.save(slot); err != nil {
				return err
			}
		}
	}
	return h.move((*offload.Slot).Release, fsm.Offloading)
}

func (h *hand) save(slot *offload.Slot) error {
	h.slots = append(h.slots, slot)
	for i := range 1 + h.r.IntN(2) {
		if err := h.call(); err != nil {
			return err
		}
		name := fmt.Sprintf("%s layer %d run %d tensor %d", h.name, slot.Layer(), slot.Occurrence(), i)
		size := handSizes[slot.Layer()%len(handSizes)]
		if h.chance(6) {
			size = handSizes[h.r.IntN(len(handSizes))]
		}
		x := h.Tensor(h.stream, name, size)
		saved, err := slot.Push(x)
		if err != nil {
			h.Drop(h.stream, x)
			return err
		}
		h.kept[slot] = append(h.kept[slot], keptTensor{saved[0], name})
	}
	if h.engine.Plan().IsManual() && h.r.IntN(4) > 0 {
		if err := slot.StartOffload(); err != nil && !refusal(err) {
			return err
		}
	}
	return nil
}

// move drives the slots of a manual plan that are in a state, or most of them.
func (h *hand) move(do func(*offload.Slot) error, from fsm.State) error {
	if !h.engine.Plan().IsManual() {
		return nil
	}
	for _, slot := range h.slots {
		if slot.State() != from || h.r.IntN(5) == 0 {
			continue
		}
		if err := h.call(); err != nil {
			return err
		}
		if err := do(slot); err != nil && !refusal(err) {
			return err
		}
	}
	return nil
}

func (h *hand) backward() error {
	if err := h.move((*offload.Slot).Reload, fsm.Offloaded); err != nil {
		return err
	}
	for _, forward := range slices.Backward(h.slots) {
		if h.chance(10) {
			continue
		}
		if err := h.call(); err != nil {
			return err
		}
		slot, err := h.pass.Backward(forward.Layer())
		if err != nil {
			return err
		}
		if err := h.available(slot); err != nil {
			return err
		}
		for _, k := range h.kept[slot] {
			if h.chance(6) {
				continue
			}
			if err := h.call(); err != nil {
				return err
			}
			back, err := slot.Pop(k.Saved)
			if err != nil {
				return err
			}
			h.Check(h.stream, back[0], k.name)
		}
	}
	return nil
}

// available brings back what the hand left away, in a manual plan.
func (h *hand) available(slot *offload.Slot) error {
	if !h.engine.Plan().IsManual() {
		return nil
	}
	switch slot.State() {
	case fsm.Offloading:
		return slot.Revive()
	case fsm.Offloaded:
		return slot.Reload()
	}
	return nil
}

// end ends the pass, given what the hand's last call returned. What it returns
// is wrong.
func (h *hand) end(err error) error {
	if err == nil {
		err = h.pass.End()
	}
	stopped := errors.Is(err, errToStop) && h.ctx.Err() != nil
	if h.calm && err != nil || err != nil && !errors.Is(err, errGaveUp) && !stopped && !refusal(err) {
		return errors.Join(fmt.Errorf("%s: %w", h.name, err), h.pass.Abort())
	}
	return h.pass.Abort() // of what has ended it is harmless
}
