package nn

import (
	"errors"
	"fmt"

	"offload/device"
	"offload/nn/ops"
)

// MLP is the network together with its gradients and optimiser. See the
// package comment.
type MLP struct {
	config  Config
	arena   *ops.Arena
	scope   *ops.Scope // holds the weights
	weights weights
	spent   bool     // the gradients are used up: the next backward starts from zero
	idle    []*stage // not used by any run
}

// New allocates the weights on dev, in the order of stream, and uploads first
// values that depend on c.Seed and the shapes alone. The stream stays the
// caller's, who closes it after the model. The kernels of package nn/ops must be
// registered with the device.
func New(dev device.Device, stream device.Stream, c Config) (*MLP, error) {
	c.EnsureDefaults()
	if err := c.Validate(); err != nil {
		return nil, fmt.Errorf("nn: configuration: %w", err)
	}
	m := &MLP{config: c, arena: ops.NewArena(dev, stream), spent: true}
	m.scope = m.arena.Scope()
	var err error
	m.weights, err = newWeights(m.arena, m.scope, c)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("nn: first weights: %w", err), m.arena.Close())
	}
	st, err := m.newStage() // pinned now, not in the first step
	if err != nil {
		return nil, errors.Join(fmt.Errorf("nn: memory for a batch: %w", err), m.arena.Close())
	}
	m.idle = append(m.idle, st)
	return m, nil
}

// Config returns the configuration with its defaults set.
func (m *MLP) Config() Config { return m.config }

// Update moves the weights against the gradients that were summed up since the
// last update: one step of gradient descent with the global norm clipped. The
// next Backward starts from zero gradients.
func (m *MLP) Update() error {
	if m.spent {
		return errors.New("nn: update: there are no gradients; a whole Backward since the last update makes them")
	}
	w := &m.weights
	m.arena.Launch(ops.SumSquares(w.norm, w.grad))
	m.arena.Launch(ops.SGD(w.value, w.grad, w.norm, float32(m.config.LearningRate), float32(m.config.Clip)))
	if err := m.arena.Flush(device.Origin{Action: "update weights"}); err != nil {
		return fmt.Errorf("nn: %w", err)
	}
	m.spent = true
	return nil
}

// Weights waits for the device and returns all weights: the input projection,
// W1 and W2 of each block, the head, each in row-major order.
func (m *MLP) Weights() ([]float32, error) {
	values, err := m.weights.read(m.arena, m.weights.value)
	if err != nil {
		return nil, fmt.Errorf("nn: weights: %w", err)
	}
	return values, nil
}

// Close waits for the stream and gives back all memory of the model and of runs
// that are not ended. What an engine has taken over is the engine's: end or
// abort the passes before.
func (m *MLP) Close() error { return m.arena.Close() }
