package actors

import (
	"errors"
	"fmt"

	"offload/device"
	"offload/messages"
)

// control handles a call on the device actor itself.
func (d *deviceActor) control(c *messages.Control) {
	switch c.Action {
	case messages.Start:
		c.Err = d.openStreams()
	case messages.Query:
		c.Stats = d.query()
	case messages.Flush:
		c.Err = d.flush(c.Pass)
		d.handOver(&c.GiveBacks)
	case messages.Mark:
		c.Err = d.mark(c)
	case messages.Trim:
		c.Err = d.trim("trim")
	case messages.Stop:
		c.Err = d.stop()
		c.Stats = d.query()
		d.handOver(&c.GiveBacks)
	}
}

// openStreams makes the two transfer streams, one per direction, so that copies
// out and copies in do not queue behind each other. After an error there is
// neither.
func (d *deviceActor) openStreams() error {
	b := device.Batch{Origin: device.Origin{Action: "open"}}
	for _, s := range []int{d.out, d.in} {
		b.Ops = append(b.Ops, device.Op{Kind: device.OpenStream, Stream: d.order.streams[s].id})
	}
	err := d.send(&b)
	d.open = err == nil
	if made := b.Ops[:enqueued(&b, err)]; !d.open && len(made) > 0 && d.lost == nil {
		for i := range made {
			made[i].Kind = device.CloseStream
		}
		b.Ops = made
		err = errors.Join(err, d.send(&b))
	}
	return err
}

func (d *deviceActor) query() messages.Stats {
	s := d.stats
	host := d.pool.Stats()
	s.EventsLive = d.order.live
	s.StoragesHeld = len(d.ledger.entries) + len(d.later)
	s.GroupsOpen = d.ledger.open
	s.HostInUse, s.HostHeld, s.HostHighWater = host.InUse, host.Held, host.HighWater
	s.Pins = int64(host.Pins)
	return s
}

// flush submits what was put off, at the end of a pass.
func (d *deviceActor) flush(pass uint64) error {
	if d.lost != nil { // nothing can be given back on the device
		for _, l := range d.later {
			d.abandoned(l.storage)
		}
		clear(d.later) // the memory went with the context
		d.later = d.later[:0]
		if errors.Is(d.lost, device.ErrLost) {
			return nil
		}
		return d.lost // an actor panicked, and what it held stays on the device
	}
	d.endMarks(pass)
	d.sweep()
	if len(d.later) == 0 {
		return nil
	}
	d.work.begin(device.Origin{Action: "end", Pass: pass})
	return d.submit(nil)
}

// stop waits for the copies and gives back everything that the actor made on
// the device. It goes on after an error, so that as much as can be is given back.
func (d *deviceActor) stop() error {
	var errs []error
	if d.ledger.open > 0 {
		errs = append(errs, fmt.Errorf("stop: %d groups are still open; end or abort every pass first", d.ledger.open))
	}
	if err := d.flush(0); err != nil {
		errs = append(errs, err)
	}
	if d.lost != nil {
		return errors.Join(append(errs, d.lost)...)
	}
	if !d.open {
		return errors.Join(errs...) // nothing was made on the device
	}
	if err := d.trim("close"); err != nil {
		return errors.Join(append(errs, err)...) // memory may still be in use: it is kept
	}
	last := device.Batch{Origin: device.Origin{Action: "close"}}
	for _, s := range []int{d.out, d.in} {
		if r := d.staging[s]; r.Bytes > 0 {
			last.Ops = append(last.Ops, device.Op{Kind: device.Free, Stream: d.order.streams[s].id, Dst: r})
		}
	}
	for _, e := range d.order.spare {
		if !e.kept.IsZero() {
			last.Ops = append(last.Ops, device.Op{Kind: device.Retire, Event: e.kept})
		}
	}
	for _, s := range []int{d.out, d.in} {
		last.Ops = append(last.Ops, device.Op{Kind: device.CloseStream, Stream: d.order.streams[s].id})
	}
	if err := d.send(&last); err != nil {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// trim waits for the copies and unpins the host memory that is not in use, by
// batches named for the action.
func (d *deviceActor) trim(action string) error {
	if d.lost != nil {
		return d.lost
	}
	drained := device.Batch{Origin: device.Origin{Action: action}, Ops: []device.Op{
		{Kind: device.SyncStream, Stream: d.order.streams[d.out].id},
		{Kind: device.SyncStream, Stream: d.order.streams[d.in].id},
	}}
	if err := d.send(&drained); err != nil {
		return err
	}
	d.pool.SetBudget(d.hostMax) // where a pin has failed, it may be tried again
	d.clearShelves()
	for _, e := range d.fences {
		d.order.drop(e)
	}
	d.fences = d.fences[:0]
	d.pool.Passed(func(*event) bool { return true })
	unpin := device.Batch{Origin: drained.Origin, Ops: d.pool.Trim()}
	if len(unpin.Ops) == 0 {
		return nil
	}
	err := d.send(&unpin)
	if n := enqueued(&unpin, err); err != nil && n < len(unpin.Ops) {
		_, _, _ = d.pool.Failed(nil, n)
	}
	d.pool.Passed(func(*event) bool { return true }) // the ids of the slabs go back
	return err
}
