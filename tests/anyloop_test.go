package tests

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"

	"pgregory.net/rapid"

	"offload"
	"offload/device"
	"offload/device/sim"
	"offload/tests/rig"
)

// inTurns runs the hands in the order of a step. What it returns is wrong.
func (c *crew) inTurns(hands []*hand, order []offload.Turn) error {
	step, err := c.engine.BeginStep(context.Background(), c.Compute, order...)
	if err != nil {
		return err
	}
	var errs []error
	for _, t := range order {
		h := hands[t.MicroBatch]
		if t.Backward {
			if _, err := step.Backward(t.MicroBatch); err != nil {
				errs = append(errs, err)
			}
			if !h.pass.Ended() {
				errs = append(errs, h.end(h.backward()))
			}
			continue
		}
		p, err := step.Forward(t.MicroBatch)
		if err != nil {
			if !errors.Is(err, offload.ErrBudget) {
				errs = append(errs, err)
			}
			break
		}
		h.begun(p)
		h.cancel = func(error) {} // a step has one context, which the hands do not have
		if err := h.forward(); err != nil {
			errs = append(errs, h.end(err))
		}
	}
	return errors.Join(append(errs, step.Abort())...)
}

// atOnce runs the hands on goroutines of their own. What it returns is wrong.
func (c *crew) atOnce(hands []*hand) error {
	errs := make([]error, len(hands))
	var all sync.WaitGroup
	for i, h := range hands {
		all.Go(func() {
			p, err := c.engine.Begin(h.ctx, offload.Train, h.stream)
			if err != nil {
				if !errors.Is(err, offload.ErrBudget) {
					errs[i] = err
				}
				return
			}
			h.begun(p)
			if err = h.forward(); err == nil {
				err = h.backward()
			}
			errs[i] = h.end(err)
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

// drawOrder draws an order of the turns of n micro-batches.
func drawOrder(t *rapid.T, n int) []offload.Turn {
	var order []offload.Turn
	begun, open := 0, []int(nil)
	for begun < n || len(open) > 0 {
		if begun < n && (len(open) == 0 || rapid.Bool().Draw(t, "forward next")) {
			order, open = append(order, offload.Turn{MicroBatch: begun}), append(open, begun)
			begun++
			continue
		}
		i := rapid.IntRange(0, len(open)-1).Draw(t, "backward of")
		order, open = append(order, offload.Turn{MicroBatch: open[i], Backward: true}), slices.Delete(open, i, i+1)
	}
	return order
}

// Whatever a loop does with its passes, under whatever budgets: it gets its own
// bytes or a refusal, the budgets hold after every call, every tensor that did
// not move has a reason, what was moved is what the records say, and nothing is
// held when the passes are over. A calm step after it is as any other.
func TestAnyLoop(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		layers := rapid.IntRange(1, 6).Draw(rt, "layers")
		opts := offload.Options{
			MinElements: 512, Explain: true,
			SlabBytes:    rapid.SampledFrom([]int64{4 << 10, 16 << 10, 64 << 10}).Draw(rt, "slab"),
			HostBudget:   rapid.SampledFrom([]int64{0, 0, 8 << 10, 32 << 10}).Draw(rt, "host budget"),
			DeviceBudget: rapid.SampledFrom([]int64{0, 24 << 10, 48 << 10}).Draw(rt, "device budget"),
			HostPolicy:   rapid.SampledFrom([]offload.HostPolicy{offload.KeepOnDevice, offload.WaitForHost, offload.RefuseOffload}).Draw(rt, "policy"),
			RetainHost:   rapid.Bool().Draw(rt, "retain"),
			CopyAtPush:   rapid.Bool().Draw(rt, "copy at push"),
			Dispatch:     rapid.SampledFrom([]offload.Dispatch{offload.Inline, offload.Goroutines}).Draw(rt, "dispatch"),
		}
		opts.Layers = layers
		if n := rapid.IntRange(-2, layers-1).Draw(rt, "offloaded (negative: manual)"); n >= 0 {
			opts.Plan = window(t, layers, n)
		}
		c := &crew{Rig: rig.New(rt, sim.Config{Seed: rapid.Uint64().Draw(rt, "seed")}), opts: opts, layers: layers}
		c.alone = rapid.Bool().Draw(rt, "in turns")
		opts.Listener = &offload.EventListener{Batch: c.reloaded}
		c.engine = c.Open(opts)

		batches := rapid.IntRange(1, 3).Draw(rt, "micro-batches")
		streams := []device.Stream{c.Compute}
		for !c.alone && len(streams) < batches {
			streams = append(streams, c.Stream())
		}
		for step := range 3 {
			var hands []*hand
			for i := range batches {
				seed := rapid.Uint64().Draw(rt, "seed of a hand")
				hands = append(hands, c.hand(fmt.Sprintf("step %d batch %d", step, i), seed, false, streams[i%len(streams)]))
			}
			var err error
			if c.alone {
				err = c.inTurns(hands, drawOrder(rt, batches))
			} else {
				err = c.atOnce(hands)
			}
			if err != nil {
				rt.Error(err)
			}
			c.idle()
		}
		c.finish()
	})
}

// idle checks that nothing is held between steps, but what is retained.
func (c *crew) idle() {
	c.invariants()
	m := c.engine.Metrics()
	if m.PassesOpen != 0 || m.StoragesHeld != 0 || m.SlotsHeld != 0 || m.HostInUse != 0 && !c.opts.RetainHost {
		c.report(fmt.Sprintf("held between steps: %+v", m))
	}
	if n := c.Sim.Usage().InUse; n != 0 {
		c.report(fmt.Sprintf("%d bytes of device memory are in use between steps", n))
	}
}

// finish plays a calm pass, closes all and reports what was wrong.
func (c *crew) finish() {
	calm := c.hand("calm", 1, true, c.Compute)
	if p, err := c.engine.Begin(calm.ctx, offload.Train, c.Compute); err == nil {
		calm.begun(p)
		err := calm.forward()
		if err == nil {
			err = calm.backward()
		}
		if refusal(err) { // of budgets that are too small for it
			err = errGaveUp
			calm.calm = false
		}
		if err := calm.end(err); err != nil {
			c.T.Error(err)
		}
	} else if !errors.Is(err, offload.ErrBudget) {
		c.T.Error(err)
	}
	c.idle()
	moved := int64(0)
	for _, p := range c.passes {
		for _, r := range p.Explain() {
			moved += r.MovedBytes
			if r.Outcome != offload.Moved && r.Why == "" {
				c.report(fmt.Sprintf("no reason: %v", r))
			}
		}
	}
	if m := c.engine.Metrics(); m.BytesOut != moved {
		c.report(fmt.Sprintf("%d bytes were moved, the records say %d", m.BytesOut, moved))
	}
	if err := c.engine.Close(); err != nil {
		c.T.Error(err)
	}
	if m := c.engine.Metrics(); m.EventsLive != 0 || m.HostHeld != 0 {
		c.T.Errorf("held after Close: %+v", m)
	}
	c.Close()
	for _, what := range c.broken {
		c.T.Error(what)
	}
}
