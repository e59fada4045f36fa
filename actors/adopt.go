package actors

import (
	"errors"

	"offload/device"
	"offload/messages"
)

// LG4: the owner of adopted memory is told once, after the Disown of the buffer
// is enqueued with all that it waits for (LG3), by whoever called the engine. A
// group that has failed tells nobody before its streams are drained.

// ended notes that the buffer of s is given back in the order of stream.
func (d *deviceActor) ended(s *device.Storage, stream device.Stream) {
	if tell := s.Freed(); tell != nil {
		d.returned = append(d.returned, messages.GiveBack{Stream: stream, Tell: tell})
	}
}

// abandoned gives adopted memory back without the device, which is lost: nothing
// that was enqueued runs any more. After a panic of an actor it is not known
// what is under way, and nobody is told.
func (d *deviceActor) abandoned(s *device.Storage) {
	if s.Adopted() && errors.Is(d.lost, device.ErrLost) {
		d.ended(s, s.Home())
	}
}

// handOver moves what has been given back into the answer to a message.
func (d *deviceActor) handOver(to *messages.GiveBacks) {
	if len(d.returned) == 0 {
		return
	}
	*to = append(*to, d.returned...)
	clear(d.returned)
	d.returned = d.returned[:0]
}
