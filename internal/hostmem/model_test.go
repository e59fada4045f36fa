package hostmem

import (
	"errors"
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"offload/device"
)

const modelPage = 16

// page is a page of pinned memory as the model knows it.
type page struct {
	owner *Block[int]
	fence int // of the last owner, as far as it is not known to have passed
}

// model drives a pool and keeps, page by page, what must be true of it. It is
// the device too: it performs the operations, or refuses one.
type model struct {
	ids    *device.IDs
	pool   *Pool[int]
	slab   int64
	budget int64
	pinned map[device.Buffer][]page
	live   []*Block[int]
	before map[*Block[int]][]page // what the pages were when they were taken
	fences int                    // given so far: 1, 2, ...
}

func newModel(t *rapid.T) *model {
	m := &model{ids: new(device.IDs), pinned: map[device.Buffer][]page{}, before: map[*Block[int]][]page{}}
	m.slab = modelPage * rapid.Int64Range(1, 20).Draw(t, "slab pages")
	m.budget = rapid.Int64Range(0, 6*m.slab).Draw(t, "budget")
	m.pool = New[int](Config{SlabBytes: m.slab, PageBytes: modelPage, Budget: m.budget}, m.ids)
	return m
}

// perform performs ops; it stops at index refuse.
func (m *model) perform(t *rapid.T, ops []device.Op, refuse int) (done int) {
	for i, op := range ops {
		if i == refuse {
			return i
		}
		r := op.Dst
		switch pages, ok := m.pinned[r.Buffer]; op.Kind {
		case device.Pin:
			if ok || r.Buffer.Place != device.OnHost || r.Offset != 0 || r.Bytes <= 0 || r.Bytes%modelPage != 0 {
				t.Fatalf("operation %d cannot be performed: %v", i, op)
			}
			m.pinned[r.Buffer] = make([]page, r.Bytes/modelPage)
		case device.Unpin:
			if !ok || slices.ContainsFunc(pages, func(g page) bool { return g != page{} }) {
				t.Fatalf("operation %d unpins what is not pinned or in use: %v", i, op)
			}
			delete(m.pinned, r.Buffer)
		default:
			t.Fatalf("unexpected operation %v", op)
		}
		if got := m.held(); m.budget > 0 && got > m.budget {
			t.Fatalf("%d bytes pinned after operation %d, want at most %d", got, i, m.budget)
		}
	}
	return len(ops)
}

func (m *model) held() (bytes int64) {
	for _, pages := range m.pinned {
		bytes += int64(len(pages)) * modelPage
	}
	return bytes
}

// pages returns the pages of b.
func (m *model) pages(t *rapid.T, b *Block[int]) (ps []*page) {
	for _, r := range b.Ranges() {
		all := m.pinned[r.Buffer]
		if r.Offset%modelPage != 0 || r.Bytes <= 0 || r.Bytes%modelPage != 0 || r.Offset+r.Bytes > int64(len(all))*modelPage {
			t.Fatalf("range %v is not made of pinned pages", r)
		}
		for i := r.Offset / modelPage; i < (r.Offset+r.Bytes)/modelPage; i++ {
			ps = append(ps, &all[i])
		}
	}
	return ps
}

// own checks that b is n bytes that nobody uses, with the fences of exactly
// those bytes, and makes them its own.
func (m *model) own(t *rapid.T, b *Block[int], n int64) {
	want := map[int]bool{}
	ps := m.pages(t, b)
	for _, g := range ps {
		if g.owner != nil {
			t.Fatalf("a block of %d bytes overlaps one of %d", n, g.owner.Bytes())
		}
		if g.fence != 0 {
			want[g.fence] = true
		}
		m.before[b] = append(m.before[b], *g)
		*g = page{owner: b}
	}
	if got := int64(len(ps)) * modelPage; b.Bytes() != n || b.Capacity() != got || got-n < 0 || got-n >= modelPage {
		t.Fatalf("block of %d bytes has capacity %d and %d bytes of pages, want %d and no more than a page more", b.Bytes(), b.Capacity(), got, n)
	}
	if most := (n + m.slab - 1) / m.slab; !b.retried && int64(len(b.Ranges())) > most {
		t.Fatalf("block of %d bytes has %d ranges, want at most %d", n, len(b.Ranges()), most)
	}
	got := slices.Sorted(slices.Values(b.Fences()))
	if want := slices.Sorted(maps.Keys(want)); !slices.Equal(got, want) {
		t.Fatalf("block has fences %v, want %v", got, want)
	}
	m.live = append(m.live, b)
}

