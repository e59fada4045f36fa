package cuda

import (
	"fmt"
	"sync"
)

// fake is a driver on Go memory. Nothing runs before something is waited for;
// then everything does, in the order in which it was enqueued. It checks what a
// driver would not forgive: handles and addresses that are not alive.
type fake struct {
	mu      sync.Mutex
	total   int64 // bytes of device memory
	used    int64
	next    uintptr // handle or address
	streams map[uintptr]bool
	events  map[uintptr]bool
	onGPU   map[uintptr][]byte // by address
	pinned  map[uintptr][]byte // likewise
	queue   []func()
	log     []verb         // what was enqueued
	runs    int            // calls of enqueue
	answers map[string]int // of the next call with this name, instead of doing it
	bound   int            // threads with the context
	foreign int            // pieces of memory in onGPU that are not the device's
	closed  bool

	// If set, a synchronisation tells entered that it blocks, until it is told to resume.
	entered, resume chan struct{}
}

var _ driver = (*fake)(nil)

func newFake(total int64) *fake {
	return &fake{total: total, next: 1 << 20, answers: make(map[string]int),
		streams: make(map[uintptr]bool), events: make(map[uintptr]bool),
		onGPU: make(map[uintptr][]byte), pinned: make(map[uintptr][]byte)}
}

func answer(call string, code int) error { return &DriverError{Call: call, Code: code, Name: "TEST"} }

// answer returns the error that a test asked for.
func (f *fake) answer(call string) error {
	code := f.answers[call]
	delete(f.answers, call)
	if code == 0 {
		return nil
	}
	return answer(call, code)
}

func (f *fake) handle(step uintptr) uintptr {
	h := f.next
	f.next += (step + 2*Align - 1) / Align * Align
	return h
}

func (f *fake) create(call string, table map[uintptr]bool) (uintptr, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.answer(call); err != nil {
		return 0, err
	}
	h := f.handle(1)
	table[h] = true
	return h, nil
}

func (f *fake) destroy(call string, table map[uintptr]bool, h uintptr) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !table[h] {
		return answer(call, 400)
	}
	delete(table, h)
	return f.answer(call)
}

func (f *fake) createStream() (uintptr, error)     { return f.create("cuStreamCreate", f.streams) }
func (f *fake) destroyStream(h uintptr) error      { return f.destroy("cuStreamDestroy", f.streams, h) }
func (f *fake) createEvent() (uintptr, error)      { return f.create("cuEventCreate", f.events) }
func (f *fake) destroyEvent(h uintptr) error       { return f.destroy("cuEventDestroy", f.events, h) }
func (f *fake) memory() (free, all int64, _ error) { return f.total - f.used, f.total, nil }

func (f *fake) enqueue(list []command) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.runs++
	for i := range list {
		if err := f.run(list, &list[i]); err != nil {
			return i, err
		}
		f.log = append(f.log, list[i].verb)
	}
	return len(list), nil
}

func (f *fake) run(list []command, c *command) error {
	call := verbCalls[c.verb]
	if err := f.answer(call); err != nil {
		return err
	}
	if !f.streams[c.stream] {
		return answer(call, 400)
	}
	operand := func(from int32, offset uintptr) uintptr {
		if from == none {
			return offset
		}
		return list[from].dst + offset
	}
	switch c.verb {
	case verbRecord, verbWait:
		if !f.events[c.event] {
			return answer(call, 400)
		}
	case verbAlloc:
		if f.used+int64(c.bytes) > f.total {
			return answer(call, outOfMemory)
		}
		f.used += int64(c.bytes)
		c.dst = f.handle(c.bytes)
		f.onGPU[c.dst] = make([]byte, c.bytes)
	case verbFree:
		at := operand(c.dstFrom, c.dst)
		mem, ok := f.onGPU[at]
		if !ok {
			return answer(call, 1)
		}
		delete(f.onGPU, at)
		f.used -= int64(len(mem))
		f.queue = append(f.queue, func() { clear(mem) })
	default:
		to, from := f.onGPU, f.onGPU
		if c.verb == verbCopyOut {
			to = f.pinned
		}
		if c.verb == verbCopyIn {
			from = f.pinned
		}
		if c.verb == verbCopyRows && (c.dstPitch < c.bytes || c.srcPitch < c.bytes) {
			return answer(call, 1)
		}
		for i := range max(c.rows, 1) {
			dst, src := find(to, operand(c.dstFrom, c.dst+i*c.dstPitch), c.bytes), find(from, operand(c.srcFrom, c.src+i*c.srcPitch), c.bytes)
			if dst == nil || src == nil {
				return answer(call, 1)
			}
			f.queue = append(f.queue, func() { copy(dst, src) })
		}
	}
	return nil
}

// find returns n bytes at an address, or nil if they are not all of one buffer.
func find(table map[uintptr][]byte, at, n uintptr) []byte {
	for start, mem := range table {
		if start <= at && at+n <= start+uintptr(len(mem)) {
			return mem[at-start:][:n]
		}
	}
	return nil
}

func (f *fake) sync(call string) error {
	if f.entered != nil {
		f.entered <- struct{}{}
		<-f.resume
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, work := range f.queue {
		work()
	}
	f.queue = f.queue[:0]
	return f.answer(call)
}

func (f *fake) syncWith(call string, table map[uintptr]bool, h uintptr) error {
	f.mu.Lock()
	alive := table[h]
	f.mu.Unlock()
	if !alive {
		return answer(call, 400)
	}
	return f.sync(call)
}

func (f *fake) syncStream(h uintptr) error {
	return f.syncWith("cuStreamSynchronize", f.streams, h)
}

func (f *fake) syncEvent(h uintptr) error {
	return f.syncWith("cuEventSynchronize", f.events, h)
}

func (f *fake) queryStream(uintptr) error { return f.answer("cuStreamQuery") }

func (f *fake) wait() error {
	f.mu.Lock()
	f.entered = nil
	f.mu.Unlock()
	return f.sync("cuCtxSynchronize")
}

func (f *fake) pin(bytes int64) ([]byte, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.answer("cuMemHostAlloc"); err != nil {
		return nil, err
	}
	mem := make([]byte, bytes)
	f.pinned[address(mem)] = mem
	return mem, nil
}

func (f *fake) unpin(mem []byte) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.pinned[address(mem)] == nil {
		return answer("cuMemFreeHost", 1)
	}
	delete(f.pinned, address(mem))
	return nil
}

func (f *fake) free(at uintptr) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	mem, ok := f.onGPU[at]
	if !ok {
		return answer("cuMemFree", 1)
	}
	delete(f.onGPU, at)
	f.used -= int64(len(mem))
	return nil
}

func (f *fake) bind() (uintptr, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.bound++
	return 0, f.answer("cuCtxSetCurrent")
}

func (f *fake) unbind(uintptr) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.bound--
}

// close reports what the device has kept.
func (f *fake) close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closed = true
	if n := len(f.streams) + len(f.events) + len(f.onGPU) - f.foreign + len(f.pinned) + f.bound; n != 0 {
		return fmt.Errorf("kept: %d streams, %d events, %d and %d buffers, %d threads",
			len(f.streams), len(f.events), len(f.onGPU), len(f.pinned), f.bound)
	}
	return nil
}
