// Package fsm is the life cycle of a group of tensors that move together: what
// may happen to it, in which order, and what a wrong call is told.
//
// # Terms
//
// A group is in one [State], which says where its tensors are. An [Event] asks
// for something to be done with them. [Transitions] is the one table of what is
// legal; the strict order is push, start-offload, release, reload. A [Machine]
// is one group's place in that table. The page docs/states.md shows the table
// and its diagram.
//
// # The judge
//
// github.com/looplab/fsm is built from the table once, and every Machine holds
// its own copy of that prototype. Whether an event is legal is looplab's answer
// (its Can); this package then moves the copy with SetState. looplab's Event
// method is not used: it allocates five times, reports a transition to the same
// state as an error, and is made for callbacks, of which there are none here.
//
// # Errors
//
// A refused event is an [*OrderError], which is [ErrOrder] to errors.Is. The
// state has not changed then.
//
// # Concurrency
//
// A Machine belongs to one goroutine or actor at a time. Machines are
// independent of each other, and everything else here may be used from anywhere.
//
// # Ownership
//
// A Machine holds no tensor and no device memory, so nothing needs closing. It
// must not be copied after [Machine.Init]. Firing [Reset] makes it ready for
// the next pass.
//
// # Use
//
// Ask before acting, act, then move:
//
//	if err := m.Check(fsm.Release); err != nil {
//		return err // nothing has changed
//	}
//	// build the device work, refusing whatever else can be refused
//	return m.Fire(fsm.Release)
package fsm

//go:generate go test -run TestStatesPage -update .
