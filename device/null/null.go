// Package null is a device that does nothing: it accepts every batch and counts
// the operations. With it the host's own share of a program can be measured.
//
// # Terms
//
// The device has no memory: a buffer is its id, and bytes that are copied are
// counted and nothing else.
//
// # Concurrency
//
// A Device may be used by several goroutines.
//
// # Ownership
//
// It keeps nothing of what it is given.
package null

import (
	"sync"

	"offload/device"
)

// Device is the null device.
type Device struct {
	id device.ID

	mu     sync.Mutex
	spaces uint16
	closed bool
	counts Counts
	usage  device.Usage
}

// Counts is what a null device was asked to do.
type Counts struct {
	Batches  int64
	Ops      [device.Kinds]int64
	BytesOut int64
	BytesIn  int64
}

// Total returns the number of operations.
func (c *Counts) Total() int64 {
	n := int64(0)
	for _, k := range c.Ops {
		n += k
	}
	return n
}

var _ device.Device = (*Device)(nil)

// New returns a null device.
func New() *Device { return &Device{id: device.NextID()} }

// Info implements device.Device.
func (d *Device) Info() device.Info { return device.Info{ID: d.id, Name: "null", Align: 256} }

// NewSpace implements device.Device.
func (d *Device) NewSpace() uint16 {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.spaces++
	return d.spaces
}

// Submit counts the operations of b. The memory in use is counted in the order
// of the calls.
func (d *Device) Submit(b *device.Batch) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return device.ErrClosed
	}
	d.counts.Batches++
	for i := range b.Ops {
		op := &b.Ops[i]
		d.counts.Ops[op.Kind]++
		switch op.Kind {
		case device.Alloc:
			d.usage.InUse += op.Dst.Bytes
			d.usage.Peak = max(d.usage.Peak, d.usage.InUse)
		case device.Free:
			d.usage.InUse -= op.Dst.Bytes
		case device.CopyOut:
			d.counts.BytesOut += op.Src.Bytes
		case device.CopyIn:
			d.counts.BytesIn += op.Src.Bytes
		}
	}
	return nil
}

// Counts returns what the device was asked to do so far.
func (d *Device) Counts() Counts {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.counts
}

// Lookup implements device.Device: no buffer has memory.
func (d *Device) Lookup(b device.Buffer) (device.Memory, error) { return device.Memory{}, nil }

// Usage implements device.Device.
func (d *Device) Usage() device.Usage {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.usage
}

// ResetPeak implements device.Device.
func (d *Device) ResetPeak() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.usage.Peak = d.usage.InUse
}

// Close implements device.Device.
func (d *Device) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return device.ErrClosed
	}
	d.closed = true
	return nil
}
