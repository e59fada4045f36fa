package sim

import (
	"fmt"
	"path/filepath"
	"runtime"
	"strings"
	"unsafe"

	"offload/device"
)

// A KernelFunc computes a kernel on the device's memory. It must not call the
// device and must not keep what it was given after it returns. An error or a
// panic loses the device.
type KernelFunc func(c *Call) error

// A Call is one launch of a kernel. It is valid until the kernel function returns.
type Call struct {
	dev    *Device
	fn     KernelFunc
	site   Site
	args   []device.Arg
	reads  []span
	writes []span
}

// A span is a declared range with its buffer.
type span struct {
	device.Range
	buf *buffer
}

// Name returns the name of the kernel.
func (c *Call) Name() string { return c.site.Kernel }

// Args returns the number of arguments.
func (c *Call) Args() int { return len(c.args) }

// Arg returns the argument with index i, and panics if there is none.
func (c *Call) Arg(i int) device.Arg {
	if i < 0 || i >= len(c.args) {
		panic(fmt.Sprintf("kernel %q asks for argument %d of %d", c.Name(), i, len(c.args)))
	}
	return c.args[i]
}

// Read returns the bytes of r, which the kernel must not change. If the launch
// does not declare that r is read, this is a finding (HB14), and the bytes are
// returned all the same; bytes that do not exist are poison.
func (c *Call) Read(r device.Range) []byte { return c.view(r, c.reads, "read") }

// Write returns the bytes of r for the kernel to write. If the launch does not
// declare that r is written, this is a finding (HB14), and the bytes are
// returned all the same; bytes that do not exist are written to nowhere.
func (c *Call) Write(r device.Range) []byte { return c.view(r, c.writes, "write") }

// ReadFloat32 is Read for numbers: the slice is the device memory itself. It
// panics if r does not consist of whole aligned numbers.
func (c *Call) ReadFloat32(r device.Range) []float32 { return float32s(r, c.Read(r)) }

// WriteFloat32 is Write for numbers: the slice is the device memory itself. It
// panics if r does not consist of whole aligned numbers.
func (c *Call) WriteFloat32(r device.Range) []float32 { return float32s(r, c.Write(r)) }

func float32s(r device.Range, b []byte) []float32 {
	if r.Offset%4 != 0 || r.Bytes%4 != 0 {
		panic(fmt.Sprintf("%v does not consist of whole float32 numbers", r))
	}
	return unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/4)
}

func (c *Call) view(r device.Range, declared []span, access string) []byte {
	b := resolve(r, declared)
	if b == nil {
		c.dev.report(Finding{Rule: UndeclaredAccess, Second: c.site, Subject: r.String(),
			Missing: fmt.Sprintf("the launch must declare that the kernel %ss these bytes", access)})
		if b = c.dev.peek(r); b == nil {
			nowhere := make([]byte, max(r.Bytes, 0))
			poison(nowhere)
			return nowhere
		}
	}
	m := b.memory(&c.dev.heap)
	return m[r.Offset : r.Offset+r.Bytes : r.Offset+r.Bytes]
}

// resolve returns the buffer of r if every byte of r is in one of the declared ranges.
func resolve(r device.Range, declared []span) *buffer {
	var b *buffer
	for at, end := r.Offset, r.Offset+r.Bytes; b == nil || at < end; {
		next := at
		for _, s := range declared {
			if s.Buffer == r.Buffer && s.Offset <= at && at <= s.Offset+s.Bytes {
				b = s.buf
				next = max(next, s.Offset+s.Bytes)
			}
		}
		if next == at && at < end || b == nil {
			return nil
		}
		at = next
	}
	return b
}

// peek returns the live buffer that holds r, or nil.
func (d *Device) peek(r device.Range) *buffer {
	s := d.slot(r.Buffer)
	if s == nil || s.live == nil || s.gen != r.Buffer.Gen || !within(r, s.live) {
		return nil
	}
	return s.live
}

// newCall copies what a launch says, into a record that was used before if there is one.
func (d *Device) newCall(fn KernelFunc, site Site, k *device.Kernel, reads, writes []span) *Call {
	var c *Call
	if n := len(d.calls); n > 0 {
		c = d.calls[n-1]
		d.calls = d.calls[:n-1]
	} else {
		c = new(Call)
	}
	c.dev, c.fn, c.site = d, fn, site
	c.args = append(c.args[:0], k.Args...)
	c.reads = append(c.reads[:0], reads...)
	c.writes = append(c.writes[:0], writes...)
	return c
}

// recycle keeps c for the next launch.
func (d *Device) recycle(c *Call) {
	clear(c.reads) // let go of the buffers
	clear(c.writes)
	d.calls = append(d.calls, c)
}

// launch runs a kernel. A failure loses the device.
func (d *Device) launch(c *Call) {
	if err := c.run(); err != nil {
		d.lost = fmt.Errorf("%w by an earlier operation: %w", device.ErrLost, &device.Error{
			Origin: c.site.Origin, Index: c.site.Index, Op: c.op(), Err: err})
	}
}

func (c *Call) run() (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("kernel panicked%s: %v", raisedAt(), p)
		}
	}()
	return c.fn(c)
}

// raisedAt returns where the panic that is being recovered was raised, such as
// " at gelu.go:57"; empty if that is not known.
func raisedAt() string {
	pcs := make([]uintptr, 16)
	frames := runtime.CallersFrames(pcs[:runtime.Callers(3, pcs)]) // after Callers, raisedAt and the deferred function
	for more := true; more; {
		var f runtime.Frame
		if f, more = frames.Next(); f.File != "" && !strings.HasPrefix(f.Function, "runtime.") {
			return fmt.Sprintf(" at %s:%d", filepath.Base(f.File), f.Line)
		}
	}
	return ""
}

// op rebuilds the operation for an error. It shares nothing with c.
func (c *Call) op() device.Op {
	k := &device.Kernel{Name: c.site.Kernel, Args: append([]device.Arg(nil), c.args...)}
	for _, s := range c.reads {
		k.Reads = append(k.Reads, s.Range)
	}
	for _, s := range c.writes {
		k.Writes = append(k.Writes, s.Range)
	}
	return device.Op{Kind: device.Launch, Stream: c.site.Stream, Kernel: k}
}
