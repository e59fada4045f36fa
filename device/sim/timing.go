package sim

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"offload/device"
)

// Timing is where the virtual time of one step went. It depends on what was
// submitted and on the profile, and on nothing else.
type Timing struct {
	Total    time.Duration // from the end of the step before
	Enqueue  time.Duration // for which the host was busy with submitting
	Blocked  time.Duration // for which it waited for the device, at the end of the step as well
	Compute  time.Duration // in which at least one kernel ran, or a copy within the device
	Exposed  time.Duration // in which bytes moved between host and device, and nothing was computed
	Both     time.Duration // in which bytes moved in both directions
	Out, In  LinkTime
	Peak     int64          // highest device memory in use, in bytes, at any virtual time
	Left     int64          // device memory in use at the end
	Streams  []StreamTime   // those that did anything, in the order in which they were opened
	Timeline []Span         // in the order of their ends; with Config.Timeline
	Memory   []MemoryChange // in order; with Config.Timeline
}

// LinkTime is what one direction of the link did.
type LinkTime struct {
	Busy  time.Duration
	Bytes int64
}

// Rate returns bytes a second while it was busy.
func (l LinkTime) Rate() float64 {
	if l.Busy == 0 {
		return 0
	}
	return float64(l.Bytes) / l.Busy.Seconds()
}

// StreamTime is what one stream did.
type StreamTime struct {
	Stream  device.Stream
	Busy    time.Duration // kernels and copies ran
	Queued  time.Duration // a copy could have begun, and others of its direction were before it
	Starved time.Duration // the host had not submitted what came next; not counted before the first operation
	Stalls  []Stall       // by reason
}

// Stall is the time for which waits with one reason held a stream.
type Stall struct {
	Reason device.Reason
	Time   time.Duration
}

// Stalled returns the time for which waits held the stream, for whatever reason.
func (s StreamTime) Stalled() time.Duration {
	sum := time.Duration(0)
	for _, x := range s.Stalls {
		sum += x.Time
	}
	return sum
}

// Span is an operation that took time. Times count from the beginning of the step.
type Span struct {
	Site       Site
	Bytes      int64 // of a copy
	Start, End time.Duration
}

// MemoryChange says how much device memory is in use from a time on.
type MemoryChange struct {
	At    time.Duration
	InUse int64
}

// Stream returns what the stream did.
func (t Timing) Stream(s device.Stream) StreamTime {
	for _, x := range t.Streams {
		if x.Stream == s {
			return x
		}
	}
	return StreamTime{Stream: s}
}

// Lap ends a step on the virtual clock and returns where its time went: the
// virtual host waits until everything that was submitted has ended. Nothing else
// changes: no operation runs, and nothing is ordered that was not. Without
// [Config.Profile] the result is zero.
func (d *Device) Lap() Timing {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.timer == nil {
		return Timing{}
	}
	return d.timer.lap()
}

// step is what the timer has counted since the last lap, in seconds.
type step struct {
	start                                        float64
	enqueue, blocked, computing, exposed, shared float64
	links                                        [2]struct {
		busy  float64
		bytes int64
	}
	peak   int64
	gone   []StreamTime // of streams that were closed
	spans  []Span
	points []MemoryChange
}

// used is what the timer has counted for one stream since the last lap.
type used struct {
	busy, queued, starved float64
	stalled               map[device.Reason]float64
}

func newUsed() used { return used{stalled: make(map[device.Reason]float64)} }

// idle reports whether the stream did nothing.
func (u *used) idle() bool {
	return u.busy == 0 && u.queued == 0 && u.starved == 0 && len(u.stalled) == 0
}

func (u *used) time(id device.Stream) StreamTime {
	s := StreamTime{Stream: id, Busy: seconds(u.busy), Queued: seconds(u.queued), Starved: seconds(u.starved)}
	for _, reason := range slices.Sorted(maps.Keys(u.stalled)) {
		s.Stalls = append(s.Stalls, Stall{reason, seconds(u.stalled[reason])})
	}
	return s
}

