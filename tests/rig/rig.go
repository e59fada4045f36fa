package rig

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"sync"

	"offload"
	"offload/device"
	"offload/device/sim"
)

// TB is what a rig needs of a test; *testing.T and *rapid.T have it.
type TB interface {
	Helper()
	Error(args ...any)
	Errorf(format string, args ...any)
	Fatal(args ...any)
}

// Rig is a simulated device with what tests need around it.
type Rig struct {
	T       TB
	Sim     *sim.Device
	Gate    *Gate         // around Sim; engines are opened on it
	IDs     *device.IDs   // of the test
	Compute device.Stream // open

	mu      sync.Mutex
	streams []device.Stream
	seeds   map[string]uint64
	checks  int      // kernels that compared bytes
	wrong   []string // what they found
}

// New makes a device and opens a compute stream on it.
func New(t TB, cfg sim.Config) *Rig {
	t.Helper()
	return On(t, sim.New(cfg))
}

// On is New for a device that is there and has nothing on it.
func On(t TB, d *sim.Device) *Rig {
	t.Helper()
	r := &Rig{T: t, Sim: d, seeds: make(map[string]uint64)}
	r.Gate = &Gate{Device: r.Sim}
	r.Sim.Register("rig.fill", func(c *sim.Call) error {
		copy(c.Write(c.Arg(0).Range), Pattern(uint64(c.Arg(1).Int), c.Arg(0).Range.Bytes))
		return nil
	})
	r.Sim.Register("rig.check", func(c *sim.Call) error {
		span := c.Arg(0).Range
		r.compare(span, c.Read(span), Pattern(uint64(c.Arg(1).Int), span.Bytes))
		return nil
	})
	r.Sim.Register("rig.check-view", r.checkView)
	r.Sim.Register("rig.fill-view", fillView)
	r.IDs = device.NewIDs(r.Sim)
	r.Compute = r.Stream()
	return r
}

// Stream opens another stream, which Close closes.
func (r *Rig) Stream() device.Stream {
	r.T.Helper()
	s := r.IDs.Stream()
	r.Submit(device.Op{Kind: device.OpenStream, Stream: s})
	r.mu.Lock()
	defer r.mu.Unlock()
	r.streams = append(r.streams, s)
	return s
}

// Open returns an engine on the gate.
func (r *Rig) Open(opts offload.Options) *offload.Engine {
	r.T.Helper()
	e, err := offload.Open(r.Gate, opts)
	if err != nil {
		r.T.Fatal(err)
	}
	return e
}

// Submit enqueues operations of the test, past the gate.
func (r *Rig) Submit(ops ...device.Op) {
	r.T.Helper()
	if err := r.Sim.Submit(&device.Batch{Origin: device.Origin{Action: "test"}, Ops: ops}); err != nil {
		r.T.Error(err)
	}
}

// Tensor allocates a byte tensor of activations in the order of stream s and
// fills it with the pattern of its name.
func (r *Rig) Tensor(s device.Stream, name string, n int64) device.Tensor {
	r.T.Helper()
	return r.TensorOf(s, name, device.Activation, n)
}

// TensorOf is Tensor for another class of storage.
func (r *Rig) TensorOf(s device.Stream, name string, class device.Class, n int64) device.Tensor {
	r.T.Helper()
	t := device.Tensor{
		Storage: r.IDs.NewStorage(name, class, n, s), DType: device.Uint8, Shape: []int{int(n)},
	}
	r.Submit(device.Op{Kind: device.Alloc, Stream: s, Dst: t.Range()}, fill(s, t.Range(), r.seed(name)))
	return t
}

// Fill enqueues on stream s a kernel that writes the pattern of name to t.
func (r *Rig) Fill(s device.Stream, t device.Tensor, name string) {
	r.T.Helper()
	r.Submit(fill(s, t.Range(), r.seed(name)))
}

// Check enqueues on stream s a kernel that compares t with the pattern of name.
// Close reports what it finds.
func (r *Rig) Check(s device.Stream, t device.Tensor, name string) {
	r.T.Helper()
	span := t.Range()
	r.Submit(device.Op{Kind: device.Launch, Stream: s, Kernel: &device.Kernel{
		Name: "rig.check", Args: []device.Arg{{Range: span}, {Int: int64(r.seed(name))}}, Reads: []device.Range{span}}})
	r.mu.Lock()
	defer r.mu.Unlock()
	r.checks++
}

