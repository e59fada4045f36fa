package fsm

import (
	"errors"
	"fmt"
	"strings"
)

// ErrOrder is what every [*OrderError] is to errors.Is.
var ErrOrder = errors.New("out of order")

// OrderError is returned by [Machine.Check] and [Machine.Fire] for an event
// that is not legal in the state the group is in. Nothing has changed.
type OrderError struct {
	Layer   int     // the layer whose group it is
	Event   Event   // what was asked
	State   State   // where the group was, and still is
	Allowed []Event // everything that is legal in State
}

// Error says what was asked, what was found, and what would be right. It does
// not name fail and reset among the allowed events while there are others:
// they are legal in every state and answer no caller's question.
func (e *OrderError) Error() string {
	var asked, all []string
	for _, a := range e.Allowed {
		all = append(all, a.String())
		if a != Fail && a != Reset {
			asked = append(asked, a.String())
		}
	}
	if len(asked) == 0 {
		asked = all
	}
	return fmt.Sprintf("%v layer %d: it is %v; allowed now: %s; %s",
		e.Event, e.Layer, e.State, strings.Join(asked, ", "), advice(e.Event, e.State))
}

// Is reports whether target is [ErrOrder].
func (e *OrderError) Is(target error) bool { return target == ErrOrder }

// advice says what to do instead of event in state.
func advice(event Event, state State) string {
	if int(event) >= Events || int(state) >= States {
		return "no such event"
	}
	if state == Failed {
		return "abort the pass, which drains and resets it"
	}
	return instead[event][state]
}

// instead has a text for every refused cell of the table but those of Failed.
var instead = [Events][States]string{
	Push: {
		Offloading: "push everything before StartOffload, or call Revive first",
		Offloaded:  "push everything before StartOffload",
		Reloading:  "push everything before StartOffload",
	},
	StartOffload: {
		Offloading: "it was started already: call Release next",
		Offloaded:  "it is offloaded already: call Reload next",
		Reloading:  "it is on its way back for its backward: call Pop",
	},
	Release: {
		Resident:  "call StartOffload first",
		Offloaded: "it was released already: call Reload next",
		Reloading: "it was released already and is on its way back: call Pop",
	},
	Reload: {
		Resident:   "it has not left the device: call Pop",
		Offloading: "call Release first, or Revive to keep it on the device",
		Reloading:  "it was reloaded already: call Pop",
	},
	Revive: {
		Resident:  "there is no offload to give up: call Pop",
		Offloaded: "its device memory is given back already: call Reload",
		Reloading: "its device memory was given back and it is on its way back: call Pop",
	},
	Pop: {
		Offloading: "call Release and Reload first, or Revive to keep it on the device",
		Offloaded:  "call Reload first",
	},
}
