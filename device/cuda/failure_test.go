package cuda

import (
	"bytes"
	"errors"
	"slices"
	"strings"
	"testing"

	"offload/device"
)

func newFakeRig(t testing.TB, o Options) (*rig, *fake) {
	f := newFake(1 << 30)
	return newRig(t, newDevice(f, "fake", o)), f
}

// TestFailedCommand lets the driver refuse each command of a batch in turn.
// What stands before it must have happened, what follows must not, and the
// rest of the batch must work when it is submitted again.
func TestFailedCommand(t *testing.T) {
	for broken, call := range []string{"cuMemAllocFromPoolAsync", "cuMemcpyHtoDAsync", "cuEventRecord", "cuStreamWaitEvent", "cuMemcpyDtoHAsync", "cuMemFreeAsync"} {
		t.Run(call, func(t *testing.T) {
			r, f := newFakeRig(t, Options{MemoryLimit: 4096})
			a, b := r.stream(), r.stream()
			from, to := r.pinned(1000), r.pinned(1000)
			for i := range r.host(from) {
				r.host(from)[i] = byte(i)
			}
			x, e := device.Range{Buffer: r.ids.Buffer(device.OnDevice), Bytes: 1000}, r.ids.Event()
			ops := []device.Op{alloc(a, x), copyIn(a, x, from), record(a, e), wait(b, e), copyOut(b, to, x), free(b, x)}
			f.answers[call] = 1
			err := r.do(ops...)
			var failed *device.Error
			if !errors.As(err, &failed) || failed.Index != broken || failed.Op != ops[broken] || failed.Origin != origin {
				t.Fatalf("got %v, want an error of operation %d (%v)", err, broken, ops[broken])
			}
			var answer *DriverError
			if !errors.As(err, &answer) || answer.Call != call || answer.Code != 1 {
				t.Errorf("got %v, want answer 1 of %s", err, call)
			}
			inUse := int64(0)
			if broken > 0 {
				inUse = 1024
			}
			if got := r.dev.Usage(); got.InUse != inUse || got.Peak != inUse {
				t.Errorf("got usage %+v, want %d bytes in use and at the peak", got, inUse)
			}
			if m, err := r.dev.Lookup(x.Buffer); (err == nil) != (broken > 0) || err == nil && f.onGPU[m.Address] == nil {
				t.Errorf("Lookup: got %+v, %v; broken is %d", m, err, broken)
			}
			if err := r.do(wait(b, e)); (err == nil) != (broken > 2) {
				t.Errorf("wait: got %v, broken is %d", err, broken)
			}
			r.must(append(ops[broken:], join(b))...)
			if !bytes.Equal(r.host(to), r.host(from)) {
				t.Error("the bytes differ after the rest was submitted")
			}
			if got := r.dev.Usage(); got.InUse != 0 || got.Peak != 1024 {
				t.Errorf("got usage %+v, want 0 bytes in use and 1024 at the peak", got)
			}
			r.close()
		})
	}
}

// TestFailedReuse undoes several changes of the same table entries.
func TestFailedReuse(t *testing.T) {
	r, f := newFakeRig(t, Options{})
	s, other := r.stream(), r.stream()
	x := r.buffer(s, 100)
	e := r.ids.Event()
	r.must(record(s, e))
	y := x
	y.Buffer.Gen += 2
	later := e
	later.Gen += 2
	h := r.pinned(100)
	f.answers["cuMemcpyHtoDAsync"] = 1
	if err := r.do(record(s, later), free(s, x), alloc(s, y), copyIn(s, y, h), free(s, y)); err == nil {
		t.Fatal("got no error, want one")
	}
	if m, err := r.dev.Lookup(y.Buffer); err != nil || f.onGPU[m.Address] == nil {
		t.Errorf("got %+v, %v; want the second generation alive", m, err)
	}
	r.must(wait(other, later), free(s, y))

	z, newest := y, later
	z.Buffer.Gen += 2
	newest.Gen += 2
	r.must(alloc(s, z))
	before, _ := r.dev.Lookup(z.Buffer)
	f.answers["cuEventRecord"] = 1
	w := z
	w.Buffer.Gen += 2
	if err := r.do(record(s, newest), free(s, z), alloc(s, w)); err == nil {
		t.Fatal("got no error, want one")
	}
	if m, err := r.dev.Lookup(z.Buffer); err != nil || m.Address != before.Address {
		t.Errorf("got %+v, %v; want the third generation where it was, %#x", m, err, before.Address)
	}
	r.must(wait(other, later), free(s, z))
	if err := r.do(wait(other, newest)); !errors.Is(err, device.ErrUnrecorded) {
		t.Errorf("got %v, want ErrUnrecorded", err)
	}
	r.close()
}

