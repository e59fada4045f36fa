//go:build !cuda

package main

import "offload/device/cuda"

// openGPU says why there is no GPU in this build.
func openGPU() (*gpu, func() error, error) {
	_, err := cuda.Open(0, cuda.Options{})
	return nil, nil, err
}
