package messages

import (
	"offload/device"
	"offload/fsm"
)

// Verb says what a request asks for: an event of the slot's machine, or Open.
type Verb uint8

const (
	// Fire asks the machine of the slot to accept Request.Event.
	Fire Verb = iota
	// Open makes the slot.
	Open
	// Close resets the slot and forgets it.
	Close
)

// SlotID names a slot of a layer: one run of the layer within one pass.
type SlotID struct {
	Pass       uint64
	Occurrence int
}

// Request is one call on one slot.
type Request struct {
	Verb    Verb
	Event   fsm.Event
	Layer   int
	Slot    SlotID
	Device  int           // index of the device actor, for Open
	Stream  device.Stream // the compute stream of the call
	Mode    Mode          // for Open
	Explain bool          // keep records for the answer to Reset

	Tensors []device.Tensor // Push: what to save. Pop: the answer
	Indices []int           // Pop: which of the saved tensors

	// The answer, valid after Reply.Wait.
	State   fsm.State // after the call
	First   int       // Push: index of the first tensor that was saved
	Short   bool      // the device was not asked for anything
	Unused  int       // Reset: tensors that were saved and never popped
	Moved   int64     // StartOffload: bytes that were copied
	Unfit   int64     // StartOffload: smallest size for which the whole host budget is too small
	Records []Record  // Reset: what became of each tensor, if Explain was set at Open
	Err     error
	Reply   Reply

	GiveBacks GiveBacks // also if there is an error: memory that is the caller's again

	command Command
	answer  Answer
}

// Record says what became of one saved tensor.
type Record struct {
	Tensor  device.Tensor
	Verdict Verdict
	Away    bool   // all that is saved of its storage was on the host
	Moved   int64  // bytes that were copied out for it
	Holder  string // who kept the storage on the device all the same
}

// Mode says what a slot does with the tensors pushed to it.
type Mode uint8

const (
	// Offload moves what is eligible.
	Offload Mode = iota
	// Stay keeps everything on the device: the plan never moves this slot.
	Stay
	// Forget keeps no reference to anything: the pass has no backward.
	Forget
)

// Reset makes the request ready to be filled and sent; its slices keep their memory.
func (r *Request) Reset() {
	r.Verb, r.Event, r.Stream, r.Explain = Fire, fsm.Push, device.Stream{}, false
	r.Tensors, r.Indices, r.Records = r.Tensors[:0], r.Indices[:0], r.Records[:0]
	clear(r.GiveBacks)
	r.GiveBacks = r.GiveBacks[:0]
	r.State, r.First, r.Short, r.Unused, r.Moved, r.Unfit, r.Err = fsm.Resident, 0, false, 0, 0, 0, nil
	c := &r.command
	c.Request, c.Ticket, c.Items, c.Ops, c.Failed = r, 0, c.Items[:0], 0, false
	c.Copied, c.Kept, c.Gainless = c.Copied[:0], c.Kept[:0], c.Gainless[:0]
	r.Reply.Arm()
}

// Command returns the request as the message that goes to a device actor.
func (r *Request) Command() *Command { return &r.command }

// Answer returns the request as the message with which a device actor answers.
func (r *Request) Answer() *Answer {
	r.answer.Request = r
	return &r.answer
}

// Command is a request as a layer actor sends it to a device actor.
type Command struct {
	Request *Request
	Ticket  Ticket // the group that the command is about
	Items   []Item // Push: what is saved. Pop: what is read

	// The answer.
	Ops      int        // operations that were submitted
	Failed   bool       // the batch was not enqueued whole (Request.Err says why)
	Copied   []Copied   // if Request.Explain is set; StartOffload: also what was copied before
	Kept     []Kept     // StartOffload, if Request.Explain is set
	Gainless []Gainless // Reset: what was moved for nothing
}

// Ticket names a group within its device actor. Zero: the device actor does
// not know of the group.
type Ticket uint32

