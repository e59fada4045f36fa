//go:build !cuda

package blas

import (
	"errors"
	"fmt"

	"offload/device/cuda"
)

// Multiplier makes products on one device. There is none in this build.
type Multiplier struct{}

// Open returns an error that wraps errors.ErrUnsupported.
func Open(*cuda.Device) (*Multiplier, error) {
	return nil, fmt.Errorf("blas: built without the tag cuda; build with \"go build -tags cuda\": %w", errors.ErrUnsupported)
}
