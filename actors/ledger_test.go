package actors

import (
	"testing"

	"offload/device"
)

func storage(i uint32) *device.Storage {
	b := device.Buffer{Device: 1, Space: 1, Index: i, Gen: 1, Place: device.OnDevice}
	return device.NewStorage("", device.Activation, b, 64, device.Stream{Device: 1, Space: 1})
}

// A storage has one entry, of which every group is a holder once; the ledger
// holds the storage once, however many groups there are.
func TestLedgerTake(t *testing.T) {
	l := newLedger()
	a, b := l.group(0, device.Origin{}), l.group(0, device.Origin{})
	s, other := storage(1), storage(2)
	s.Retain("the test")
	e := l.take(a, s, 7)
	for _, again := range []*entry{l.take(a, s, 7), l.take(b, s, 7)} {
		if again != e {
			t.Fatal("a second entry for one storage")
		}
	}
	if l.take(b, other, 0) == e {
		t.Fatal("one entry for two storages")
	}
	if len(e.groups) != 2 || len(a.entries) != 1 || len(b.entries) != 2 {
		t.Errorf("%d groups hold it; the groups hold %d and %d, want 2; 1 and 2", len(e.groups), len(a.entries), len(b.entries))
	}
	if n := s.Holders(); n != 2 {
		t.Errorf("%d holders, want the test and the ledger", n)
	}
	if !e.onDevice || e.version != 7 {
		t.Errorf("it begins at version %d, on the device: %v; want 7, true", e.version, e.onDevice)
	}
}

// A ticket names one group until it is forgotten, and is used again then.
func TestLedgerTickets(t *testing.T) {
	l := newLedger()
	a := l.group(0, device.Origin{Layer: 1})
	b := l.group(0, device.Origin{Layer: 2})
	if a.ticket == 0 || a.ticket == b.ticket || l.group(a.ticket, device.Origin{Layer: 9}) != a || a.origin.Layer != 1 {
		t.Errorf("tickets %d and %d", a.ticket, b.ticket)
	}
	l.take(a, storage(1), 0)
	a.hosted, a.away, a.failed = true, true, true
	l.forget(a)
	if l.open != 1 {
		t.Errorf("%d groups are open, want 1", l.open)
	}
	again := l.group(0, device.Origin{Layer: 3})
	if again != a || again.hosted || again.away || again.failed || len(again.entries) != 0 {
		t.Errorf("a group that is used again begins as %+v", again)
	}
}

// Who needs the bytes where (LG2): groups other than the one that asks.
func TestLedgerNeeds(t *testing.T) {
	for _, tc := range []struct {
		name                           string
		aHosted, aAway, bHosted, bAway bool
		needed, wanted/* by others, when a asks */ bool
		neededAlone, wantedAlone/* when b has left */ bool
	}{
		{"both on the device", false, false, false, false, true, false, false, false},
		{"both offloading", true, false, true, false, true, true, false, false},
		{"both released", true, true, true, true, false, true, false, false},
		{"the other one released", true, false, true, true, false, true, false, false},
		{"the other one came back", true, true, false, false, true, false, false, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			l := newLedger()
			a, b := l.group(0, device.Origin{}), l.group(0, device.Origin{})
			s := storage(1)
			e := l.take(a, s, 0)
			l.take(b, s, 0)
			a.hosted, a.away, b.hosted, b.away = tc.aHosted, tc.aAway, tc.bHosted, tc.bAway
			if got := e.needed(a); got != tc.needed {
				t.Errorf("another group needs it on the device: %v, want %v", got, tc.needed)
			}
			if got := e.wanted(a); got != tc.wanted {
				t.Errorf("another group needs it on the host: %v, want %v", got, tc.wanted)
			}
			e.leave(b)
			if e.needed(a) != tc.neededAlone || e.wanted(a) != tc.wantedAlone {
				t.Errorf("with nobody else: %v, %v; want %v, %v", e.needed(a), e.wanted(a), tc.neededAlone, tc.wantedAlone)
			}
		})
	}
}

// An entry that is used again remembers nothing of the storage before.
func TestLedgerEntryIsUsedAgain(t *testing.T) {
	l := newLedger()
	g := l.group(0, device.Origin{})
	s := storage(1)
	e := l.take(g, s, 3)
	e.producers, e.consumers = note(note(e.producers, 1), 1), note(e.consumers, 2)
	if got := e.streams(nil); len(got) != 2 {
		t.Errorf("streams %v, want 1 and 2 once each", got)
	}
	e.leave(g)
	l.end(e)
	if l.entries[s] != nil || len(l.buffers) != 0 {
		t.Errorf("the ledger still knows %v and %v", l.entries, l.buffers)
	}
	l.forget(g)
	g = l.group(0, device.Origin{})
	again := l.take(g, storage(2), 0)
	if again != e {
		t.Error("a spare entry was not used again")
	}
	if len(again.producers) != 0 || len(again.consumers) != 0 || again.version != 0 || len(again.groups) != 1 {
		t.Errorf("it begins as %+v", again)
	}
}
