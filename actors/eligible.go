package actors

import (
	"fmt"

	"offload/device"
)

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
	// NotContiguous: its elements do not lie one after the other.
	NotContiguous
	// PlanKeeps: the plan never moves the layer.
	PlanKeeps
	// NoBackward: the pass is an inference pass; no reference is kept.
	NoBackward

	// Verdicts is the number of verdicts.
	Verdicts = int(NoBackward) + 1
)

var verdictTexts = [Verdicts]string{
	"moves", "absent", "weight or index data", "a host tensor", "no elements", "opted out", "a workspace",
	"below the size limit", "not contiguous", "kept by the plan", "no backward",
}

// String returns a phrase such as "below the size limit".
func (v Verdict) String() string {
	if int(v) < Verdicts {
		return verdictTexts[v]
	}
	return fmt.Sprintf("verdict(%d)", v)
}

// owned reports whether the storage of the tensor is taken over from the caller.
func (v Verdict) owned() bool {
	switch v {
	case Moves, OptedOut, NotActivation, TooSmall, NotContiguous, PlanKeeps:
		return true
	}
	return false
}

// Limits says which tensors are worth moving. A tensor moves if it reaches both.
type Limits struct {
	MinElements int64
	MinBytes    int64
}

// judge decides what becomes of t in a slot that the plan moves, or keeps (stays).
func (l Limits) judge(t device.Tensor, stays bool) Verdict {
	switch {
	case t.IsNil():
		return Absent
	case t.Storage.Class() == device.Weight || t.Storage.Class() == device.Index:
		return NotOurs
	case t.Storage.Buffer().Place == device.OnHost:
		return AlreadyOnHost
	case t.Elements() == 0:
		return NoBytes
	case t.Storage.Class() == device.Workspace:
		return NotActivation
	case t.Keep:
		return OptedOut
	case t.Elements() < l.MinElements || t.Bytes() < l.MinBytes:
		return TooSmall
	case !t.Contiguous():
		return NotContiguous
	case stays:
		return PlanKeeps
	}
	return Moves
}
