package actors

import (
	"errors"
	"fmt"

	"offload/device"
	"offload/internal/layout"
)

// stagingBytes is the size of the buffer through which pieces are packed,
// one for each direction. Its uses follow each other on one stream.
const stagingBytes = 4 << 20

// copyPacked gathers what was put aside into the staging buffer, as much as fits
// at a time, and copies that.
func (d *deviceActor) copyPacked(h *hostBlock, stage device.Range) {
	if stage.Bytes == 0 {
		d.copyPieces(h)
		return
	}
	off := int64(0)
	for _, s := range d.packed {
		d.beforeCopy(s.entry, h)
		s.entry.parts = append(s.entry.parts, part{comb: s.comb, host: h, off: off, packed: true})
		off += s.comb.Bytes()
	}
	off = 0
	d.chunks(d.packed, func(combs []device.Comb, n int64) {
		d.work.gather(d.out, stage.Sub(0, n), combs)
		d.transfer(device.CopyOut, h, off, stage.Sub(0, n))
		off += n
	})
}

// copyPieces copies what was put aside by one operation for each piece, because
// the device had no memory for the staging buffer.
func (d *deviceActor) copyPieces(h *hostBlock) {
	off := int64(0)
	for _, s := range d.packed {
		d.beforeCopy(s.entry, h)
		s.comb.Each(func(piece layout.Span) {
			d.transfer(device.CopyOut, h, off, device.Range{Buffer: s.entry.storage.Buffer(), Offset: piece.Lo, Bytes: piece.Bytes()})
			off += piece.Bytes()
		})
		s.entry.parts = append(s.entry.parts, part{comb: s.comb, host: h, off: off - s.comb.Bytes(), packed: true})
	}
}

// chunks calls use for one piece after the other of the segments that fits into
// the staging buffer.
func (d *deviceActor) chunks(segments []segment, use func(combs []device.Comb, n int64)) {
	combs, n := d.pieces[:0], int64(0)
	flush := func() {
		if n > 0 {
			use(combs, n)
		}
		combs, n = combs[:0], 0
	}
	for _, s := range segments {
		c := device.Comb{Stride: s.comb.Stride,
			First: device.Range{Buffer: s.entry.target(), Offset: s.comb.Lo, Bytes: s.comb.Span.Bytes()}}
		for left := s.comb.Count; left > 0; {
			fit := min((stagingBytes-n)/c.First.Bytes, left)
			if fit == 0 {
				flush()
				continue
			}
			c.Count = fit
			combs, n = append(combs, c), n+c.Bytes()
			c.First.Offset += fit * c.Stride
			left -= fit
		}
	}
	flush()
	d.pieces = combs
}

// unpacking is a packed part that is copied back.
type unpacking struct {
	part    part
	segment segment
}

// copyUnpacked copies what was put aside to the staging buffer, as many adjacent
// bytes as fit at a time, and scatters them.
func (d *deviceActor) copyUnpacked(stage device.Range) {
	if stage.Bytes == 0 { // no memory for it: one operation for each piece
		for _, u := range d.unpacked {
			off := u.part.off
			u.segment.comb.Each(func(piece layout.Span) {
				d.transfer(device.CopyIn, u.part.host, off, device.Range{Buffer: u.segment.entry.incoming, Offset: piece.Lo, Bytes: piece.Bytes()})
				off += piece.Bytes()
			})
		}
		d.unpacked = d.unpacked[:0]
		return
	}
	for list := d.unpacked; len(list) > 0; {
		first, n := list[0].part, 0
		end := first.off
		d.packed = d.packed[:0]
		for n < len(list) && list[n].part.host == first.host && list[n].part.off == end {
			d.packed = append(d.packed, list[n].segment)
			end += list[n].part.comb.Bytes()
			n++
		}
		list = list[n:]
		off := first.off
		d.chunks(d.packed, func(combs []device.Comb, n int64) {
			d.transfer(device.CopyIn, first.host, off, stage.Sub(0, n))
			d.work.scatter(d.in, combs, stage.Sub(0, n))
			off += n
		})
	}
	d.unpacked = d.unpacked[:0]
}

// stage makes sure that a transfer stream has its staging buffer, if the device
// has memory for it besides the bytes that the same batch allocates. It is
// allocated when it is first needed, by a batch of its own, so that a failure is a
// refusal.
func (d *deviceActor) stage(s int, besides int64) error {
	if d.staging[s].Bytes > 0 || d.budget > 0 && d.dev.Usage().InUse+besides+stagingBytes > d.budget {
		return nil
	}
	r := device.Range{Buffer: d.ids.Buffer(device.OnDevice), Bytes: stagingBytes}
	b := device.Batch{Origin: device.Origin{Action: "stage"}, Ops: []device.Op{
		{Kind: device.Alloc, Stream: d.order.streams[s].id, Dst: r},
	}}
	if err := d.send(&b); err != nil {
		d.ids.PutBuffer(r.Buffer)
		if errors.Is(err, device.ErrOutOfMemory) {
			return nil // pieces are copied one by one
		}
		return fmt.Errorf("staging buffer for packed tensors: %w", err)
	}
	d.count(b.Ops)
	d.staging[s] = r
	return nil
}
