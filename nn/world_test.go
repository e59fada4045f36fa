package nn

import (
	"context"
	"errors"
	"math/rand/v2"
	"testing"

	"offload"
	"offload/device"
	"offload/device/sim"
	opssim "offload/nn/ops/sim"
	"offload/schedule"
)

// small is a network whose gradients can be checked one by one.
var small = Config{Inputs: 7, Width: 5, Hidden: 6, Blocks: 3, Classes: 4, Batch: 9, Seed: 3}

// world is a simulated device, an engine on it and a model.
type world struct {
	t      testing.TB
	sim    *sim.Device
	gate   *gate
	engine *offload.Engine
	model  *MLP
	stream device.Stream
}

type setting struct {
	config    Config
	offloaded int   // layers that the window plan offloads
	limit     int64 // of device memory
	order     uint64
	dispatch  offload.Dispatch
	slab      int64 // bytes; zero: small
}

// open builds a world. Every tensor that can move does.
func open(t testing.TB, s setting) *world {
	t.Helper()
	w := &world{t: t, sim: sim.New(sim.Config{MemoryLimit: s.limit, Seed: s.order})}
	w.gate = &gate{Device: w.sim}
	opssim.Register(w.sim)
	w.stream = device.NewIDs(w.sim).Stream()
	w.op(device.Op{Kind: device.OpenStream, Stream: w.stream})
	if s.slab == 0 {
		s.slab = 4096
	}
	plan, err := schedule.Window(s.config.Layers(), s.offloaded)
	w.must(err)
	w.engine, err = offload.Open(w.gate, offload.Options{
		Plan: plan, MinElements: 1, SlabBytes: s.slab, Dispatch: s.dispatch})
	w.must(err)
	w.model, err = New(w.gate, w.stream, s.config)
	w.must(err)
	return w
}

// close gives everything back; nothing may be left and nothing may have been found.
func (w *world) close() {
	w.t.Helper()
	w.must(w.model.Close())
	w.must(w.engine.Close())
	w.op(device.Op{Kind: device.CloseStream, Stream: w.stream})
	for _, l := range w.sim.Leaks() {
		w.t.Errorf("left on the device: %v", l)
	}
	w.must(w.sim.Close())
	for _, f := range w.sim.Findings() {
		w.t.Error(f)
	}
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) op(op device.Op) {
	w.t.Helper()
	w.must(w.sim.Submit(&device.Batch{Origin: device.Origin{Action: "test"}, Ops: []device.Op{op}}))
}

func (w *world) step(b Batch) Result {
	w.t.Helper()
	r, err := w.model.Step(context.Background(), w.engine, b)
	w.must(err)
	return r
}

func (w *world) begin(kind offload.PassKind) *offload.Pass {
	w.t.Helper()
	p, err := w.engine.Begin(context.Background(), kind, w.stream)
	w.must(err)
	return p
}

func (w *world) weights() []float32 {
	w.t.Helper()
	values, err := w.model.Weights()
	w.must(err)
	return values
}

func (w *world) gradients() []float32 {
	w.t.Helper()
	values, err := w.model.weights.read(w.model.arena, w.model.weights.grad)
	w.must(err)
	return values
}

// gate is a device that refuses operations on demand.
type gate struct {
	device.Device
	refuse func(device.Origin, device.Op) error // nil lets pass; by operation
}

// Submit refuses as devices do: what is before the refused operation is enqueued.
func (g *gate) Submit(b *device.Batch) error {
	if g.refuse == nil {
		return g.Device.Submit(b)
	}
	for i, op := range b.Ops {
		cause := g.refuse(b.Origin, op)
		if cause == nil {
			continue
		}
		if err := g.Device.Submit(&device.Batch{Origin: b.Origin, Ops: b.Ops[:i]}); err != nil {
			return err
		}
		return &device.Error{Origin: b.Origin, Index: i, Op: op, Err: cause}
	}
	return g.Device.Submit(b)
}

// only lets everything pass but the operation number n, from zero on, for which
// match holds. It reports whether that operation came.
func (g *gate) only(n int, cause error, match func(device.Origin, device.Op) bool) (came func() bool) {
	seen := 0
	g.refuse = func(o device.Origin, op device.Op) error {
		if !match(o, op) {
			return nil
		}
		seen++
		if seen == n+1 {
			return cause
		}
		return nil
	}
	return func() bool { return seen > n }
}

var errRefused = errors.New("refused by the test")

// random returns a batch of n images.
func (c Config) random(rng *rand.Rand, n int) Batch {
	b := Batch{Images: make([]float32, n*c.Inputs), Labels: make([]int32, n)}
	for i := range b.Images {
		b.Images[i] = float32(rng.NormFloat64())
	}
	for i := range b.Labels {
		b.Labels[i] = int32(rng.IntN(c.Classes))
	}
	return b
}

// fresh returns a source of random numbers whose seed is in the log.
func fresh(t *testing.T) *rand.Rand {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}
