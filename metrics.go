package offload

import (
	"sync/atomic"

	"offload/messages"
)

// Metrics counts what an engine has done since Open. Bytes are bytes.
type Metrics struct {
	PassesBegun   int64
	PassesEnded   int64
	PassesAborted int64
	PassesOpen    int64
	Unused        int64 // tensors that were saved and never popped before their slot was reset
	Offloads      int64 // slots whose tensors were copied out
	ShortCircuits int64 // transitions for which the device had nothing to do
	LateReloads   int64 // slots that Backward reloaded later than the plan: it had not, or there was no device memory

	Batches        int64 // submitted to the devices
	Operations     int64 // in these batches
	EventsRecorded int64
	WaitsIssued    int64
	WaitsElided    int64 // left out because the order was there already
	CopiesOut      int64
	CopiesIn       int64
	BytesOut       int64
	BytesIn        int64
	Failures       int64 // batches that were not enqueued whole
	KeptForBudget  int64 // tensors that stayed on the device for want of host memory
	NoGain         int64 // storages that were copied out for nothing: somebody held them on the device
	Pins           int64 // pinned allocations

	EventsLive    int   // events in use now
	StoragesHeld  int   // storages held now
	SlotsHeld     int   // slots with something on a device now
	HostInUse     int64 // pinned bytes in use now
	HostHeld      int64 // pinned bytes in all now
	HostHighWater int64 // highest HostInUse
}

// counters are the part of the metrics that is counted by the callers.
type counters struct {
	begun, ended, aborted, unused, offloads, shorts, late atomic.Int64
}

func (c *counters) metrics(s messages.Stats) Metrics {
	m := Metrics{
		PassesBegun: c.begun.Load(), PassesEnded: c.ended.Load(), PassesAborted: c.aborted.Load(),
		Unused: c.unused.Load(), Offloads: c.offloads.Load(), ShortCircuits: c.shorts.Load(), LateReloads: c.late.Load(),
		Batches: s.Batches, Operations: s.Operations, EventsRecorded: s.EventsRecorded, WaitsIssued: s.WaitsIssued,
		WaitsElided: s.WaitsElided, CopiesOut: s.CopiesOut, CopiesIn: s.CopiesIn, BytesOut: s.BytesOut, BytesIn: s.BytesIn,
		Failures: s.Failures, KeptForBudget: s.KeptForBudget, NoGain: s.NoGain, Pins: s.Pins, EventsLive: s.EventsLive, StoragesHeld: s.StoragesHeld, SlotsHeld: s.GroupsOpen,
		HostInUse: s.HostInUse, HostHeld: s.HostHeld, HostHighWater: s.HostHighWater,
	}
	m.PassesOpen = m.PassesBegun - m.PassesEnded - m.PassesAborted
	return m
}
