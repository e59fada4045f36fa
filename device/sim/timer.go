package sim

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"offload/device"
)

// A timer is the virtual clock: it works out when each operation would run on a
// device with a profile. It looks at what is submitted and when, never at the
// order in which the simulated device runs it.
//
// Time is counted in seconds from the making of the device. The host's own time
// goes on with every operation that it submits. The device is as far as now; it
// is behind the host until somebody waits for it, since nothing that the host
// submits later can change what happened before.
type timer struct {
	dev      *Device
	profile  *Profile
	detailed bool // keep a timeline

	host  float64
	now   float64
	lanes []*timed
	links [2]link // out, in
	inUse int64
	step  step
}

// timed is one stream on the clock.
type timed struct {
	id      device.Stream
	queue   []entry
	head    int
	arrived float64 // when the stream was through with what came before the head
	busy    bool    // the head is running
	ends    float64 // when it does; copies: when it would
	done    int     // operations that have ended
	use     used
}

// An entry is an operation on its stream.
type entry struct {
	kind      device.Kind
	reason    device.Reason
	submitted float64
	seconds   float64 // that it takes by itself
	bytes     int64   // of a copy, or by which memory in use changes
	mark      *mark   // of a record or a wait
	site      Site
}

// A mark is the point of a record on the clock.
type mark struct{ passed bool }

// link is one direction of the link.
type link struct {
	waiting []*timed // whose heads are copies that can begin, in order
	left    float64  // seconds that the first one still takes by itself
	active  bool     // it has begun
	shared  float64  // the part of the rate that is left when both are active
}

func newTimer(d *Device, profile Profile, detailed bool) *timer {
	p := &profile
	if err := errors.Join(p.Out.check("Out"), p.In.check("In")); err != nil {
		panic(fmt.Sprintf("sim: profile %q: %v", p.Name, err))
	}
	t := &timer{dev: d, profile: p, detailed: detailed}
	for i, l := range []*Link{&p.Out, &p.In} {
		if t.links[i].shared = l.Shared; l.Shared == 0 {
			t.links[i].shared = 1
		}
	}
	return t
}

// lane returns the stream with the given lane of the device.
func (t *timer) lane(s *stream) *timed {
	for len(t.lanes) <= s.number() {
		t.lanes = append(t.lanes, &timed{})
	}
	l := t.lanes[s.number()]
	if l.id != s.id { // the lane of a closed stream is used again
		t.step.keep(l)
		l.id, l.use = s.id, newUsed()
	}
	return l
}

// maxBehind is how many operations of one stream the device can be behind the
// host. The host waits then, as it does for a driver whose queue is full.
const maxBehind = 4096

// submitted enters an operation that was enqueued, or done.
func (t *timer) submitted(r *request) {
	k := r.op.Kind
	cost := t.profile.Host[k].Seconds()
	switch k {
	case device.Pin:
		if t.profile.Pin > 0 {
			cost += float64(r.op.Dst.Bytes) / t.profile.Pin
		}
	case device.SyncStream:
		l := t.lane(r.on)
		all := l.done + l.pending()
		t.await(func() bool { return l.done >= all })
	case device.SyncEvent:
		m := t.event(r).mark
		t.await(func() bool { return m.passed })
	}
	t.host += cost
	t.step.enqueue += cost
	if r.on == nil || k == device.SyncStream || k == device.CloseStream {
		return
	}
	l := t.lane(r.on)
	e := entry{kind: k, reason: r.op.Reason, submitted: t.host, site: r.site}
	switch k {
	case device.Record:
		e.mark = new(mark)
		t.event(r).mark = e.mark
	case device.Wait:
		e.mark = t.event(r).mark
	case device.Alloc:
		e.bytes = r.size
	case device.Free:
		e.bytes = -r.size
	case device.CopyOut:
		e.bytes, e.seconds = r.op.Src.Bytes, t.profile.Out.seconds(r.op.Src.Bytes)
	case device.CopyIn:
		e.bytes, e.seconds = r.op.Src.Bytes, t.profile.In.seconds(r.op.Src.Bytes)
	case device.CopyWithin:
		e.bytes, e.seconds = r.op.Src.Bytes, t.profile.within(2*r.op.Src.Bytes)
	case device.Launch, device.Access:
		e.seconds = t.dev.kernelTime(t.profile, r.op.Kernel)
	}
	l.push(e)
	if l.pending() > maxBehind {
		t.await(func() bool { return l.pending() <= maxBehind })
	}
}

// event returns the table entry of the event that the operation names.
func (t *timer) event(r *request) *event {
	return &t.dev.space(r.op.Event.Space).events[r.op.Event.Index]
}

func (l *timed) push(e entry) {
	if l.head > 64 && l.head > len(l.queue)/2 {
		l.queue = slices.Delete(l.queue, 0, l.head)
		l.head = 0
	}
	l.queue = append(l.queue, e)
}

func (l *timed) pending() int { return len(l.queue) - l.head }

// await lets the host wait until passed is true.
func (t *timer) await(passed func() bool) {
	from := t.host
	t.run(math.Inf(1), passed)
	t.host = max(t.host, t.now)
	t.step.blocked += t.host - from
}

// ended notes that the head of l has run since the given time.
func (t *timer) ended(l *timed, since float64) {
	e := &l.queue[l.head]
	l.use.busy += t.now - max(since, t.step.start)
	if t.detailed && t.now > since {
		t.step.spans = append(t.step.spans, Span{Site: e.site, Bytes: e.bytes,
			Start: seconds(since - t.step.start), End: seconds(t.now - t.step.start)})
	}
	l.pop(t.now)
}

// stalled notes for how long the wait has held the stream.
func (t *timer) stalled(l *timed, e *entry) {
	if held := t.now - max(l.arrived, t.step.start); held > 0 {
		l.use.stalled[e.reason] += held
	}
}

// starved notes for how long the stream had nothing to do before e was submitted.
func (t *timer) starved(l *timed, e *entry) {
	if e.submitted <= l.arrived {
		return
	}
	if since := max(l.arrived, t.step.start); e.submitted > since && l.done > 0 {
		l.use.starved += e.submitted - since
	}
	l.arrived = e.submitted
}

// lap ends a step: the host waits for everything.
func (t *timer) lap() Timing {
	from := t.host
	t.run(math.Inf(1), nil)
	t.host = max(t.host, t.now)
	t.step.blocked += t.host - from
	t.pass(t.host)
	r := t.step.timing(t)
	for _, l := range t.lanes {
		l.use = newUsed()
	}
	t.step = step{start: t.now, peak: t.inUse}
	t.step.memory(t)
	return r
}

func seconds(s float64) time.Duration { return time.Duration(math.Round(s * 1e9)) }
