// Package schedule makes plans: what is to be moved between device and host,
// and at which point of a training step.
//
// # Terms
//
// A [Plan] is an ordered list of boundaries. A [Boundary] is a point of the
// step just before something runs: the forward of a layer, its backward, or the
// end of a pass. Each boundary has an ordered list of directives; a [Directive]
// names an [Action] and what it is for: one group of one occurrence of one
// layer in one micro-batch. Micro-batches, layers, occurrences and groups count
// from zero. All plans made here have one micro-batch, one occurrence of each
// layer, and one group.
//
// A set is what one layer saves for its backward. It is on the device from the
// forward of its layer until it is released, and again from its reload until it
// is reset.
//
// # Plans
//
// [Window] moves the first layers of the model to the host and keeps the rest,
// so that the number of sets on the device never exceeds the layers that stay.
// [Manual] moves nothing; the caller does.
//
// Both reset a set at the first boundary after its backward, before anything is
// reloaded there, so that the reload may use the memory that the reset gives
// back. The forward of a pass has nothing to reset: its sets are its own, not
// those of an earlier pass.
//
// # Concurrency
//
// A Plan does not change once it is made, and may be used from any number of
// goroutines and passes at once.
//
// # Ownership
//
// The slices that a Plan returns are its own: read them, do not write to them.
//
// # Use
//
// An engine keeps the index of the next boundary and follows the list:
//
//	plan, err := schedule.Window(24, 16)
//	if err != nil {
//		return err
//	}
//	for next := range plan.Len() {
//		boundary, directives := plan.Boundary(next), plan.At(next)
//		...
//	}
package schedule
