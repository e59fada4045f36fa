//go:build cuda

package cuda

// #cgo LDFLAGS: -lcuda
// #cgo noescape offload_enqueue
// #cgo nocallback offload_enqueue
// #include "batch.h"
import "C"

import (
	"errors"
	"fmt"
	"reflect"
	"runtime"
	"unsafe"

	"gorgonia.org/cu"
)

// The C side sees the same bytes and the same numbers.
var (
	_ = [1]struct{}{}[unsafe.Sizeof(command{})-C.sizeof_offload_command]
	_ = [1]struct{}{}[verbRecord-C.OFFLOAD_RECORD]
	_ = [1]struct{}{}[verbCopyRows-C.OFFLOAD_COPY_ROWS]
)

// These types of cu are one pointer each, which it does not export.
var (
	_ = [1]struct{}{}[unsafe.Sizeof(cu.CUContext{})-unsafe.Sizeof(uintptr(0))]
	_ = [1]struct{}{}[unsafe.Sizeof(cu.Stream{})-unsafe.Sizeof(uintptr(0))]
	_ = [1]struct{}{}[unsafe.Sizeof(cu.Event{})-unsafe.Sizeof(uintptr(0))]
)

func handleOf[T cu.CUContext | cu.Stream | cu.Event](v T) uintptr {
	return *(*uintptr)(unsafe.Pointer(&v))
}

func fromHandle[T cu.CUContext | cu.Stream | cu.Event](h uintptr) T {
	return *(*T)(unsafe.Pointer(&h))
}

// Count returns the number of GPUs.
func Count() (int, error) {
	n, err := cu.NumDevices()
	return n, failure("cuDeviceGetCount", err)
}

// Open makes a device of the GPU with the given ordinal, in its primary context.
func Open(ordinal int, o Options) (*Device, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	n, err := Count()
	if err != nil {
		return nil, fmt.Errorf("cuda: %w", err)
	}
	if ordinal < 0 || ordinal >= n {
		return nil, fmt.Errorf("cuda: GPU %d asked for; this machine has %d, counted from 0", ordinal, n)
	}
	g, name, err := openGPU(ordinal)
	if err != nil {
		return nil, fmt.Errorf("cuda: GPU %d: %w", ordinal, err)
	}
	return newDevice(g, name, o), nil
}

// gpu is the driver of one GPU.
type gpu struct {
	device  cu.Device
	context uintptr
	pool    uintptr
}

var _ driver = (*gpu)(nil)

func openGPU(ordinal int) (g *gpu, name string, err error) {
	dev, err := cu.GetDevice(ordinal)
	if err != nil {
		return nil, "", failure("cuDeviceGet", err)
	}
	if name, err = dev.Name(); err != nil {
		return nil, "", failure("cuDeviceGetName", err)
	}
	ctx, err := dev.RetainPrimaryCtx()
	if err != nil {
		return nil, "", failure("cuDevicePrimaryCtxRetain", err)
	}
	g = &gpu{device: dev, context: handleOf(ctx)}
	var pool C.uintptr_t
	if err := result("cuMemPoolCreate", C.offload_pool_create(g.c(), C.int(ordinal), &pool)); err != nil {
		return nil, "", errors.Join(err, failure("cuDevicePrimaryCtxRelease", dev.ReleasePrimaryCtx()))
	}
	g.pool = uintptr(pool)
	return g, name, nil
}

// result turns an answer of the C side into an error.
func result(call string, r C.int) error {
	if r == 0 {
		return nil
	}
	e := &DriverError{Call: call, Code: int(r)}
	if name := C.offload_name(r); name != nil {
		e.Name = C.GoString(name)
	}
	return e
}

// failure turns an error of cu into one of ours. Its type is not exported; it
// is the number that the driver answered.
func failure(call string, err error) error {
	if err == nil {
		return nil
	}
	if v := reflect.ValueOf(err); v.CanInt() {
		return result(call, C.int(v.Int()))
	}
	return fmt.Errorf("%s: %w", call, err)
}

func (g *gpu) c() C.uintptr_t { return C.uintptr_t(g.context) }