// Free gives the storage of t, whose last holder the test is, back in the order of
// stream s, to the device or to its owner.
func (r *Rig) Free(s device.Stream, t device.Tensor) {
	r.T.Helper()
	r.Submit(t.Storage.FreeOn(s))
	if giveBack := t.Storage.Freed(); giveBack != nil {
		giveBack(s)
	}
}

// Holder is the name by which tests hold storages.
const Holder = "the caller"

// Keep makes the test a holder of the storage of t, besides whom it is pushed to.
func (r *Rig) Keep(t device.Tensor) { t.Storage.Retain(Holder) }

// Drop gives up the test's hold on the storage of t, and frees it if that was
// the last one and the bytes are on the device.
func (r *Rig) Drop(s device.Stream, t device.Tensor) {
	r.T.Helper()
	last := false
	if t.Storage.Retained() {
		last = t.Storage.Drop(Holder)
	} else {
		last = t.Storage.Release()
	}
	if last && !t.Storage.Buffer().IsZero() {
		r.Free(s, t)
	}
}

// Order makes stream later wait for all that was enqueued on stream earlier.
func (r *Rig) Order(earlier, later device.Stream) {
	r.T.Helper()
	e := r.IDs.Event()
	r.Submit(device.Op{Kind: device.Record, Stream: earlier, Event: e},
		device.Op{Kind: device.Wait, Stream: later, Event: e},
		device.Op{Kind: device.Retire, Event: e})
	r.IDs.PutEvent(e)
}

// Sync blocks until all work of the rig's streams has ended.
func (r *Rig) Sync() {
	r.T.Helper()
	r.mu.Lock()
	var ops []device.Op
	for _, s := range r.streams {
		ops = append(ops, device.Op{Kind: device.SyncStream, Stream: s})
	}
	r.mu.Unlock()
	r.Submit(ops...)
}

// Checks returns how many comparisons were enqueued. A test that checked
// nothing has shown nothing.
func (r *Rig) Checks() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.checks
}

// Close closes the rig's streams and the device. It reports what engines left
// on the device, what the simulator found and which bytes were wrong.
func (r *Rig) Close() {
	r.T.Helper()
	for _, s := range r.streams {
		r.Submit(device.Op{Kind: device.CloseStream, Stream: s})
	}
	for _, l := range r.Sim.Leaks() {
		r.T.Errorf("left on the device: %v", l)
	}
	if err := r.Sim.Close(); err != nil {
		r.T.Errorf("close the device: %v", err)
	}
	for _, f := range r.Sim.Findings() {
		if f.Rule != sim.Leak { // reported above
			r.T.Error(f)
		}
	}
	if _, buffers := r.IDs.Out(); buffers != 0 {
		r.T.Errorf("%d buffer ids of the test were not put back", buffers)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, w := range r.wrong {
		r.T.Error(w)
	}
}

// seed returns a number for a name, the same in every run.
func (r *Rig) seed(name string) uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	s, ok := r.seeds[name]
	if !ok {
		s = uint64(len(r.seeds) + 1)
		r.seeds[name] = s
	}
	return s
}

func (r *Rig) compare(span device.Range, got, want []byte) {
	if bytes.Equal(got, want) {
		return
	}
	i := 0
	for got[i] == want[i] {
		i++
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.wrong = append(r.wrong, fmt.Sprintf("%v: byte %d is %#x, want %#x", span, i, got[i], want[i]))
}

func fill(s device.Stream, span device.Range, seed uint64) device.Op {
	return device.Op{Kind: device.Launch, Stream: s, Kernel: &device.Kernel{
		Name: "rig.fill", Args: []device.Arg{{Range: span}, {Int: int64(seed)}}, Writes: []device.Range{span}}}
}

// step is what the state of a pattern grows by with each word.
const step = 0x9e3779b97f4a7c15

// Pattern returns n bytes that the seed determines. Patterns of different seeds
// differ almost everywhere.
func Pattern(seed uint64, n int64) []byte {
	var word [8]byte
	b := make([]byte, 0, n+8)
	for x := seed; int64(len(b)) < n; {
		x += step
		z := (x ^ x>>30) * 0xbf58476d1ce4e5b9
		binary.LittleEndian.PutUint64(word[:], z^z>>27)
		b = append(b, word[:]...)
	}
	return b[:n]
}
