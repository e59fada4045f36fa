package sim

import (
	"fmt"
	"unsafe"

	"offload/device"
)

const (
	// Align is the number of bytes that the size of every buffer is rounded up
	// to, and that its start is a multiple of.
	Align = 256
	// Poison is the byte that fills memory that nobody has written. A
	// floating-point number made of it is not a number in any type.
	Poison = 0xFF
)

// A buffer is one generation of device memory or of pinned host memory. The
// table forgets it when its free is submitted; queued operations that name it
// keep it until they have run.
type buffer struct {
	id       device.Buffer
	bytes    int64 // as asked for; what is accessed is checked against these
	size     int64 // rounded up
	mem      []byte
	released bool // its free has run
	made     access
	owner    *External // of adopted memory; nil if it is the device's
	address  uintptr   // of adopted memory
	shadow   shadow
}

// A slot is what the table keeps of one index of an id space.
type slot struct {
	gen  uint32  // highest generation seen
	live *buffer // nil once its free is submitted
	gone *Site   // the free or unpin of the newest generation that was given back
}

// align rounds n up to a multiple of Align.
func align(n int64) int64 { return (n + Align - 1) / Align * Align }

// A heap hands out real memory. It keeps what was given back, by size, so that
// a program that allocates the same sizes again and again does not make the
// garbage collector work.
type heap struct {
	free   map[int64][][]byte
	live   int64 // bytes handed out
	cached int64 // bytes in free
	peak   int64 // highest live
}

// heapSlack is what a heap may keep beyond twice its peak.
const heapSlack = 64 << 20

// get returns poisoned memory; n is a multiple of Align.
func (h *heap) get(n int64) []byte {
	h.live += n
	h.peak = max(h.peak, h.live)
	if l := h.free[n]; len(l) > 0 {
		m := l[len(l)-1]
		l[len(l)-1] = nil
		h.free[n] = l[:len(l)-1]
		h.cached -= n
		return m
	}
	if h.live+h.cached > 2*h.peak+heapSlack {
		clear(h.free) // the sizes asked for have changed
		h.cached = 0
	}
	return newMemory(n)
}

// newMemory makes poisoned memory; n is a multiple of Align.
func newMemory(n int64) []byte {
	words := make([]uint64, (n+Align)/8)
	m := unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(words))), len(words)*8)
	skip := int64(-uintptr(unsafe.Pointer(unsafe.SliceData(m))) % Align)
	m = m[skip : skip+n : skip+n]
	poison(m)
	return m
}

// put takes m back and poisons it at once.
func (h *heap) put(m []byte) {
	poison(m)
	n := int64(len(m))
	h.live -= n
	h.cached += n
	if h.free == nil {
		h.free = make(map[int64][][]byte)
	}
	h.free[n] = append(h.free[n], m)
}

// poisonPage is copied over memory, which is several times faster than a loop over bytes.
var poisonPage = func() (p [32 << 10]byte) {
	for i := range p {
		p[i] = Poison
	}
	return p
}()

func poison(m []byte) {
	for len(m) > 0 {
		m = m[copy(m, poisonPage[:]):]
	}
}

// memory returns the bytes of b. It makes them at the first use: usually that
// is the allocation, but an access that is not ordered with it may run first.
func (b *buffer) memory(h *heap) []byte {
	if b.mem == nil {
		b.mem = h.get(b.size)
		if b.released { // nobody will give these back
			h.live -= b.size
		}
	}
	return b.mem
}

// release gives the memory back. An access that is not ordered with it and
// runs later sees the poison, or the bytes of the next owner.
func (b *buffer) release(h *heap) {
	b.released = true
	if b.mem != nil {
		h.put(b.mem)
	}
}

// A ledger counts memory against a limit in the order of submission.
//
// Freed bytes are a credit that carries the time of the free on its stream. An
// allocation may use a credit only if its clock covers that time, and takes it
// away, so that in every legal order the memory in use stays within the limit.
type ledger struct {
	limit int64 // zero: none, and no credits are kept
	inUse int64
	peak  int64
	fresh int64 // bytes that every allocation may use
	freed []credits
}

