//go:build !cuda

package cuda

import (
	"errors"
	"fmt"
)

// Open returns an error that wraps errors.ErrUnsupported: this build has no driver.
func Open(ordinal int, o Options) (*Device, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	return nil, fmt.Errorf("cuda: GPU %d: built without the tag cuda; build with \"go build -tags cuda\" (see make cuda): %w",
		ordinal, errors.ErrUnsupported)
}

// Count returns the number of GPUs, none in this build.
func Count() (int, error) { return 0, nil }
