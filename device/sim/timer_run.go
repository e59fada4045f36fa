package sim

import (
	"math"
	"slices"

	"offload/device"
)

// run moves the device on to the given time, or to the first time at which stop
// is true. To move beyond the host's time is right only if the host waits.
func (t *timer) run(until float64, stop func() bool) {
	for {
		for t.begin() {
		}
		if stop != nil && stop() {
			return
		}
		next := t.next()
		if next > until || math.IsInf(next, 1) {
			if !math.IsInf(until, 1) && until > t.now {
				t.pass(until)
			}
			return
		}
		t.pass(next)
		t.finish()
	}
}

// begin starts, at the present time, what can be started, and reports whether
// there was anything.
func (t *timer) begin() bool {
	any := false
	for _, l := range t.lanes {
		if l.busy || l.pending() == 0 {
			continue
		}
		e := &l.queue[l.head]
		if e.submitted > t.now {
			continue
		}
		t.starved(l, e)
		switch e.kind {
		case device.Wait:
			if !e.mark.passed {
				continue
			}
			t.stalled(l, e)
			l.pop(t.now)
		case device.Record:
			e.mark.passed = true
			l.pop(t.now)
		case device.Alloc, device.Free:
			t.inUse += e.bytes
			t.step.memory(t)
			l.pop(t.now)
		case device.CopyOut, device.CopyIn:
			k := linkOf(e.kind)
			l.busy = true
			t.links[k].waiting = append(t.links[k].waiting, l)
			t.start(k)
		default:
			l.busy, l.ends = true, t.now+e.seconds
		}
		any = true
	}
	return any
}

func linkOf(k device.Kind) int {
	if k == device.CopyOut {
		return 0
	}
	return 1
}

// start lets the first copy of a direction begin, if none is under way.
func (t *timer) start(k int) {
	if n := &t.links[k]; !n.active && len(n.waiting) > 0 {
		l := n.waiting[0]
		e := &l.queue[l.head]
		n.active, n.left = true, e.seconds
		l.use.queued += t.now - max(l.arrived, t.step.start)
		l.ends = t.now // when it began; see finish
	}
}

// pop takes the head off, which has ended at the given time.
func (l *timed) pop(at float64) {
	l.queue[l.head] = entry{}
	l.head++
	l.done++
	l.busy, l.arrived = false, at
}

// speed returns how fast the copy of a direction goes on.
func (t *timer) speed(k int) float64 {
	if t.links[0].active && t.links[1].active {
		return t.links[k].shared
	}
	return 1
}

// next returns when something happens next.
func (t *timer) next() float64 {
	at := math.Inf(1)
	for _, l := range t.lanes {
		switch {
		case l.busy && !l.copying():
			at = min(at, l.ends)
		case !l.busy && l.pending() > 0 && l.queue[l.head].submitted > t.now:
			at = min(at, l.queue[l.head].submitted)
		}
	}
	for k := range t.links {
		if t.links[k].active {
			at = min(at, t.now+t.links[k].left/t.speed(k))
		}
	}
	return at
}

func (l *timed) copying() bool {
	k := l.queue[l.head].kind
	return k == device.CopyOut || k == device.CopyIn
}

// pass lets time go by in which nothing begins and nothing ends.
func (t *timer) pass(to float64) {
	d := to - t.now
	computing := false
	for _, l := range t.lanes {
		if l.busy && !l.copying() {
			computing = true
		}
	}
	for k := range t.links {
		if n := &t.links[k]; n.active {
			n.left = max(n.left-d*t.speed(k), 0)
			t.step.links[k].busy += d
		}
	}
	t.step.pass(d, computing, t.links[0].active, t.links[1].active)
	t.now = to
}

// tiny is a time that is nothing but rounding.
const tiny = 1e-10

// finish ends what has ended now.
func (t *timer) finish() {
	for k := range t.links {
		n := &t.links[k]
		if !n.active || n.left > tiny {
			continue
		}
		l := n.waiting[0]
		n.waiting = slices.Delete(n.waiting, 0, 1)
		n.active = false
		t.step.links[k].bytes += l.queue[l.head].bytes
		t.ended(l, l.ends)
		t.start(k)
	}
	for _, l := range t.lanes {
		if l.busy && !l.copying() && l.ends <= t.now {
			t.ended(l, l.ends-l.queue[l.head].seconds)
		}
	}
}
