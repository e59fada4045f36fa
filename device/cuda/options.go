package cuda

import (
	"fmt"

	"offload/device"
)

// Options says what a device is like. The zero value is a device whose memory
// is bounded by the GPU alone.
type Options struct {
	// ID is the identity of the device. Zero takes one that no other device of
	// the process has, by [device.NextID].
	ID device.ID
	// MemoryLimit bounds the device memory in use, in bytes, each buffer rounded
	// up to [Align]; zero means no bound but that of the GPU.
	MemoryLimit int64
}

// Validate reports what is wrong with o.
func (o Options) Validate() error {
	if o.MemoryLimit < 0 {
		return fmt.Errorf("cuda: MemoryLimit is %d bytes; want 0 for no limit, or more", o.MemoryLimit)
	}
	return nil
}
