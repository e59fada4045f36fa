package main

import (
	"context"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"offload/device"
	"offload/fsm"
)

// batchful is as many made-up images as reach the size limit at the default
// width, and some to test with.
var batchful = sync.OnceValue(func() map[string][]byte { return madeUp(2048, 300) })

// small returns the flags of a run that takes a second and moves something of
// every block, and then the given ones.
func small(t *testing.T, flags ...string) []string {
	return append([]string{"-data", digits(t, batchful()), "-layers", "2", "-steps", "2"}, flags...)
}

// holds checks everything that must hold whatever is trained.
func (i invocation) holds(t *testing.T) {
	t.Helper()
	if i.status != exitOK || i.stderr != "" {
		t.Fatalf("exit status %d, stderr %q, want %d and nothing", i.status, i.stderr, exitOK)
	}
	r := i.report
	if r == nil {
		t.Fatal("no report")
	}
	if !r.Identical {
		t.Error("identical is false")
	}
	if r.Findings != 0 {
		t.Errorf("%d findings", r.Findings)
	}
	if r.Inference.OffloadDeviceOps != 0 {
		t.Errorf("offloading asked the device for %d operations in inference", r.Inference.OffloadDeviceOps)
	}
	if r.Offload.PeakDeviceBytes <= 0 || r.Offload.PeakDeviceBytes > r.LimitBytes || r.LimitBytes >= r.Resident.PeakDeviceBytes {
		t.Errorf("peak offloaded %d, limit %d, peak resident %d; want them in this order",
			r.Offload.PeakDeviceBytes, r.LimitBytes, r.Resident.PeakDeviceBytes)
	}
	if r.Limited.Fits {
		t.Error("the resident run fits under the limit")
	}
	if o := r.Offload; o.MovedOutBytes == 0 || o.MovedInBytes == 0 || o.EventsRecorded == 0 || o.WaitsIssued == 0 || o.LayersOffloaded == 0 {
		t.Errorf("something did not happen: %+v", o)
	}
}

// shortage is the device's refusal as the limited run reports it: the layer, the
// need, what is in use and the limit.
var shortage = regexp.MustCompile(`^layer \d+ \(.+\), (?:forward|backward): .*needs (\d+) bytes of device memory; (\d+) are in use.* the limit is (\d+)`)

// TestShortRun is the default run on the real digits with few steps.
func TestShortRun(t *testing.T) {
	steps := 10
	if testing.Short() {
		steps = 2
	}
	i := invoke(t, newMachine, "-steps", strconv.Itoa(steps))
	i.holds(t)
	m := shortage.FindStringSubmatch(i.report.Limited.Error)
	if m == nil || !strings.Contains(i.report.Limited.Error, device.ErrOutOfMemory.Error()) {
		t.Fatalf("limited.error is %q, want layer, need and limit", i.report.Limited.Error)
	}
	need, _ := strconv.ParseInt(m[1], 10, 64)
	inUse, _ := strconv.ParseInt(m[2], 10, 64)
	limit, _ := strconv.ParseInt(m[3], 10, 64)
	if limit != i.report.LimitBytes || inUse+need <= limit {
		t.Errorf("%q: the limit is %d, and what is asked for must not fit", i.report.Limited.Error, i.report.LimitBytes)
	}
	if o := i.report.Offload; o.LayersOffloaded != 6 || o.MovedOutBytes != o.MovedInBytes {
		t.Errorf("%+v, want 6 layers that come back whole", o)
	}
	if i.report.TestAccuracy <= 0 || i.report.TestAccuracy > 1 {
		t.Errorf("test accuracy %v", i.report.TestAccuracy)
	}
	for _, want := range []string{
		"run   ", "resident  ", "out of memory in step 1", "peak device memory", "moved out", "moved in", "events recorded", "waits issued",
		"short-circuits", "loss of the last step", "accuracy of the last step", "identical bit for bit", "on 10,000 images",
	} {
		if !strings.Contains(i.stdout, want) {
			t.Errorf("the table lacks %q:\n%s", want, i.stdout)
		}
	}
}

// TestSeed runs twice with one seed, then with another one.
func TestSeed(t *testing.T) {
	if testing.Short() {
		t.Skip("runs the program three times")
	}
	first := invoke(t, newMachine, small(t, "-steps", "1")...)
	first.holds(t)
	again := invoke(t, newMachine, small(t, "-steps", "1")...)
	// Every device of a process has a number of its own.
	numbers := regexp.MustCompile(`\bd\d+/`)
	if diff := cmp.Diff(numbers.ReplaceAllString(first.stdout, "d/"), numbers.ReplaceAllString(again.stdout, "d/")); diff != "" {
		t.Errorf("the same seed prints other results (-first +again)\n%s", diff)
	}
	other := invoke(t, newMachine, small(t, "-steps", "1", "-seed", "2")...)
	other.holds(t)
	if first.report.TestAccuracy == other.report.TestAccuracy {
		t.Errorf("another seed gives the same test accuracy, %v", first.report.TestAccuracy)
	}
}