// Item is a storage that a command is about.
type Item struct {
	Storage *device.Storage
	Index   int  // Push: of the tensor in Request.Tensors
	Fate    Fate // Push
	Small   bool // it is below the size limit: it moves if all small ones together are worth it
}

// Fate says what is to become of a pushed tensor when its group is offloaded.
// Tensors of one storage share what becomes of it.
type Fate uint8

const (
	// Held: the group is not offloaded; it holds the storage until its reset.
	Held Fate = iota
	// Joins: it gives no reason to move the storage, and moves if there is another.
	Joins
	// Goes: the storage goes to the host.
	Goes
	// Stays: the storage has to stay on the device, with all that is saved of it.
	Stays
)

// Copied is a storage that is on the host, Bytes of it because of this command.
type Copied struct {
	Storage *device.Storage
	Bytes   int64
}

// Kept is a storage that was to go to the host and did not.
type Kept struct {
	Storage *device.Storage
	Why     Verdict
}

// Gainless is a storage that was copied out and released, and whose memory the
// device did not get back, because Holder held it there.
type Gainless struct {
	Storage *device.Storage
	Holder  string
	Outside bool // the holder is no slot of the engine
}

// Answer is a request as a device actor sends it back to the layer actor.
type Answer struct{ Request *Request }

// Command returns the answered command.
func (a *Answer) Command() *Command { return &a.Request.command }

// Control is a call on a device actor itself.
type Control struct {
	Action Action
	Pass   uint64
	Stats  Stats // the answer to Query and Stop
	Err    error
	Reply  Reply

	GiveBacks GiveBacks // the answer to Flush and Stop: memory that is the caller's again

	Stream  device.Stream   // Mark: on which the tensors were written
	Tensors []device.Tensor // Mark
}

// Action says what a control message asks a device actor for.
type Action uint8

const (
	// Start opens the transfer streams.
	Start Action = iota
	// Query returns the counters.
	Query
	// Flush submits what has been put off until the next batch.
	Flush
	// Mark records that tensors are complete.
	Mark
	// Trim gives back host memory that is not in use.
	Trim
	// Stop drains the device and gives everything back.
	Stop
)

// Stats are the counters of a device actor.
type Stats struct {
	Batches        int64 // submitted
	Operations     int64 // in these batches
	EventsRecorded int64
	WaitsIssued    int64
	WaitsElided    int64 // waits left out because the order was there already
	CopiesOut      int64
	CopiesIn       int64
	BytesOut       int64
	BytesIn        int64
	Failures       int64 // batches that were not enqueued whole
	KeptForBudget  int64 // tensors that stayed on the device for want of host memory
	NoGain         int64 // storages that were copied out for nothing
	EventsLive     int   // minted and not put back
	StoragesHeld   int   // storages of which a group is a holder
	GroupsOpen     int
	HostInUse      int64 // pinned bytes that hold a tensor
	HostHeld       int64 // pinned bytes in all
	HostHighWater  int64 // highest HostInUse
	Pins           int64 // pinned allocations
}

// Add adds the counters of o, for engines with several devices.
func (s *Stats) Add(o Stats) {
	s.Batches += o.Batches
	s.Operations += o.Operations
	s.EventsRecorded += o.EventsRecorded
	s.WaitsIssued += o.WaitsIssued
	s.WaitsElided += o.WaitsElided
	s.CopiesOut += o.CopiesOut
	s.CopiesIn += o.CopiesIn
	s.BytesOut += o.BytesOut
	s.BytesIn += o.BytesIn
	s.Failures += o.Failures
	s.KeptForBudget += o.KeptForBudget
	s.NoGain += o.NoGain
	s.EventsLive += o.EventsLive
	s.StoragesHeld += o.StoragesHeld
	s.GroupsOpen += o.GroupsOpen
	s.HostInUse += o.HostInUse
	s.HostHeld += o.HostHeld
	s.HostHighWater += o.HostHighWater
	s.Pins += o.Pins
}
