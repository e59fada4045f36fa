package messages

import "fmt"

// Verdict says what becomes of a pushed tensor, and why.
type Verdict uint8

const (
	// Moves: it goes to the host when its slot is offloaded.
	Moves Verdict = iota
	// Absent: there is no tensor.
	Absent
	// NotOurs: weights and index data stay where they are and with their owner.
	NotOurs
	// AlreadyOnHost: it is a host tensor and comes back as one.
	AlreadyOnHost
	// NoBytes: it has no elements; shape and type are kept.
	NoBytes
	// OptedOut: the caller asked for it to be kept.
	OptedOut
	// NotActivation: it is a workspace, which nobody needs to have moved.
	NotActivation
	// TooSmall: a copy costs more than the memory is worth.
	TooSmall
	// NotContiguous: its elements do not lie one after the other, and the
	// options say that such tensors are kept.
	NotContiguous
	// PlanKeeps: the plan never moves the layer.
	PlanKeeps
	// NoGain: moving it freed no memory in an earlier pass, because somebody
	// else holds the storage on the device.
	NoGain
	// NoHostMemory: the host budget had no memory for it.
	NoHostMemory
	// SharesStorage: another tensor of its storage has to stay on the device.
	SharesStorage
	// NoBackward: the pass is an inference pass; no reference is kept.
	NoBackward

	// Verdicts is the number of verdicts.
	Verdicts = int(NoBackward) + 1
)

var verdictTexts = [Verdicts]string{
	"moves", "absent", "weight or index data", "a host tensor", "no elements", "opted out", "a workspace",
	"below the size limit", "not contiguous", "kept by the plan", "no gain",
	"no host memory within the budget", "another tensor of the storage stays", "no backward",
}

// String returns a phrase such as "below the size limit".
func (v Verdict) String() string {
	if int(v) < Verdicts {
		return verdictTexts[v]
	}
	return fmt.Sprintf("verdict(%d)", v)
}

// Owned reports whether the storage of the tensor is taken over from the caller.
func (v Verdict) Owned() bool {
	switch v {
	case Moves, OptedOut, NotActivation, TooSmall, NotContiguous, PlanKeeps, NoGain, NoHostMemory, SharesStorage:
		return true
	}
	return false
}
