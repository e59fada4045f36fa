// Package actors runs the life cycle of offloaded tensors: one actor per layer
// and one per device, on github.com/asynkron/protoactor-go.
//
// # Terms
//
// A layer actor owns the slots of one layer: their machines (package fsm) and
// what was pushed to them. It decides whether a call is legal and whether the
// device has anything to do. A device actor owns what is behind the tensors: a
// ledger of storages, pinned host memory, the transfer streams and the events.
// It turns a legal call into one batch of operations and submits it.
//
// A call goes caller, layer, device, layer, caller: the layer checks it, the
// device builds and submits the batch, the layer moves the machine and answers.
// When the device has nothing to do, the layer answers at once.
//
// # Logic and shell
//
// layer.go takes a request and returns who has to act next; it starts no
// goroutine, reads no clock and touches no device. The files of the ledger turn
// a command into operations, as data, and one method submits them (send, in
// device.go). Receive, in shell.go, only switches, steps and answers.
//
// # Mailboxes
//
// With Inline dispatch an idle actor runs on the goroutine that sends to it,
// and a busy one is handed the message by whoever is inside. This costs tens of
// nanoseconds a hop instead of microseconds. With Goroutines dispatch
// protoactor's own mailbox and dispatcher are used. Results are the same.
//
// # Concurrency
//
// An actor's fields are touched by whoever is inside its mailbox only.
// [System.Call] may be used by several goroutines, each with a request of its
// own, but one slot may have one request under way only. No actor waits for
// another one. A device actor waits for its device where memory is unpinned and
// after a failed batch.
//
// # Ownership
//
// The device actor holds storages ([device.Storage.Take]) from Push until the
// last group that holds them is reset, and frees what it was the last holder of.
// Nothing is given back before the copies that still read or write it.
//
// # Failures
//
// A panic inside Receive comes back as a [*PanicError] and fails the slot; an
// actor is never restarted, because the one that owned tensors is gone then.
// A batch that was not enqueued whole fails the group whose batch it was.
package actors
