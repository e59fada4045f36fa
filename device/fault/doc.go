// Package fault is a device of which chosen operations fail.
//
// # Terms
//
// A [Plan] is a list of faults. A [Fault] strikes one operation, such as the
// third copy out, or several in a row; [How] says what the device does about it.
// The operations that are submitted are counted, by kind and all together, so
// that a test can run a program once without faults, ask for [Device.Counts],
// and then run it once for every operation that there is.
//
// What a fault does keeps to the promise of [device.Device]: a struck operation
// is not enqueued, those behind it in its batch are not looked at, and the
// error is a [*device.Error] that names it. A panic is beyond that promise. Its
// value is an error; where operations ahead of the struck one are enqueued, it
// is the *device.Error that says which.
//
// # Use
//
//	dev := fault.Wrap(sim.New(sim.Config{}), fault.Plan{{Kind: device.Alloc, Nth: 2, Err: device.ErrOutOfMemory}})
//
// With an empty plan the device does what the one behind it does. A
// [device.Watched] goes around a faulty device, not behind it.
//
// # Concurrency
//
// A Device is safe for use by several goroutines if the one behind it is. Which
// operation is the nth depends then on which goroutine came first.
//
// # Ownership
//
// Close closes the device behind it. Nothing of a batch is kept; an error has a
// copy of its operation.
package fault
