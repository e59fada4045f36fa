package tests

import (
	"context"
	"flag"
	"fmt"
	"math"
	"os"
	"strings"
	"testing"
	"time"

	"offload"
	"offload/device"
	"offload/device/sim"
	"offload/schedule"
)

// A workload is a model of equal layers y = x + GELU(x W1) W2 with W1 d x 4d,
// W2 4d x d, in bfloat16. Each layer saves x, the input of GELU and its output.
// The times are those of all layers without offloading.
type workload struct {
	name              string
	layers            int
	width, tokens     int
	forward, backward time.Duration
}

var (
	w1 = workload{"W1", 16, 4096, 8192, 54600 * time.Microsecond, 111900 * time.Microsecond}
	w2 = workload{"W2", 32, 1024, 2048, 2450 * time.Microsecond, 5 * time.Millisecond}
)

// elements returns the size of x, and of the input and output of GELU.
func (w workload) elements() (x, inner int) { return w.width * w.tokens, 4 * w.width * w.tokens }

// cost is the kernel whose first argument is the seconds that it takes.
const cost = "clock.work"

// trainer runs steps of a workload through an engine on a device without bytes.
type trainer struct {
	workload
	t       testing.TB
	sim     *sim.Device
	ids     *device.IDs
	compute device.Stream
	engine  *offload.Engine
}

// newTrainer opens a device like an H200 and an engine that offloads n of the
// layers.
func newTrainer(t testing.TB, w workload, n int, cfg sim.Config) *trainer {
	t.Helper()
	cfg.Phantom = true
	if cfg.Profile == nil {
		cfg.Profile = sim.H200()
	}
	r := &trainer{workload: w, t: t, sim: sim.New(cfg)}
	r.sim.RegisterCost(cost, func(k *device.Kernel) time.Duration { return time.Duration(k.Args[0].Float * 1e9) })
	r.ids = device.NewIDs(r.sim)
	r.compute = r.ids.Stream()
	r.submit(device.Op{Kind: device.OpenStream, Stream: r.compute})
	plan, err := schedule.Window(w.layers, n)
	r.must(err)
	r.engine, err = offload.Open(r.sim, offload.Options{Plan: plan, HostBudget: 64 << 30, SlabBytes: 1 << 30})
	r.must(err)
	return r
}

func (r *trainer) must(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatal(err)
	}
}

func (r *trainer) submit(ops ...device.Op) {
	r.t.Helper()
	r.must(r.sim.Submit(&device.Batch{Origin: device.Origin{Action: "train"}, Ops: ops}))
}

// tensor allocates n elements.
func (r *trainer) tensor(name string, n int) device.Tensor {
	t := device.Tensor{DType: device.BFloat16, Shape: []int{n},
		Storage: r.ids.NewStorage(name, device.Activation, 2*int64(n), r.compute)}
	r.submit(device.Op{Kind: device.Alloc, Stream: r.compute, Dst: t.Range()})
	return t
}

// work computes writes from reads for d.
func (r *trainer) work(d time.Duration, writes device.Tensor, reads ...device.Tensor) {
	k := &device.Kernel{Name: cost, Args: []device.Arg{{Float: d.Seconds()}}, Writes: []device.Range{writes.Range()}}
	for _, x := range reads {
		k.Reads = append(k.Reads, x.Range())
	}
	r.submit(device.Op{Kind: device.Launch, Stream: r.compute, Kernel: k})
}

func (r *trainer) free(x device.Tensor) {
	r.submit(device.Op{Kind: device.Free, Stream: r.compute, Dst: x.Range()})
	x.Storage.Freed()
}

