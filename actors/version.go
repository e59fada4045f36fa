package actors

import (
	"fmt"

	"offload/device"
)

// watcher is a device that counts the writes of its buffers; see [device.Watch].
type watcher interface {
	Writes(device.Buffer) uint64
}

// version returns what changes whenever the bytes of s are said to have changed:
// by Touch, or by an operation that declares a write if the device is watched.
func (d *deviceActor) version(s *device.Storage) uint64 {
	v := s.Version()
	if d.watch != nil {
		v += d.watch.Writes(s.Buffer())
	}
	return v
}

// changed returns an error if the bytes are not the ones that were pushed.
func (d *deviceActor) changed(e *entry) error {
	if v := d.version(e.storage); v != e.version {
		return fmt.Errorf("%w: storage %q was pushed at version %d and is at version %d now; "+
			"push a tensor after its last change, or save a copy", ErrChanged, e.storage.Name(), e.version, v)
	}
	return nil
}