// keep notes what a stream did whose lane is used for another one.
func (s *step) keep(l *timed) {
	if !l.use.idle() {
		s.gone = append(s.gone, l.use.time(l.id))
	}
}

// memory notes the memory that is in use now.
func (s *step) memory(t *timer) {
	s.peak = max(s.peak, t.inUse)
	if t.detailed {
		s.points = append(s.points, MemoryChange{seconds(t.now - s.start), t.inUse})
	}
}

// pass counts d seconds in which these were active.
func (s *step) pass(d float64, computing, out, in bool) {
	switch {
	case computing:
		s.computing += d
	case out || in:
		s.exposed += d
	}
	if out && in {
		s.shared += d
	}
}

func (s *step) timing(t *timer) Timing {
	r := Timing{
		Total: seconds(t.now - s.start), Enqueue: seconds(s.enqueue), Blocked: seconds(s.blocked),
		Compute: seconds(s.computing), Exposed: seconds(s.exposed), Both: seconds(s.shared),
		Out:  LinkTime{seconds(s.links[0].busy), s.links[0].bytes},
		In:   LinkTime{seconds(s.links[1].busy), s.links[1].bytes},
		Peak: s.peak, Left: t.inUse, Timeline: s.spans, Memory: s.points, Streams: s.gone,
	}
	for _, l := range t.lanes {
		if !l.use.idle() {
			r.Streams = append(r.Streams, l.use.time(l.id))
		}
	}
	return r
}

// String describes the step on a few lines.
func (t Timing) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "total %v, host %v to enqueue and %v blocked\n", t.Total, t.Enqueue, t.Blocked)
	fmt.Fprintf(&b, "compute %v, copies exposed %v, both directions %v\n", t.Compute, t.Exposed, t.Both)
	fmt.Fprintf(&b, "out %d bytes in %v, in %d bytes in %v, peak %d bytes", t.Out.Bytes, t.Out.Busy, t.In.Bytes, t.In.Busy, t.Peak)
	for _, s := range t.Streams {
		fmt.Fprintf(&b, "\n%v: busy %v, queued %v, starved %v", s.Stream, s.Busy, s.Queued, s.Starved)
		for _, x := range s.Stalls {
			fmt.Fprintf(&b, ", stalled %v", x.Time)
			if x.Reason != device.Unspecified {
				fmt.Fprintf(&b, " (%v)", x.Reason)
			}
		}
	}
	return b.String()
}

// WriteGantt draws the timeline of the step with a line of the given width for
// each stream: # computes, > copies out, < copies in, and a dot is idle. What
// ran longest within a column is what the column shows.
func (t Timing) WriteGantt(w io.Writer, width int) error {
	if width < 1 || t.Total <= 0 {
		return nil
	}
	rows := make(map[device.Stream][]Span)
	for _, s := range t.Timeline {
		rows[s.Site.Stream] = append(rows[s.Site.Stream], s)
	}
	streams := slices.SortedFunc(maps.Keys(rows), func(a, b device.Stream) int {
		return cmp.Or(cmp.Compare(a.Space, b.Space), cmp.Compare(a.Index, b.Index))
	})
	column := t.Total.Seconds() / float64(width)
	for _, id := range streams {
		line := []byte(strings.Repeat(".", width))
		longest := make([]float64, width)
		for _, s := range rows[id] {
			from, to := s.Start.Seconds()/column, s.End.Seconds()/column
			for i := int(from); i < width && float64(i) < to; i++ {
				if part := min(to, float64(i+1)) - max(from, float64(i)); part > longest[i] {
					longest[i], line[i] = part, letter(s.Site.Kind)
				}
			}
		}
		if _, err := fmt.Fprintf(w, "%-10v %s\n", id, line); err != nil {
			return err
		}
	}
	return nil
}

func letter(k device.Kind) byte {
	switch k {
	case device.CopyOut:
		return '>'
	case device.CopyIn:
		return '<'
	}
	return '#'
}
