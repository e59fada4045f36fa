package actors

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"offload/device"
	"offload/internal/hostmem"
)

// ErrBudget is what every [*BudgetError] is to errors.Is.
var ErrBudget = errors.New("over budget")

// HostPolicy says what start-offload does with a tensor for which the host
// budget has no memory. No policy blocks a goroutine until memory is given back.
type HostPolicy uint8

const (
	// KeepOnDevice keeps the tensor on the device, with the reason recorded.
	KeepOnDevice HostPolicy = iota
	// WaitForHost orders the copy after one that is enqueued already and whose end
	// frees enough memory. If there is none, start-offload is refused.
	WaitForHost
	// RefuseOffload refuses start-offload; memory that is still being read does
	// not count as free.
	RefuseOffload
)

// String returns the policy in words.
func (p HostPolicy) String() string {
	switch p {
	case KeepOnDevice:
		return "keep on the device"
	case WaitForHost:
		return "wait for host memory"
	case RefuseOffload:
		return "refuse"
	}
	return fmt.Sprintf("host policy(%d)", uint8(p))
}

// BudgetError is returned when memory that is needed would exceed a budget.
// Nothing has changed, and the same call works when memory has been given back.
type BudgetError struct {
	Place  device.Place // of the memory
	Asked  int64        // bytes
	InUse  int64        // bytes in use now
	Limit  int64        // bytes that may be in use
	Fits   int64        // bytes that would be granted now
	Top    []Holding    // who holds most of it, the largest first
	Reason error        // of the allocator, if it is what refused
}

// Holding is the bytes that one slot holds.
type Holding struct {
	Layer int
	Pass  uint64
	Bytes int64
}

// Error says what was asked, what there is, who has it and what would fit.
func (e *BudgetError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%v: %v memory: %d bytes were asked for, %d are in use and the limit is %d; %d bytes would fit now",
		ErrBudget, e.Place, e.Asked, e.InUse, e.Limit, e.Fits)
	for i, h := range e.Top {
		if i == 0 {
			b.WriteString("; most is held by")
		}
		fmt.Fprintf(&b, " layer %d of pass %d (%d bytes)", h.Layer, h.Pass, h.Bytes)
		if i < len(e.Top)-1 {
			b.WriteString(",")
		}
	}
	if e.Reason != nil {
		fmt.Fprintf(&b, ": %v", e.Reason)
	}
	return b.String()
}

// Is reports whether target is [ErrBudget].
func (e *BudgetError) Is(target error) bool { return target == ErrBudget }

// Unwrap returns the reason.
func (e *BudgetError) Unwrap() error { return e.Reason }

// hostBudget makes the error of the pool one of the engine.
func (d *deviceActor) hostBudget(err error) error {
	var full *hostmem.BudgetError
	if !errors.As(err, &full) {
		return err
	}
	e := &BudgetError{Place: device.OnHost, Asked: full.Asked, InUse: full.InUse, Limit: full.Limit, Fits: full.Fits}
	if full.PinFailed {
		e.Reason = err
	}
	e.Top = d.holdings((*entry).hosted)
	return e
}

// hosted returns the bytes of e that are on the host.
func (e *entry) hosted() int64 {
	n := int64(0)
	for _, p := range e.parts[:e.committed] {
		n += p.comb.Bytes()
	}
	return n
}

// holdings returns the groups for whose entries size adds up to most, the
// largest first. An entry counts for the first group that holds it.
func (d *deviceActor) holdings(size func(*entry) int64) []Holding {
	sums := make(map[*group]int64)
	for _, e := range d.ledger.entries {
		if n := size(e); n > 0 && len(e.groups) > 0 {
			sums[e.groups[0]] += n
		}
	}
	var top []Holding
	for g, n := range sums {
		top = append(top, Holding{Layer: g.origin.Layer, Pass: g.origin.Pass, Bytes: n})
	}
	slices.SortFunc(top, func(a, b Holding) int {
		if a.Bytes != b.Bytes {
			return int(min(max(b.Bytes-a.Bytes, -1), 1))
		}
		if a.Pass != b.Pass {
			return int(int64(a.Pass) - int64(b.Pass))
		}
		return a.Layer - b.Layer
	})
	return top[:min(len(top), 3)]
}

// incoming returns the device memory that the entries that are coming take.
func (d *deviceActor) incoming() int64 {
	need := int64(0)
	for _, e := range d.coming {
		need += d.rounded(e.storage.Bytes())
	}
	return need
}

// room refuses a reload of so many bytes for which the device budget has no memory.
func (d *deviceActor) room(need int64) error {
	use := d.dev.Usage()
	limit := d.budget
	if limit == 0 || use.InUse+need <= limit {
		return nil
	}
	return d.deviceBudget(need, use.InUse, limit, nil)
}

// rounded returns the memory that the device takes for a buffer of n bytes.
func (d *deviceActor) rounded(n int64) int64 {
	a := max(d.dev.Info().Align, 1)
	return (n + a - 1) / a * a
}

func (d *deviceActor) deviceBudget(need, inUse, limit int64, reason error) error {
	return &BudgetError{Place: device.OnDevice, Asked: need, InUse: inUse, Limit: limit, Fits: max(limit-inUse, 0), Reason: reason,
		Top: d.holdings(func(e *entry) int64 {
			if !e.onDevice || e.storage.Adopted() {
				return 0
			}
			return e.storage.Bytes()
		})}
}

// unallocated makes a refusal of a reload of which nothing but allocations was
// enqueued before one found no memory: what was allocated is freed again. It
// returns nil if it cannot.
func (d *deviceActor) unallocated(g *group, err error) error {
	b := &d.work.batch
	n := enqueued(b, err)
	if !errors.Is(err, device.ErrOutOfMemory) || d.lost != nil || n >= len(b.Ops) {
		return nil
	}
	undo := device.Batch{Origin: b.Origin}
	undo.Origin.Action = "give back"
	for _, op := range b.Ops[:n+1] {
		if op.Kind != device.Alloc {
			return nil
		}
		undo.Ops = append(undo.Ops, device.Op{Kind: device.Free, Stream: op.Stream, Dst: op.Dst})
	}
	undo.Ops = undo.Ops[:n] // the last one found no memory
	if n > 0 {
		if failed := d.send(&undo); failed != nil {
			return nil
		}
		d.count(undo.Ops)
	}
	for _, span := range g.debris.buffers {
		d.ids.PutBuffer(span.Buffer)
	}
	g.debris.buffers = g.debris.buffers[:0]
	for _, e := range d.coming {
		e.incoming = device.Buffer{}
	}
	use := d.dev.Usage()
	return fmt.Errorf("reload layer %d: %w", g.origin.Layer, d.deviceBudget(d.incoming(), use.InUse, use.Limit, err))
}
