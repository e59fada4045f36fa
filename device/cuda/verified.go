package cuda

import (
	"bytes"
	"errors"
	"fmt"
	"hash/maphash"
	"sync"

	"offload/device"
)

// ErrCorrupt is returned by a [Verified] device for a copy whose bytes are not
// those that were copied.
var ErrCorrupt = errors.New("the bytes of a copy differ")

// Verified is a device that looks at the bytes of every copy between device and
// host. After a copy it reads the device's side once more, by another copy, and
// compares; and what a copy out has left in host memory must still be there, by
// its checksum, when it is copied in. A difference is an [ErrCorrupt].
//
// It waits for the stream at every copy, so it is for finding faults and not
// for training. It fits any device.
type Verified struct {
	device.Device

	mu      sync.Mutex
	ids     *device.IDs
	scratch device.Range // pinned; as large as the largest copy so far
	seed    maphash.Seed
	sums    map[device.Range]uint64 // of what copies out have left in host memory
	copies  int64
}

// Verify returns d with its copies verified. Submit the whole program's work
// through it: bytes that come to pinned memory by other copies are not known.
func Verify(d device.Device) *Verified {
	return &Verified{Device: d, ids: device.NewIDs(d), seed: maphash.MakeSeed(), sums: make(map[device.Range]uint64)}
}

// Copies returns how many copies were verified.
func (v *Verified) Copies() int64 {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.copies
}

// Submit implements Device. The batch is enqueued up to a copy, which is
// verified before the rest is enqueued.
func (v *Verified) Submit(b *device.Batch) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	from := 0
	for i := range b.Ops {
		op := &b.Ops[i]
		switch op.Kind {
		case device.CopyIn, device.CopyOut:
		case device.HostWrite:
			v.forget(op.Dst)
			continue
		case device.Unpin:
			v.forget(device.Range{Buffer: op.Dst.Buffer, Bytes: 1 << 62})
			continue
		default:
			continue
		}
		if err := v.before(op); err != nil {
			return &device.Error{Origin: b.Origin, Index: i, Op: *op, Err: err}
		}
		if err := v.submit(b, from, i+1); err != nil {
			return err
		}
		if err := v.after(op); err != nil {
			return &device.Error{Origin: b.Origin, Index: i, Op: *op, Err: err}
		}
		from = i + 1
	}
	return v.submit(b, from, len(b.Ops))
}

// submit submits a part of b. The index in an error is that within b.
func (v *Verified) submit(b *device.Batch, from, to int) error {
	if from == to && from > 0 {
		return nil
	}
	err := v.Device.Submit(&device.Batch{Origin: b.Origin, Ops: b.Ops[from:to]})
	var failed *device.Error
	if errors.As(err, &failed) && from > 0 {
		moved := *failed
		moved.Index += from
		return &moved
	}
	return err
}

// before checks host memory that is about to be copied in.
func (v *Verified) before(op *device.Op) error {
	if op.Kind == device.CopyOut {
		v.forget(op.Dst)
		return nil
	}
	want, ok := v.sums[op.Src]
	if !ok {
		return nil
	}
	host, err := v.host(op.Src)
	if err != nil {
		return err
	}
	if got := maphash.Bytes(v.seed, host); got != want {
		return fmt.Errorf("%w: %v was copied out with checksum %016x, and is to be copied in with %016x", ErrCorrupt, op.Src, want, got)
	}
	return nil
}

// after reads the device's side of a copy again.
func (v *Verified) after(op *device.Op) error {
	onDevice, onHost := op.Src, op.Dst
	if op.Kind == device.CopyIn {
		onDevice, onHost = op.Dst, op.Src
	}
	if onHost.Bytes == 0 {
		return nil
	}
	if err := v.reserve(onHost.Bytes); err != nil {
		return err
	}
	again := v.scratch.Sub(0, onHost.Bytes)
	err := v.Device.Submit(&device.Batch{Origin: verifying, Ops: []device.Op{
		{Kind: device.CopyOut, Stream: op.Stream, Dst: again, Src: onDevice},
		{Kind: device.SyncStream, Stream: op.Stream},
		{Kind: device.HostRead, Src: again},
		{Kind: device.HostRead, Src: onHost},
	}})
	if err != nil {
		return err
	}
	host, err := v.host(onHost)
	if err != nil {
		return err
	}
	second, err := v.host(again)
	if err != nil {
		return err
	}
	v.copies++
	if !bytes.Equal(host, second) {
		i := 0
		for host[i] == second[i] {
			i++
		}
		return fmt.Errorf("%w: byte %d of %v is %#02x on the device and %#02x on the host", ErrCorrupt, i, onDevice, second[i], host[i])
	}
	if op.Kind == device.CopyOut {
		v.sums[onHost] = maphash.Bytes(v.seed, host)
	}
	return nil
}

// host returns the bytes of pinned memory.
func (v *Verified) host(r device.Range) ([]byte, error) {
	m, err := v.Lookup(r.Buffer)
	if err != nil {
		return nil, err
	}
	if r.Offset+r.Bytes > int64(len(m.Host)) {
		return nil, fmt.Errorf("%w: %v is not within the %d bytes of the buffer", device.ErrInvalid, r, len(m.Host))
	}
	return m.Host[r.Offset:][:r.Bytes], nil
}

var verifying = device.Origin{Action: "verify"}

// reserve pins memory for n bytes, if what there is does not do.
func (v *Verified) reserve(n int64) error {
	if n <= v.scratch.Bytes {
		return nil
	}
	if err := v.release(); err != nil {
		return err
	}
	r := device.Range{Buffer: v.ids.Buffer(device.OnHost), Bytes: n}
	if err := v.Device.Submit(&device.Batch{Origin: verifying, Ops: []device.Op{{Kind: device.Pin, Dst: r}}}); err != nil {
		v.ids.PutBuffer(r.Buffer)
		return err
	}
	v.scratch = r
	return nil
}

func (v *Verified) release() error {
	if v.scratch.Bytes == 0 {
		return nil
	}
	err := v.Device.Submit(&device.Batch{Origin: verifying, Ops: []device.Op{{Kind: device.Unpin, Dst: v.scratch}}})
	if err == nil {
		v.ids.PutBuffer(v.scratch.Buffer)
		v.scratch = device.Range{}
	}
	return err
}

// forget drops the checksums of host memory that gets other bytes.
func (v *Verified) forget(r device.Range) {
	for known := range v.sums {
		if known.Overlaps(r) {
			delete(v.sums, known)
		}
	}
}

// Close gives the memory of the verification back and closes the device.
func (v *Verified) Close() error {
	v.mu.Lock()
	defer v.mu.Unlock()
	err := v.release()
	if errors.Is(err, device.ErrClosed) {
		err = nil // Close says it
	}
	return errors.Join(err, v.Device.Close())
}
