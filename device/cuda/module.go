//go:build cuda

package cuda

// #cgo noescape offload_launch_kernel
// #cgo nocallback offload_launch_kernel
// #include "module.h"
import "C"

import (
	"fmt"
	"unsafe"
)

// A Module is code that was loaded into the context of a device. It lives until
// Unload or until the device is closed.
type Module struct{ handle C.uintptr_t }

// LoadModule loads PTX or a binary for the GPU, in the context that is current:
// call it within [Device.Do]. The driver compiles PTX, which may take a second.
func LoadModule(image []byte) (*Module, error) {
	image = append(image[:len(image):len(image)], 0) // text ends with a zero byte
	m := new(Module)
	log := make([]byte, 4096)
	r := C.offload_module_load(unsafe.Pointer(&image[0]), (*C.char)(unsafe.Pointer(&log[0])), C.int(len(log)), &m.handle)
	if err := result("cuModuleLoadDataEx", r); err != nil {
		return nil, fmt.Errorf("%w: %s", err, C.GoString((*C.char)(unsafe.Pointer(&log[0]))))
	}
	return m, nil
}

// Unload gives the code back, within [Device.Do]. No launch of it may be under way.
func (m *Module) Unload() error { return result("cuModuleUnload", C.offload_module_unload(m.handle)) }

// A Function is a kernel of a module.
type Function struct{ handle C.uintptr_t }

// Function returns the kernel with the given name.
func (m *Module) Function(name string) (Function, error) {
	text := C.CString(name)
	defer C.offload_release(unsafe.Pointer(text))
	var f Function
	err := result("cuModuleGetFunction", C.offload_function(m.handle, text, &f.handle))
	if err != nil {
		err = fmt.Errorf("kernel %q: %w", name, err)
	}
	return f, err
}

// MaxParams is the largest number of parameters of a kernel that Launch passes.
const MaxParams = C.OFFLOAD_MAX_PARAMS

// A Param is a parameter of a kernel: the bits of an address, an integer or a
// floating-point number, of at most 8 bytes, lowest byte first.
type Param = uint64

// Launch enqueues f on a stream with grid blocks of block threads and no shared
// memory beyond what f declares. It is for launchers: the context is current.
func (f Function) Launch(stream uintptr, grid, block int, params ...Param) error {
	if len(params) > MaxParams {
		return fmt.Errorf("cuda: launch with %d parameters; at most %d are passed", len(params), MaxParams)
	}
	var l C.offload_launch
	l.function, l.stream = f.handle, C.uintptr_t(stream)
	l.grid, l.block, l.count = C.uint(grid), C.uint(block), C.int(len(params))
	for i, p := range params {
		l.params[i] = C.uint64_t(p)
	}
	return result("cuLaunchKernel", C.offload_launch_kernel(&l))
}
