package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"time"

	"offload"
	"offload/device"
	"offload/schedule"
)

// A gpu is what the benchmark runs on.
type gpu struct {
	device.Device
	stream device.Stream
	meter  *meter
	clock  clock
	blas   int
	rest   time.Duration // before each row, so that all begin with a GPU as cool as the others'
}

// A clock measures work of the device in the order of a stream.
type clock interface {
	// mark notes the point that the stream has reached, under a number.
	mark(stream device.Stream, number int) error
	// between waits, and returns the time from one mark to another.
	between(from, to int) (time.Duration, error)
}

// The numbers of the marks around a step; those of copies follow.
const (
	markStart = iota
	markEnd
	markCopies
)

const (
	warmUp  = 3
	timed   = 10
	metered = 3 // steps whose copies are timed, behind the others
)

// gpuReport is everything that `bench -gpu` measures. A MiB is 2^20 bytes, a GB
// 10^9.
type gpuReport struct {
	Machine  string    `json:"machine"`
	GPU      string    `json:"gpu"`
	CuBLAS   int       `json:"cublas"`
	Runs     int       `json:"runs"`
	WarmUp   int       `json:"warm_up_steps"`
	Timed    int       `json:"timed_steps"`
	Ceilings []ceiling `json:"ceilings"`
	Rows     []gpuRow  `json:"rows"`
}

// A ceiling is how fast plain copies of the sizes that a workload moves are, back
// to back.
type ceiling struct {
	Workload string  `json:"workload"`
	Run      int     `json:"run"`
	Bytes    []int64 `json:"bytes"`
	OutGBs   float64 `json:"out_gb_s"`
	InGBs    float64 `json:"in_gb_s"`
	BothOut  float64 `json:"both_out_gb_s"`
	BothIn   float64 `json:"both_in_gb_s"`
}

// A gpuRow is one run of one plan.
type gpuRow struct {
	Workload  string    `json:"workload"`
	Mode      string    `json:"mode"` // train, plain forward, or inference pass
	Offloaded int       `json:"offloaded"`
	Layers    int       `json:"layers"`
	Run       int       `json:"run"`
	StepMs    []float64 `json:"step_ms"` // by events of the device
	WallMs    []float64 `json:"wall_ms"`
	HostMs    []float64 `json:"host_ms"` // until the last operation was enqueued
	PeakMiB   float64   `json:"peak_mib"`
	OutMiB    float64   `json:"out_mib"` // of a step
	InMiB     float64   `json:"in_mib"`
	OutGBs    float64   `json:"out_gb_s"` // while copying
	InGBs     float64   `json:"in_gb_s"`
	Differing int64     `json:"differing_words"`
	Compared  int64     `json:"compared_words"`
}

// A variant is one way to run a workload.
type variant struct {
	mode      string
	offloaded int
	engine    *offload.Engine // nil: none
}

const (
	modeTrain     = "train"
	modePlain     = "plain forward"
	modeInference = "inference pass"
)

// measureGPU measures the chosen workloads, each in the given number of runs.
func measureGPU(ctx context.Context, g *gpu, chosen []workload, runs int, progress io.Writer) (*gpuReport, error) {
	r := &gpuReport{Machine: machineText(), GPU: g.Info().Name, CuBLAS: g.blas, Runs: runs, WarmUp: warmUp, Timed: timed}
	for _, w := range chosen {
		if err := r.measure(ctx, g, w, progress); err != nil {
			return r, fmt.Errorf("%s: %w", w.name, err)
		}
	}
	return r, nil
}

func machineText() string {
	return fmt.Sprintf("%s/%s, %d processors, %s", runtime.GOOS, runtime.GOARCH, runtime.NumCPU(), runtime.Version())
}

func (r *gpuReport) measure(ctx context.Context, g *gpu, w workload, progress io.Writer) (err error) {
	s, err := newStack(g.Device, g.stream, w)
	if err != nil {
		return err
	}
	variants, err := openVariants(g, w)
	defer func() {
		for _, v := range variants {
			if v.engine != nil {
				err = errors.Join(err, v.engine.Close())
			}
		}
		err = errors.Join(err, s.close())
	}()
	if err != nil {
		return err
	}
	for run := 1; run <= r.Runs; run++ {
		c, err := measureCeiling(g, w)
		if err != nil {
			return err
		}
		c.Run = run
		r.Ceilings = append(r.Ceilings, c)
		for _, v := range variants {
			row, err := g.row(ctx, s, v)
			if err != nil {
				return fmt.Errorf("%s, %d of %d layers, run %d: %w", v.mode, v.offloaded, w.layers, run, err)
			}
			row.Run = run
			r.Rows = append(r.Rows, row)
			fmt.Fprintf(progress, "%-4s run %d %-14s %2d/%d: %8.2f ms, host %6.2f ms, peak %6.0f MiB, %d of %d words differ\n",
				w.name, run, v.mode, v.offloaded, w.layers, mid(row.StepMs), mid(row.HostMs), row.PeakMiB, row.Differing, row.Compared)
		}
	}
	return nil
}

