package sim

import (
	"slices"
	"sort"

	"offload/device"
)

// An access is a point in the life of a lane at which an operation used memory.
type access struct {
	lane int
	time uint64
	site *Site
}

// covered reports whether a happened before whatever has clock now.
func (a access) covered(now clock) bool { return now.covers(a.lane, a.time) }

// A segment is a run of bytes with the same history: the last write, and the
// reads since. Only those reads are kept that no later read is ordered after: a
// write that is ordered after the later one is ordered after both.
type segment struct {
	lo, hi int64
	write  access // write.site is nil: never written
	reads  []access
}

// A shadow is the history of the bytes of one buffer: segments that cover it in
// order, without gaps. It is empty while the checker is off. Its size depends on
// how many pieces the bytes are used in, not on how often.
type shadow []segment

// cut makes off a border between segments and returns the index of the segment
// that starts there; the number of segments if off is the end.
func (s *shadow) cut(off int64) int {
	l := *s
	if off == l[0].lo {
		return 0
	}
	if off == l[len(l)-1].hi {
		return len(l)
	}
	i := sort.Search(len(l), func(i int) bool { return l[i].hi > off })
	if l[i].lo == off {
		return i
	}
	right := l[i]
	right.lo, right.reads = off, slices.Clone(right.reads)
	l[i].hi = off
	*s = slices.Insert(l, i+1, right)
	return i + 1
}

// A conflict is what an access found in the history: a rule, the earlier
// access and the bytes.
type conflict struct {
	rule   Rule
	first  access
	lo, hi int64
}

// read enters a read of [lo, hi) by a and returns at most one conflict of each
// rule, the first by address.
func (s *shadow) read(lo, hi int64, a access, now clock, found []conflict) []conflict {
	if len(*s) == 0 || lo == hi {
		return found
	}
	i := s.cut(lo)
	j := s.cut(hi)
	raced, unwritten := false, false
	for ; i < j; i++ {
		g := &(*s)[i]
		switch {
		case g.write.site == nil && !unwritten:
			unwritten = true
			found = append(found, conflict{UninitialisedRead, access{}, g.lo, g.hi})
		case g.write.site != nil && !raced && !g.write.covered(now):
			raced = true
			found = append(found, conflict{ReadAfterWrite, g.write, g.lo, g.hi})
		}
		kept := g.reads[:0]
		for _, r := range g.reads {
			if !r.covered(now) {
				kept = append(kept, r)
			}
		}
		g.reads = append(kept, a)
	}
	return found
}

// write enters a write of [lo, hi) by a, which replaces the history of these
// bytes, and returns at most one conflict of each rule, the first by address.
func (s *shadow) write(lo, hi int64, a access, now clock, found []conflict) []conflict {
	if len(*s) == 0 || lo == hi {
		return found
	}
	i := s.cut(lo)
	j := s.cut(hi)
	overwrites, overtakes := false, false
	for _, g := range (*s)[i:j] {
		if !overwrites && g.write.site != nil && !g.write.covered(now) {
			overwrites = true
			found = append(found, conflict{WriteAfterWrite, g.write, g.lo, g.hi})
		}
		for _, r := range g.reads {
			if !overtakes && !r.covered(now) {
				overtakes = true
				found = append(found, conflict{WriteAfterRead, r, g.lo, g.hi})
			}
		}
	}
	g := &(*s)[i]
	g.hi, g.write, g.reads = hi, a, g.reads[:0]
	*s = slices.Delete(*s, i+1, j)
	return found
}

// pending returns the first access that is not covered by now, if there is one.
func (s shadow) pending(now clock) (conflict, bool) {
	for _, g := range s {
		if g.write.site != nil && !g.write.covered(now) {
			return conflict{first: g.write, lo: g.lo, hi: g.hi}, true
		}
		for _, r := range g.reads {
			if !r.covered(now) {
				return conflict{first: r, lo: g.lo, hi: g.hi}, true
			}
		}
	}
	return conflict{}, false
}

// checkUse enters a use of sp by the operation, which has just been enqueued on s.
func (r *request) checkUse(s *stream, sp span, write bool) {
	if r.dev.cfg.NoChecker {
		return
	}
	if !sp.buf.made.covered(s.now) {
		first := *sp.buf.made.site
		r.dev.report(Finding{Rule: UseBeforeAlloc, First: first, Second: r.site, Subject: sp.Range.String(), Missing: edge(first, r.site)})
	}
	r.enter(sp, write, access{s.lane, s.now.at(s.lane), r.keep()}, s.now)
}

// enter puts an access into the history of its bytes and reports what it conflicts with.
func (r *request) enter(sp span, write bool, a access, now clock) {
	d := r.dev
	lo, hi := sp.Offset, sp.Offset+sp.Bytes
	if write {
		d.conflicts = sp.buf.shadow.write(lo, hi, a, now, d.conflicts[:0])
	} else {
		d.conflicts = sp.buf.shadow.read(lo, hi, a, now, d.conflicts[:0])
	}
	for _, c := range d.conflicts {
		f := Finding{Rule: c.rule, Second: r.site,
			Subject: device.Range{Buffer: sp.Buffer, Offset: max(lo, c.lo), Bytes: min(hi, c.hi) - max(lo, c.lo)}.String()}
		if c.rule == UninitialisedRead {
			f.First, f.Missing = *sp.buf.made.site, "a write of these bytes before"
		} else {
			f.First = *c.first.site
			f.Missing = edge(f.First, r.site)
			if a.lane == hostLane {
				f.Rule = HostUnsynchronised
			}
		}
		d.report(f)
	}
}

// checkIdle reports a use of b, or its allocation, that is not ordered before
// what has clock now and gives b back.
func (r *request) checkIdle(b *buffer, now clock, rule Rule) {
	c, found := b.shadow.pending(now)
	if !found && !b.made.covered(now) {
		c, found = conflict{first: b.made, hi: b.bytes}, true
	}
	if !found {
		return
	}
	first := *c.first.site
	r.dev.report(Finding{Rule: rule, First: first, Second: r.site,
		Subject: device.Range{Buffer: b.id, Offset: c.lo, Bytes: c.hi - c.lo}.String(), Missing: edge(first, r.site)})
}