func TestDriverOutOfMemory(t *testing.T) {
	r, _ := newFakeRig(t, Options{})
	s := r.stream()
	x := r.buffer(s, 1<<29)
	y := device.Range{Buffer: r.ids.Buffer(device.OnDevice), Bytes: 1<<29 + 1}
	err := r.do(alloc(s, y))
	if !errors.Is(err, device.ErrOutOfMemory) || errors.Is(err, device.ErrLost) {
		t.Errorf("got %v, want out of memory and the device not lost", err)
	}
	if want := "536871168 bytes asked for, 536870912 in use by this device; the GPU has 536870912 free of 1073741824"; !strings.Contains(err.Error(), want) {
		t.Errorf("got %q, want it to say %q", err, want)
	}
	r.must(free(s, x), alloc(s, y), free(s, y))
	r.close()
}

// TestLost fails each kind of operation for good.
func TestLost(t *testing.T) {
	for call, op := range map[string]func(r *rig, s device.Stream) device.Op{
		"cuStreamCreate": func(r *rig, s device.Stream) device.Op {
			return device.Op{Kind: device.OpenStream, Stream: r.ids.Stream()}
		},
		"cuStreamDestroy": func(r *rig, s device.Stream) device.Op { return device.Op{Kind: device.CloseStream, Stream: s} },
		"cuEventCreate":   func(r *rig, s device.Stream) device.Op { return record(s, r.ids.Event()) },
		"cuEventRecord":   func(r *rig, s device.Stream) device.Op { return record(s, r.ids.Event()) },
		"cuMemAllocFromPoolAsync": func(r *rig, s device.Stream) device.Op {
			return alloc(s, device.Range{Buffer: r.ids.Buffer(device.OnDevice), Bytes: 1})
		},
		"cuMemHostAlloc": func(r *rig, s device.Stream) device.Op {
			return device.Op{Kind: device.Pin, Dst: device.Range{Buffer: r.ids.Buffer(device.OnHost), Bytes: 1}}
		},
		"cuStreamSynchronize": func(r *rig, s device.Stream) device.Op { return join(s) },
		"cuCtxSetCurrent":     func(r *rig, s device.Stream) device.Op { return launch(s, "k") },
	} {
		t.Run(call, func(t *testing.T) {
			r, f := newFakeRig(t, Options{})
			r.dev.Register("k", func(*Call) error { return nil })
			s := r.stream()
			h := r.pinned(1)
			failing := op(r, s)
			f.answers[call] = 719
			err := r.do(failing, join(s))
			var failed *device.Error
			if !errors.Is(err, device.ErrLost) || !errors.As(err, &failed) || failed.Op.Kind != failing.Kind {
				t.Fatalf("got %v, want the device lost by %v", err, failing)
			}
			for _, later := range []error{r.do(device.Op{Kind: device.HostRead, Src: h}), r.do()} {
				if !errors.Is(later, device.ErrLost) || !strings.Contains(later.Error(), call) {
					t.Errorf("later: got %v, want ErrLost and %s", later, call)
				}
			}
			if _, err := r.dev.Lookup(h.Buffer); !errors.Is(err, device.ErrLost) {
				t.Errorf("Lookup: got %v, want ErrLost", err)
			}
			if _, err := r.dev.AdoptStream(1); !errors.Is(err, device.ErrLost) {
				t.Errorf("AdoptStream: got %v, want ErrLost", err)
			}
			if _, err := r.dev.Handle(s); !errors.Is(err, device.ErrLost) {
				t.Errorf("Handle: got %v, want ErrLost", err)
			}
			if err := r.dev.Close(); !errors.Is(err, device.ErrLost) {
				t.Errorf("Close: got %v, want ErrLost", err)
			}
			if !f.closed {
				t.Error("the driver was not closed")
			}
			if err := r.dev.Close(); !errors.Is(err, device.ErrClosed) {
				t.Errorf("second Close: got %v, want ErrClosed", err)
			}
		})
	}
}

