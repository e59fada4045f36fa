package ops_test

import (
	"errors"
	"strings"
	"testing"

	"offload/device"
	"offload/device/sim"
	"offload/nn/ops"
)

// tensors describes storages without a device: constructors look at nothing else.
type tensors struct{ ids *device.IDs }

func newTensors(t *testing.T) tensors {
	d := sim.New(sim.Config{})
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return tensors{device.NewIDs(d)}
}

func (ts tensors) make(dtype device.DType, shape ...int) device.Tensor {
	x := device.Tensor{DType: dtype, Shape: shape}
	x.Storage = ts.ids.NewStorage("x", device.Activation, x.Bytes(), device.Stream{})
	return x
}

func (ts tensors) f32(shape ...int) device.Tensor { return ts.make(device.Float32, shape...) }

func TestConstructorsRefuse(t *testing.T) {
	ts := newTensors(t)
	f32 := ts.f32
	square := f32(4, 4)
	column := f32(4, 8)
	column.Shape, column.Strides = []int{4, 4}, []int{8, 1}
	beyond := f32(4, 4)
	beyond.Offset = 1
	gone := f32(4, 4)
	gone.Storage.Freed()
	shifted := f32(8, 4)
	lower, middle := shifted, shifted
	lower.Shape, middle.Shape, middle.Offset = []int{4, 4}, []int{4, 4}, 8

	for _, row := range []struct {
		name  string
		build func() (device.Kernel, error)
		want  string // part of the message
	}{
		{"inner dimensions differ", func() (device.Kernel, error) {
			return ops.MatMul(f32(3, 5), f32(3, 4), f32(6, 5), ops.Product{})
		}, "inner dimensions 4 and 6 differ"},
		{"transposed, inner dimensions differ", func() (device.Kernel, error) {
			return ops.MatMul(f32(3, 5), f32(3, 4), f32(4, 5), ops.Product{TransposeA: true})
		}, "inner dimensions 3 and 4 differ"},
		{"product of another shape", func() (device.Kernel, error) {
			return ops.MatMul(f32(5, 3), f32(3, 4), f32(4, 5), ops.Product{})
		}, "is [3 5]"},
		{"product over its operand", func() (device.Kernel, error) {
			return ops.MatMul(square, square, f32(4, 4), ops.Product{})
		}, "must not share bytes"},
		{"three dimensions", func() (device.Kernel, error) {
			return ops.MatMul(f32(2, 2, 4), f32(4, 4), f32(4, 4), ops.Product{})
		}, "two dimensions"},
		{"wrong type", func() (device.Kernel, error) {
			return ops.SquaredReLU(ts.make(device.Float64, 4, 4), square)
		}, "type must be float32"},
		{"absent operand", func() (device.Kernel, error) {
			return ops.SquaredReLU(square, device.Tensor{})
		}, "x is absent"},
		{"not contiguous", func() (device.Kernel, error) { return ops.SquaredReLUGrad(square, column) }, "contiguous"},
		{"outside its storage", func() (device.Kernel, error) { return ops.Fill(beyond, 0) }, "not within"},
		{"bytes not on the device", func() (device.Kernel, error) { return ops.Fill(gone, 0) }, "not on the device"},
		{"partly the same bytes", func() (device.Kernel, error) { return ops.AddScaled(lower, middle, 1) }, "must not share bytes"},
		{"shapes differ", func() (device.Kernel, error) { return ops.AddScaled(square, f32(16), 1) }, "shapes must be equal"},
		{"a label too few", func() (device.Kernel, error) {
			return ops.CrossEntropy(f32(2), square, square, ts.make(device.Int32, 3), 1)
		}, "shape must be [4]"},
		{"labels are floats", func() (device.Kernel, error) {
			return ops.CrossEntropy(f32(2), square, square, f32(4), 1)
		}, "type must be int32"},
		{"result of three", func() (device.Kernel, error) {
			return ops.CrossEntropy(f32(3), square, square, ts.make(device.Int32, 4), 1)
		}, "shape must be [2]"},
		{"sum of two", func() (device.Kernel, error) { return ops.SumSquares(f32(2), square) }, "shape must be [1]"},
		{"weights are their gradient", func() (device.Kernel, error) {
			return ops.SGD(square, square, f32(1), 1, 1)
		}, "must not share bytes"},
		{"negative rate", func() (device.Kernel, error) {
			return ops.SGD(square, f32(4, 4), f32(1), -1, 1)
		}, "must not be negative"},
	} {
		t.Run(row.name, func(t *testing.T) {
			before := square.Storage.Version()
			k, err := row.build()
			if !errors.Is(err, ops.ErrShape) || !strings.Contains(err.Error(), row.want) {
				t.Errorf("error is %v, want ErrShape with %q", err, row.want)
			}
			if k.Name != "" || square.Storage.Version() != before {
				t.Errorf("a refused kernel is %+v, and its operand changed %d times", k, square.Storage.Version()-before)
			}
		})
	}
}

func TestConstructorsDeclare(t *testing.T) {
	ts := newTensors(t)
	a, b, c := ts.f32(3, 4), ts.f32(4, 5), ts.f32(3, 5)
	labels, result := ts.make(device.Int32, 3), ts.f32(2)
	for _, row := range []struct {
		name          string
		build         func() (device.Kernel, error)
		reads, writes []device.Tensor
	}{
		{"product", func() (device.Kernel, error) { return ops.MatMul(c, a, b, ops.Product{}) },
			[]device.Tensor{a, b}, []device.Tensor{c}},
		{"accumulated product", func() (device.Kernel, error) { return ops.MatMul(c, a, b, ops.Product{Accumulate: true}) },
			[]device.Tensor{a, b, c}, []device.Tensor{c}},
		{"in place", func() (device.Kernel, error) { return ops.SquaredReLU(a, a) },
			[]device.Tensor{a}, []device.Tensor{a}},
		{"loss without gradient", func() (device.Kernel, error) {
			return ops.CrossEntropy(result, device.Tensor{}, c, labels, 1)
		}, []device.Tensor{c, labels}, []device.Tensor{result}},
		{"loss with gradient", func() (device.Kernel, error) { return ops.CrossEntropy(result, c, c, labels, 1) },
			[]device.Tensor{c, labels}, []device.Tensor{result, c}},
	} {
		t.Run(row.name, func(t *testing.T) {
			var before []uint64
			for _, x := range row.writes {
				before = append(before, x.Storage.Version())
			}
			k, err := row.build()
			if err != nil {
				t.Fatal(err)
			}
			for i, x := range row.writes {
				if got := x.Storage.Version(); got != before[i]+1 {
					t.Errorf("version of written tensor %d is %d, want %d", i, got, before[i]+1)
				}
			}
			compare(t, "reads", k.Reads, row.reads)
			compare(t, "writes", k.Writes, row.writes)
		})
	}
}

func compare(t *testing.T, what string, got []device.Range, want []device.Tensor) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%s are %v, want %d ranges", what, got, len(want))
	}
	for i := range got {
		if got[i] != want[i].Range() {
			t.Errorf("%s: range %d is %v, want %v", what, i, got[i], want[i].Range())
		}
	}
}
