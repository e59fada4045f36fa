package sim

import (
	"fmt"
	"strconv"
	"strings"
)

// A Schedule is an order in which queued operations run, as a value that can be
// printed and replayed: that of a seed, or one that names the stream of every
// operation.
//
// Streams are numbered in the order in which they were opened, from 0. A stream
// that was opened after another one was closed, and its end was waited for, may
// have the number of that one. Records, waits and declared accesses move no
// bytes and are not steps.
//
// The operations of a schedule with steps run only when the host waits for them.
// When its steps are used up, the stream of the last one goes on as long as it
// can, then the first that can. The schedule without steps is therefore the one
// with the fewest changes between streams.
type Schedule struct {
	seeded bool
	seed   uint64
	steps  []int
}

// SeedSchedule returns the schedule that is chosen by a seed.
func SeedSchedule(seed uint64) Schedule { return Schedule{seeded: true, seed: seed} }

// Steps returns the schedule that runs one operation of each of these streams,
// one after the other. It keeps the slice.
func Steps(streams ...int) Schedule { return Schedule{steps: streams} }

// Len returns the number of steps; 0 for the schedule of a seed.
func (s Schedule) Len() int { return len(s.steps) }

// Switches returns how often a step is of another stream than the one before.
func (s Schedule) Switches() int {
	n := 0
	for i := 1; i < len(s.steps); i++ {
		if s.steps[i] != s.steps[i-1] {
			n++
		}
	}
	return n
}

const (
	seedText  = "sim seed v1:"
	stepsText = "sim schedule v1:"
)

// String returns a text that [ParseSchedule] reads: "sim seed v1: 42", or
// "sim schedule v1: 0x3 1 0" for three operations of stream 0, one of stream 1
// and one of stream 0.
func (s Schedule) String() string {
	if s.seeded {
		return fmt.Sprintf("%s %d", seedText, s.seed)
	}
	var b strings.Builder
	b.WriteString(stepsText)
	for i := 0; i < len(s.steps); {
		n := 1
		for i+n < len(s.steps) && s.steps[i+n] == s.steps[i] {
			n++
		}
		fmt.Fprintf(&b, " %d", s.steps[i])
		if n > 1 {
			fmt.Fprintf(&b, "x%d", n)
		}
		i += n
	}
	return b.String()
}

// maxSteps bounds what ParseSchedule makes of a text.
const maxSteps = 1 << 24

// ParseSchedule reads what String wrote. Space around the text does not matter.
func ParseSchedule(text string) (Schedule, error) {
	text = strings.TrimSpace(text)
	if rest, ok := strings.CutPrefix(text, seedText); ok {
		seed, err := strconv.ParseUint(strings.TrimSpace(rest), 10, 64)
		if err != nil {
			return Schedule{}, fmt.Errorf("schedule %q: the seed is not a number from 0 to 2^64-1", text)
		}
		return SeedSchedule(seed), nil
	}
	rest, ok := strings.CutPrefix(text, stepsText)
	if !ok {
		return Schedule{}, fmt.Errorf("schedule %q: it begins with neither %q nor %q", text, seedText, stepsText)
	}
	var s Schedule
	for _, word := range strings.Fields(rest) {
		first, times, repeated := strings.Cut(word, "x")
		n := 1
		stream, err := strconv.Atoi(first)
		if repeated && err == nil {
			n, err = strconv.Atoi(times)
		}
		if err != nil || stream < 0 || n < 1 || n > maxSteps-len(s.steps) {
			return Schedule{}, fmt.Errorf("schedule: %q is no step; one is the number of a stream, or number x times, as in 0x3", word)
		}
		for range n {
			s.steps = append(s.steps, stream)
		}
	}
	return s, nil
}

// chooser returns what makes the choices that the configuration asks for.
func (c *Config) chooser() chooser {
	switch {
	case c.Schedule != nil && !c.Schedule.seeded:
		return &listed{steps: c.Schedule.steps, last: -1}
	case c.Schedule != nil:
		return newSeeded(c.Schedule.seed)
	case c.Order == Eager:
		return eager{}
	}
	return newSeeded(c.Seed)
}

// listed follows a list of steps.
type listed struct {
	steps []int
	at    int
	last  int   // stream of the operation that ran last
	err   error // the first step that was not possible
}

func (l *listed) burst(int) int { return 0 }

func (l *listed) pick(ready []*stream) int {
	k := 0
	want := l.last
	if l.at < len(l.steps) {
		want = l.steps[l.at]
	}
	found := false
	for i, s := range ready {
		if s.number() == want {
			k, found = i, true
		}
	}
	if l.at < len(l.steps) && !found && l.err == nil {
		l.err = fmt.Errorf("step %d of %d is of stream %d, which has no operation that may run; the schedule is that of another program",
			l.at, len(l.steps), want)
	}
	l.at++
	l.last = ready[k].number()
	return k
}

// number is what schedules call the stream.
func (s *stream) number() int { return s.lane - 1 }

// recorder notes the choices of another chooser.
type recorder struct {
	chooser
	steps []int
}

func (r *recorder) pick(ready []*stream) int {
	k := r.chooser.pick(ready)
	r.steps = append(r.steps, ready[k].number())
	return k
}
