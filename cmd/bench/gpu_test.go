package main

import (
	"bytes"
	"context"
	"io"
	"math"
	"strings"
	"testing"
	"time"

	"offload/device"
	"offload/device/null"
)

// ticks is a clock on which a millisecond lies between two marks.
type ticks struct{}

func (ticks) mark(device.Stream, int) error { return nil }
func (ticks) between(from, to int) (time.Duration, error) {
	return time.Duration(to-from) * time.Millisecond, nil
}

// blank is a null device whose host memory has bytes.
type blank struct{ *null.Device }

func (b blank) Lookup(device.Buffer) (device.Memory, error) {
	return device.Memory{Host: make([]byte, 8)}, nil
}

func newBlank() *gpu {
	d := blank{null.New()}
	return &gpu{Device: d, stream: device.NewIDs(d).Stream(), meter: &meter{Device: d, next: markCopies}, clock: ticks{}}
}

// TestPeaks compares what the plans need and move with the other engine's
// figures. The memory in use follows from the operations alone.
func TestPeaks(t *testing.T) {
	r, err := measureGPU(context.Background(), newBlank(), workloads, 1, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	rows := 0
	for _, s := range r.summaries() {
		rows++
		if s.Mode != modeTrain {
			if s.OutMiB+s.InMiB > 0 {
				t.Errorf("%s %s: %v MiB moved, want none", s.Workload, s.Mode, s.OutMiB+s.InMiB)
			}
			continue
		}
		b := baselines[s.Workload][s.Offloaded]
		if b.peakMiB > 0 && math.Round(s.PeakMiB) > b.peakMiB {
			t.Errorf("%s %d/%d: peak %v MiB, want at most %v", s.Workload, s.Offloaded, s.Layers, s.PeakMiB, b.peakMiB)
		}
		if b.movedMiB > 0 && (s.OutMiB != b.movedMiB || s.InMiB != b.movedMiB) {
			t.Errorf("%s %d/%d: %v MiB moved out and %v in, want %v", s.Workload, s.Offloaded, s.Layers, s.OutMiB, s.InMiB, b.movedMiB)
		}
		if s.Offloaded > 0 && s.Workload != "W3" && (s.out == 0 || s.in == 0) {
			t.Errorf("%s %d/%d: rates %v and %v, want copies to be timed", s.Workload, s.Offloaded, s.Layers, s.out, s.in)
		}
	}
	if rows != 4*4+2 {
		t.Errorf("got %d rows, want 18", rows)
	}
	var text bytes.Buffer
	r.print(&text)
	for _, want := range []string{"W1b", "14/16", "inference pass", "copies alone"} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("the table lacks %q:\n%s", want, &text)
		}
	}
	if testing.Verbose() {
		t.Log("\n" + text.String())
	}
}

func TestMeter(t *testing.T) {
	g := newBlank()
	ids := device.NewIDs(g)
	a, b := ids.Stream(), ids.Stream()
	copying := func(kind device.Kind, s device.Stream, n int64) device.Op {
		return device.Op{Kind: kind, Stream: s, Src: device.Range{Bytes: n}, Dst: device.Range{Bytes: n}}
	}
	batch := &device.Batch{Ops: []device.Op{
		copying(device.CopyOut, a, 1e6), copying(device.CopyOut, a, 2e6), {Kind: device.Wait, Stream: a},
		copying(device.CopyOut, a, 3e6), copying(device.CopyOut, b, 4e6), copying(device.CopyIn, b, 5e6)}}
	d := g.Device.(blank)
	for _, on := range []bool{false, true} {
		g.meter.on = on
		before := d.Counts()
		if err := g.meter.Submit(batch); err != nil {
			t.Fatal(err)
		}
		after := d.Counts()
		want := int64(0)
		if on {
			want = 8 // around four runs
		}
		if got := after.Ops[device.Launch] - before.Ops[device.Launch]; got != want {
			t.Errorf("on %t: got %d marks, want %d", on, got, want)
		}
	}
	if err := g.meter.settle(g.clock); err != nil {
		t.Fatal(err)
	}
	out, in := g.meter.rates()
	if out != 10e6/3e-3/1e9 || in != 5e6/1e-3/1e9 { // a millisecond a run
		t.Errorf("got %v and %v GB/s, want %v and %v", out, in, 10e6/3e-3/1e9, 5e6/1e-3/1e9)
	}
	if out, in := g.meter.rates(); out != 0 || in != 0 {
		t.Errorf("got %v and %v GB/s of nothing", out, in)
	}
}

func TestChoose(t *testing.T) {
	if list, err := choose("W2,W1"); err != nil || len(list) != 2 || list[0].name != "W2" {
		t.Errorf("got %v, %v; want W2 and W1", list, err)
	}
	if _, err := choose("W2,W9"); err == nil || !strings.Contains(err.Error(), `"W9"`) {
		t.Errorf("got %v, want an error that names W9", err)
	}
}
