package cuda

import (
	"fmt"

	"offload/device"
)

// packs reports whether k is one of the two kernels that every device has.
func packs(k *device.Kernel) bool {
	return k.Name == device.GatherKernel || k.Name == device.ScatterKernel
}

// pack translates a gather or a scatter: a comb is one copy of rows. The pieces
// and the packed range are checked as declared accesses are.
func (r *request) pack(s *stream) error {
	k := r.op.Kernel
	whole, combs, err := device.Packed(r.combs[:0], k.Args)
	r.combs = combs[:0]
	if err != nil {
		return fmt.Errorf("%w: %w", device.ErrInvalid, err)
	}
	one, err := r.within(whole, device.OnDevice)
	if err != nil {
		return err
	}
	for _, c := range combs { // all of them, before the first one is enqueued
		if err := r.checkComb(c, whole); err != nil {
			return err
		}
	}
	at := int64(0)
	for _, c := range combs {
		if c.Bytes() == 0 {
			continue
		}
		many, err := r.within(c.First, device.OnDevice)
		if err != nil {
			return err
		}
		row := command{verb: verbCopyRows, stream: s.handle, bytes: uintptr(c.First.Bytes), rows: uintptr(c.Count),
			dstFrom: one.from, dst: one.address + uintptr(whole.Offset+at), dstPitch: uintptr(c.First.Bytes),
			srcFrom: many.from, src: many.address + uintptr(c.First.Offset), srcPitch: uintptr(c.Stride)}
		if k.Name == device.ScatterKernel {
			row.dst, row.src = row.src, row.dst
			row.dstFrom, row.srcFrom = row.srcFrom, row.dstFrom
			row.dstPitch, row.srcPitch = row.srcPitch, row.dstPitch
		}
		r.addRows(row, c)
		at += c.Bytes()
	}
	return nil
}

// checkComb refuses pieces that are not in their buffer, or share bytes with the
// packed range.
func (r *request) checkComb(c device.Comb, whole device.Range) error {
	if c.Count < 0 {
		return fmt.Errorf("%w: %s of %d pieces", device.ErrInvalid, r.op.Kernel.Name, c.Count)
	}
	if c.Bytes() == 0 {
		return nil
	}
	for _, piece := range []device.Range{c.First, c.Piece(c.Count - 1)} { // the others lie between them
		if _, err := r.within(piece, device.OnDevice); err != nil {
			return err
		}
	}
	low, high := min(c.First.Offset, c.Piece(c.Count-1).Offset), max(c.First.Offset, c.Piece(c.Count-1).Offset)
	span := device.Range{Buffer: c.First.Buffer, Offset: low, Bytes: high - low + c.First.Bytes}
	if span.Overlaps(whole) {
		return fmt.Errorf("%w: the pieces in %v may share bytes with the packed %v", device.ErrInvalid, span, whole)
	}
	return nil
}

// maxPitch is the largest distance of rows that every GPU copies.
const maxPitch = 1<<31 - 1

// addRows appends the copy of the pieces of c. The driver wants rows that do not
// overlap and are not too far apart; others are copied one by one.
func (r *request) addRows(row command, c device.Comb) {
	if c.Count == 1 || c.First.Bytes <= c.Stride && c.Stride <= maxPitch && c.First.Bytes <= maxPitch {
		if c.Count == 1 || c.Stride == c.First.Bytes { // one piece
			row.verb, row.bytes, row.rows = verbCopyWithin, uintptr(c.Bytes()), 0
			row.dstPitch, row.srcPitch = 0, 0
		}
		r.add(row)
		return
	}
	row.verb, row.rows = verbCopyWithin, 0
	dstPitch, srcPitch := row.dstPitch, row.srcPitch // may stand for negative numbers; the sums wrap
	row.dstPitch, row.srcPitch = 0, 0
	for range c.Count {
		r.add(row)
		row.dst += dstPitch
		row.src += srcPitch
	}
}
