package ops

import (
	"errors"
	"fmt"
	"slices"

	"offload/device"
)

// Host is a pinned host buffer through which an arena's tensors are filled and
// read. The host must not touch bytes that a copy may still use: before it
// writes them again, and before it reads what was copied out, it awaits a mark
// made after the copies, or synchronises the stream.
type Host struct {
	a     *Arena
	name  string
	whole device.Range
	bytes []byte
}

// Pin pins host memory at once. It is slow: do it before training, not in a step.
// Name is for messages.
func (a *Arena) Pin(name string, bytes int64) (*Host, error) {
	h := &Host{a: a, name: name, whole: device.Range{Buffer: a.ids.Buffer(device.OnHost), Bytes: bytes}}
	err := a.submit(device.Origin{Action: "pin"}, device.Op{Kind: device.Pin, Dst: h.whole})
	if err != nil {
		a.ids.PutBuffer(h.whole.Buffer)
		if errors.Is(err, device.ErrOutOfMemory) {
			err = &MemoryError{Name: name, Place: device.OnHost, Need: bytes, Err: err}
		}
		return nil, err
	}
	a.hosts = append(a.hosts, h)
	m, err := a.dev.Lookup(h.whole.Buffer)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("pin %s: %w", name, err), h.Close())
	}
	h.bytes = m.Host[:bytes]
	return h, nil
}

// Bytes returns the pinned bytes. The slice is valid until Close.
func (h *Host) Bytes() []byte { return h.bytes }

// CopyIn queues filling dst, which must be contiguous, with the bytes from
// offset off on. The caller writes these bytes before the next Flush.
func (h *Host) CopyIn(dst device.Tensor, off int64) {
	if !h.covers("copy in to", dst, off) {
		return
	}
	src := h.whole.Sub(off, dst.Bytes())
	dst.Storage.Touch()
	h.a.queue(device.Op{Kind: device.HostWrite, Dst: src}, nil)
	h.a.queue(device.Op{Kind: device.CopyIn, Stream: h.a.stream, Dst: dst.Range(), Src: src}, nil)
}

// CopyOut queues copying src, which must be contiguous, to the bytes from
// offset off on. After a wait for the copy, Read gives them.
func (h *Host) CopyOut(off int64, src device.Tensor) {
	if !h.covers("copy out of", src, off) {
		return
	}
	dst := h.whole.Sub(off, src.Bytes())
	h.a.queue(device.Op{Kind: device.CopyOut, Stream: h.a.stream, Dst: dst, Src: src.Range()}, nil)
}

// Read declares to the device that the host reads n bytes from offset off on,
// and returns them.
func (h *Host) Read(off, n int64) ([]byte, error) {
	if off < 0 || n < 0 || off+n > int64(len(h.bytes)) {
		return nil, fmt.Errorf("read bytes %d to %d of %s, which has %d", off, off+n, h.name, len(h.bytes))
	}
	err := h.a.submit(device.Origin{Action: "read back"},
		device.Op{Kind: device.HostRead, Src: h.whole.Sub(off, n)})
	if err != nil {
		return nil, err
	}
	return h.bytes[off : off+n : off+n], nil
}

// Close unpins the buffer. All copies must have passed for the host.
func (h *Host) Close() error {
	err := h.a.submit(device.Origin{Action: "unpin"}, device.Op{Kind: device.Unpin, Dst: h.whole})
	if err == nil {
		h.a.ids.PutBuffer(h.whole.Buffer)
	}
	h.bytes = nil
	h.a.hosts = slices.DeleteFunc(h.a.hosts, func(o *Host) bool { return o == h })
	return err
}

// covers reports whether a copy between the buffer and t is possible; if not,
// the arena keeps the error.
func (h *Host) covers(verb string, t device.Tensor, off int64) bool {
	switch {
	case t.IsNil():
		h.a.fail(fmt.Errorf("%s: %s an absent tensor", h.name, verb))
	case !t.Contiguous():
		h.a.fail(fmt.Errorf("%s: %s %v, which is not contiguous", h.name, verb, t))
	case off < 0 || off+t.Bytes() > int64(len(h.bytes)):
		h.a.fail(fmt.Errorf("%s: %s %v at byte %d, but the host buffer has %d", h.name, verb, t, off, len(h.bytes)))
	default:
		return true
	}
	return false
}
