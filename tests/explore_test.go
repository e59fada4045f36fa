package tests

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"offload"
	"offload/device"
	"offload/device/sim"
	"offload/schedule"
	"offload/tests/rig"
)

// small is a program that is explored: passes of an engine under a window plan,
// each layer of which saves one tensor.
type small struct{ layers, offloaded, passes int }

func (s small) String() string {
	return fmt.Sprintf("%d of %d layers, passes: %d", s.offloaded, s.layers, s.passes)
}

// explored returns the program without the wait that has the index drop among
// the edges of its engine; without none, if that is negative.
func (s small) explored(drop int) sim.Program {
	return func(d *sim.Device) (err error) {
		var c collector
		defer func() {
			if v := recover(); v != nil {
				gave, ok := v.(gaveUp)
				if !ok {
					panic(v)
				}
				err = errors.New(gave.why)
			}
		}()
		r := rig.On(&c, d)
		r.Gate.Device = &dropper{Device: d, drop: drop}
		s.run(r)
		r.Close()
		if len(c.complaints) > 0 {
			return errors.New(strings.Join(c.complaints, "\n"))
		}
		return nil
	}
}

func (s small) run(r *rig.Rig) {
	plan, err := schedule.Window(s.layers, s.offloaded)
	if err != nil {
		r.T.Fatal(err)
	}
	e := r.Open(offload.Options{Plan: plan, MinElements: 1, SlabBytes: 4 << 10})
	for n := range s.passes {
		p := begin(r, e)
		for i := range s.layers {
			p.forward(i, fmt.Sprintf("x%d.%d", n, i))
		}
		for i := s.layers - 1; i >= 0; i-- {
			p.backward(i)
		}
		p.must(p.pass.End())
	}
	if err := e.Close(); err != nil {
		r.T.Fatal(err)
	}
}

// Under every order that the edges of the engine allow, every byte is right and
// nothing is used before or after its time. Since the engine leaves no race, its
// orders differ in nothing that matters: there is one of each kind. That this is
// so of the orders left out is seen where they are few enough to run.
func TestEngineUnderEveryOrder(t *testing.T) {
	for _, tc := range []struct {
		small
		every bool
	}{
		{small{2, 1, 1}, true},
		{small{3, 1, 1}, true},
		{small{3, 2, 1}, true},
		{small{4, 2, 1}, true},
		{small{5, 2, 2}, false},
		{small{8, 3, 2}, false},
	} {
		t.Run(tc.String(), func(t *testing.T) {
			report, err := sim.Explore(sim.Config{}, tc.explored(-1), sim.ExploreOptions{Count: true})
			if err != nil {
				t.Fatal(err)
			}
			if report.Orders != 1 || !report.Complete || report.Failing > 0 {
				t.Errorf("got %v; want one kind of order, which is right", report)
			}
			t.Log(report)
			if !tc.every {
				return
			}
			every, err := sim.Explore(sim.Config{}, tc.explored(-1), sim.ExploreOptions{Every: true})
			if err != nil {
				t.Fatal(err)
			}
			if !every.Complete || every.Failing > 0 || report.Total == nil || !report.Total.IsInt64() || int64(every.Orders) != report.Total.Int64() {
				t.Errorf("got %v; want all %v orders, which are right", every, report.Total)
			}
		})
	}
}

// waits returns the indices of the waits among the edges of the program's engine.
func (s small) waits() (indices []int, edges []string) {
	d := &dropper{Device: sim.New(sim.Config{NoChecker: true}), drop: -1}
	var c collector
	r := rig.On(&c, d.Device.(*sim.Device))
	r.Gate.Device = d
	s.run(r)
	for i, e := range d.edges {
		if strings.Contains(e, ": "+device.Wait.String()+" ") {
			indices = append(indices, i)
		}
	}
	return indices, d.edges
}

// With a wait left out there is an order that gives wrong bytes. It is found
// without the checker, its text replays, and one change between streams is
// enough for it. The checker needs a single order, whichever, to say so.
func TestMissingWaitGivesWrongBytes(t *testing.T) {
	program := small{3, 1, 2}
	indices, edges := program.waits()
	reasons := make(map[string]bool)
	for _, i := range indices {
		run := program.explored(i)
		checked, err := sim.Explore(sim.Config{}, run, sim.ExploreOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if checked.First == nil || len(checked.First.Findings) == 0 {
			t.Errorf("without %q: got %v, want a finding in the first order", edges[i], checked)
		}
		cfg := sim.Config{ID: device.NextID(), NoChecker: true}
		report, err := sim.Explore(cfg, run, sim.ExploreOptions{Max: 3000})
		if err != nil {
			t.Fatal(err)
		}
		if report.First == nil {
			t.Errorf("without %q: every order gives the right bytes: %v", edges[i], report)
			continue
		}
		reasons[edges[i][strings.LastIndex(edges[i], "("):]] = true
		schedule, err := sim.ParseSchedule(report.First.Schedule.String())
		if err != nil {
			t.Fatal(err)
		}
		if again := sim.Run(cfg, run, schedule); again == nil || again.Err.Error() != report.First.Err.Error() {
			t.Errorf("without %q: replayed: got %v, want %v", edges[i], again, report.First)
		}
		least, err := sim.Shrink(cfg, run, schedule, nil)
		if err != nil {
			t.Fatal(err)
		}
		if n := least.Schedule.Switches(); n > 1 {
			t.Errorf("without %q: the least schedule has %d changes between streams, want at most one: %v", edges[i], n, least.Schedule)
		}
	}
	want := []string{"(after alloc)", "(after copy in)", "(after copy out)", "(after producer)"}
	if got := slices.Sorted(maps.Keys(reasons)); !slices.Equal(got, want) {
		t.Errorf("waits with the reasons %v were left out, want %v", got, want)
	}
}
