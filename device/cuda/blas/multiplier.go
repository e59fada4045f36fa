//go:build cuda

package blas

// #cgo LDFLAGS: -lcuda -ldl
// #cgo noescape offload_lt_run
// #cgo nocallback offload_lt_run
// #include "lt.h"
import "C"

import (
	"errors"
	"fmt"
	"sync"
	"unsafe"

	"offload/device"
	"offload/device/cuda"
)

// workspaceBytes is what the vendor advises for a Hopper GPU.
const workspaceBytes = 32 << 20

// types gives the cudaDataType_t of an element.
var types = map[device.DType]C.int{device.Float32: 0, device.BFloat16: 14}

// load finds the library, once for the process.
var load = sync.OnceValues(func() (version int, err error) {
	text := make([]byte, 1024)
	v := C.offload_lt_load((*C.char)(unsafe.Pointer(&text[0])), C.int(len(text)))
	if v == 0 {
		return 0, fmt.Errorf("blas: cuBLAS 13 or 12 is needed, as a package of the CUDA toolkit installs it where the loader looks: %s",
			C.GoString((*C.char)(unsafe.Pointer(&text[0]))))
	}
	return int(v), nil
})

// A key is what an algorithm is chosen for.
type key struct {
	Product
	alignment uint32
}

// Multiplier makes products on one device.
type Multiplier struct {
	dev        *cuda.Device
	version    int
	handle     C.uintptr_t
	plans      map[key]C.uintptr_t
	workspaces map[uintptr]C.uintptr_t // by stream
}

// Open finds the library and makes it ready for d.
func Open(d *cuda.Device) (*Multiplier, error) {
	version, err := load()
	if err != nil {
		return nil, err
	}
	m := &Multiplier{dev: d, version: version, plans: make(map[key]C.uintptr_t), workspaces: make(map[uintptr]C.uintptr_t)}
	if err := d.Do(func() error { return status("cublasLtCreate", C.offload_lt_create(&m.handle)) }); err != nil {
		return nil, fmt.Errorf("blas: %w", err)
	}
	return m, nil
}

// Version returns the version of the library, such as 130001.
func (m *Multiplier) Version() int { return m.version }

// Run enqueues p on a stream. It is for launchers: the context is current. The
// first product on a stream makes its workspace, and the first one of a kind
// asks for an algorithm; both take milliseconds.
func (m *Multiplier) Run(stream uintptr, p Product, o Operands) error {
	if p.M == 0 || p.N == 0 {
		return nil
	}
	plan, err := m.plan(key{p, o.alignment()})
	if err != nil {
		return err
	}
	workspace, err := m.workspace(stream)
	if err != nil {
		return err
	}
	if !p.Add {
		o.C = o.D
	}
	// A row-major matrix is its transpose in column-major order, and dᵀ = bᵀ·aᵀ.
	return status("cublasLtMatmul", C.offload_lt_run(m.handle, plan, C.uintptr_t(o.B), C.uintptr_t(o.A), C.uintptr_t(o.C), C.uintptr_t(o.D),
		workspace, C.uintptr_t(stream)))
}

func (m *Multiplier) plan(k key) (C.uintptr_t, error) {
	if plan, ok := m.plans[k]; ok {
		return plan, nil
	}
	t, ok := types[k.Type]
	if !ok || k.M < 0 || k.N < 0 || k.K < 1 {
		return 0, fmt.Errorf("blas: product %+v: want float32 or bfloat16, and sizes that are positive", k.Product)
	}
	p := C.offload_lt_product{_type: t, m: C.uint64_t(k.N), n: C.uint64_t(k.M), k: C.uint64_t(k.K),
		transpose_a: number(k.TransposeB), transpose_b: number(k.TransposeA), add: number(k.Add),
		alignment: C.uint32_t(k.alignment), workspace: workspaceBytes}
	var plan C.uintptr_t
	if err := status("cublasLtMatmulAlgoGetHeuristic", C.offload_lt_plan(m.handle, &p, &plan)); err != nil {
		return 0, fmt.Errorf("blas: product %+v, alignment %d: %w", k.Product, k.alignment, err)
	}
	m.plans[k] = plan
	return plan, nil
}

// workspace returns the memory that products on a stream have to themselves.
func (m *Multiplier) workspace(stream uintptr) (C.uintptr_t, error) {
	if w, ok := m.workspaces[stream]; ok {
		return w, nil
	}
	var w C.uintptr_t
	if r := C.offload_lt_alloc(&w, workspaceBytes); r != 0 {
		return 0, fmt.Errorf("blas: workspace of %d bytes: %w", workspaceBytes, &cuda.DriverError{Call: "cuMemAlloc", Code: int(r)})
	}
	m.workspaces[stream] = w
	return w, nil
}

// Close gives everything back. No product may be under way.
func (m *Multiplier) Close() error {
	return m.dev.Do(func() error {
		var errs []error
		for _, plan := range m.plans {
			C.offload_lt_forget(plan)
		}
		for _, w := range m.workspaces {
			if r := C.offload_lt_free(w); r != 0 {
				errs = append(errs, &cuda.DriverError{Call: "cuMemFree", Code: int(r)})
			}
		}
		clear(m.plans)
		clear(m.workspaces)
		return errors.Join(append(errs, status("cublasLtDestroy", C.offload_lt_destroy(m.handle)))...)
	})
}

// status turns an answer of the library into an error.
func status(call string, r C.int) error {
	if r == 0 {
		return nil
	}
	return fmt.Errorf("%s: %s (%d)", call, C.GoString(C.offload_lt_name(r)), int(r))
}

func number(b bool) C.int {
	if b {
		return 1
	}
	return 0
}
