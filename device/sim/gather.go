package sim

import "offload/device"

// gather implements device.GatherKernel.
func gather(c *Call) error {
	return packed(c, func(one, piece device.Range) { copy(c.Write(one), c.Read(piece)) })
}

// scatter implements device.ScatterKernel.
func scatter(c *Call) error {
	return packed(c, func(one, piece device.Range) { copy(c.Write(piece), c.Read(one)) })
}

// packed calls move for every piece, with its place in the packed range.
func packed(c *Call, move func(one, piece device.Range)) error {
	whole, combs, err := device.Packed(nil, c.args)
	if err != nil {
		return err
	}
	at := int64(0)
	for _, comb := range combs {
		for i := range comb.Count {
			move(whole.Sub(at, comb.First.Bytes), comb.Piece(i))
			at += comb.First.Bytes
		}
	}
	return nil
}
