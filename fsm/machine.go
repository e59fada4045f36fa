package fsm

import (
	looplab "github.com/looplab/fsm"

	"offload/internal/invariants"
)

// Machine is the place of one group in the table. Make one with [NewMachine],
// or call Init on one that is part of a larger value.
type Machine struct {
	judge looplab.FSM
	layer int32
	state State // the judge's state as a number; only Fire and Init write either
}

// NewMachine returns a machine in the state Resident for a group of the given
// layer.
func NewMachine(layer int) *Machine {
	m := new(Machine)
	m.Init(layer)
	return m
}

// Init puts the machine into the state Resident for a group of the given layer,
// whatever it was before. It allocates nothing.
func (m *Machine) Init(layer int) {
	clone(&m.judge)
	m.layer, m.state = int32(layer), Resident
}

// State returns where the group is.
func (m *Machine) State() State { return m.state }

// Can reports whether e is legal now.
func (m *Machine) Can(e Event) bool { return m.judge.Can(e.String()) }

// Check returns nil when e is legal now, and an [*OrderError] otherwise.
func (m *Machine) Check(e Event) error {
	if m.Can(e) {
		return nil
	}
	return m.refuse(e)
}

// Fire moves the machine along e. When e is not legal now, it returns an
// [*OrderError] and the state does not change. An event that leads back to the
// same state succeeds.
func (m *Machine) Fire(e Event) error {
	if !m.Can(e) {
		return m.refuse(e)
	}
	m.Advance(e)
	return nil
}

// Advance moves the machine along e, which Check has allowed since the machine
// last moved. It spares asking the judge a second time.
func (m *Machine) Advance(e Event) {
	if invariants.Enabled && !m.Can(e) {
		panic(m.refuse(e))
	}
	next := targets[e][m.state]
	if next == m.state {
		return
	}
	m.judge.SetState(next.String())
	m.state = next
}

// Allowed returns the events that are legal now, in the order of their
// declaration.
func (m *Machine) Allowed() []Event {
	var allowed []Event
	for e := range Event(Events) {
		if m.Can(e) {
			allowed = append(allowed, e)
		}
	}
	return allowed
}

// refuse is apart from its callers so that the legal path allocates nothing.
func (m *Machine) refuse(e Event) error {
	return &OrderError{Layer: int(m.layer), Event: e, State: m.state, Allowed: m.Allowed()}
}
