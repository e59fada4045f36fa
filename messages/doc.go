// Package messages holds what crosses between the caller, the layer actors and
// the device actors.
//
// # Terms
//
// A [Request] is one call of the public API on one slot. It travels from the
// caller to the layer's actor, from there, if the device has to do something,
// to the device's actor, back to the layer, and is then answered. The same
// memory is used all the way: [Command] and [Answer] are views of the request
// with a type of their own, so that a mailbox can tell them apart.
//
// # Concurrency
//
// A request belongs to one party at a time: to the caller before it is sent
// and after [Reply.Wait] has returned, to the actor that handles it in between.
// The only sign that it is answered is the reply slot; that Send has returned
// means nothing.
//
// # Ownership
//
// Slices in a request belong to it and are used again by the next one.
package messages
