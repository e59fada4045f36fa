//go:build !cuda

package cuda

import (
	"errors"
	"fmt"

	"offload/device/cuda"
)

// Kernels are the kernels of one device. There are none in this build.
type Kernels struct{}

// Register returns an error that wraps errors.ErrUnsupported.
func Register(*cuda.Device) (*Kernels, error) {
	return nil, fmt.Errorf("nn/ops/cuda: built without the tag cuda; build with \"go build -tags cuda\": %w", errors.ErrUnsupported)
}

// Close does nothing.
func (*Kernels) Close() error { return nil }