// step runs a forward and a backward and returns where the time went. Half of a
// layer's products are done when GELU runs, which is bound by memory.
func (r *trainer) step() sim.Timing {
	r.t.Helper()
	small, large := r.elements()
	gelu := time.Duration(float64(2*2*large) / r.sim.Profile().Memory * 1e9)
	product := (r.forward/time.Duration(r.layers) - gelu) / 2
	p, err := r.engine.Begin(context.Background(), offload.Train, r.compute)
	r.must(err)
	saved := make([][]offload.Saved, r.layers)
	x := r.tensor("input", small)
	r.work(0, x)
	for i := range r.layers {
		slot, err := p.Forward(i)
		r.must(err)
		save := func(t device.Tensor) {
			saved[i], err = slot.AppendPush(saved[i], t)
			r.must(err)
		}
		save(x)
		inner, outer := r.tensor(fmt.Sprint("h", i), large), r.tensor(fmt.Sprint("g", i), large)
		r.work(product, inner, x)
		save(inner)
		r.work(gelu, outer, inner)
		save(outer)
		y := r.tensor(fmt.Sprint("x", i+1), small)
		r.work(product, y, outer, x)
		x = y
	}
	gradient := x // of the output; a backward overwrites it with that of its input
	for i := r.layers - 1; i >= 0; i-- {
		slot, err := p.Backward(i)
		r.must(err)
		ts, err := slot.Pop(saved[i]...)
		r.must(err)
		r.work(r.backward/time.Duration(r.layers), gradient, append(ts, gradient)...)
	}
	r.must(p.End())
	r.free(gradient)
	return r.sim.Lap()
}

// close closes everything and reports what the checker found.
func (r *trainer) close() {
	r.t.Helper()
	r.must(r.engine.Close())
	r.submit(device.Op{Kind: device.CloseStream, Stream: r.compute})
	r.must(r.sim.Close())
	for _, f := range r.sim.Findings() {
		r.t.Error(f)
	}
}

// measure returns the second step, in which nothing is pinned any more.
func measure(t testing.TB, w workload, n int, cfg sim.Config) sim.Timing {
	t.Helper()
	r := newTrainer(t, w, n, cfg)
	defer r.close()
	r.step()
	return r.step()
}

// A clockRow is a step of a workload with what it is compared with, in
// milliseconds: what a system took that was measured, or the least time that the
// link allows where that system was bound by its host.
type clockRow struct {
	workload
	offloaded int
	reference float64
	of        string
	forward   float64 // of a forward alone, measured; zero: it was not
}

var clockRows = []clockRow{
	{w1, 0, 166.5, "measured, nothing offloaded", 54.6},
	{w1, 4, 166.0, "measured, TransformerEngine", 54.3},
	{w1, 8, 195.8, "measured, TransformerEngine", 91.7},
	{w1, 14, 321.9, "measured, TransformerEngine", 157.3},
	{w2, 0, 7.45, "measured, nothing offloaded", 0},
	{w2, 8, 11.3, "bound by the link", 0},
	{w2, 16, 22.3, "bound by the link", 0},
	{w2, 30, 42.8, "measured, TransformerEngine", 0},
}

const clockPage = "../docs/bench-virtual.md"

