package fsm

import "fmt"

// State says where the tensors of a group are, as the host sees it: work that
// is enqueued counts as begun, not as done.
type State uint8

const (
	// Resident means that the tensors are on the device, where they can be added to and taken back.
	Resident State = iota
	// Offloading means that the copy to the host is enqueued and the device still holds the bytes.
	Offloading
	// Offloaded means that the device memory is given back, in order after the
	// copy, and the bytes are on the host or on their way there.
	Offloaded
	// Reloading means that the copy back to the device is enqueued, so the tensors
	// can be taken back in order after it.
	Reloading
	// Failed means that device work of this group was not enqueued whole; only
	// Reset leads out, once the streams it touched are drained.
	Failed

	// States is the number of states.
	States = int(Failed) + 1
)

var stateNames = [States]string{"Resident", "Offloading", "Offloaded", "Reloading", "Failed"}

// String returns the name of the state, such as "Resident".
func (s State) String() string {
	if int(s) < States {
		return stateNames[s]
	}
	return fmt.Sprintf("state(%d)", uint8(s))
}

// Event is something asked of a group.
type Event uint8

const (
	// Push adds tensors to the group.
	Push Event = iota
	// StartOffload enqueues the copy of the group to the host and closes it to further pushes.
	StartOffload
	// Release gives the device memory back, in order after the copy to the host.
	Release
	// Reload allocates device memory again and enqueues the copy back into it.
	Reload
	// Pop takes tensors back, as often as wanted.
	Pop
	// Revive gives up an offload whose bytes are still on the device, so that
	// nothing needs to be copied back.
	Revive
	// Fail records that device work of the group was not enqueued whole.
	Fail
	// Reset empties the group, once nothing reads or writes its memory any more,
	// and makes it ready for the next pass.
	Reset

	// Events is the number of events.
	Events = int(Reset) + 1
)

var eventNames = [Events]string{"push", "start-offload", "release", "reload", "pop", "revive", "fail", "reset"}

// String returns the name of the event, such as "start-offload".
func (e Event) String() string {
	if int(e) < Events {
		return eventNames[e]
	}
	return fmt.Sprintf("event(%d)", uint8(e))
}