// TestLostInClose fails the last synchronisation.
func TestLostInClose(t *testing.T) {
	r, f := newFakeRig(t, Options{})
	f.answers["cuCtxSynchronize"] = 700
	if err := r.dev.Close(); !errors.Is(err, device.ErrLost) || !f.closed {
		t.Errorf("got %v, want the device lost, and the driver closed", err)
	}
}

// TestFailuresThatPass leaves the device usable.
func TestFailuresThatPass(t *testing.T) {
	r, f := newFakeRig(t, Options{})
	s := r.stream()
	x := device.Range{Buffer: r.ids.Buffer(device.OnHost), Bytes: 10}
	pin := device.Op{Kind: device.Pin, Dst: x}
	f.answers["cuMemHostAlloc"] = 304 // operating system
	if err := r.do(pin); !errors.Is(err, device.ErrOutOfMemory) || errors.Is(err, device.ErrLost) {
		t.Errorf("got %v, want out of memory and the device not lost", err)
	}
	if got := r.dev.HostUsage(); got != (device.Usage{}) {
		t.Errorf("got %+v pinned after a failure, want none", got)
	}
	r.must(pin)
	if got := r.dev.HostUsage(); got.InUse != 256 || got.Peak != 256 {
		t.Errorf("got %+v pinned, want 256 bytes", got)
	}
	f.answers["cuEventCreate"] = 2
	e := r.ids.Event()
	if err := r.do(record(s, e)); !errors.Is(err, device.ErrOutOfMemory) {
		t.Errorf("got %v, want out of memory", err)
	}
	if err := r.do(wait(s, e)); !errors.Is(err, device.ErrUnrecorded) {
		t.Errorf("got %v, want ErrUnrecorded", err)
	}
	r.must(record(s, e))
	r.close()
}

func TestDriverError(t *testing.T) {
	for _, tc := range []struct {
		err  *DriverError
		text string
		is   []error
	}{
		{&DriverError{"cuMemcpyDtoHAsync", 700, "CUDA_ERROR_ILLEGAL_ADDRESS"}, "cuMemcpyDtoHAsync: CUDA_ERROR_ILLEGAL_ADDRESS (700)", []error{device.ErrLost}},
		{&DriverError{"cuMemHostAlloc", 2, "CUDA_ERROR_OUT_OF_MEMORY"}, "cuMemHostAlloc: CUDA_ERROR_OUT_OF_MEMORY (2)", []error{device.ErrOutOfMemory}},
		{&DriverError{"cuEventRecord", 12345, ""}, "cuEventRecord: CUDA error 12345", nil},
		{&DriverError{"cuEventRecord", 400, "CUDA_ERROR_INVALID_HANDLE"}, "cuEventRecord: CUDA_ERROR_INVALID_HANDLE (400)", nil},
	} {
		if got := tc.err.Error(); got != tc.text {
			t.Errorf("got %q, want %q", got, tc.text)
		}
		for _, target := range []error{device.ErrLost, device.ErrOutOfMemory, device.ErrClosed} {
			if got, want := errors.Is(tc.err, target), slices.Contains(tc.is, target); got != want {
				t.Errorf("%v is %q: got %v, want %v", tc.err, target, got, want)
			}
		}
	}
}
