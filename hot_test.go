package offload_test

import (
	"context"
	"testing"

	"offload"
	"offload/device"
	"offload/device/null"
)

// hot is a slot on the null device that is cycled again and again.
type hot struct {
	b       *testing.B
	engine  *offload.Engine
	pass    *offload.Pass
	slot    *offload.Slot
	tensors []device.Tensor
	saved   []offload.Saved
	popped  []device.Tensor
}

func newHot(b *testing.B, dispatch offload.Dispatch, tensors, elements int) *hot {
	dev := null.New()
	ids := device.NewIDs(dev)
	stream := ids.Stream()
	engine, err := offload.Open(dev, offload.Options{Layers: 1, Dispatch: dispatch})
	if err != nil {
		b.Fatal(err)
	}
	h := &hot{b: b, engine: engine}
	if h.pass, err = engine.Begin(context.Background(), offload.Train, stream); err != nil {
		b.Fatal(err)
	}
	if h.slot, err = h.pass.Forward(0); err != nil {
		b.Fatal(err)
	}
	for range tensors {
		s := ids.NewStorage("x", device.Activation, int64(elements)*4, stream)
		h.tensors = append(h.tensors, device.Tensor{Storage: s, DType: device.Float32, Shape: []int{elements}})
	}
	b.Cleanup(func() {
		if err := engine.Close(); err != nil {
			b.Error(err)
		}
	})
	return h
}

func (h *hot) cycle() {
	var err error
	if h.saved, err = h.slot.AppendPush(h.saved[:0], h.tensors...); err != nil {
		h.b.Fatal(err)
	}
	if err = h.slot.StartOffload(); err != nil {
		h.b.Fatal(err)
	}
	if err = h.slot.Release(); err != nil {
		h.b.Fatal(err)
	}
	if err = h.slot.Reload(); err != nil {
		h.b.Fatal(err)
	}
	if h.popped, err = h.slot.AppendPop(h.popped[:0], h.saved...); err != nil {
		h.b.Fatal(err)
	}
	for _, t := range h.tensors { // they are pushed again in the next cycle
		t.Storage.Retain("the benchmark")
	}
	if err = h.slot.Reset(); err != nil {
		h.b.Fatal(err)
	}
	for _, t := range h.tensors {
		t.Storage.Drop("the benchmark")
	}
}

func BenchmarkEmptyCycle(b *testing.B) {
	h := newHot(b, offload.Inline, 1, 16)
	for b.Loop() {
		h.cycle()
	}
}

func BenchmarkTensorCycle(b *testing.B) {
	h := newHot(b, offload.Inline, 8, 1<<20)
	for b.Loop() {
		h.cycle()
	}
}
