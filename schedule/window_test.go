package schedule_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"offload/fsm"
	"offload/schedule"
)

// row is one boundary of a table: its directives, where each set is while the
// boundary's layer runs, and how many sets are on the device then. States are
// R(esident), O(ffloading), H (on the host) and L (loading, that is reloading).
type row struct {
	boundary   string
	directives string
	states     string
	sets       int
}

var tables = []struct {
	layers, offloaded int
	rows              []row
}{
	{5, 2, []row{
		{"forward 0", "", "RRRRR", 1},
		{"forward 1", "start-offload 0", "ORRRR", 2},
		{"forward 2", "start-offload 1", "OORRR", 3},
		{"forward 3", "release 0", "HORRR", 3},
		{"forward 4", "release 1", "HHRRR", 3},
		{"backward 4", "", "HHRRR", 3},
		{"backward 3", "reset 4, reload 1", "HLRRR", 3},
		{"backward 2", "reset 3, reload 0", "LLRRR", 3},
		{"backward 1", "reset 2", "LLRRR", 2},
		{"backward 0", "reset 1", "LRRRR", 1},
		{"end", "reset 0", "RRRRR", 0},
	}},
	{8, 3, []row{
		{"forward 0", "", "RRRRRRRR", 1},
		{"forward 1", "start-offload 0", "ORRRRRRR", 2},
		{"forward 2", "start-offload 1", "OORRRRRR", 3},
		{"forward 3", "start-offload 2", "OOORRRRR", 4},
		{"forward 4", "", "OOORRRRR", 5},
		{"forward 5", "release 0", "HOORRRRR", 5},
		{"forward 6", "release 1", "HHORRRRR", 5},
		{"forward 7", "release 2", "HHHRRRRR", 5},
		{"backward 7", "", "HHHRRRRR", 5},
		{"backward 6", "reset 7, reload 2", "HHLRRRRR", 5},
		{"backward 5", "reset 6, reload 1", "HLLRRRRR", 5},
		{"backward 4", "reset 5, reload 0", "LLLRRRRR", 5},
		{"backward 3", "reset 4", "LLLRRRRR", 4},
		{"backward 2", "reset 3", "LLLRRRRR", 3},
		{"backward 1", "reset 2", "LLRRRRRR", 2},
		{"backward 0", "reset 1", "LRRRRRRR", 1},
		{"end", "reset 0", "RRRRRRRR", 0},
	}},
	// The most that can be moved: start and release at one boundary.
	{3, 2, []row{
		{"forward 0", "", "RRR", 1},
		{"forward 1", "start-offload 0, release 0", "HRR", 1},
		{"forward 2", "start-offload 1, release 1", "HHR", 1},
		{"backward 2", "", "HHR", 1},
		{"backward 1", "reset 2, reload 1", "HLR", 1},
		{"backward 0", "reset 1, reload 0", "LRR", 1},
		{"end", "reset 0", "RRR", 0},
	}},
	{1, 0, []row{
		{"forward 0", "", "R", 1},
		{"backward 0", "", "R", 1},
		{"end", "reset 0", "R", 0},
	}},
}

func TestWindowTables(t *testing.T) {
	for _, tc := range tables {
		t.Run(fmt.Sprintf("%d layers, %d offloaded", tc.layers, tc.offloaded), func(t *testing.T) {
			plan := window(t, tc.layers, tc.offloaded)
			if plan.Len() != len(tc.rows) {
				t.Fatalf("got %d boundaries, want %d", plan.Len(), len(tc.rows))
			}
			model := newModel(t, tc.layers)
			for i, want := range tc.rows {
				model.follow(plan, i)
				got := row{plan.Boundary(i).String(), list(plan.At(i)), model.states(), model.sets()}
				if got != want {
					t.Errorf("got %v, want %v", got, want)
				}
			}
		})
	}
}

