package nn

import (
	"errors"
	"fmt"
)

// Config describes an MLP and how it is trained. A field that is zero gets the
// default in brackets.
type Config struct {
	Inputs  int // elements of an image [784]
	Width   int // elements of the residual stream [128]
	Hidden  int // elements inside a block [Width]
	Blocks  int // residual blocks [6]
	Classes int // scores of an image [10]
	Batch   int // largest number of images in a run [2048]

	LearningRate float64 // [0.3]
	Clip         float64 // largest global norm of the gradients [0.5]
	Seed         uint64  // of the first weights
}

// EnsureDefaults sets the fields that are zero.
func (c *Config) EnsureDefaults() {
	c.Inputs = or(c.Inputs, 784)
	c.Width = or(c.Width, 128)
	c.Hidden = or(c.Hidden, c.Width)
	c.Blocks = or(c.Blocks, 6)
	c.Classes = or(c.Classes, 10)
	c.Batch = or(c.Batch, 2048)
	c.LearningRate = or(c.LearningRate, 0.3)
	c.Clip = or(c.Clip, 0.5)
}

func or[T int | float64](value, zero T) T {
	if value == 0 {
		return zero
	}
	return value
}

// Validate reports every fault of a configuration with its defaults set.
func (c Config) Validate() error {
	var errs []error
	for _, f := range []struct {
		name  string
		value int
	}{
		{"Inputs", c.Inputs}, {"Width", c.Width}, {"Hidden", c.Hidden},
		{"Blocks", c.Blocks}, {"Classes", c.Classes}, {"Batch", c.Batch},
	} {
		if f.value < 1 {
			errs = append(errs, fmt.Errorf("%s is %d; it must be at least 1", f.name, f.value))
		}
	}
	for _, f := range []struct {
		name  string
		value float64
	}{{"LearningRate", c.LearningRate}, {"Clip", c.Clip}} {
		if !(f.value > 0) {
			errs = append(errs, fmt.Errorf("%s is %v; it must be above 0", f.name, f.value))
		}
	}
	return errors.Join(errs...)
}

// String describes the network on one line.
func (c Config) String() string {
	return fmt.Sprintf("mlp %d-%d-%d, %d blocks of %d, batch %d, learning rate %v, clip %v, seed %d",
		c.Inputs, c.Width, c.Classes, c.Blocks, c.Hidden, c.Batch, c.LearningRate, c.Clip, c.Seed)
}

// Layers returns the number of layers that offloading sees: the input
// projection, the blocks and the head.
func (c Config) Layers() int { return c.Blocks + 2 }

// LayerName returns what people call a layer: "input", "block 1" or "head".
func (c Config) LayerName(layer int) string {
	switch {
	case layer == 0:
		return "input"
	case layer == c.Blocks+1:
		return "head"
	}
	return fmt.Sprintf("block %d", layer)
}

// Parameters returns the number of weights.
func (c Config) Parameters() int {
	n := 0
	for _, p := range c.parameters() {
		n += p.rows * p.columns
	}
	return n
}
