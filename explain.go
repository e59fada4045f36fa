package offload

import (
	"fmt"
	"strings"

	"offload/device"
	"offload/messages"
)

// Verdict says what became of a tensor that was pushed, and why.
type Verdict = messages.Verdict

// The verdicts. A tensor that Moves went to the host if its slot was offloaded.
const (
	Moves         = messages.Moves
	Absent        = messages.Absent
	NotOurs       = messages.NotOurs
	AlreadyOnHost = messages.AlreadyOnHost
	NoBytes       = messages.NoBytes
	OptedOut      = messages.OptedOut
	NotActivation = messages.NotActivation
	TooSmall      = messages.TooSmall
	NotContiguous = messages.NotContiguous
	PlanKeeps     = messages.PlanKeeps
	NoGain        = messages.NoGain
	NoHostMemory  = messages.NoHostMemory
	SharesStorage = messages.SharesStorage
	NoBackward    = messages.NoBackward
)

// Outcome is what became of a tensor, in one word.
type Outcome uint8

const (
	// Moved: its bytes were copied to the host, by its own copy or by that of
	// another tensor of the same storage.
	Moved Outcome = iota
	// Kept: the engine kept it on the device.
	Kept
	// Skipped: it is none of the engine's business, and came back as it was.
	Skipped
)

// String returns the outcome in lower case.
func (o Outcome) String() string {
	switch o {
	case Moved:
		return "moved"
	case Kept:
		return "kept"
	case Skipped:
		return "skipped"
	}
	return fmt.Sprintf("outcome(%d)", uint8(o))
}

// Record explains what became of one tensor of a pass.
type Record struct {
	Layer      int
	Occurrence int
	Index      int // of the tensor within its slot
	Tensor     device.Tensor
	Outcome    Outcome
	Verdict    Verdict
	Why        string // in words
	Bytes      int64  // of the tensor
	MovedBytes int64  // copied out for it; zero if another tensor's copy had its bytes
	Holder     string // who kept the storage on the device although it was copied out
}

// String returns for example
// "layer 3 tensor 0: moved 1048576 of 1048576 bytes: float32[2048 128] of block 3.x".
func (r Record) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "layer %d", r.Layer)
	if r.Occurrence > 0 {
		fmt.Fprintf(&b, " (run %d)", r.Occurrence)
	}
	fmt.Fprintf(&b, " tensor %d: %v", r.Index, r.Outcome)
	if r.Outcome == Moved {
		fmt.Fprintf(&b, " %d of %d bytes", r.MovedBytes, r.Bytes)
	} else {
		fmt.Fprintf(&b, " %d bytes", r.Bytes)
	}
	if r.Why != "" {
		fmt.Fprintf(&b, " (%s)", r.Why)
	}
	fmt.Fprintf(&b, ": %v", r.Tensor)
	return b.String()
}

// Explain returns one record for every tensor that was pushed to a slot which
// has been reset: all of them after End or Abort. It needs Options.Explain. The
// slice belongs to the pass.
func (p *Pass) Explain() []Record {
	if p.engine.notifier.reentrant() {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.records
}

// explain makes records of what the layer says of the slot that was reset.
func (p *Pass) explain(r *run, list []messages.Record) {
	for i, m := range list {
		x := Record{Layer: r.layer, Occurrence: r.occurrence, Index: i, Tensor: m.Tensor, Verdict: m.Verdict,
			Bytes: m.Tensor.Bytes(), MovedBytes: m.Moved, Holder: m.Holder}
		if m.Tensor.IsNil() {
			x.Bytes = 0
		}
		x.Outcome, x.Why = outcome(r, m)
		p.records = append(p.records, x)
	}
}

func outcome(r *run, m messages.Record) (o Outcome, why string) {
	away := m.Away && r.offloaded
	switch {
	case away && m.Holder != "":
		return Moved, "no gain: the storage is held by " + m.Holder
	case away && m.Verdict == TooSmall:
		return Moved, "together with others"
	case away && m.Moved == 0:
		return Moved, "with another tensor of the same storage"
	case away:
		return Moved, ""
	case m.Verdict == Moves && m.Moved > 0:
		return Kept, "its offload was given up"
	case m.Verdict == Moves:
		return Kept, "its slot was not offloaded"
	case m.Verdict == NoGain:
		return Kept, "no gain in an earlier pass: the storage is held by " + m.Holder
	case m.Verdict.Owned():
		return Kept, m.Verdict.String()
	}
	return Skipped, m.Verdict.String()
}
