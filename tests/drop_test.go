package tests

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"offload"
	"offload/device"
	"offload/device/sim"
	"offload/schedule"
	"offload/tests/rig"
)

// traces are the programs whose operations are left out one at a time. Each
// runs on a rig of its own and reports what it finds through the rig.
var traces = []struct {
	name string
	run  func(r *rig.Rig, side device.Stream)
}{
	{"window of three passes", windowTrace},
	{"streams, shared storages and pieces", manualTrace},
	{"two passes in flight", flightTrace},
}

// TestDropEveryEdge leaves out every Wait, Record and Free that the engine
// issues, one at a time: the simulator has to complain, or the operation was
// needless and should not be issued.
func TestDropEveryEdge(t *testing.T) {
	for _, trace := range traces {
		t.Run(trace.name, func(t *testing.T) {
			whole := runTrace(trace.run, -1)
			if len(whole.complaints) > 0 {
				t.Fatalf("with nothing left out: %v", whole.complaints)
			}
			caught := 0
			for i, op := range whole.edges {
				if dropped := runTrace(trace.run, i); len(dropped.complaints) == 0 {
					t.Errorf("edge %d (%s) is left out and nobody complains", i, op)
					continue
				}
				caught++
			}
			t.Logf("%d of %d caught", caught, len(whole.edges))
		})
	}
}

// outcome is what a run of a trace gave.
type outcome struct {
	edges      []string // the waits, records and frees of the engine
	complaints []string
}

// collector is a rig.TB that notes what would fail a test.
type collector struct{ complaints []string }

func (c *collector) Helper()           {}
func (c *collector) Error(args ...any) { c.complaints = append(c.complaints, fmt.Sprint(args...)) }
func (c *collector) Errorf(format string, args ...any) {
	c.complaints = append(c.complaints, fmt.Sprintf(format, args...))
}
func (c *collector) Fatal(args ...any) { panic(gaveUp{fmt.Sprint(args...)}) }

type gaveUp struct{ why string }

// dropper leaves out one edge. It tells the engine nothing of it.
type dropper struct {
	device.Device
	drop  int
	edges []string
}

func (d *dropper) Submit(b *device.Batch) error {
	pass := device.Batch{Origin: b.Origin}
	for _, op := range b.Ops {
		switch op.Kind {
		case device.Wait, device.Record, device.Free:
			d.edges = append(d.edges, fmt.Sprintf("%v: %v", b.Origin, op))
			if len(d.edges)-1 == d.drop {
				continue
			}
		}
		pass.Ops = append(pass.Ops, op)
	}
	if len(pass.Ops) == 0 {
		return nil
	}
	return d.Device.Submit(&pass)
}

// runTrace runs a trace without the edge with index drop, under one order of the
// simulator: findings do not depend on the order.
func runTrace(run func(r *rig.Rig, side device.Stream), drop int) (o outcome) {
	var c collector
	d := &dropper{drop: drop}
	defer func() {
		if v := recover(); v != nil {
			if _, ok := v.(gaveUp); !ok {
				panic(v)
			}
			o.complaints = append(c.complaints, v.(gaveUp).why)
		}
		o.edges = d.edges
	}()
	r := rig.New(&c, sim.Config{ID: 9000})
	d.Device = r.Gate.Device
	r.Gate.Device = d
	run(r, r.Stream())
	r.Close()
	return outcome{complaints: c.complaints}
}

// pusher saves tensors of a pass and takes them back.
type pusher struct {
	r     *rig.Rig
	pass  *offload.Pass
	saved map[string][]offload.Saved
	names map[string][]string
}

func (p *pusher) must(err error) {
	if err != nil {
		p.r.T.Fatal(err)
	}
}

func (p *pusher) forward(layer int, tensors ...string) {
	slot, err := p.pass.Forward(layer)
	p.must(err)
	var list []device.Tensor
	for _, name := range tensors {
		list = append(list, p.r.Tensor(p.r.Compute, name, 4096))
	}
	key := fmt.Sprint(layer)
	p.saved[key], err = slot.Push(list...)
	p.must(err)
	p.names[key] = tensors
}

