package ops_test

import (
	"errors"
	"testing"

	"offload/device"
	"offload/nn/ops"
)

func TestTypedKernels(t *testing.T) {
	ids := device.NewIDs(numbered{})
	stream := ids.Stream()
	tensor := func(t device.DType, shape ...int) device.Tensor {
		x := device.Tensor{DType: t, Shape: shape}
		x.Storage = ids.NewStorage("x", device.Activation, x.Bytes(), stream)
		return x
	}
	const f, b = device.Float32, device.BFloat16
	absent := device.Tensor{}
	a, w, y := tensor(b, 8, 4), tensor(b, 4, 6), tensor(b, 8, 6)
	kernel := func(k device.Kernel, err error) func() (device.Kernel, error) {
		return func() (device.Kernel, error) { return k, err }
	}
	for _, tc := range []struct {
		name string
		make func() (device.Kernel, error)
		want string // name; empty: refused
	}{
		{"product", kernel(ops.AddProduct(y, a, w, absent, ops.Product{})), "nn/product/bfloat16"},
		{"product that is added to another", kernel(ops.AddProduct(y, a, w, tensor(b, 8, 6), ops.Product{})), "nn/product/bfloat16"},
		{"product that is added in place", kernel(ops.AddProduct(y, a, w, y, ops.Product{})), "nn/product/bfloat16"},
		{"product of mixed types", kernel(ops.AddProduct(y, a, tensor(f, 4, 6), absent, ops.Product{})), ""},
		{"product that does not fit", kernel(ops.AddProduct(y, a, w, absent, ops.Product{TransposeB: true})), ""},
		{"product with c of another shape", kernel(ops.AddProduct(y, a, w, tensor(b, 6, 8), ops.Product{})), ""},
		{"product of integers", kernel(ops.AddProduct(tensor(device.Int32, 8, 6), a, w, absent, ops.Product{})), ""},
		{"product in its operand", kernel(ops.AddProduct(a, a, tensor(b, 4, 4), absent, ops.Product{})), ""},
		{"gelu", kernel(ops.GELU(tensor(f, 9), tensor(f, 9))), "nn/gelu/float32"},
		{"gelu in place", kernel(ops.GELU(y, y)), "nn/gelu/bfloat16"},
		{"gelu of another type", kernel(ops.GELU(tensor(f, 8, 6), y)), ""},
		{"gelu of another shape", kernel(ops.GELUGrad(tensor(b, 6, 8), y)), ""},
		{"bias", kernel(ops.AddBias(y, tensor(b, 6))), "nn/add-bias/bfloat16"},
		{"bias of the rows", kernel(ops.AddBias(y, tensor(b, 8))), ""},
		{"gradient of a bias", kernel(ops.BiasGrad(tensor(f, 6), tensor(f, 8, 6))), "nn/bias-grad/float32"},
		{"cast down", kernel(ops.Cast(tensor(b, 48), tensor(f, 8, 6))), "nn/cast/float32"},
		{"cast up", kernel(ops.Cast(tensor(f, 48), y)), "nn/cast/bfloat16"},
		{"cast to the same type", kernel(ops.Cast(tensor(b, 48), y)), ""},
		{"cast of another size", kernel(ops.Cast(tensor(f, 47), y)), ""},
		{"noise", kernel(ops.Noise(y, 1, 1)), "nn/noise/bfloat16"},
		{"zero", kernel(ops.Zero(tensor(f, 3))), "nn/zero/float32"},
		{"zero of an absent tensor", kernel(ops.Zero(absent)), ""},
		{"differ", kernel(ops.Differ(tensor(device.Int64, 1), y, tensor(f, 24))), "nn/differ"},
		{"differ of another size", kernel(ops.Differ(tensor(device.Int64, 1), y, tensor(f, 25))), ""},
	} {
		k, err := tc.make()
		if tc.want == "" {
			if !errors.Is(err, ops.ErrShape) {
				t.Errorf("%s: got %v, want ErrShape", tc.name, err)
			}
			continue
		}
		if err != nil || k.Name != tc.want {
			t.Errorf("%s: got kernel %q, %v; want %q", tc.name, k.Name, err, tc.want)
		}
	}
}

// numbered is a device for ids alone.
type numbered struct{ device.Device }

func (numbered) Info() device.Info { return device.Info{ID: 1} }
func (numbered) NewSpace() uint16  { return 1 }
