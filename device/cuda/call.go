package cuda

import (
	"fmt"

	"offload/device"
)

// A Launcher enqueues a kernel. The device's context is current on the calling
// thread, and nothing else is enqueued by the device meanwhile. A Launcher must
// not block, must not call the device, and must not keep the Call. When it
// returns an error or panics, nothing may have been enqueued: Submit returns
// the error with the launch.
type Launcher func(c *Call) error

// A Call is one launch of a kernel. It is valid until the Launcher returns.
type Call struct {
	stream uintptr
	kernel *device.Kernel
	reads  []span
	writes []span
}

// A span is a declared range and where it is.
type span struct {
	device.Range
	address uintptr
}

// Name returns the name of the kernel.
func (c *Call) Name() string { return c.kernel.Name }

// Stream returns the handle of the stream (CUstream).
func (c *Call) Stream() uintptr { return c.stream }

// Args returns the number of arguments.
func (c *Call) Args() int { return len(c.kernel.Args) }

// Arg returns the argument with index i, and panics if there is none.
func (c *Call) Arg(i int) device.Arg {
	if i < 0 || i >= len(c.kernel.Args) {
		panic(fmt.Sprintf("kernel %q asks for argument %d of %d", c.Name(), i, len(c.kernel.Args)))
	}
	return c.kernel.Args[i]
}

// Read returns the address of r, which the kernel must not change. It panics
// if the launch does not declare that r is read.
func (c *Call) Read(r device.Range) uintptr { return c.address(r, c.reads, "read") }

// Write returns the address of r for the kernel to write. It panics if the
// launch does not declare that r is written.
func (c *Call) Write(r device.Range) uintptr { return c.address(r, c.writes, "written") }

func (c *Call) address(r device.Range, declared []span, access string) uintptr {
	for _, s := range declared {
		if s.Contains(r) {
			return s.address + uintptr(r.Offset-s.Offset)
		}
	}
	panic(fmt.Sprintf("kernel %q asks for %v, which its launch does not declare as %s", c.Name(), r, access))
}

// run calls the launcher. A panic becomes an error.
func (c *Call) run(launch Launcher) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%w: the launcher of kernel %q panicked: %v", device.ErrInvalid, c.Name(), p)
		}
	}()
	return launch(c)
}
