package actors

import (
	"offload/device"
	"offload/internal/layout"
	"offload/messages"
)

// Limits says which tensors are worth moving.
type Limits struct {
	MinElements int64 // least number of elements that have to be moved
	MinBytes    int64 // least number of bytes that have to be moved
	Coalesce    int64 // bytes from which the smaller ones of a group move together; zero: never
	KeepStrided bool  // keep tensors that are not contiguous
}

// judge decides what becomes of t in a slot that the plan moves, or keeps
// (stays). The size that counts is that of the elements in memory, of which an
// expanded tensor has fewer than its shape says.
func (l Limits) judge(t device.Tensor, stays bool) messages.Verdict {
	if t.IsNil() {
		return messages.Absent
	}
	class := t.Storage.Class()
	elements := layout.Elements(t)
	switch {
	case class == device.Weight || class == device.Index:
		return messages.NotOurs
	case t.Storage.Buffer().Place == device.OnHost:
		return messages.AlreadyOnHost
	case elements == 0:
		return messages.NoBytes
	case class == device.Workspace:
		return messages.NotActivation
	case t.Keep:
		return messages.OptedOut
	case l.KeepStrided && !t.Contiguous():
		return messages.NotContiguous
	case elements < l.MinElements || elements*t.DType.Size() < l.MinBytes:
		return messages.TooSmall
	case stays:
		return messages.PlanKeeps
	}
	return messages.Moves
}
