package main

import (
	"context"
	"fmt"
	"io"
	"math"
	"runtime"
	"slices"
	"sync"
	"text/tabwriter"
	"time"

	"offload"
	"offload/device"
	"offload/device/null"
	"offload/device/sim"
	"offload/schedule"
)

// hotReport is what the calls cost the host. Times are nanoseconds, medians of
// several rounds.
type hotReport struct {
	Machine string `json:"machine"`

	EmptyCycleNs      float64 `json:"empty_cycle_ns"`
	EmptyCycleAllocs  float64 `json:"empty_cycle_allocs"`
	TensorCycleNs     float64 `json:"tensor_cycle_ns"` // for each of the tensors
	TensorCycleAllocs float64 `json:"tensor_cycle_allocs"`

	EmptyCycleGoroutinesNs  float64 `json:"empty_cycle_goroutines_ns"`
	TensorCycleGoroutinesNs float64 `json:"tensor_cycle_goroutines_ns"`

	Layers100Ns       float64 `json:"layers_100_ns"` // for each layer of an empty pass
	Layers10000Ns     float64 `json:"layers_10000_ns"`
	LayersRatio       float64 `json:"layers_ratio"`
	BytesPerLayer     float64 `json:"bytes_per_layer"`
	GoroutinesLayers  int     `json:"goroutines_10000_layers"`
	GoroutinesBefore  int     `json:"goroutines_before"`
	OneCallerPerSec   float64 `json:"cycles_per_second_1_goroutine"`
	EightCallerPerSec float64 `json:"cycles_per_second_8_goroutines"`
	CallersRatio      float64 `json:"callers_ratio"`

	SimPassMs float64 `json:"sim_1000_layers_ms"`

	NullOps int64 `json:"null_operations"` // of one pass of 16 layers, 8 offloaded
	SimOps  int64 `json:"sim_operations"`
	Equal   bool  `json:"operations_equal"` // kind by kind
}

const (
	hotTensors  = 8
	hotElements = 256 * 1024
	rounds      = 9
)

