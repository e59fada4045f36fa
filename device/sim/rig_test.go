package sim

import (
	"testing"

	"offload/device"
)

// A rig is a device with two open streams and short names for operations.
type rig struct {
	t    testing.TB
	dev  *Device
	ids  *device.IDs
	a, b device.Stream
}

// newRig makes a device that has the kernels "set" (fills its writes with the
// byte in argument 0) and "sum" (adds 1 to each byte of its reads, adds these up
// at equal positions, and writes the result to each of its writes).
func newRig(t testing.TB, cfg Config) *rig {
	t.Helper()
	return rigOn(t, New(cfg))
}

// rigOn is newRig for a device that is there.
func rigOn(t testing.TB, d *Device) *rig {
	t.Helper()
	d.Register("set", func(c *Call) error {
		for _, w := range c.writes {
			for i := range c.Write(w.Range) {
				c.Write(w.Range)[i] = byte(c.Arg(0).Int)
			}
		}
		return nil
	})
	d.Register("sum", func(c *Call) error {
		for _, w := range c.writes {
			out := make([]byte, w.Bytes)
			for _, r := range c.reads {
				for i, x := range c.Read(r.Range) {
					out[i%len(out)] += x + 1
				}
			}
			copy(c.Write(w.Range), out)
		}
		return nil
	})
	r := &rig{t: t, dev: d, ids: device.NewIDs(d)}
	r.a, r.b = r.ids.Stream(), r.ids.Stream()
	r.must(open(r.a), open(r.b))
	return r
}

// do submits ops as one batch.
func (r *rig) do(ops ...device.Op) error {
	return r.dev.Submit(&device.Batch{Origin: device.Origin{Action: "test"}, Ops: ops})
}

func (r *rig) must(ops ...device.Op) {
	r.t.Helper()
	if err := r.do(ops...); err != nil {
		r.t.Fatal(err)
	}
}

// buffer allocates n bytes in the order of s.
func (r *rig) buffer(s device.Stream, n int64) device.Range {
	r.t.Helper()
	b := device.Range{Buffer: r.ids.Buffer(device.OnDevice), Bytes: n}
	r.must(alloc(s, b))
	return b
}

// pinned pins n bytes.
func (r *rig) pinned(n int64) device.Range {
	r.t.Helper()
	b := device.Range{Buffer: r.ids.Buffer(device.OnHost), Bytes: n}
	r.must(pin(b))
	return b
}

func (r *rig) host(b device.Range) []byte {
	r.t.Helper()
	m, err := r.dev.Lookup(b.Buffer)
	if err != nil {
		r.t.Fatal(err)
	}
	return m.Host[b.Offset : b.Offset+b.Bytes]
}

// rules returns the rules of the findings, in order.
func (r *rig) rules() []Rule {
	list := []Rule{}
	for _, f := range r.dev.Findings() {
		list = append(list, f.Rule)
	}
	return list
}

func open(s device.Stream) device.Op  { return device.Op{Kind: device.OpenStream, Stream: s} }
func shut(s device.Stream) device.Op  { return device.Op{Kind: device.CloseStream, Stream: s} }
func join(s device.Stream) device.Op  { return device.Op{Kind: device.SyncStream, Stream: s} }
func syncTo(e device.Event) device.Op { return device.Op{Kind: device.SyncEvent, Event: e} }
func retire(e device.Event) device.Op { return device.Op{Kind: device.Retire, Event: e} }
func pin(b device.Range) device.Op    { return device.Op{Kind: device.Pin, Dst: b} }
func unpin(b device.Range) device.Op  { return device.Op{Kind: device.Unpin, Dst: b} }

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

func out(s device.Stream, dst, src device.Range) device.Op {
	return device.Op{Kind: device.CopyOut, Stream: s, Dst: dst, Src: src}
}

func in(s device.Stream, dst, src device.Range) device.Op {
	return device.Op{Kind: device.CopyIn, Stream: s, Dst: dst, Src: src}
}

func move(s device.Stream, dst, src device.Range) device.Op {
	return device.Op{Kind: device.CopyWithin, Stream: s, Dst: dst, Src: src}
}

func set(s device.Stream, b device.Range, value int64) device.Op {
	return device.Op{Kind: device.Launch, Stream: s, Kernel: &device.Kernel{
		Name: "set", Args: []device.Arg{{Int: value}}, Writes: []device.Range{b}}}
}

func sum(s device.Stream, to device.Range, from ...device.Range) device.Op {
	return device.Op{Kind: device.Launch, Stream: s, Kernel: &device.Kernel{
		Name: "sum", Reads: from, Writes: []device.Range{to}}}
}

func hostRead(b device.Range) device.Op  { return device.Op{Kind: device.HostRead, Src: b} }
func hostWrite(b device.Range) device.Op { return device.Op{Kind: device.HostWrite, Dst: b} }