// credits are the credits of one lane in order of time.
type credits struct {
	list []credit
	sum  int64
}

type credit struct {
	time  uint64
	bytes int64
}

func newLedger(limit int64) ledger {
	limit = max(limit, 0)
	return ledger{limit: limit, fresh: limit}
}

// take counts n bytes for an allocation on a lane that has clock now.
func (l *ledger) take(n int64, lane int, now clock) error {
	if l.limit > 0 && !l.spend(n, lane, now) {
		unordered := ""
		if free := l.limit - l.inUse; free >= n {
			unordered = fmt.Sprintf("; %d bytes are free, but not all of their frees are ordered before this allocation", free)
		}
		return fmt.Errorf("%w: %d bytes asked for, %d in use, limit %d%s", device.ErrOutOfMemory, n, l.inUse, l.limit, unordered)
	}
	l.inUse += n
	l.peak = max(l.peak, l.inUse)
	return nil
}

// spend takes n bytes of credit away, or nothing if there are too few. It takes
// those first that the fewest others may use: those of its own lane, the newest
// before the older, then those of other lanes, then fresh bytes.
func (l *ledger) spend(n int64, lane int, now clock) bool {
	own := int64(0)
	if lane < len(l.freed) {
		own = l.freed[lane].sum
	}
	if own+l.fresh < n {
		usable := l.fresh
		for i := range l.freed {
			usable += l.freed[i].usable(now.at(i))
		}
		if usable < n {
			return false
		}
	}
	if own > 0 {
		n -= l.freed[lane].spend(n, now.at(lane))
	}
	for i := 0; i < len(l.freed) && n > 0; i++ {
		n -= l.freed[i].spend(n, now.at(i))
	}
	l.fresh -= n
	return true
}

// usable returns the bytes freed up to time t.
func (c *credits) usable(t uint64) int64 {
	sum := int64(0)
	for _, x := range c.list {
		if x.time > t {
			break
		}
		sum += x.bytes
	}
	return sum
}

// spend takes up to n of the bytes freed up to time t away, and returns how many.
func (c *credits) spend(n int64, t uint64) int64 {
	end := len(c.list)
	for end > 0 && c.list[end-1].time > t {
		end--
	}
	spent, from := int64(0), end
	for from > 0 && spent < n {
		x := &c.list[from-1]
		part := min(x.bytes, n-spent)
		x.bytes -= part
		spent += part
		if x.bytes == 0 {
			from--
		}
	}
	c.list = append(c.list[:from], c.list[end:]...)
	c.sum -= spent
	return spent
}

// free counts n bytes as free since the given point.
func (l *ledger) free(n int64, lane int, t uint64) {
	l.inUse -= n
	if l.limit == 0 {
		return
	}
	for len(l.freed) <= lane {
		l.freed = append(l.freed, credits{})
	}
	c := &l.freed[lane]
	c.list = append(c.list, credit{t, n})
	c.sum += n
}

// settle makes those bytes fresh whose free the host has seen: whatever is
// submitted from now on is ordered after it.
func (l *ledger) settle(host clock) {
	for lane := range l.freed {
		c := &l.freed[lane]
		t := host.at(lane)
		i := 0
		for i < len(c.list) && c.list[i].time <= t {
			l.fresh += c.list[i].bytes
			c.sum -= c.list[i].bytes
			i++
		}
		c.list = append(c.list[:0], c.list[i:]...)
	}
}

// takeHost counts n bytes of pinned memory, which no stream is involved in.
func (l *ledger) takeHost(n int64) error {
	if l.limit > 0 && l.inUse+n > l.limit {
		return fmt.Errorf("%w: %d bytes of pinned host memory asked for, %d in use, limit %d",
			device.ErrOutOfMemory, n, l.inUse, l.limit)
	}
	l.inUse += n
	l.peak = max(l.peak, l.inUse)
	return nil
}

func (l *ledger) usage() device.Usage {
	return device.Usage{InUse: l.inUse, Peak: l.peak, Limit: l.limit}
}
