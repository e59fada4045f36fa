package schedule

import (
	"fmt"
	"iter"
	"strings"
	"text/tabwriter"
)

// Phase says what runs after a boundary.
type Phase uint8

const (
	// Forward means that the forward of a layer runs next.
	Forward Phase = iota
	// Backward means that the backward of a layer runs next.
	Backward
	// End means that the pass of a micro-batch is over; nothing of it runs any more.
	End
)

var phaseNames = [...]string{"forward", "backward", "end"}

// String returns the name of the phase, such as "forward".
func (p Phase) String() string {
	if int(p) < len(phaseNames) {
		return phaseNames[p]
	}
	return fmt.Sprintf("phase(%d)", uint8(p))
}

// Boundary is a point of a step. It is comparable, and unique within a plan.
type Boundary struct {
	Phase      Phase
	MicroBatch int
	Layer      int // zero when Phase is End
	Occurrence int // zero when Phase is End
}

// String returns the boundary as "forward 3", with "#1" for the second
// occurrence of the layer, and "micro-batch 1 " in front for the second of them.
func (b Boundary) String() string {
	text := b.Phase.String()
	if b.Phase != End {
		text += " " + slot(b.Layer, b.Occurrence)
	}
	return microBatch(b.MicroBatch) + text
}

// Action says what a directive does to a group.
type Action uint8

const (
	// Reset empties the group and gives its memory back.
	Reset Action = iota
	// StartOffload enqueues the copy of the group to the host.
	StartOffload
	// Release gives the device memory of the group back, in order after the copy.
	Release
	// Reload enqueues the copy of the group back to the device.
	Reload
)

var actionNames = [...]string{"reset", "start-offload", "release", "reload"}

// String returns the name of the action, such as "start-offload".
func (a Action) String() string {
	if int(a) < len(actionNames) {
		return actionNames[a]
	}
	return fmt.Sprintf("action(%d)", uint8(a))
}

// Directive is one action on one group, to be done at the boundary that lists it.
type Directive struct {
	Action     Action
	MicroBatch int
	Layer      int
	Occurrence int
	Group      int
}

// String returns the directive as "reload 3", with "#1" for the second
// occurrence of the layer and " group 1" for the second group.
func (d Directive) String() string {
	text := microBatch(d.MicroBatch) + d.Action.String() + " " + slot(d.Layer, d.Occurrence)
	if d.Group > 0 {
		text += fmt.Sprintf(" group %d", d.Group)
	}
	return text
}

func slot(layer, occurrence int) string {
	if occurrence == 0 {
		return fmt.Sprint(layer)
	}
	return fmt.Sprintf("%d#%d", layer, occurrence)
}

func microBatch(m int) string {
	if m == 0 {
		return ""
	}
	return fmt.Sprintf("micro-batch %d ", m)
}

// Plan is what to move at which boundary of a step. It never changes.
type Plan struct {
	name       string
	layers     int
	manual     bool
	warning    string
	boundaries []Boundary
	directives []Directive      // of all boundaries, one after the other
	first      []int            // where those of each boundary begin, and the end of the last
	index      map[Boundary]int // the place of each boundary in boundaries
	offloaded  []bool           // by layer
}

// Layers returns the number of layers of the model.
func (p *Plan) Layers() int { return p.layers }

// IsManual reports whether the plan leaves offload, release and reload to the
// caller.
func (p *Plan) IsManual() bool { return p.manual }

// Offloaded reports whether the plan ever moves something of the layer. It is
// false for a layer that the model does not have.
func (p *Plan) Offloaded(layer int) bool {
	return layer >= 0 && layer < p.layers && p.offloaded[layer]
}

// Warning says in one sentence why the plan is legal but hardly wanted. It is
// empty when there is nothing to say.
func (p *Plan) Warning() string { return p.warning }

// Len returns the number of boundaries.
func (p *Plan) Len() int { return len(p.boundaries) }

// Boundary returns boundary i, counted from zero in the order of the step.
func (p *Plan) Boundary(i int) Boundary { return p.boundaries[i] }

// At returns the directives of boundary i, in the order in which they are to be
// done. The slice belongs to the plan. At takes constant time and allocates
// nothing.
func (p *Plan) At(i int) []Directive {
	return p.directives[p.first[i]:p.first[i+1]:p.first[i+1]]
}

// IndexOf returns the place of b in the order of the step, or -1 when the plan
// has no such boundary.
func (p *Plan) IndexOf(b Boundary) int {
	if i, ok := p.index[b]; ok {
		return i
	}
	return -1
}

// Boundaries returns all boundaries in order, each with its directives. The
// slices belong to the plan.
func (p *Plan) Boundaries() iter.Seq2[Boundary, []Directive] {
	return func(yield func(Boundary, []Directive) bool) {
		for i, b := range p.boundaries {
			if !yield(b, p.At(i)) {
				return
			}
		}
	}
}

// String returns the plan as a table: each boundary, its directives, and how
// many sets are on the device once they are done and the boundary's layer runs.
func (p *Plan) String() string {
	var text strings.Builder
	fmt.Fprintln(&text, p.name)
	table := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "boundary\tdirectives\tsets on device")
	sets := 0
	for b, directives := range p.Boundaries() {
		if b.Phase == Forward {
			sets++
		}
		names := make([]string, len(directives))
		for i, d := range directives {
			names[i] = d.String()
			switch d.Action {
			case Release, Reset:
				sets--
			case Reload:
				sets++
			}
		}
		if len(names) == 0 {
			names = []string{"-"}
		}
		fmt.Fprintf(table, "%v\t%s\t%d\n", b, strings.Join(names, ", "), sets)
	}
	table.Flush()
	return text.String()
}