// TestWindowOfEverySmallModel checks, for every plan of up to twelve layers,
// what a window promises, and that the lifecycle machine allows every directive.
func TestWindowOfEverySmallModel(t *testing.T) {
	for layers := 1; layers <= 12; layers++ {
		for offloaded := range layers {
			t.Run(fmt.Sprintf("%d layers, %d offloaded", layers, offloaded), func(t *testing.T) {
				checkWindow(t, layers, offloaded)
			})
		}
	}
}

func checkWindow(t *testing.T, layers, offloaded int) {
	plan := window(t, layers, offloaded)
	stay := layers - offloaded
	model := newModel(t, layers)
	peak := 0
	at := map[schedule.Directive]schedule.Boundary{}
	for i := range plan.Len() {
		model.follow(plan, i)
		peak = max(peak, model.sets())
		for _, d := range plan.At(i) {
			if _, twice := at[d]; twice {
				t.Errorf("%v is listed twice", d)
			}
			at[d] = plan.Boundary(i)
		}
	}
	if peak != stay {
		t.Errorf("at most %d sets were on the device, want %d", peak, stay)
	}
	if model.sets() != 0 {
		t.Errorf("%d sets are left at the end", model.sets())
	}
	for layer, m := range model.machines {
		if m.State() != fsm.Resident {
			t.Errorf("layer %d ends %v", layer, m.State())
		}
	}

	// When each directive is due, from the rule and not from the plan.
	want := map[schedule.Directive]schedule.Boundary{}
	for layer := range layers {
		reset := schedule.Boundary{Phase: schedule.Backward, Layer: layer - 1}
		if layer == 0 {
			reset = schedule.Boundary{Phase: schedule.End}
		}
		want[schedule.Directive{Action: schedule.Reset, Layer: layer}] = reset
	}
	for i := range offloaded {
		want[schedule.Directive{Action: schedule.StartOffload, Layer: i}] = schedule.Boundary{Phase: schedule.Forward, Layer: i + 1}
		want[schedule.Directive{Action: schedule.Release, Layer: i}] = schedule.Boundary{Phase: schedule.Forward, Layer: stay + i}
		want[schedule.Directive{Action: schedule.Reload, Layer: i}] = schedule.Boundary{Phase: schedule.Backward, Layer: stay - 1 + i}
	}
	if len(at) != len(want) {
		t.Errorf("the plan has %d directives, want %d", len(at), len(want))
	}
	for d, b := range want {
		if got, ok := at[d]; !ok || got != b {
			t.Errorf("%v is at %v (listed: %v), want %v", d, got, ok, b)
		}
	}
	for layer := -1; layer <= layers; layer++ {
		if got, want := plan.Offloaded(layer), layer >= 0 && layer < offloaded; got != want {
			t.Errorf("Offloaded(%d) = %v, want %v", layer, got, want)
		}
	}
	if got, want := plan.Warning() != "", offloaded > 0 && offloaded == layers-1; got != want {
		t.Errorf("Warning() = %q, want one: %v", plan.Warning(), want)
	}
}

// model follows a plan with one lifecycle machine for each layer.
type model struct {
	t        *testing.T
	machines []*fsm.Machine
	saved    []bool // the set exists: its forward has begun and it is not reset
}

func newModel(t *testing.T, layers int) *model {
	m := &model{t: t, saved: make([]bool, layers)}
	for layer := range layers {
		m.machines = append(m.machines, fsm.NewMachine(layer))
	}
	return m
}

var eventOf = map[schedule.Action]fsm.Event{
	schedule.Reset:        fsm.Reset,
	schedule.StartOffload: fsm.StartOffload,
	schedule.Release:      fsm.Release,
	schedule.Reload:       fsm.Reload,
}