// refused checks that n bytes had to be refused, and that what is said to fit does.
func (m *model) refused(t *rapid.T, n int64, before Stats, err error) {
	var e *BudgetError
	if !errors.As(err, &e) || e.Asked != n {
		t.Fatalf("got error %v, want a *BudgetError for %d bytes", err, n)
	}
	before.Refused++
	if got := m.pool.Stats(); got != before {
		t.Fatalf("after a refusal got %+v, want %+v", got, before)
	}
	if e.Fits >= n {
		t.Fatalf("refused %d bytes although %d would fit", n, e.Fits)
	}
	room := before.Limit - before.Held
	for _, pages := range m.pinned {
		idle, run := true, int64(0)
		for _, g := range pages {
			if run += modelPage; g.owner != nil {
				run = 0
			}
			if run >= n && n <= m.slab {
				t.Fatalf("refused %d bytes although so many are free in one place", n)
			}
			idle = idle && g == page{}
		}
		if idle {
			room += int64(len(pages)) * modelPage
		}
	}
	if room >= n+modelPage {
		t.Fatalf("refused %d bytes although %d could be pinned", n, room)
	}
	if e.Fits > 0 {
		m.granted(t, e.Fits)
	}
}

// granted takes n bytes that must be granted.
func (m *model) granted(t *rapid.T, n int64) {
	b, ops, err := m.pool.Take(n)
	if err != nil {
		t.Fatalf("a block of %d bytes is said to fit, but: %v", n, err)
	}
	m.perform(t, ops, -1)
	m.own(t, b, n)
}

// Take takes a block.
func (m *model) Take(t *rapid.T) {
	n := rapid.Int64Range(1, 3*m.slab).Draw(t, "bytes")
	before := m.pool.Stats()
	b, ops, err := m.pool.Take(n)
	if err != nil {
		m.refused(t, n, before, err)
		return
	}
	m.perform(t, ops, -1)
	m.own(t, b, n)
}

// TakeFailing takes a block while the device refuses operations.
func (m *model) TakeFailing(t *rapid.T) {
	n := rapid.Int64Range(1, 3*m.slab).Draw(t, "bytes")
	before := m.pool.Stats()
	b, ops, err := m.pool.Take(n)
	if err != nil {
		m.refused(t, n, before, err)
		return
	}
	for tries := 1; len(ops) > 0; tries++ {
		i := rapid.IntRange(0, len(ops)).Draw(t, "refused operation")
		if m.perform(t, ops, i) == len(ops) {
			break
		}
		kind, size := ops[i].Kind, ops[i].Dst.Bytes
		single := i == len(ops)-1 && (i == 0 || ops[i-1].Kind == device.Unpin)
		b, ops, err = m.pool.Failed(b, i)
		if err != nil {
			var e *BudgetError
			if !errors.As(err, &e) {
				t.Fatalf("got error %v, want a *BudgetError", err)
			}
			if got := m.pool.Stats(); kind == device.Pin && tries == 2 && got.Limit != got.Held {
				t.Fatalf("after two failed pins the limit is %d, want the %d bytes held", got.Limit, got.Held)
			}
			m.pool.SetBudget(m.budget)
			return
		}
		if tries > 1 || kind != device.Pin {
			t.Fatalf("try %d after a refused %v", tries+1, kind)
		}
		for _, op := range ops {
			if single && op.Kind == device.Pin && op.Dst.Bytes >= size {
				t.Fatalf("after %d bytes could not be pinned, %v", size, op)
			}
		}
	}
	m.own(t, b, n)
}

// pick removes one of the live blocks.
func (m *model) pick(t *rapid.T) *Block[int] {
	if len(m.live) == 0 {
		t.Skip("no block")
	}
	i := rapid.IntRange(0, len(m.live)-1).Draw(t, "block")
	b := m.live[i]
	m.live = slices.Delete(m.live, i, i+1)
	return b
}

// Give gives a block back, with a new fence, one that others have, or none.
func (m *model) Give(t *rapid.T) {
	b := m.pick(t)
	fence := rapid.IntRange(0, 2).Draw(t, "fence")
	if fence > 0 {
		m.fences += fence - 1
		fence = m.fences
	}
	for _, g := range m.pages(t, b) {
		*g = page{fence: fence}
	}
	delete(m.before, b)
	m.pool.Give(b, fence)
}

// Return gives a block back that was not used.
func (m *model) Return(t *rapid.T) {
	b := m.pick(t)
	for i, g := range m.pages(t, b) {
		*g = m.before[b][i]
	}
	delete(m.before, b)
	m.pool.Return(b)
}