// The virtual clock is within 5 % of what was measured, and the table of it in
// the documentation is current. `go test ./tests -run VirtualClock -rewrite`
// writes it.
func TestVirtualClock(t *testing.T) {
	var table strings.Builder
	fmt.Fprintln(&table, "| step | reference ms | virtual ms | difference | forward ms | measured | copies exposed ms | stalled for copies out ms | in ms | moved each way MiB | link out GB/s | in GB/s | peak MiB |")
	fmt.Fprintln(&table, "|---|---|---|---|---|---|---|---|---|---|---|---|---|")
	for _, row := range clockRows {
		r := newTrainer(t, row.workload, row.offloaded, sim.Config{})
		r.step() // pins host memory
		got := r.step()
		r.close()
		name := fmt.Sprintf("%s %d/%d", row.name, row.offloaded, row.layers)
		off := 100 * (millis(got.Total)/row.reference - 1)
		if math.Abs(off) > 5 {
			t.Errorf("%s: %.2f ms is %+.1f %% off %v ms (%s), want 5 %%", name, millis(got.Total), off, row.reference, row.of)
		}
		stalls := make(map[device.Reason]time.Duration)
		for _, s := range got.Stream(r.compute).Stalls {
			stalls[s.Reason] = s.Time
		}
		if sum := got.Compute + stalls[device.AfterCopyOut] + stalls[device.AfterCopyIn]; got.Total-sum > got.Total/100 || sum > got.Total {
			t.Errorf("%s: of %v only %v are accounted for", name, got.Total, sum)
		}
		// Copies out are waited for in forward only, by its releases.
		forward, measured := millis(row.workload.forward+stalls[device.AfterCopyOut]), "-"
		if row.forward > 0 {
			measured = fmt.Sprint(row.forward)
			if math.Abs(forward/row.forward-1) > 0.05 {
				t.Errorf("%s: the forward takes %.2f ms, want that to be within 5 %% of %v ms", name, forward, row.forward)
			}
		}
		small, large := row.elements()
		moved := int64(row.offloaded) * 2 * int64(small+2*large)
		if got.Out.Bytes != moved || got.In.Bytes != moved {
			t.Errorf("%s: %d bytes went out and %d in, want %d", name, got.Out.Bytes, got.In.Bytes, moved)
		}
		fmt.Fprintf(&table, "| %s | %v (%s) | %.2f | %+.1f %% | %.2f | %s | %.2f | %.2f | %.2f | %d | %.1f | %.1f | %d |\n", name, row.reference, row.of,
			millis(got.Total), off, forward, measured, millis(got.Exposed), millis(stalls[device.AfterCopyOut]), millis(stalls[device.AfterCopyIn]),
			moved>>20, got.Out.Rate()/1e9, got.In.Rate()/1e9, got.Peak>>20)
	}
	page, err := os.ReadFile(clockPage)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, _ := strings.Cut(string(page), "| step |")
	_, after, _ := strings.Cut(rest, "\n\n")
	want := before + table.String() + "\n" + after
	if want == string(page) {
		return
	}
	if f := flag.Lookup("rewrite"); f != nil && f.Value.String() == "true" {
		if err := os.WriteFile(clockPage, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	t.Errorf("%s is not current; its table should be\n%s", clockPage, &table)
}

func millis(d time.Duration) float64 { return d.Seconds() * 1e3 }

// The clock gives the same under every seed.
func TestVirtualClockIsDeterministic(t *testing.T) {
	want := measure(t, w1, 14, sim.Config{ID: device.NextID()})
	for seed := range uint64(3) {
		cfg := sim.Config{ID: device.NextID(), Seed: seed + 1}
		if got := measure(t, w1, 14, cfg); got.Total != want.Total || got.Exposed != want.Exposed || got.Peak != want.Peak || got.Enqueue != want.Enqueue {
			t.Errorf("seed %d: got %v\nwant %v", cfg.Seed, got, want)
		}
	}
}

// S07, S05: copies are slower than the compute of a layer. As long as the copies
// of N layers fit behind the compute of all layers but the first, whose copy
// cannot begin before it has run, and the last, which does not wait, forward
// does not stall: N = floor((L-2) F / C). One more and it does.
func TestStallBeginsWhereTheFormulaSays(t *testing.T) {
	const forward = 1000 * time.Microsecond
	most := 20
	if testing.Short() {
		most = 10
	}
	for layers := 3; layers <= most; layers++ {
		for _, slower := range []float64{1.05, 1.4, 2, 3.3} {
			// One tensor of 1 MiB a layer; the link takes slower*F for it.
			link := sim.Link{Copies: []sim.CopyRate{{Bytes: 1 << 20, Rate: (1 << 20) / (slower * forward.Seconds())}}}
			limit := int(float64(layers-2) / slower)
			for n := range layers {
				r := newTrainer(t, workload{layers: layers}, n, sim.Config{Profile: &sim.Profile{Out: link, In: link}})
				p, err := r.engine.Begin(context.Background(), offload.Train, r.compute)
				r.must(err)
				for i := range layers {
					slot, err := p.Forward(i)
					r.must(err)
					x := r.tensor(fmt.Sprint("x", i), 1<<19)
					r.work(forward, x)
					_, err = slot.Push(x)
					r.must(err)
				}
				compute := r.sim.Lap().Stream(r.compute)
				r.must(p.Abort())
				r.close()
				if stalled := compute.Stalled() > 0; stalled != (n > limit) {
					t.Errorf("%d of %d layers, copies %v times as slow: stalled for %v; the formula allows %d", n, layers, slower, compute.Stalled(), limit)
				}
			}
		}
	}
}

// At any virtual time no more sets are on the device than the plan allows, and
// what is not saved: the output of the last layer, or a gradient.
func TestPeakOnTheVirtualClock(t *testing.T) {
	for _, n := range []int{0, 1, 4, 8, 14, 15} {
		small, large := w1.elements()
		set, output := 2*int64(small+2*large), 2*int64(small)
		got := measure(t, w1, n, sim.Config{})
		if want := int64(w1.layers-n)*set + output; got.Peak != want || got.Left != 0 {
			t.Errorf("%d offloaded: peak %d MiB, left %d; want %d MiB and none", n, got.Peak>>20, got.Left, want>>20)
		}
	}
}