func (g *gpu) bind() (previous uintptr, err error) {
	runtime.LockOSThread()
	now, err := cu.CurrentContext()
	if err == nil && handleOf(now) != g.context {
		err = cu.SetCurrentContext(fromHandle[cu.CUContext](g.context))
	}
	if err != nil {
		runtime.UnlockOSThread()
		return 0, failure("cuCtxSetCurrent", err)
	}
	return handleOf(now), nil
}

func (g *gpu) unbind(previous uintptr) {
	if previous != 0 && previous != g.context {
		_ = cu.SetCurrentContext(fromHandle[cu.CUContext](previous)) // it was current: there is no other way to fail than to be lost
	}
	runtime.UnlockOSThread()
}

// within calls f with the context current.
func (g *gpu) within(call string, f func() error) error {
	previous, err := g.bind()
	if err != nil {
		return err
	}
	defer g.unbind(previous)
	return failure(call, f())
}

func (g *gpu) createStream() (handle uintptr, err error) {
	err = g.within("cuStreamCreate", func() error {
		s, err := cu.MakeStream(cu.NonBlocking)
		handle = handleOf(s)
		return err
	})
	return handle, err
}

func (g *gpu) destroyStream(handle uintptr) error {
	return g.within("cuStreamDestroy", func() error {
		s := fromHandle[cu.Stream](handle)
		return s.Destroy()
	})
}

func (g *gpu) createEvent() (handle uintptr, err error) {
	err = g.within("cuEventCreate", func() error {
		e, err := cu.MakeEvent(cu.DisableTiming)
		handle = handleOf(e)
		return err
	})
	return handle, err
}

func (g *gpu) destroyEvent(handle uintptr) error {
	return g.within("cuEventDestroy", func() error {
		e := fromHandle[cu.Event](handle)
		return cu.DestroyEvent(&e)
	})
}

func (g *gpu) enqueue(list []command) (int, error) {
	var done C.int
	first := (*C.offload_command)(unsafe.Pointer(unsafe.SliceData(list)))
	r := C.offload_enqueue(g.c(), C.uintptr_t(g.pool), first, C.int(len(list)), &done)
	if r == 0 {
		return len(list), nil
	}
	return int(done), result(verbCalls[list[done].verb], r)
}

func (g *gpu) syncStream(handle uintptr) error {
	return g.within("cuStreamSynchronize", fromHandle[cu.Stream](handle).Synchronize)
}

func (g *gpu) syncEvent(handle uintptr) error {
	return g.within("cuEventSynchronize", fromHandle[cu.Event](handle).Synchronize)
}

func (g *gpu) queryStream(handle uintptr) error {
	err := g.within("cuStreamQuery", fromHandle[cu.Stream](handle).Query)
	var answer *DriverError
	if errors.As(err, &answer) && answer.Code == int(cu.NotReady) {
		return nil
	}
	return err
}

func (g *gpu) pin(bytes int64) ([]byte, error) {
	var at C.uintptr_t
	if err := result("cuMemHostAlloc", C.offload_pin(g.c(), C.uintptr_t(bytes), &at)); err != nil {
		return nil, err
	}
	return unsafe.Slice(*(**byte)(unsafe.Pointer(&at)), bytes), nil // memory of the driver: the collector does not look at it
}

func (g *gpu) unpin(mem []byte) error {
	return result("cuMemFreeHost", C.offload_unpin(g.c(), C.uintptr_t(address(mem))))
}

func (g *gpu) free(address uintptr) error {
	return result("cuMemFree", C.offload_free(g.c(), C.uintptr_t(address)))
}

func (g *gpu) memory() (free, total int64, err error) {
	err = g.within("cuMemGetInfo", func() (err error) {
		free, total, err = cu.MemInfo()
		return err
	})
	return free, total, err
}

func (g *gpu) wait() error { return g.within("cuCtxSynchronize", cu.Synchronize) }

func (g *gpu) close() error {
	return errors.Join(
		result("cuMemPoolDestroy", C.offload_pool_destroy(g.c(), C.uintptr_t(g.pool))),
		failure("cuDevicePrimaryCtxRelease", g.device.ReleasePrimaryCtx()))
}
