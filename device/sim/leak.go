package sim

import (
	"fmt"

	"offload/device"
)

// Leaks returns a finding for everything that is not given back now: by id
// space, first its device buffers, then its pinned buffers, streams and events,
// each in the order of their indices. After Close nothing is left.
func (d *Device) Leaks() []Finding {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.leaks()
}

func (d *Device) leaks() []Finding {
	var list []Finding
	add := func(first Site, missing device.Kind, format string, args ...any) {
		list = append(list, Finding{Rule: Leak, First: first, Subject: fmt.Sprintf(format, args...),
			Missing: fmt.Sprintf("a %v before Close", missing), Count: 1})
	}
	for n, sp := range d.spaces {
		for _, s := range sp.buffers[device.OnDevice] {
			switch {
			case s.live == nil:
			case s.live.owner != nil:
				add(*s.live.made.site, device.Disown, "%v (%d adopted bytes)", s.live.id, s.live.bytes)
			default:
				add(*s.live.made.site, device.Free, "%v (%d bytes)", s.live.id, s.live.bytes)
			}
		}
		for _, s := range sp.buffers[device.OnHost] {
			if s.live != nil {
				add(*s.live.made.site, device.Unpin, "%v (%d bytes)", s.live.id, s.live.bytes)
			}
		}
		for _, s := range sp.streams {
			if s != nil && !s.closed {
				add(s.opened, device.CloseStream, "%v", s.id)
			}
		}
		for i, e := range sp.events {
			if !e.site.IsZero() && !e.retired {
				add(e.site, device.Retire, "%v", device.Event{Device: d.info.ID, Space: uint16(n), Index: uint32(i), Gen: e.gen})
			}
		}
	}
	return list
}
