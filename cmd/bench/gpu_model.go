package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"offload"
	"offload/device"
	"offload/nn/ops"
)

// A stack is a workload on a device: weights, gradients, the input and the
// gradient of the output, which stay from step to step.
type stack struct {
	workload
	dev       device.Device
	arena     *ops.Arena
	held      *ops.Scope // what stays
	step      *ops.Scope // what a step makes
	layer     []layer
	input     device.Tensor
	upstream  device.Tensor
	between   [][3]device.Tensor // saved by layer, without an engine
	saved     [][]offload.Saved
	popped    []device.Tensor
	moves     int           // layers whose saved tensors the plan moves: the first ones
	count     device.Tensor // words that differ
	countHost *ops.Host
}

// A layer has two weights, their gradients, and the gradients of the resident run.
type layer struct{ weight, grad, reference [2]device.Tensor }

// newStack allocates and fills a stack in the order of stream.
func newStack(dev device.Device, stream device.Stream, w workload) (*stack, error) {
	s := &stack{workload: w, dev: dev, arena: ops.NewArena(dev, stream), layer: make([]layer, w.layers),
		between: make([][3]device.Tensor, w.layers), saved: make([][]offload.Saved, w.layers)}
	s.held, s.step = s.arena.Scope(), s.arena.Scope()
	seed := int64(0)
	fill := func(x device.Tensor, deviation float64) {
		seed += 1 << 40 // more than the elements of any tensor: no two have a part in common
		s.arena.Launch(ops.Noise(x, seed, float32(deviation*math.Sqrt(3))))
	}
	alloc := func(name string, shape ...int) device.Tensor {
		return s.held.Alloc(name, device.Weight, device.BFloat16, shape...)
	}
	d, inner := w.width, expansion*w.width
	for i := range s.layer {
		for k, shape := range [2][]int{{d, inner}, {inner, d}} {
			l := &s.layer[i]
			l.weight[k], l.grad[k], l.reference[k] = alloc("weight", shape...), alloc("gradient", shape...), alloc("reference", shape...)
			fill(l.weight[k], 1/math.Sqrt(float64(shape[0])))
		}
	}
	s.input, s.upstream = alloc("input", w.tokens, d), alloc("upstream", w.tokens, d)
	fill(s.input, 1)
	fill(s.upstream, 1)
	s.count = s.held.Alloc("count", device.Workspace, device.Int64, 1)
	if err := s.arena.Flush(device.Origin{Action: "make " + w.name}); err != nil {
		return nil, errors.Join(err, s.arena.Close())
	}
	return s, nil
}

// clear sets the gradients to zero.
func (s *stack) clear() error {
	for _, l := range s.layer {
		for _, g := range l.grad {
			s.arena.Launch(ops.Zero(g))
		}
	}
	return errors.Join(s.arena.Flush(device.Origin{Action: "clear gradients"}), s.arena.Sync())
}

// keep makes the gradients the reference.
func (s *stack) keep() error {
	b := device.Batch{Origin: device.Origin{Action: "keep gradients"}}
	for _, l := range s.layer {
		for k := range l.grad {
			b.Ops = append(b.Ops, device.Op{Kind: device.CopyWithin, Stream: s.arena.Stream(), Dst: l.reference[k].Range(), Src: l.grad[k].Range()})
		}
	}
	return errors.Join(s.dev.Submit(&b), s.arena.Sync())
}

// differing returns how many words of 4 bytes of the gradients are not those of
// the reference, and how many were compared.
func (s *stack) differing() (n, all int64, err error) {
	if s.countHost == nil {
		if s.countHost, err = s.arena.Pin("count", 8); err != nil {
			return 0, 0, err
		}
	}
	clear(s.countHost.Bytes())
	s.countHost.CopyIn(s.count, 0)
	for _, l := range s.layer {
		for k := range l.grad {
			s.arena.Launch(ops.Differ(s.count, l.grad[k], l.reference[k]))
			all += l.grad[k].Bytes() / 4
		}
	}
	s.countHost.CopyOut(0, s.count)
	if err := errors.Join(s.arena.Flush(device.Origin{Action: "compare gradients"}), s.arena.Sync()); err != nil {
		return 0, 0, err
	}
	b, err := s.countHost.Read(0, 8)
	if err != nil {
		return 0, 0, err
	}
	return int64(binary.NativeEndian.Uint64(b)), all, nil
}

