package device

import "fmt"

// Every device has two kernels of its own, which move many pieces of memory
// into one and back.
const (
	// GatherKernel writes pieces one after the other into one range.
	GatherKernel = "offload.gather"
	// ScatterKernel reads one range and writes it to pieces, in order.
	ScatterKernel = "offload.scatter"
)

// Comb is Count pieces of equal length. Each begins Stride bytes behind the
// one before, and First is the first.
type Comb struct {
	First  Range
	Stride int64
	Count  int64
}

// Bytes returns the bytes of all pieces.
func (c Comb) Bytes() int64 { return c.First.Bytes * c.Count }

// Piece returns piece i.
func (c Comb) Piece(i int64) Range {
	r := c.First
	r.Offset += i * c.Stride
	return r
}

// Gather makes k the kernel that writes the pieces of the combs, in order, to
// dst. The memory of k is used again.
func (k *Kernel) Gather(dst Range, combs []Comb) {
	k.pack(GatherKernel, dst, combs)
	k.Reads, k.Writes = pieces(k.Reads[:0], combs), append(k.Writes[:0], dst)
}

// Scatter makes k the kernel that writes the bytes of src, in order, to the
// pieces of the combs. The memory of k is used again.
func (k *Kernel) Scatter(combs []Comb, src Range) {
	k.pack(ScatterKernel, src, combs)
	k.Reads, k.Writes = append(k.Reads[:0], src), pieces(k.Writes[:0], combs)
}

// pack fills in the arguments: the packed range, then two for each comb.
func (k *Kernel) pack(name string, packed Range, combs []Comb) {
	k.Name = name
	k.Args = append(k.Args[:0], Arg{Range: packed})
	for _, c := range combs {
		k.Args = append(k.Args, Arg{Range: c.First, Int: c.Stride}, Arg{Int: c.Count})
	}
}

func pieces(dst []Range, combs []Comb) []Range {
	for _, c := range combs {
		for i := range c.Count {
			dst = append(dst, c.Piece(i))
		}
	}
	return dst
}

// Packed returns what the arguments of a gather or scatter say: the packed
// range, and the combs, which are appended to dst.
func Packed(dst []Comb, args []Arg) (packed Range, combs []Comb, err error) {
	if len(args)%2 == 0 {
		return Range{}, dst, fmt.Errorf("gather or scatter with %d arguments; there is one, and two for each comb", len(args))
	}
	total := int64(0)
	for i := 1; i < len(args); i += 2 {
		c := Comb{First: args[i].Range, Stride: args[i].Int, Count: args[i+1].Int}
		total += c.Bytes()
		dst = append(dst, c)
	}
	if packed = args[0].Range; packed.Bytes != total {
		return packed, dst, fmt.Errorf("gather or scatter of %d bytes in pieces and %d in one", total, packed.Bytes)
	}
	return packed, dst, nil
}
