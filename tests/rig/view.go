package rig

import (
	"offload/device"
	"offload/device/sim"
)

// Touched returns the ranges of memory that the elements of t are in, sorted
// and merged. It looks at one element after the other, so that tests can trust it.
func Touched(t device.Tensor) []device.Range {
	b, size := t.Storage.Buffer(), t.DType.Size()
	if t.Elements() == 0 {
		return nil
	}
	if t.Strides == nil {
		return []device.Range{t.Range()}
	}
	touched := make([]bool, t.Storage.Bytes())
	index := make([]int, len(t.Shape))
	for range t.Elements() {
		at := t.Offset
		for i, n := range index {
			at += int64(n) * int64(t.Strides[i])
		}
		for i := range size {
			touched[at*size+i] = true
		}
		for i := len(index) - 1; i >= 0; i-- {
			if index[i]++; index[i] < t.Shape[i] {
				break
			}
			index[i] = 0
		}
	}
	var list []device.Range
	for i, is := range touched {
		switch n := len(list); {
		case !is:
		case n > 0 && list[n-1].Offset+list[n-1].Bytes == int64(i):
			list[n-1].Bytes++
		default:
			list = append(list, device.Range{Buffer: b, Offset: int64(i), Bytes: 1})
		}
	}
	return list
}

// CheckView enqueues on stream s a kernel that compares the elements of the view
// t with what the pattern of name has at their places in the storage. Close
// reports what it finds.
func (r *Rig) CheckView(s device.Stream, t device.Tensor, name string) {
	r.T.Helper()
	k := &device.Kernel{Name: "rig.check-view", Args: []device.Arg{{Int: int64(r.seed(name))}}, Reads: Touched(t)}
	for _, span := range k.Reads {
		k.Args = append(k.Args, device.Arg{Range: span})
	}
	r.Submit(device.Op{Kind: device.Launch, Stream: s, Kernel: k})
	r.mu.Lock()
	defer r.mu.Unlock()
	r.checks++
}

// FillView enqueues on stream s a kernel that writes to the elements of the view
// t what the pattern of name has at their places in the storage.
func (r *Rig) FillView(s device.Stream, t device.Tensor, name string) {
	r.T.Helper()
	k := &device.Kernel{Name: "rig.fill-view", Args: []device.Arg{{Int: int64(r.seed(name))}}, Writes: Touched(t)}
	for _, span := range k.Writes {
		k.Args = append(k.Args, device.Arg{Range: span})
	}
	r.Submit(device.Op{Kind: device.Launch, Stream: s, Kernel: k})
}

func fillView(c *sim.Call) error {
	for i := 1; i < c.Args(); i++ {
		span := c.Arg(i).Range
		copy(c.Write(span), patternAt(uint64(c.Arg(0).Int), span.Offset, span.Bytes))
	}
	return nil
}

func (r *Rig) checkView(c *sim.Call) error {
	seed := uint64(c.Arg(0).Int)
	for i := 1; i < c.Args(); i++ {
		span := c.Arg(i).Range
		r.compare(span, c.Read(span), patternAt(seed, span.Offset, span.Bytes))
	}
	return nil
}

// patternAt returns n bytes of the pattern from byte off on.
func patternAt(seed uint64, off, n int64) []byte {
	const word = 8
	skip := off / word
	return Pattern(seed+uint64(skip)*step, off-skip*word+n)[off-skip*word:]
}