// openVariants opens an engine for each plan. They live through all runs, so that
// host memory is pinned once.
func openVariants(g *gpu, w workload) (list []variant, err error) {
	for _, n := range w.offloaded {
		plan, err := schedule.Window(w.layers, n)
		if err != nil {
			return list, err
		}
		e, err := offload.Open(g.meter, offload.Options{Plan: plan, CopyAtPush: true})
		if err != nil {
			return list, err
		}
		list = append(list, variant{modeTrain, n, e})
	}
	if w.forward {
		list = append(list, variant{mode: modePlain})
		plan, err := schedule.Window(w.layers, w.layers/2)
		if err != nil {
			return list, err
		}
		e, err := offload.Open(g.meter, offload.Options{Plan: plan})
		if err != nil {
			return list, err
		}
		list = append(list, variant{modeInference, w.layers / 2, e})
	}
	return list, nil
}

// row measures one variant once.
func (g *gpu) row(ctx context.Context, s *stack, v variant) (row gpuRow, err error) {
	for start := time.Now(); time.Since(start) < g.rest; { // the GPU cools; the thread stays warm, as in a training loop
	}
	row = gpuRow{Workload: s.name, Mode: v.mode, Offloaded: v.offloaded, Layers: s.layers}
	s.moves = 0
	if v.mode == modeTrain {
		s.moves = v.offloaded
	}
	var before offload.Metrics
	for i := range warmUp + timed + metered {
		if i == warmUp {
			runtime.GC()
			if v.engine != nil {
				before = v.engine.Metrics()
			}
		}
		g.meter.on = i >= warmUp+timed
		if err := s.clear(); err != nil {
			return row, err
		}
		held := g.Usage().InUse
		g.ResetPeak()
		t, err := g.time(func() error { return v.step(ctx, s) })
		if err != nil {
			return row, err
		}
		if g.meter.on {
			if err := g.meter.settle(g.clock); err != nil {
				return row, err
			}
		}
		if i < warmUp || g.meter.on {
			continue
		}
		row.StepMs = append(row.StepMs, ms(t.device))
		row.WallMs = append(row.WallMs, ms(t.wall))
		row.HostMs = append(row.HostMs, ms(t.host))
		row.PeakMiB = max(row.PeakMiB, mib(g.Usage().Peak-held))
	}
	g.meter.on = false
	row.OutGBs, row.InGBs = g.meter.rates()
	if v.engine != nil {
		after := v.engine.Metrics()
		row.OutMiB = mib(after.BytesOut-before.BytesOut) / (timed + metered)
		row.InMiB = mib(after.BytesIn-before.BytesIn) / (timed + metered)
	}
	if v.mode != modeTrain {
		return row, nil
	}
	if v.offloaded == 0 {
		if err := s.keep(); err != nil {
			return row, err
		}
	}
	row.Differing, row.Compared, err = s.differing()
	return row, err
}

// step runs one step of a variant.
func (v variant) step(ctx context.Context, s *stack) error {
	if v.engine == nil {
		return s.forward(nil, false)
	}
	kind := offload.Train
	if v.mode == modeInference {
		kind = offload.Inference
	}
	pass, err := v.engine.Begin(ctx, kind, s.arena.Stream())
	if err != nil {
		return err
	}
	err = s.forward(pass, kind == offload.Train)
	if err == nil && kind == offload.Train {
		err = s.backward(pass)
	}
	if err != nil {
		return errors.Join(err, pass.Abort())
	}
	return pass.End()
}

// times are those of one step.
type times struct{ device, wall, host time.Duration }

func (g *gpu) time(step func() error) (t times, err error) {
	start := time.Now()
	if err := g.clock.mark(g.stream, markStart); err != nil {
		return t, err
	}
	if err := step(); err != nil {
		return t, err
	}
	t.host = time.Since(start)
	if err := g.clock.mark(g.stream, markEnd); err != nil {
		return t, err
	}
	err = g.Submit(&device.Batch{Origin: device.Origin{Action: "end of step"}, Ops: []device.Op{{Kind: device.SyncStream, Stream: g.stream}}})
	t.wall = time.Since(start)
	if err != nil {
		return t, err
	}
	t.device, err = g.clock.between(markStart, markEnd)
	return t, err
}

func ms(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e6 }
func mib(n int64) float64        { return float64(n) / (1 << 20) }