func (p *pusher) backward(layer int) {
	slot, err := p.pass.Backward(layer)
	p.must(err)
	key := fmt.Sprint(layer)
	for i, saved := range p.saved[key] { // each is used before the next one is asked for
		back, err := slot.Pop(saved)
		p.must(err)
		p.r.Check(p.r.Compute, back[0], p.names[key][i])
	}
}

func begin(r *rig.Rig, e *offload.Engine) *pusher {
	pass, err := e.Begin(context.Background(), offload.Train, r.Compute)
	p := &pusher{r: r, pass: pass, saved: make(map[string][]offload.Saved), names: make(map[string][]string)}
	p.must(err)
	return p
}

// windowTrace runs passes that use the host memory of the one before again.
func windowTrace(r *rig.Rig, _ device.Stream) {
	plan, err := schedule.Window(5, 2)
	if err != nil {
		r.T.Fatal(err)
	}
	e := r.Open(offload.Options{Plan: plan, MinElements: 1, SlabBytes: 16 << 10})
	for n := range 3 {
		p := begin(r, e)
		for i := range 5 {
			p.forward(i, fmt.Sprintf("x%d.%d", n, i), fmt.Sprintf("y%d.%d", n, i))
		}
		for i := range slices.Backward(make([]int, 5)) {
			p.backward(i)
		}
		p.must(p.pass.End())
	}
	if err := e.Close(); err != nil {
		r.T.Fatal(err)
	}
}

// manualTrace has a producer and a consumer on another stream, a storage that two
// layers save, and columns of a matrix.
func manualTrace(r *rig.Rig, side device.Stream) {
	e := r.Open(offload.Options{Layers: 2, MinElements: 1, SlabBytes: 64 << 10})
	p := begin(r, e)
	s0, err := p.pass.Forward(0)
	p.must(err)
	shared, made := r.Tensor(r.Compute, "shared", 4096), r.Tensor(side, "made on the side", 4096)
	v0, err := s0.Push(shared)
	p.must(err)
	v1, err := s0.On(side).Push(made)
	p.must(err)
	r.Check(side, made, "made on the side") // also after it was pushed
	s1, err := p.pass.Forward(1)
	p.must(err)
	matrix := r.Tensor(r.Compute, "matrix", 64*256)
	columns := device.Tensor{Storage: matrix.Storage, DType: device.Uint8, Shape: []int{64, 16}, Strides: []int{256, 1}, Offset: 32}
	v2, err := s1.Push(shared, columns)
	p.must(err)
	for _, s := range []*offload.Slot{s0, s1} {
		p.must(s.StartOffload())
	}
	for _, s := range []*offload.Slot{s0, s1} {
		p.must(s.Release())
	}
	_, err = p.pass.Backward(1)
	p.must(err)
	p.must(s1.Reload())
	back, err := s1.Pop(v2...)
	p.must(err)
	r.Check(r.Compute, back[0], "shared")
	r.CheckView(r.Compute, back[1], "matrix")
	_, err = p.pass.Backward(0)
	p.must(err)
	p.must(s0.Reload())
	back, err = s0.On(side).Pop(v0...)
	p.must(err)
	r.Check(side, back[0], "shared")
	back, err = s0.Pop(v1...)
	p.must(err)
	r.Check(r.Compute, back[0], "made on the side")
	p.must(p.pass.End())
	if err := e.Close(); err != nil {
		r.T.Fatal(err)
	}
}

// flightTrace has two passes in flight, the first of which is done first.
func flightTrace(r *rig.Rig, _ device.Stream) {
	plan, err := schedule.Window(3, 2)
	if err != nil {
		r.T.Fatal(err)
	}
	e := r.Open(offload.Options{Plan: plan, MinElements: 1, SlabBytes: 8 << 10})
	passes := []*pusher{begin(r, e), begin(r, e)}
	for n, p := range passes {
		for i := range 3 {
			p.forward(i, fmt.Sprintf("x%d.%d", n, i))
		}
	}
	for _, p := range passes {
		for i := range slices.Backward(make([]int, 3)) {
			p.backward(i)
		}
		p.must(p.pass.End())
	}
	if err := e.Close(); err != nil {
		r.T.Fatal(err)
	}
}
