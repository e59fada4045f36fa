package main

import (
	"errors"

	"offload/device/cuda"
	kernels "offload/nn/ops/cuda"
)

// newGPU makes the device of one run on the first GPU. limit is its memory in
// bytes, zero for no limit but the GPU's. In a build without the tag cuda it
// returns the device's error, which says so.
func newGPU(limit int64) (machine, error) {
	d, err := cuda.Open(0, cuda.Options{MemoryLimit: limit})
	if err != nil {
		return machine{}, err
	}
	k, err := kernels.Register(d)
	if err != nil {
		return machine{}, errors.Join(err, d.Close())
	}
	return machine{Device: &gpu{d, k}, findings: func() (int64, string) { return 0, "" }}, nil // a GPU does not check
}

// gpu closes its kernels with the device.
type gpu struct {
	*cuda.Device
	kernels *kernels.Kernels
}

func (g *gpu) Close() error { return errors.Join(g.kernels.Close(), g.Device.Close()) }
