package actors

import (
	"slices"

	"offload/device"
	"offload/internal/layout"
	"offload/messages"
)

// ledger is what a device actor knows of the storages that groups hold.
//
// LG1: an entry is on the device, or on the host, or both, from its first push
// to its end; it is never on neither.
//
// LG2: the host memory of an entry stays while one of its groups needs the
// bytes there (is hosted). Its device buffer stays while one of its groups
// needs the bytes there (is not away), while a group that is away needs bytes
// that are nowhere else (it is not backed), and while somebody outside holds
// the storage.
//
// LG3: what an entry gives back, on the device or on the host, is ordered after
// everything that this ledger had copying, writing or reading it.
type ledger struct {
	entries map[*device.Storage]*entry
	buffers map[device.Buffer]*entry // by the device buffer they are in
	groups  []*group                 // by ticket; ticket 0 is not used
	free    []messages.Ticket
	spare   []*entry
	open    int // groups in use
}

// entry is one storage. It exists while a group holds it.
type entry struct {
	storage   *device.Storage
	groups    []*group
	moves     bool   // some group moves it
	small     bool   // all that was pushed of it is below the size limit
	stays     bool   // a group has a tensor of it that must not leave the device
	version   uint64 // of the storage when it was pushed
	ready     []*event
	producers []int // streams on which it was pushed
	consumers []int // streams on which it was popped
	out, in   *event
	onDevice  bool
	incoming  device.Buffer // what the bytes are being copied into
	gained    bool          // the device buffer was given back while a group was away
	holder    string        // who kept it on the device when a group released it
	outside   bool          // the holder is no group of the ledger

	all       bool          // all bytes of the storage are to be moved
	want      []layout.Span // those that are, if not all
	have      []layout.Span // those that are on the host
	parts     []part        // where on the host
	committed int           // parts whose copies are enqueued
	leaving   bool          // it is copied out by the batch that is being built
}

// group is the tensors of a slot that move together, as its device sees them.
type group struct {
	ticket   messages.Ticket
	origin   device.Origin
	entries  []*entry
	started  bool   // its offload was started in this generation
	released bool   // it has been away in this generation
	hosted   bool   // offload started and neither given up nor reloaded: the group needs the bytes on the host
	away     bool   // released and not reloaded: the group does not need the bytes on the device
	failed   bool   // a batch of this group was not enqueued whole
	shelf    *shelf // if host memory is retained
	debris   debris
}

// debris is what a failed batch leaves behind. It is given back by the reset
// of the group, after the streams are drained, and so are those told whose memory
// the batch gave back (LG4).
type debris struct {
	blocks   []*hostBlock
	buffers  []device.Range
	returned messages.GiveBacks
}

func newLedger() ledger {
	return ledger{entries: make(map[*device.Storage]*entry), buffers: make(map[device.Buffer]*entry), groups: make([]*group, 1)}
}

// group returns the group of a ticket, or a new one for ticket 0.
func (l *ledger) group(t messages.Ticket, o device.Origin) *group {
	if t != 0 {
		return l.groups[t]
	}
	l.open++
	if n := len(l.free); n > 0 {
		t, l.free = l.free[n-1], l.free[:n-1]
	} else {
		l.groups = append(l.groups, new(group))
		t = messages.Ticket(len(l.groups) - 1)
		l.groups[t].ticket = t
	}
	g := l.groups[t]
	g.origin = o
	return g
}

// forget takes back the ticket of a group that holds nothing.
func (l *ledger) forget(g *group) {
	g.started, g.released, g.hosted, g.away, g.failed = false, false, false, false, false
	clear(g.entries)
	g.entries = g.entries[:0]
	l.free = append(l.free, g.ticket)
	l.open--
}

// take makes g a holder of the storage, which is at the given version, and
// returns its entry.
func (l *ledger) take(g *group, s *device.Storage, version uint64) *entry {
	e := l.entries[s]
	if e == nil {
		if n := len(l.spare); n > 0 {
			e, l.spare = l.spare[n-1], l.spare[:n-1]
		} else {
			e = new(entry)
		}
		e.storage, e.version, e.onDevice, e.small = s, version, true, true
		s.Take()
		l.entries[s], l.buffers[s.Buffer()] = e, e
	}
	if !slices.Contains(e.groups, g) {
		e.groups = append(e.groups, g)
		g.entries = append(g.entries, e)
	}
	return e
}

// end forgets an entry that no group holds.
func (l *ledger) end(e *entry) {
	delete(l.entries, e.storage)
	delete(l.buffers, e.storage.Buffer())
	clear(e.ready)
	*e = entry{groups: e.groups[:0], ready: e.ready[:0], producers: e.producers[:0], consumers: e.consumers[:0],
		want: e.want[:0], have: e.have[:0], parts: e.parts[:0]}
	l.spare = append(l.spare, e)
}

// goes reports whether e leaves the device with the groups that move it.
func (e *entry) goes() bool { return e.moves && !e.stays }

// needed reports whether a group other than g needs the bytes on the device.
func (e *entry) needed(g *group) bool {
	for _, o := range e.groups {
		if o != g && !o.away {
			return true
		}
	}
	return false
}

// wanted reports whether a group other than g needs the bytes on the host.
func (e *entry) wanted(g *group) bool {
	for _, o := range e.groups {
		if o != g && o.hosted {
			return true
		}
	}
	return false
}

// leave takes g out of the groups that hold e.
func (e *entry) leave(g *group) {
	e.groups = slices.DeleteFunc(e.groups, func(o *group) bool { return o == g })
}

// streams appends the streams that have used the device buffer of e, by the
// caller's pushes and pops, to list.
func (e *entry) streams(list []int) []int {
	for _, s := range e.producers {
		list = note(list, s)
	}
	for _, s := range e.consumers {
		list = note(list, s)
	}
	return list
}

// note adds x to the list if it is not there.
func note(list []int, x int) []int {
	if slices.Contains(list, x) {
		return list
	}
	return append(list, x)
}
