package nn

import (
	"encoding/binary"
	"errors"
	"math"
	"math/rand/v2"

	"offload/device"
	"offload/nn/ops"
)

// parameter is one weight matrix. It multiplies from the right: rows are its inputs.
type parameter struct {
	rows, columns int
	deviation     float64 // standard deviation of the first values
	offset        int64   // of its first element in the flat storage
}

// parameters lists the weights in the order of the layers: the input
// projection, two for each block, the head. Each starts at a multiple of
// alignment bytes, so that products see the same alignment in every model.
func (c Config) parameters() []parameter {
	inv := func(n int) float64 { return 1 / math.Sqrt(float64(n)) }
	list := []parameter{{rows: c.Inputs, columns: c.Width, deviation: inv(c.Inputs)}}
	for range c.Blocks {
		list = append(list,
			parameter{rows: c.Width, columns: c.Hidden, deviation: inv(c.Width)},
			// Small, so that a new block nearly passes its input on: deep stacks
			// of squared ReLUs diverge otherwise.
			parameter{rows: c.Hidden, columns: c.Width, deviation: 0.1 * inv(c.Hidden)})
	}
	list = append(list, parameter{rows: c.Width, columns: c.Classes, deviation: inv(c.Width)})
	next := int64(0)
	for i := range list {
		p := &list[i]
		p.offset = next
		next += pad(int64(p.rows) * int64(p.columns))
	}
	return list
}

// pad rounds a number of float32 elements up to whole alignment units.
func pad(elements int64) int64 {
	const unit = alignment / 4
	return (elements + unit - 1) / unit * unit
}

// alignment is what the alignment of every operand is a multiple of, in bytes.
const alignment = 256

// weights are all parameters in one storage, and the same for the gradients, so
// that the optimiser takes few kernels. Padding is zero in both.
type weights struct {
	list  []parameter
	size  int64 // elements with padding
	value device.Tensor
	grad  device.Tensor
	norm  device.Tensor // sum of the squares of grad, one element
}

// newWeights allocates the weights in s, and uploads first values drawn from seed.
func newWeights(a *ops.Arena, s *ops.Scope, c Config) (w weights, err error) {
	w.list = c.parameters()
	last := w.list[len(w.list)-1]
	w.size = last.offset + pad(int64(last.rows)*int64(last.columns))
	w.value = s.Alloc("weights", device.Weight, device.Float32, int(w.size))
	w.grad = s.Alloc("gradients", device.Weight, device.Float32, int(w.size))
	w.norm = s.Alloc("norm", device.Workspace, device.Float32, 1)
	if err := a.Flush(device.Origin{Action: "allocate weights"}); err != nil {
		return w, err
	}
	h, err := a.Pin("weights", w.value.Bytes())
	if err != nil {
		return w, err
	}
	clear(h.Bytes())
	rng := rand.New(rand.NewPCG(c.Seed, 0))
	for _, p := range w.list {
		for i := range int64(p.rows * p.columns) {
			put(h.Bytes(), p.offset+i, float32(rng.NormFloat64()*p.deviation))
		}
	}
	h.CopyIn(w.value, 0)
	err = a.Flush(device.Origin{Action: "upload weights"})
	return w, errors.Join(err, a.Sync(), h.Close())
}

// read copies the values back, without padding, in the order of the list.
func (w *weights) read(a *ops.Arena, t device.Tensor) (values []float32, err error) {
	h, err := a.Pin("read weights", t.Bytes())
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, h.Close()) }()
	h.CopyOut(0, t)
	err = a.Flush(device.Origin{Action: "read weights"})
	if err := errors.Join(err, a.Sync()); err != nil { // the copy must end before the buffer is unpinned
		return nil, err
	}
	bytes, err := h.Read(0, t.Bytes())
	if err != nil {
		return nil, err
	}
	for _, p := range w.list {
		for i := range int64(p.rows * p.columns) {
			values = append(values, get(bytes, p.offset+i))
		}
	}
	return values, nil
}

// view returns parameter i of the flat tensor t.
func (w *weights) view(t device.Tensor, i int) device.Tensor {
	p := w.list[i]
	return device.Tensor{Storage: t.Storage, DType: t.DType, Shape: []int{p.rows, p.columns}, Offset: p.offset}
}

// of returns the weight matrices of a layer and their gradients.
func (w *weights) of(layer int) (values, grads []device.Tensor) {
	first, n := 2*layer-1, 2 // a block has two
	switch {
	case layer == 0:
		first, n = 0, 1
	case 2*layer == len(w.list):
		n = 1 // the head
	}
	for i := first; i < first+n; i++ {
		values = append(values, w.view(w.value, i))
		grads = append(grads, w.view(w.grad, i))
	}
	return values, grads
}

func put(b []byte, i int64, x float32) {
	binary.NativeEndian.PutUint32(b[4*i:], math.Float32bits(x))
}

func get(b []byte, i int64) float32 {
	return math.Float32frombits(binary.NativeEndian.Uint32(b[4*i:]))
}
