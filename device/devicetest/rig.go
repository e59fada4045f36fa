package devicetest

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"sync"
	"testing"

	"offload/device"
)

// A rig is a device with an id space and a memory of what was made on it.
type rig struct {
	*testing.T
	open    Open
	options Options
	dev     device.Device
	ids     *device.IDs
	closed  bool

	mu      sync.Mutex
	streams map[device.Stream]bool
	events  map[device.Event]bool
	buffers map[device.Buffer]device.Stream // with the stream of the allocation
}

func newRig(t *testing.T, open Open, o Options) *rig {
	t.Helper()
	d := open(t, o)
	return &rig{T: t, open: open, options: o, dev: d, ids: device.NewIDs(d),
		streams: make(map[device.Stream]bool),
		events:  make(map[device.Event]bool),
		buffers: make(map[device.Buffer]device.Stream)}
}

// another opens one more device. The caller finishes it.
func (r *rig) another() *rig {
	r.Helper()
	return newRig(r.T, r.open, r.options)
}

// origin is that of every batch of the suite.
var origin = device.Origin{Action: "conformance", Pass: 3, Layer: 2}

// submit submits ops and notes what was enqueued.
func (r *rig) submit(ops ...device.Op) error {
	err := r.dev.Submit(&device.Batch{Origin: origin, Ops: ops})
	var failed *device.Error
	if errors.As(err, &failed) {
		ops = ops[:failed.Index]
	}
	r.note(ops)
	return err
}

func (r *rig) note(ops []device.Op) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, op := range ops {
		switch op.Kind {
		case device.OpenStream:
			r.streams[op.Stream] = true
		case device.CloseStream:
			delete(r.streams, op.Stream)
		case device.Record:
			older := op.Event
			older.Gen -= 2 // the index was put back and taken again in between
			delete(r.events, older)
			r.events[op.Event] = true
		case device.Retire:
			delete(r.events, op.Event)
		case device.Alloc, device.Pin:
			r.buffers[op.Dst.Buffer] = op.Stream
		case device.Free, device.Unpin:
			delete(r.buffers, op.Dst.Buffer)
		}
	}
}

func (r *rig) must(ops ...device.Op) {
	r.Helper()
	if err := r.submit(ops...); err != nil {
		r.Fatal(err)
	}
}

// refused submits ops and wants the one with the given index refused.
func (r *rig) refused(want error, index int, ops ...device.Op) {
	r.Helper()
	before := r.dev.Usage()
	err := r.submit(ops...)
	var failed *device.Error
	if !errors.As(err, &failed) {
		r.Fatalf("%v: got error %v (%T), want a *device.Error that wraps %q", ops[index], err, err, want)
	}
	if !errors.Is(err, want) {
		r.Errorf("%v: got error %q, want one that wraps %q", ops[index], err, want)
	}
	if failed.Index != index || failed.Origin != origin || !reflect.DeepEqual(failed.Op, ops[index]) {
		r.Errorf("got operation %d (%v) of %v, want %d (%v) of %v", failed.Index, failed.Op, failed.Origin, index, ops[index], origin)
	}
	if got := r.dev.Usage(); index == 0 && got != before {
		r.Errorf("%v: got usage %+v after the refusal, want %+v as before", ops[index], got, before)
	}
}

// finish gives everything back and closes the device.
func (r *rig) finish() {
	r.Helper()
	if r.closed {
		return
	}
	var ops []device.Op
	for s := range r.streams {
		ops = append(ops, syncStream(s))
	}
	for b, home := range r.buffers {
		switch b.Place {
		case device.OnDevice:
			ops = append(ops, free(home, device.Range{Buffer: b}))
		case device.OnHost:
			ops = append(ops, unpin(device.Range{Buffer: b}))
		}
	}
	for e := range r.events {
		ops = append(ops, retire(e))
	}
	for s := range r.streams {
		ops = append(ops, closeStream(s))
	}
	r.must(ops...)
	if got := r.dev.Usage().InUse; got != 0 {
		r.Errorf("got %d bytes in use after everything was freed, want 0", got)
	}
	r.close()
}

func (r *rig) close() {
	r.Helper()
	r.closed = true
	if err := r.dev.Close(); err != nil {
		r.Errorf("Close: got %v, want no error", err)
	}
}

// stream opens a stream.
func (r *rig) stream() device.Stream {
	r.Helper()
	s := r.ids.Stream()
	r.must(openStream(s))
	return s
}

// buffer allocates n bytes in the order of s.
func (r *rig) buffer(s device.Stream, n int64) device.Range {
	r.Helper()
	b := device.Range{Buffer: r.ids.Buffer(device.OnDevice), Bytes: n}
	r.must(alloc(s, b))
	return b
}

// pinned pins n bytes.
func (r *rig) pinned(n int64) device.Range {
	r.Helper()
	b := device.Range{Buffer: r.ids.Buffer(device.OnHost), Bytes: n}
	r.must(pin(b))
	return b
}

// host returns the bytes of a pinned range.
func (r *rig) host(g device.Range) []byte {
	r.Helper()
	m, err := r.dev.Lookup(g.Buffer)
	if err != nil {
		r.Fatal(err)
	}
	return m.Host[g.Offset : g.Offset+g.Bytes]
}

// write puts data into a pinned range.
func (r *rig) write(g device.Range, data []byte) {
	r.Helper()
	r.must(hostWrite(g))
	copy(r.host(g), data)
}

// holds wants data in a pinned range.
func (r *rig) holds(g device.Range, data []byte) {
	r.Helper()
	r.must(hostRead(g))
	r.equal(r.host(g), data)
}

// equal reports the first byte that differs.
func (r *rig) equal(got, want []byte) {
	r.Helper()
	if err := compare(got, want); err != nil {
		r.Error(err)
	}
}

// compare returns an error that names the first byte that differs.
func compare(got, want []byte) error {
	if bytes.Equal(got, want) {
		return nil
	}
	if len(got) != len(want) {
		return fmt.Errorf("got %d bytes, want %d", len(got), len(want))
	}
	for i := range got {
		if got[i] != want[i] {
			return fmt.Errorf("byte %d of %d: got %#x, want %#x", i, len(got), got[i], want[i])
		}
	}
	return nil
}

// pattern returns n bytes that depend on the seed and do not repeat.
func pattern(seed uint64, n int64) []byte {
	var key [32]byte
	for i := range 8 {
		key[i] = byte(seed >> (8 * i))
	}
	p := make([]byte, n)
	_, _ = rand.NewChaCha8(key).Read(p) // never fails
	return p
}
