package cuda

import (
	"fmt"

	"offload/device"
)

// adopt gives an id to memory of the caller, at once.
func (r *request) adopt() error {
	b, err := r.unmade(r.op.Dst, device.OnDevice)
	if err != nil {
		return err
	}
	if r.op.Address == 0 {
		return fmt.Errorf("%w: memory to adopt needs an address, and this one is 0", device.ErrInvalid)
	}
	for i := range r.spaces {
		for _, o := range r.spaces[i].buffers[device.OnDevice] {
			if o.live && o.adopted && o.address < r.op.Address+uintptr(r.op.Dst.Bytes) && r.op.Address < o.address+uintptr(o.bytes) {
				return fmt.Errorf("%w: part of the %d bytes at %#x is adopted already; disown it first, or use one buffer",
					device.ErrInvalid, r.op.Dst.Bytes, r.op.Address)
			}
		}
	}
	*b = buffer{gen: r.op.Dst.Buffer.Gen, live: true, adopted: true, from: none, bytes: r.op.Dst.Bytes, address: r.op.Address}
	return nil
}

// disown ends the use of the id. The order of the stream is its owner's to use;
// the driver has nothing to do.
func (r *request) disown() error {
	if _, err := r.stream(r.op.Stream); err != nil {
		return err
	}
	b, err := r.live(r.op.Dst.Buffer, device.OnDevice)
	if err != nil {
		return err
	}
	if !b.adopted {
		return fmt.Errorf("%w: %v was allocated, not adopted; free it", device.ErrInvalid, r.op.Dst.Buffer)
	}
	b.live = false
	return nil
}
