package sim

import (
	"fmt"
	"slices"

	"offload/device"
)

// maxTrials bounds the runs of one Shrink.
const maxTrials = 4000

// Shrink looks for a simpler schedule under which the program fails as well, such
// as that of a seed: one with fewer changes between streams, and the shortest
// beginning of it that is enough. wrong says whether a failure is of the kind
// that is looked for; nil accepts every one. The result fails when it is run.
//
// Shrink returns an error if the program does not fail so under s, or if it does
// only while operations run before the host waits for them, which a schedule of
// steps cannot say. A host that waits for what it reads makes no such difference.
func Shrink(cfg Config, program Program, s Schedule, wrong func(*Failure) bool) (*Failure, error) {
	if wrong == nil {
		wrong = func(*Failure) bool { return true }
	}
	first := runUnder(cfg, program, s, false)
	if !first.failed() || !wrong(&first.failure) {
		return nil, fmt.Errorf("shrink: the program does not fail under %v", s)
	}
	z := shrinker{cfg: cfg, program: program, wrong: wrong}
	if !z.fails(first.steps) {
		return nil, fmt.Errorf("shrink: the program fails under %v, and not when the same operations run in the same order "+
			"as late as they can: it looks at what it has not waited for", s)
	}
	z.cut()
	z.merge()
	z.cut()
	return z.best, nil
}

// shrinker keeps the simplest failing schedule found so far.
type shrinker struct {
	cfg     Config
	program Program
	wrong   func(*Failure) bool
	best    *Failure
	trials  int
}

// fails runs the steps, and keeps them if the program fails and they were possible.
func (z *shrinker) fails(steps []int) bool {
	if z.trials == maxTrials {
		return false
	}
	z.trials++
	t := runUnder(z.cfg, z.program, Steps(slices.Clone(steps)...), false)
	if t.strayed || !t.failed() || !z.wrong(&t.failure) {
		return false
	}
	z.best = &t.failure
	return true
}

// cut finds a beginning of the steps that is enough.
func (z *shrinker) cut() {
	for n := 0; n < len(z.best.Schedule.steps); n = 2*n + 1 {
		if z.fails(z.best.Schedule.steps[:n]) {
			break
		}
	}
	for n := len(z.best.Schedule.steps) - 1; n >= 0 && z.fails(z.best.Schedule.steps[:n]); n-- {
	}
}

// merge moves each run of steps of one stream next to an earlier run of the same
// stream, or a later one to it, as long as the program still fails.
func (z *shrinker) merge() {
	for again := true; again; {
		again = false
		runs := split(z.best.Schedule.steps)
		for i := 2; i < len(runs) && !again; i++ {
			for j := i - 2; j >= 0 && !again; j-- {
				if runs[j][0] != runs[i][0] {
					continue
				}
				earlier := slices.Concat(slices.Concat(runs[:j+1]...), runs[i], slices.Concat(runs[j+1:i]...), slices.Concat(runs[i+1:]...))
				later := slices.Concat(slices.Concat(runs[:j]...), slices.Concat(runs[j+1:i]...), runs[j], runs[i], slices.Concat(runs[i+1:]...))
				again = z.fails(earlier) || z.fails(later)
			}
		}
	}
}

// split returns the runs of equal steps.
func split(steps []int) [][]int {
	var runs [][]int
	for i, s := range steps {
		if i == 0 || s != steps[i-1] {
			runs = append(runs, nil)
		}
		runs[len(runs)-1] = append(runs[len(runs)-1], s)
	}
	return runs
}

// Batches is a program as data, for a device with [Config.ID] set. Its ids are of
// the first id space of the device, or of as many as it says.
type Batches struct {
	Spaces int // id spaces that are opened first; zero: one
	List   []device.Batch
}

// Run is a [Program]. It goes on after a batch that is refused, and returns nil:
// what is wrong with the program is for the checker to say.
func (p Batches) Run(d *Device) error {
	for range max(p.Spaces, 1) {
		d.NewSpace()
	}
	for i := range p.List {
		_ = d.Submit(&p.List[i]) // a refusal is a finding, or loses operations that were dropped
	}
	return nil
}

// Drop takes operations out of the program as long as fails is true of what is
// left: first many at once, then single ones. What it returns fails, and no
// longer does if any one operation is taken out.
func (p Batches) Drop(fails func(Batches) bool) Batches {
	n := 0
	for _, b := range p.List {
		n += len(b.Ops)
	}
	for size := n; size >= 1; {
		dropped := false
		for at := 0; at < n; {
			if q := p.without(at, at+size); fails(q) {
				p, n, dropped = q, n-min(size, n-at), true
				continue
			}
			at += size
		}
		if size > 1 || !dropped {
			size /= 2
		}
	}
	return p
}

// without returns the program without the operations from lo to hi-1, counted
// over all batches.
func (p Batches) without(lo, hi int) Batches {
	q := Batches{Spaces: p.Spaces}
	i := 0
	for _, b := range p.List {
		kept := device.Batch{Origin: b.Origin}
		for _, op := range b.Ops {
			if i < lo || i >= hi {
				kept.Ops = append(kept.Ops, op)
			}
			i++
		}
		if len(kept.Ops) > 0 {
			q.List = append(q.List, kept)
		}
	}
	return q
}