func (s *stack) alloc(name string, columns int) device.Tensor {
	return s.step.Alloc(name, device.Activation, device.BFloat16, s.tokens, columns)
}

// forward enqueues the forward of all layers. Without a pass, and in an inference
// pass, it frees what is not needed any more: everything behind its layer, or
// nothing if a backward follows.
func (s *stack) forward(pass *offload.Pass, backward bool) error {
	x := s.alloc("x", s.width)
	if err := s.arena.Flush(device.Origin{Action: "input"}); err != nil {
		return err
	}
	err := s.dev.Submit(&device.Batch{Origin: device.Origin{Action: "input"}, Ops: []device.Op{
		{Kind: device.CopyWithin, Stream: s.arena.Stream(), Dst: x.Range(), Src: s.input.Range()}}})
	if err != nil {
		return err
	}
	for i := range s.layer {
		var slot *offload.Slot
		if pass != nil {
			if slot, err = pass.Forward(i); err != nil {
				return err
			}
		}
		w := s.layer[i].weight
		s.saved[i] = s.saved[i][:0]
		early := i < s.moves // x is complete: its copy need not wait for the layer
		if early {
			if s.saved[i], err = slot.AppendPush(s.saved[i], x); err != nil {
				return err
			}
		}
		h, g, y := s.alloc("h", expansion*s.width), s.alloc("g", expansion*s.width), s.alloc("x", s.width)
		s.arena.Launch(ops.AddProduct(h, x, w[0], device.Tensor{}, ops.Product{}))
		s.arena.Launch(ops.GELU(g, h))
		s.arena.Launch(ops.AddProduct(y, g, w[1], x, ops.Product{}))
		if err := s.arena.Flush(device.Origin{Action: "forward", Layer: i}); err != nil {
			return err
		}
		if slot != nil {
			late := []device.Tensor{x, h, g}
			if early {
				late = late[1:]
			}
			if s.saved[i], err = slot.AppendPush(s.saved[i], late...); err != nil {
				return err
			}
		}
		if slot != nil || !backward {
			s.step.Free(x, h, g)
		} else {
			s.between[i] = [3]device.Tensor{x, h, g}
		}
		x = y
	}
	s.step.Free(x) // backward starts from a gradient that is given
	return s.arena.Flush(device.Origin{Action: "forward end"})
}

// backward enqueues the backward of all layers, which adds to the gradients.
func (s *stack) backward(pass *offload.Pass) error {
	dy := s.upstream
	for i := len(s.layer) - 1; i >= 0; i-- {
		x, h, g := s.between[i][0], s.between[i][1], s.between[i][2]
		if pass != nil {
			slot, err := pass.Backward(i)
			if err != nil {
				return err
			}
			if s.popped, err = slot.AppendPop(s.popped[:0], s.saved[i]...); err != nil {
				return err
			}
			x, h, g = s.popped[0], s.popped[1], s.popped[2]
		}
		l := &s.layer[i]
		dh := s.alloc("dh", expansion*s.width)
		s.arena.Launch(ops.AddProduct(dh, dy, l.weight[1], device.Tensor{}, ops.Product{TransposeB: true}))
		s.arena.Launch(ops.AddProduct(l.grad[1], g, dy, l.grad[1], ops.Product{TransposeA: true}))
		s.arena.Launch(ops.GELUGrad(dh, h))
		s.arena.Launch(ops.AddProduct(l.grad[0], x, dh, l.grad[0], ops.Product{TransposeA: true}))
		dx := s.alloc("dx", s.width)
		s.arena.Launch(ops.AddProduct(dx, dh, l.weight[0], dy, ops.Product{TransposeB: true}))
		s.step.Free(dh)
		if i < len(s.layer)-1 {
			s.step.Free(dy)
		}
		if pass == nil {
			s.step.Free(x, h, g)
		}
		dy = dx
		if err := s.arena.Flush(device.Origin{Action: "backward", Layer: i}); err != nil {
			return err
		}
	}
	s.step.Free(dy)
	return s.arena.Flush(device.Origin{Action: "backward end"})
}

func (s *stack) close() error {
	if n := s.step.Held(); n > 0 {
		return errors.Join(fmt.Errorf("%s: a step left %d tensors", s.name, n), s.arena.Close())
	}
	return s.arena.Close()
}
