package device_test

import (
	"math"
	"testing"

	"offload/device"
)

// Sizes that overflow are faults of the tensor, not sizes of another one.
func TestCheckSizesThatOverflow(t *testing.T) {
	s := device.NewStorage("x", device.Activation, device.Buffer{Device: 1, Place: device.OnDevice}, 1_200_000, device.Stream{Device: 1})
	for _, x := range []device.Tensor{
		{Shape: []int{1 << 32, 1 << 32}},
		{Shape: []int{1 << 62}},
		{Shape: []int{1<<62 + 300_000}},
		{Shape: []int{math.MaxInt, math.MaxInt}},
		{Shape: []int{4}, Strides: []int{math.MaxInt}},
		{Shape: []int{4}, Strides: []int{math.MinInt}},
		{Shape: []int{1}, Offset: math.MaxInt64},
		{Shape: []int{0}, Offset: math.MaxInt64},
	} {
		x.Storage, x.DType = s, device.Float32
		if err := x.Check(); err == nil {
			t.Errorf("shape %v strides %v offset %d was accepted", x.Shape, x.Strides, x.Offset)
		}
	}
	for _, x := range []device.Tensor{
		{Shape: []int{300_000}}, {Shape: []int{0, 1 << 40}}, {Shape: []int{1 << 40, 4}, Strides: []int{0, 1}},
		{Shape: []int{4}, Strides: []int{-1}, Offset: 3},
	} {
		x.Storage, x.DType = s, device.Float32
		if err := x.Check(); err != nil {
			t.Error(err)
		}
	}
}