// follow does what boundary i says, then runs its layer: a forward pushes, a
// backward pops. Every step must be legal.
func (m *model) follow(plan *schedule.Plan, i int) {
	m.t.Helper()
	b := plan.Boundary(i)
	for _, d := range plan.At(i) {
		if d.Action == schedule.Reset && !m.saved[d.Layer] {
			m.t.Errorf("%v: %v, which has no set", b, d)
		}
		if err := m.machines[d.Layer].Fire(eventOf[d.Action]); err != nil {
			m.t.Errorf("%v: %v", b, err)
		}
		if d.Action == schedule.Reset {
			m.saved[d.Layer] = false
		}
	}
	var err error
	switch b.Phase {
	case schedule.Forward:
		m.saved[b.Layer] = true
		err = m.machines[b.Layer].Fire(fsm.Push)
	case schedule.Backward:
		if !m.saved[b.Layer] {
			m.t.Errorf("%v: its set is reset already", b)
		}
		err = m.machines[b.Layer].Fire(fsm.Pop)
	}
	if err != nil {
		m.t.Errorf("%v: %v", b, err)
	}
}

// sets counts the sets on the device: all but those on the host.
func (m *model) sets() int {
	n := 0
	for layer, machine := range m.machines {
		if m.saved[layer] && machine.State() != fsm.Offloaded {
			n++
		}
	}
	return n
}

func (m *model) states() string {
	var text strings.Builder
	for _, machine := range m.machines {
		text.WriteByte("ROHLF"[machine.State()])
	}
	return text.String()
}

func list(directives []schedule.Directive) string {
	var names []string
	for _, d := range directives {
		names = append(names, d.String())
	}
	return strings.Join(names, ", ")
}

func window(t *testing.T, layers, offloaded int) *schedule.Plan {
	t.Helper()
	plan, err := schedule.Window(layers, offloaded)
	if err != nil {
		t.Fatal(err)
	}
	return plan
}

func TestManualOnlyResets(t *testing.T) {
	plan, err := schedule.Manual(3)
	if err != nil {
		t.Fatal(err)
	}
	resident := window(t, 3, 0)
	if !plan.IsManual() || resident.IsManual() {
		t.Errorf("IsManual = %v and %v, want true for Manual and false for Window", plan.IsManual(), resident.IsManual())
	}
	if plan.Len() != resident.Len() {
		t.Fatalf("got %d boundaries, want %d", plan.Len(), resident.Len())
	}
	for i := range plan.Len() {
		if plan.Boundary(i) != resident.Boundary(i) || list(plan.At(i)) != list(resident.At(i)) {
			t.Errorf("got %v: %s, want the same as when nothing is offloaded, %v: %s",
				plan.Boundary(i), list(plan.At(i)), resident.Boundary(i), list(resident.At(i)))
		}
	}
	for layer := range 3 {
		if plan.Offloaded(layer) {
			t.Errorf("Offloaded(%d) = true", layer)
		}
	}
}

func TestRefusedPlans(t *testing.T) {
	manual := func(layers, _ int) (*schedule.Plan, error) { return schedule.Manual(layers) }
	for _, tc := range []struct {
		name              string
		make              func(layers, offloaded int) (*schedule.Plan, error)
		layers, offloaded int
		want              string
	}{
		{"as many offloaded as there are", schedule.Window, 5, 5, "offloading 5 of 5 layers: want from 0 to 4"},
		{"more offloaded than there are", schedule.Window, 5, 7, "offloading 7 of 5 layers: want from 0 to 4"},
		{"the only layer offloaded", schedule.Window, 1, 1, "offloading 1 of 1 layers: want from 0 to 0"},
		{"a negative number offloaded", schedule.Window, 5, -1, "offloading -1 of 5 layers: want from 0 to 4"},
		{"no layers", schedule.Window, 0, 0, "0 layers: want at least 1"},
		{"a negative number of layers", schedule.Window, -2, 0, "-2 layers: want at least 1"},
		{"no layers by hand", manual, 0, 0, "0 layers: want at least 1"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			plan, err := tc.make(tc.layers, tc.offloaded)
			if plan != nil || !errors.Is(err, schedule.ErrInvalid) || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, %v, want ErrInvalid saying %q", plan, err, tc.want)
			}
		})
	}
}