// TestOffload varies the number of offloaded layers: more layers, less memory.
func TestOffload(t *testing.T) {
	counts := []int{1, 2, 3} // of 4 layers
	if testing.Short() {
		counts = []int{3} // 2 is the default
	}
	var peaks []int64
	for _, n := range counts {
		i := invoke(t, newMachine, small(t, "-steps", "1", "-offload", strconv.Itoa(n))...)
		i.holds(t)
		if i.report.Offload.LayersOffloaded != n {
			t.Errorf("%d layers were offloaded, want %d", i.report.Offload.LayersOffloaded, n)
		}
		peaks = append(peaks, -i.report.Offload.PeakDeviceBytes)
	}
	if !slices.IsSorted(peaks) {
		t.Errorf("the peaks, negated, are %d; want none above the one before", peaks)
	}
}

func TestLimit(t *testing.T) {
	t.Run("everything fits", func(t *testing.T) {
		i := invoke(t, newMachine, small(t, "-steps", "1", "-device-memory", "1GiB")...)
		if i.status != exitOK || i.report == nil || !i.report.Limited.Fits || i.report.Limited.Error != "" || i.report.LimitBytes != 1<<30 {
			t.Errorf("got %+v, %+v, want a limited run that fits", i, i.report)
		}
		if !strings.Contains(i.stdout, "limited run:         fits; give -device-memory less than") {
			t.Errorf("the table does not say that it fits:\n%s", i.stdout)
		}
	})
	t.Run("the offloaded run does not fit", func(t *testing.T) {
		i := invoke(t, newMachine, small(t, "-steps", "1", "-device-memory", "8MiB")...)
		i.failed(t, exitFailed, "demo: offloaded run: step 1: layer ")
	})
	t.Run("the weights do not fit", func(t *testing.T) {
		i := invoke(t, newMachine, small(t, "-steps", "1", "-device-memory", "64KiB")...)
		i.failed(t, exitFailed, "demo: limited run: nn: first weights: ")
	})
	t.Run("offloading does not help", func(t *testing.T) {
		i := invoke(t, newMachine, small(t, "-batch", "16")...)
		i.failed(t, exitFailed, "tensors of less than 262144 elements stay on the device; raise -batch")
	})
}

func TestBetween(t *testing.T) {
	for _, test := range []struct{ low, high, want int64 }{
		{10 << 20, 15 << 20, 12 << 20},
		{10<<20 + 1, 11 << 20, 10<<20 + 512<<10},
		{1 << 20, 1<<20 + 4096, 1 << 20},
		{1<<20 + 1, 1<<20 + 3, 1<<20 + 2},
		{5, 6, 5},
	} {
		if got := between(test.low, test.high); got != test.want {
			t.Errorf("between(%d, %d) = %d, want %d", test.low, test.high, got, test.want)
		}
	}
}

func TestQuietAndLog(t *testing.T) {
	i := invoke(t, newMachine, small(t, "-steps", "1", "-quiet", "-log", "debug")...)
	if i.status != exitOK || i.stdout != "" {
		t.Fatalf("exit status %d, printed %q, want %d and nothing", i.status, i.stdout, exitOK)
	}
	for _, want := range []string{"device memory limit", "pass ended", "run=resident", "run=limited", "run=offloaded"} {
		if !strings.Contains(i.stderr, want) {
			t.Errorf("the log lacks %q:\n%.2000s", want, i.stderr)
		}
	}
}

func TestInterrupt(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	steps := 0
	// The interrupt comes in the second step of the resident run.
	newMachine := wrapped(func(run string, d device.Device) device.Device {
		return watcher{d, func(b *device.Batch) {
			if b.Origin.Action == "update weights" {
				if steps++; steps == 2 {
					cancel()
				}
			}
		}}
	})
	invokeWith(t, ctx, newMachine, small(t, "-steps", "1000")...).failed(t, exitFailed, "demo: resident run: ")
	if steps != 2 {
		t.Errorf("%d steps were made, want 2", steps)
	}
}

// wrapped makes machines whose device is seen through wrap.
func wrapped(wrap func(run string, d device.Device) device.Device) machines {
	return func(c config, run string, limit int64) (machine, error) {
		m, err := newMachine(c, run, limit)
		m.Device = wrap(run, m.Device)
		return m, err
	}
}

// watcher calls see before every batch.
type watcher struct {
	device.Device
	see func(b *device.Batch)
}

func (w watcher) Submit(b *device.Batch) error {
	w.see(b)
	return w.Device.Submit(b)
}

// ofEngine reports whether the engine made the batch: its batches are named for
// the events of a slot, those of the model for the phases of training.
func ofEngine(b *device.Batch) bool {
	for e := range fsm.Event(fsm.Events) {
		if b.Origin.Action == e.String() {
			return true
		}
	}
	return false
}

// TestInferenceIsLeftAlone counts the batches of the engine after the last step
// of the offloaded run: there is none, whatever the metrics say.
func TestInferenceIsLeftAlone(t *testing.T) {
	var training, later int // batches of the engine in the offloaded run
	newMachine := wrapped(func(run string, d device.Device) device.Device {
		if run != "offloaded" {
			return d
		}
		return watcher{d, func(b *device.Batch) {
			switch {
			case b.Origin.Action == "update weights":
				training, later = training+later, 0
			case ofEngine(b):
				later++
			}
		}}
	})
	invoke(t, newMachine, small(t, "-steps", "1")...).holds(t)
	if training == 0 || later != 0 {
		t.Errorf("%d batches of the engine while training and %d while testing, want some and none", training, later)
	}
}
