package schedule

// builder collects the boundaries of a plan in order. Directives added belong
// to the boundary that was added last.
type builder struct{ plan Plan }

func newBuilder(name string, layers int) *builder {
	return &builder{Plan{
		name:       name,
		layers:     layers,
		boundaries: make([]Boundary, 0, 2*layers+1),
		index:      make(map[Boundary]int, 2*layers+1),
		offloaded:  make([]bool, layers),
	}}
}

func (b *builder) boundary(at Boundary) {
	p := &b.plan
	p.index[at] = len(p.boundaries)
	p.boundaries = append(p.boundaries, at)
	p.first = append(p.first, len(p.directives))
}

func (b *builder) add(action Action, layer int) {
	p := &b.plan
	p.directives = append(p.directives, Directive{Action: action, Layer: layer})
	if action == StartOffload {
		p.offloaded[layer] = true
	}
}

// build ends the plan. The builder must not be used after it.
func (b *builder) build() *Plan {
	b.plan.first = append(b.plan.first, len(b.plan.directives))
	return &b.plan
}