func measureHot(ctx context.Context) (*hotReport, error) {
	r := &hotReport{Machine: fmt.Sprintf("%s/%s, %d processors, %s", runtime.GOOS, runtime.GOARCH, runtime.GOMAXPROCS(0), runtime.Version())}
	steps := []func() error{
		func() (err error) {
			r.EmptyCycleNs, r.EmptyCycleAllocs, err = cycleCost(offload.Inline, 1, 16)
			return err
		},
		func() (err error) {
			r.TensorCycleNs, r.TensorCycleAllocs, err = cycleCost(offload.Inline, hotTensors, hotElements)
			r.TensorCycleNs /= hotTensors
			return err
		},
		func() (err error) {
			r.EmptyCycleGoroutinesNs, _, err = cycleCost(offload.Goroutines, 1, 16)
			return err
		},
		func() (err error) {
			r.TensorCycleGoroutinesNs, _, err = cycleCost(offload.Goroutines, hotTensors, hotElements)
			r.TensorCycleGoroutinesNs /= hotTensors
			return err
		},
		r.layers,
		r.callers,
		r.simulator,
		r.counts,
	}
	for _, step := range steps {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if err := step(); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// bed is a slot that is cycled again and again with the same tensors.
type bed struct {
	engine  *offload.Engine
	pass    *offload.Pass
	slot    *offload.Slot
	tensors []device.Tensor
	saved   []offload.Saved
	popped  []device.Tensor
}

const holder = "bench"

// newBed opens a slot of its own pass for n tensors.
func newBed(dev device.Device, engine *offload.Engine, layer, n, elements int) (*bed, error) {
	ids := device.NewIDs(dev)
	stream := ids.Stream()
	b := &bed{engine: engine}
	var err error
	if b.pass, err = engine.Begin(context.Background(), offload.Train, stream); err != nil {
		return nil, err
	}
	if b.slot, err = b.pass.Forward(layer); err != nil {
		return nil, err
	}
	for range n {
		s := ids.NewStorage("x", device.Activation, int64(elements)*4, stream)
		b.tensors = append(b.tensors, device.Tensor{Storage: s, DType: device.Float32, Shape: []int{elements}})
	}
	return b, nil
}

// cycle pushes, offloads, releases, reloads, pops and resets. The tensors are
// held over the reset, so that the next cycle can push them again.
func (b *bed) cycle() (err error) {
	if b.saved, err = b.slot.AppendPush(b.saved[:0], b.tensors...); err != nil {
		return err
	}
	if err = b.slot.StartOffload(); err != nil {
		return err
	}
	if err = b.slot.Release(); err != nil {
		return err
	}
	if err = b.slot.Reload(); err != nil {
		return err
	}
	if b.popped, err = b.slot.AppendPop(b.popped[:0], b.saved...); err != nil {
		return err
	}
	for _, t := range b.tensors {
		t.Storage.Retain(holder)
	}
	err = b.slot.Reset()
	for _, t := range b.tensors {
		t.Storage.Drop(holder)
	}
	return err
}

// cycleCost returns the time and the allocations of one cycle.
func cycleCost(dispatch offload.Dispatch, n, elements int) (ns, allocs float64, err error) {
	dev := null.New()
	engine, err := offload.Open(dev, offload.Options{Layers: 1, Dispatch: dispatch})
	if err != nil {
		return 0, 0, err
	}
	defer engine.Close()
	b, err := newBed(dev, engine, 0, n, elements)
	if err != nil {
		return 0, 0, err
	}
	ns, allocs, err = cost(b.cycle)
	return ns, allocs, err
}

// cost returns the median time and the least allocations of f over several
// rounds of about 50 ms each.
func cost(f func() error) (ns, allocs float64, err error) {
	n := 64
	for range n { // warm up
		if err := f(); err != nil {
			return 0, 0, err
		}
	}
	var times []float64
	allocs = math.Inf(1)
	for len(times) < rounds {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		start := time.Now()
		for range n {
			if err := f(); err != nil {
				return 0, 0, err
			}
		}
		took := time.Since(start)
		runtime.ReadMemStats(&after)
		if took < 20*time.Millisecond { // too short to be measured
			n *= 4
			continue
		}
		times = append(times, float64(took.Nanoseconds())/float64(n))
		allocs = min(allocs, math.Floor(float64(after.Mallocs-before.Mallocs)/float64(n)))
	}
	return median(times), allocs, nil
}

func median(x []float64) float64 {
	slices.Sort(x)
	return x[len(x)/2]
}

// layers measures a whole empty pass for few and for many layers, and what a
// layer costs at rest.
func (r *hotReport) layers() error {
	r.GoroutinesBefore = runtime.NumGoroutine()
	perLayer := func(layers int) (float64, error) {
		plan, err := schedule.Window(layers, layers/2)
		if err != nil {
			return 0, err
		}
		dev := null.New()
		engine, err := offload.Open(dev, offload.Options{Plan: plan})
		if err != nil {
			return 0, err
		}
		defer engine.Close()
		if layers == 10000 {
			r.GoroutinesLayers = runtime.NumGoroutine()
		}
		ids := device.NewIDs(dev)
		stream := ids.Stream()
		ns, _, err := cost(func() error { return emptyPass(engine, stream, layers) })
		return ns / float64(layers), err
	}
	var err error
	if r.Layers100Ns, err = perLayer(100); err != nil {
		return err
	}
	if r.Layers10000Ns, err = perLayer(10000); err != nil {
		return err
	}
	r.LayersRatio = r.Layers10000Ns / r.Layers100Ns
	r.BytesPerLayer, err = bytesPerLayer()
	return err
}

func emptyPass(engine *offload.Engine, stream device.Stream, layers int) error {
	pass, err := engine.Begin(context.Background(), offload.Train, stream)
	if err != nil {
		return err
	}
	for i := range layers {
		if _, err := pass.Forward(i); err != nil {
			return err
		}
	}
	for i := layers - 1; i >= 0; i-- {
		if _, err := pass.Backward(i); err != nil {
			return err
		}
	}
	return pass.End()
}

// bytesPerLayer returns the live memory that a layer adds to an engine at rest,
// after a pass: the difference of two engines.
func bytesPerLayer() (float64, error) {
	const few, many = 1000, 11000
	live := func(layers int) (float64, error) {
		dev := null.New()
		before := heap()
		engine, err := offload.Open(dev, offload.Options{Layers: layers})
		if err != nil {
			return 0, err
		}
		defer engine.Close()
		ids := device.NewIDs(dev)
		if err := emptyPass(engine, ids.Stream(), layers); err != nil {
			return 0, err
		}
		used := heap() - before
		runtime.KeepAlive(engine)
		return used, nil
	}
	if _, err := live(few); err != nil { // what is made once is made here
		return 0, err
	}
	a, err := live(few)
	if err != nil {
		return 0, err
	}
	b, err := live(many)
	return (b - a) / (many - few), err
}

func heap() float64 {
	runtime.GC()
	runtime.GC() // the second one empties the pools
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc)
}

// callers measures goroutines with passes of their own on one engine.
func (r *hotReport) callers() error {
	perSecond := func(goroutines int) (float64, error) {
		dev := null.New()
		engine, err := offload.Open(dev, offload.Options{Layers: 8})
		if err != nil {
			return 0, err
		}
		defer engine.Close()
		beds := make([]*bed, goroutines)
		for i := range beds {
			if beds[i], err = newBed(dev, engine, i, hotTensors, hotElements); err != nil {
				return 0, err
			}
		}
		var rates []float64
		for range rounds {
			const cycles = 4000
			var wait sync.WaitGroup
			errs := make([]error, goroutines)
			start := time.Now()
			for i, b := range beds {
				wait.Go(func() {
					for range cycles / goroutines {
						if errs[i] = b.cycle(); errs[i] != nil {
							return
						}
					}
				})
			}
			wait.Wait()
			rates = append(rates, cycles/time.Since(start).Seconds())
			for _, err := range errs {
				if err != nil {
					return 0, err
				}
			}
		}
		return median(rates), nil
	}
	var err error
	if r.OneCallerPerSec, err = perSecond(1); err != nil {
		return err
	}
	if r.EightCallerPerSec, err = perSecond(8); err != nil {
		return err
	}
	r.CallersRatio = r.EightCallerPerSec / r.OneCallerPerSec
	return nil
}

// simulator measures a pass of 1,000 layers with 8 tensors of 4 KiB on the
// simulated device, its checker on.
func (r *hotReport) simulator() error {
	var times []float64
	for range 3 {
		start := time.Now()
		dev := sim.New(sim.Config{})
		if err := loadedPass(dev, 1000, 500, 1024); err != nil {
			return err
		}
		times = append(times, float64(time.Since(start).Microseconds())/1000)
		if err := closeClean(dev); err != nil {
			return err
		}
	}
	r.SimPassMs = median(times)
	return nil
}

func closeClean(dev *sim.Device) error {
	if err := dev.Close(); err != nil {
		return err
	}
	if found := dev.Findings(); len(found) > 0 {
		return fmt.Errorf("the simulator found: %v", found[0])
	}
	return nil
}

// counts compares the operations of one pass on the null device with those on
// the simulated one.
func (r *hotReport) counts() error {
	nothing := null.New()
	if err := loadedPass(nothing, 16, 8, 1024); err != nil {
		return err
	}
	simulated := sim.New(sim.Config{})
	if err := loadedPass(simulated, 16, 8, 1024); err != nil {
		return err
	}
	count := nothing.Counts()
	stats := simulated.Stats()
	r.NullOps, r.Equal = count.Total(), true
	for kind := range device.Kinds {
		n := int64(stats.Ops[kind])
		r.SimOps += n
		r.Equal = r.Equal && n == count.Ops[kind]
	}
	return closeClean(simulated)
}

// loadedPass runs one training pass whose layers save 8 tensors each.
func loadedPass(dev device.Device, layers, offloaded, elements int) error {
	plan, err := schedule.Window(layers, offloaded)
	if err != nil {
		return err
	}
	engine, err := offload.Open(dev, offload.Options{Plan: plan, MinElements: int64(elements), SlabBytes: 1 << 20})
	if err != nil {
		return err
	}
	ids := device.NewIDs(dev)
	stream := ids.Stream()
	if err := dev.Submit(&device.Batch{Ops: []device.Op{{Kind: device.OpenStream, Stream: stream}}}); err != nil {
		return err
	}
	pass, err := engine.Begin(context.Background(), offload.Train, stream)
	if err != nil {
		return err
	}
	saved := make([][]offload.Saved, layers)
	for i := range layers {
		slot, err := pass.Forward(i)
		if err != nil {
			return err
		}
		tensors, batch := make([]device.Tensor, hotTensors), device.Batch{}
		writes := &device.Kernel{Name: "write"}
		for k := range tensors {
			s := ids.NewStorage("x", device.Activation, int64(elements)*4, stream)
			tensors[k] = device.Tensor{Storage: s, DType: device.Float32, Shape: []int{elements}}
			batch.Ops = append(batch.Ops, device.Op{Kind: device.Alloc, Stream: stream, Dst: tensors[k].Range()})
			writes.Writes = append(writes.Writes, tensors[k].Range())
		}
		batch.Ops = append(batch.Ops, device.Op{Kind: device.Access, Stream: stream, Kernel: writes})
		if err := dev.Submit(&batch); err != nil {
			return err
		}
		if saved[i], err = slot.Push(tensors...); err != nil {
			return err
		}
	}
	for i := layers - 1; i >= 0; i-- {
		slot, err := pass.Backward(i)
		if err != nil {
			return err
		}
		if _, err := slot.Pop(saved[i]...); err != nil {
			return err
		}
	}
	if err := pass.End(); err != nil {
		return err
	}
	if err := engine.Close(); err != nil {
		return err
	}
	return dev.Submit(&device.Batch{Ops: []device.Op{{Kind: device.CloseStream, Stream: stream}}})
}

// print writes the figures beside what they should be.
func (r *hotReport) print(w io.Writer) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	defer t.Flush()
	fmt.Fprintf(t, "%s\n\n", r.Machine)
	fmt.Fprintf(t, "figure\tmeasured\ttarget\n")
	row := func(name, format string, value any, target string) {
		fmt.Fprintf(t, "%s\t"+format+"\t%s\n", name, value, target)
	}
	row("empty cycle, ns", "%.0f", r.EmptyCycleNs, "<= 1000")
	row("empty cycle, allocations", "%.0f", r.EmptyCycleAllocs, "0")
	row("cycle of 8 tensors, ns a tensor", "%.0f", r.TensorCycleNs, "<= 1000")
	row("cycle of 8 tensors, allocations", "%.0f", r.TensorCycleAllocs, "0")
	row("empty cycle, goroutine dispatch, ns", "%.0f", r.EmptyCycleGoroutinesNs, "")
	row("cycle of 8 tensors, goroutine dispatch, ns a tensor", "%.0f", r.TensorCycleGoroutinesNs, "")
	row("empty pass of 100 layers, ns a layer", "%.0f", r.Layers100Ns, "")
	row("empty pass of 10,000 layers, ns a layer", "%.0f", r.Layers10000Ns, "")
	row("their ratio", "%.2f", r.LayersRatio, "<= 1.5")
	row("memory of a layer at rest, bytes", "%.0f", r.BytesPerLayer, "<= 1024")
	row("goroutines, before", "%d", r.GoroutinesBefore, "")
	row("goroutines, with 10,000 layers", "%d", r.GoroutinesLayers, "as before")
	row("cycles a second, 1 goroutine", "%.0f", r.OneCallerPerSec, "")
	row("cycles a second, 8 goroutines", "%.0f", r.EightCallerPerSec, "")
	row("their ratio", "%.2f", r.CallersRatio, ">= 0.9")
	row("pass of 1,000 layers on the simulator, ms", "%.0f", r.SimPassMs, "< 1000")
	row("operations of a pass, null device", "%d", r.NullOps, "")
	row("operations of a pass, simulator", "%d", r.SimOps, "the same")
	row("equal kind by kind", "%v", r.Equal, "true")
}