// Passed lets some fences pass.
func (m *model) Passed(t *rapid.T) {
	mod := rapid.IntRange(1, 3).Draw(t, "every")
	passed := func(f int) bool { return f%mod == 0 }
	drop := func(pages []page) {
		for i := range pages {
			if passed(pages[i].fence) {
				pages[i].fence = 0
			}
		}
	}
	for _, pages := range m.pinned {
		drop(pages)
	}
	for _, pages := range m.before {
		drop(pages)
	}
	m.pool.Passed(passed)
}

// Trim gives back what can be, unless the device refuses.
func (m *model) Trim(t *rapid.T) {
	ops := m.pool.Trim()
	i := rapid.IntRange(0, 2*len(ops)).Draw(t, "refused operation")
	if m.perform(t, ops, i) < len(ops) {
		m.pool.Failed(nil, i)
		return
	}
	for b, pages := range m.pinned {
		if !slices.ContainsFunc(pages, func(g page) bool { return g != page{} }) {
			t.Fatalf("%v is free, but Trim kept it", b)
		}
	}
}

// Check compares the figures with the pages.
func (m *model) Check(t *rapid.T) {
	var want, got Stats
	for _, pages := range m.pinned {
		for _, g := range pages {
			want.Held += modelPage
			switch {
			case g.owner != nil:
				want.InUse += modelPage
			case g.fence != 0:
				want.Fenced += modelPage
			default:
				want.Free += modelPage
			}
		}
	}
	want.Waste = want.InUse
	for _, b := range m.live {
		want.Waste -= b.Bytes()
	}
	s := m.pool.Stats()
	got.Held, got.InUse, got.Fenced, got.Free, got.Waste = s.Held, s.InUse, s.Fenced, s.Free, s.Waste
	if got != want {
		t.Fatalf("got %v, want %v", got, want)
	}
	if n := s.Pins - s.Unpins; n != len(m.pinned) {
		t.Fatalf("%d pins less %d unpins, but %d slabs are pinned", s.Pins, s.Unpins, len(m.pinned))
	}
	if m.budget > 0 && s.HighWaterHeld > m.budget {
		t.Fatalf("high-water mark %d, want at most the budget of %d", s.HighWaterHeld, m.budget)
	}
	checkSlabs(t, m.pool)
	for _, b := range m.live {
		for _, g := range m.pages(t, b) {
			if g.owner != b {
				t.Fatalf("a block of %d bytes has moved", b.Bytes())
			}
		}
	}
}

// checkSlabs checks what the slabs remember against their pieces.
func checkSlabs(t *rapid.T, p *Pool[int]) {
	for _, s := range p.slabs {
		var end, run, longest, live, fenced int64
		for i, q := range s.pieces {
			if q.off != end || q.bytes <= 0 {
				t.Fatalf("piece %d of %v begins at %d with %d bytes, want %d and some", i, s.buffer, q.off, q.bytes, end)
			}
			end += q.bytes
			run += q.bytes
			if q.live {
				run = 0
				live += q.bytes
			} else if q.fence != 0 {
				fenced += q.bytes
			}
			longest = max(longest, run)
			if i > 0 && !q.live && !s.pieces[i-1].live && q.fence == s.pieces[i-1].fence {
				t.Fatalf("pieces %d and %d of %v are not merged: %v", i-1, i, s.buffer, s.pieces)
			}
		}
		if end != s.bytes || longest != s.run || live != s.live || fenced != s.fenced {
			t.Fatalf("slab of %d bytes, longest run %d, live %d, fenced %d; its pieces say %d, %d, %d, %d",
				s.bytes, s.run, s.live, s.fenced, end, longest, live, fenced)
		}
	}
}

func TestModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := newModel(t)
		t.Repeat(rapid.StateMachineActions(m))
		for len(m.live) > 0 {
			b := m.live[0]
			m.live = m.live[1:]
			for _, g := range m.pages(t, b) {
				*g = page{}
			}
			m.pool.Give(b, 0)
		}
		m.pool.Passed(func(int) bool { return true })
		for _, pages := range m.pinned {
			clear(pages)
		}
		m.perform(t, m.pool.Trim(), -1)
		m.pool.Trim() // the next call puts the ids back
		if _, out := m.ids.Out(); len(m.pinned) > 0 || out > 0 || m.pool.Stats().Held > 0 {
			t.Fatalf("at the end %d slabs are pinned and %d ids are out", len(m.pinned), out)
		}
	})
}
