package offload_test

import (
	"context"
	"testing"

	"go.uber.org/goleak"

	"offload"
	"offload/device"
	"offload/device/sim"
	"offload/fsm"
	"offload/schedule"
	"offload/tests/rig"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// bench is an engine on a rig, with short names for what most tests do.
type bench struct {
	*rig.Rig
	t      *testing.T
	engine *offload.Engine
}

// manual opens an engine of three layers that the test drives.
func manual(t *testing.T, d offload.Dispatch) *bench {
	t.Helper()
	return open(t, offload.Options{Layers: 3, Dispatch: d, MinElements: 1, SlabBytes: 64 << 10})
}

// window opens an engine that follows a window plan and moves everything.
func window(t *testing.T, d offload.Dispatch, layers, offloaded int) *bench {
	t.Helper()
	plan, err := schedule.Window(layers, offloaded)
	if err != nil {
		t.Fatal(err)
	}
	return open(t, offload.Options{Plan: plan, Dispatch: d, MinElements: 1, SlabBytes: 64 << 10})
}

func open(t *testing.T, opts offload.Options) *bench {
	t.Helper()
	b := &bench{Rig: rig.New(t, sim.Config{}), t: t}
	b.engine = b.Open(opts)
	return b
}

// close closes engine and device, on which nothing may be left.
func (b *bench) close() {
	b.t.Helper()
	b.must(b.engine.Close())
	if m := b.engine.Metrics(); m.EventsLive != 0 || m.StoragesHeld != 0 || m.SlotsHeld != 0 || m.HostInUse != 0 || m.HostHeld != 0 {
		b.t.Errorf("held after Close: %+v", m)
	}
	b.Close()
}

func (b *bench) must(err error) {
	b.t.Helper()
	if err != nil {
		b.t.Fatal(err)
	}
}

func (b *bench) begin() *offload.Pass {
	b.t.Helper()
	p, err := b.engine.Begin(context.Background(), offload.Train, b.Compute)
	b.must(err)
	return p
}

func (b *bench) forward(p *offload.Pass, layer int) *offload.Slot {
	b.t.Helper()
	s, err := p.Forward(layer)
	b.must(err)
	return s
}

func (b *bench) backward(p *offload.Pass, layer int) *offload.Slot {
	b.t.Helper()
	s, err := p.Backward(layer)
	b.must(err)
	return s
}

// push saves a new tensor of 4096 bytes.
func (b *bench) push(s *offload.Slot, name string) offload.Saved {
	b.t.Helper()
	return b.pushTensor(s, b.Tensor(b.Compute, name, 4096))
}

func (b *bench) pushTensor(s *offload.Slot, x device.Tensor) offload.Saved {
	b.t.Helper()
	saved, err := s.Push(x)
	b.must(err)
	return saved[0]
}

// pop takes a tensor back and has its bytes checked.
func (b *bench) pop(s *offload.Slot, v offload.Saved, name string) device.Tensor {
	b.t.Helper()
	ts, err := s.Pop(v)
	b.must(err)
	b.Check(b.Compute, ts[0], name)
	return ts[0]
}

// unchanged runs f, which must be refused, and reports whatever it changed.
func (b *bench) unchanged(what string, s *offload.Slot, f func() error) error {
	b.t.Helper()
	stats, metrics, usage := b.Sim.Stats(), b.engine.Metrics(), b.Sim.Usage()
	var state fsm.State
	if s != nil {
		state = s.State()
	}
	err := f()
	if err == nil {
		b.t.Errorf("%s: got no error", what)
	}
	if got := b.Sim.Stats(); got != stats {
		b.t.Errorf("%s: the device was asked for something:\ngot  %v\nwant %v", what, got, stats)
	}
	if got := b.engine.Metrics(); got != metrics {
		b.t.Errorf("%s: metrics changed:\ngot  %+v\nwant %+v", what, got, metrics)
	}
	if got := b.Sim.Usage(); got != usage {
		b.t.Errorf("%s: device memory changed:\ngot  %+v\nwant %+v", what, got, usage)
	}
	if s != nil {
		if got := s.State(); got != state {
			b.t.Errorf("%s: the state changed: got %v, want %v", what, got, state)
		}
	}
	return err
}
