package sim

import (
	"errors"
	"fmt"
	"math/big"
	"slices"
	"strings"

	"offload/device"
)

// A Program is what is explored: it makes its own ids, submits what it likes to d
// and returns an error if what it sees is wrong. It is called once for every
// order, each time with a new device, and must do the same each time: the host's
// choices may not depend on the order in which operations ran. It need not
// close d.
type Program func(d *Device) error

// ExploreOptions says how far to go. The zero value works.
type ExploreOptions struct {
	// Every runs orders as well that differ from one that was run in nothing but
	// operations that touch different bytes.
	Every bool
	// Max is the most orders that are run. Zero: 100,000.
	Max int
	// KeepGoing runs the other orders after one that failed.
	KeepGoing bool
	// Count counts the legal orders, those that are not run included.
	Count bool
}

// Report is what [Explore] did.
type Report struct {
	Operations int      // that change bytes, in one run
	Orders     int      // that were run
	Complete   bool     // every order, or one of each kind without Every, was run
	Total      *big.Int // legal orders; nil unless ExploreOptions.Count, or if there are too many to count
	Failing    int      // orders that failed
	First      *Failure // the first of them
}

// Failure is one order in which a program fails.
type Failure struct {
	Schedule Schedule
	Err      error     // of the program, of Close, or of a schedule that could not be followed
	Findings []Finding // of the checker
}

// String returns the report on one line, and the first failure on lines of its own.
func (r Report) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d operations, %d orders run", r.Operations, r.Orders)
	if r.Total != nil {
		fmt.Fprintf(&b, " of %v", r.Total)
	}
	if !r.Complete {
		b.WriteString(", not all that there are")
	}
	fmt.Fprintf(&b, ", %d failed", r.Failing)
	if r.First != nil {
		fmt.Fprintf(&b, "\n%v", r.First)
	}
	return b.String()
}

// String returns the schedule, the error and the findings, each on a line.
func (f *Failure) String() string {
	lines := []string{f.Schedule.String()}
	if f.Err != nil {
		lines = append(lines, f.Err.Error())
	}
	for _, found := range f.Findings {
		lines = append(lines, found.String())
	}
	return strings.Join(lines, "\n")
}

// Explore runs the program under every order in which its operations can run on
// a device of the given kind; Order, Seed and Schedule of cfg are not used. What
// runs is chosen only when the host waits for something, which leaves out no
// order: an operation that ran earlier had the same operations before it.
//
// Orders that differ in independent operations alone are run once, unless
// ExploreOptions.Every is set. Operations are independent if neither writes what
// the other one touches; a program without a race therefore has one order of
// each kind, and the checker, which does not need luck, says why. With
// [Config.NoChecker] what counts is the program's own error.
//
// The error is that of a program that did different things in two runs, or that
// could not be run once.
func Explore(cfg Config, program Program, opts ExploreOptions) (Report, error) {
	if opts.Max == 0 {
		opts.Max = 100_000
	}
	if cfg.ID == 0 {
		cfg.ID = device.NextID() // so that every run has the same ids
	}
	first := runUnder(cfg, program, Steps(), true)
	g := first.graph
	g.seal()
	r := Report{Operations: g.size(), Complete: true}
	if opts.Count {
		r.Total = g.count()
	}
	var err error
	g.each(!opts.Every, func(order []int) bool {
		if r.Orders == opts.Max {
			r.Complete = false
			return false
		}
		run := runUnder(cfg, program, Steps(slices.Clone(order)...), true)
		if diff := g.differs(run.graph); diff != "" {
			err = fmt.Errorf("explore: the program does not do the same in every order: %s (%v)", diff, run.failure.Schedule)
			r.Complete = false
			return false
		}
		r.Orders++
		if run.failed() {
			r.Failing++
			if r.First == nil {
				r.First = &run.failure
			}
			r.Complete = opts.KeepGoing
			return opts.KeepGoing
		}
		return true
	})
	return r, err
}

// Run runs the program once under the schedule on a device of the given kind. It
// returns nil if nothing was wrong.
func Run(cfg Config, program Program, s Schedule) *Failure {
	if r := runUnder(cfg, program, s, false); r.failed() {
		return &r.failure
	}
	return nil
}

// A trial is one run of a program.
type trial struct {
	failure Failure
	steps   []int // that were taken
	graph   *graph
	strayed bool // the schedule could not be followed
}

func (t *trial) failed() bool { return t.failure.Err != nil || len(t.failure.Findings) > 0 }

func runUnder(cfg Config, program Program, s Schedule, graphed bool) *trial {
	cfg.Schedule = &s
	d := New(cfg)
	taken := &recorder{chooser: d.order}
	d.order = taken
	if graphed {
		d.graph = &graph{}
	}
	t := &trial{failure: Failure{Schedule: s}, graph: d.graph}
	t.failure.Err = program(d)
	if err := d.Close(); err != nil && !errors.Is(err, device.ErrClosed) {
		t.failure.Err = errors.Join(t.failure.Err, fmt.Errorf("close: %w", err))
	}
	if l, ok := taken.chooser.(*listed); ok && l.err != nil {
		t.strayed = true
		t.failure.Err = errors.Join(t.failure.Err, l.err)
	}
	t.failure.Findings = d.Findings()
	t.steps = taken.steps
	return t
}
