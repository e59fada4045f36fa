package cuda

import (
	"testing"

	"offload/device"
)

// A rig is a device with short names for operations.
type rig struct {
	t   testing.TB
	dev *Device
	ids *device.IDs
}

func newRig(t testing.TB, d *Device) *rig {
	return &rig{t: t, dev: d, ids: device.NewIDs(d)}
}

var origin = device.Origin{Action: "test"}

// do submits ops as one batch.
func (r *rig) do(ops ...device.Op) error {
	return r.dev.Submit(&device.Batch{Origin: origin, Ops: ops})
}

func (r *rig) must(ops ...device.Op) {
	r.t.Helper()
	if err := r.do(ops...); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) stream() device.Stream {
	r.t.Helper()
	s := r.ids.Stream()
	r.must(device.Op{Kind: device.OpenStream, Stream: s})
	return s
}

// buffer allocates n bytes in the order of s.
func (r *rig) buffer(s device.Stream, n int64) device.Range {
	r.t.Helper()
	b := device.Range{Buffer: r.ids.Buffer(device.OnDevice), Bytes: n}
	r.must(alloc(s, b))
	return b
}

func (r *rig) pinned(n int64) device.Range {
	r.t.Helper()
	b := device.Range{Buffer: r.ids.Buffer(device.OnHost), Bytes: n}
	r.must(device.Op{Kind: device.Pin, Dst: b})
	return b
}

// host returns all bytes of pinned memory.
func (r *rig) host(b device.Range) []byte {
	r.t.Helper()
	m, err := r.dev.Lookup(b.Buffer)
	if err != nil {
		r.t.Fatal(err)
	}
	return m.Host
}

func (r *rig) close() {
	r.t.Helper()
	if err := r.dev.Close(); err != nil {
		r.t.Error(err)
	}
}

func join(s device.Stream) device.Op { return device.Op{Kind: device.SyncStream, Stream: s} }

func record(s device.Stream, e device.Event) device.Op {
	return device.Op{Kind: device.Record, Stream: s, Event: e}
}

func wait(s device.Stream, e device.Event) device.Op {
	return device.Op{Kind: device.Wait, Stream: s, Event: e}
}

func alloc(s device.Stream, b device.Range) device.Op {
	return device.Op{Kind: device.Alloc, Stream: s, Dst: b}
}

func free(s device.Stream, b device.Range) device.Op {
	return device.Op{Kind: device.Free, Stream: s, Dst: b}
}

func copyOut(s device.Stream, dst, src device.Range) device.Op {
	return device.Op{Kind: device.CopyOut, Stream: s, Dst: dst, Src: src}
}

func copyIn(s device.Stream, dst, src device.Range) device.Op {
	return device.Op{Kind: device.CopyIn, Stream: s, Dst: dst, Src: src}
}

// launch writes the ranges among its arguments.
func launch(s device.Stream, kernel string, args ...device.Arg) device.Op {
	k := &device.Kernel{Name: kernel, Args: args}
	for _, a := range args {
		if !a.Range.Buffer.IsZero() {
			k.Writes = append(k.Writes, a.Range)
		}
	}
	return device.Op{Kind: device.Launch, Stream: s, Kernel: k}
}
