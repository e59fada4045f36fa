package nn

import (
	"errors"
	"fmt"

	"offload"
	"offload/device"
	"offload/nn/ops"
)

// Run is one batch on its way through the network: forward, in a training pass
// backward, and the result.
type Run struct {
	m        *MLP
	training bool
	samples  int
	whole    int
	saved    [][]offload.Saved // by layer; nil once backward has begun
	scope    *ops.Scope        // what is between two layers
	x        device.Tensor     // forward: input of the next layer; backward: gradient of its output
	labels   device.Tensor
	stage    *stage       // nil once the result is read
	done     device.Event // the result is in the stage
}

// Forward enqueues the forward of a pass, which was begun on the model's stream
// and has seen no layer yet. In a training pass the run keeps what Backward
// needs; in an inference pass it frees each layer's tensors behind the layer.
//
// An error is an *[Error] that names the layer, unless b itself is at fault.
// The run then has freed what it held, and the caller aborts the pass.
func (m *MLP) Forward(pass *offload.Pass, b Batch) (*Run, error) {
	if err := m.config.check(b); err != nil {
		return nil, err
	}
	st, err := m.takeStage()
	if err != nil {
		return nil, fmt.Errorf("nn: memory for a batch: %w", err)
	}
	r := &Run{
		m:        m,
		training: pass.Kind() == offload.Train,
		samples:  len(b.Labels),
		whole:    or(b.Whole, len(b.Labels)),
		saved:    make([][]offload.Saved, m.config.Layers()),
		scope:    m.arena.Scope(),
		stage:    st,
	}
	for layer := range r.saved {
		if err := r.forward(pass, layer, b); err != nil {
			return nil, errors.Join(m.failed(layer, "forward", err), r.Discard())
		}
	}
	if err := m.arena.Flush(device.Origin{Action: "forward end", Pass: pass.Number()}); err != nil {
		return nil, errors.Join(fmt.Errorf("nn: %w", err), r.Discard())
	}
	return r, nil
}

// forward enqueues one layer as one batch, then hands over what it saves: the
// engine notes at the push that everything saved is ready.
func (r *Run) forward(pass *offload.Pass, layer int, b Batch) error {
	slot, err := pass.Forward(layer)
	if err != nil {
		return err
	}
	var keep []device.Tensor
	switch layer {
	case 0:
		keep = r.input(b)
	case r.m.config.Blocks + 1:
		keep = r.head()
	default:
		keep = r.block(layer)
	}
	if err := r.m.arena.Flush(origin(pass, "forward", layer)); err != nil {
		return err
	}
	r.saved[layer], err = slot.Push(keep...)
	if err != nil {
		return err
	}
	r.scope.Free(keep...) // now the engine's; in an inference pass the last hold
	return nil
}

func (r *Run) input(b Batch) (keep []device.Tensor) {
	c := r.m.config
	w, _ := r.m.weights.of(0)
	images := r.scope.Alloc("images", device.Activation, device.Float32, r.samples, c.Inputs)
	r.labels = r.scope.Alloc("labels", device.Index, device.Int32, r.samples)
	r.stage.upload(b, images, r.labels)
	r.x = r.alloc(1, "x", c.Width)
	r.m.arena.Launch(ops.MatMul(r.x, images, w[0], ops.Product{}))
	return []device.Tensor{images}
}

func (r *Run) block(layer int) (keep []device.Tensor) {
	c, a, x := r.m.config, r.m.arena, r.x
	w, _ := r.m.weights.of(layer)
	pre := r.alloc(layer, "pre", c.Hidden)
	act := r.alloc(layer, "act", c.Hidden)
	r.x = r.alloc(layer+1, "x", c.Width)
	a.Launch(ops.MatMul(pre, x, w[0], ops.Product{}))
	a.Launch(ops.SquaredReLU(act, pre))
	a.Launch(ops.MatMul(r.x, act, w[1], ops.Product{}))
	a.Launch(ops.AddScaled(r.x, x, 1))
	return []device.Tensor{x, pre, act}
}

// head makes the scores, and in training turns them into their gradient.
func (r *Run) head() (keep []device.Tensor) {
	c, a, x := r.m.config, r.m.arena, r.x
	w, _ := r.m.weights.of(c.Blocks + 1)
	scores := r.alloc(c.Blocks+1, "scores", c.Classes)
	result := r.scope.Alloc("result", device.Workspace, device.Float32, 2)
	var grad device.Tensor
	if r.training {
		grad = scores
	}
	a.Launch(ops.MatMul(scores, x, w[0], ops.Product{}))
	a.Launch(ops.CrossEntropy(result, grad, scores, r.labels, 1/float32(r.whole)))
	r.stage.host.CopyOut(r.stage.result, result)
	r.done = a.Mark()
	r.scope.Free(r.labels, result)
	r.x = device.Tensor{}
	return []device.Tensor{x, scores}
}

// Backward enqueues the backward of a training pass, from the head to the input
// projection, and adds to the model's gradients. Errors are as with Forward; the
// sum of gradients is then spoilt, and the next Backward starts from zero.
func (m *MLP) Backward(pass *offload.Pass, r *Run) error {
	if r.m != m || !r.training || r.saved == nil {
		return errors.New("nn: backward needs a run that this model's Forward has returned, once")
	}
	saved := r.saved
	r.saved = nil
	for layer := len(saved) - 1; layer >= 0; layer-- {
		if err := r.backward(pass, layer, saved[layer]); err != nil {
			m.spent = true
			return errors.Join(m.failed(layer, "backward", err), r.Discard())
		}
		m.spent = false // the head has cleared the gradients if they were
	}
	r.scope.Close() // empty
	return nil
}

// backward enqueues one layer as one batch, before the next layer's backward
// makes what was popped here invalid.
func (r *Run) backward(pass *offload.Pass, layer int, saved []offload.Saved) error {
	slot, err := pass.Backward(layer)
	if err != nil {
		return err
	}
	ts, err := slot.Pop(saved...)
	if err != nil {
		return err
	}
	switch layer {
	case 0:
		r.inputGrad(ts[0])
	case r.m.config.Blocks + 1:
		r.headGrad(ts[0], ts[1])
	default:
		r.blockGrad(layer, ts[0], ts[1], ts[2])
	}
	return r.m.arena.Flush(origin(pass, "backward", layer))
}

func (r *Run) headGrad(x, scores device.Tensor) {
	c, a := r.m.config, r.m.arena
	w, dw := r.m.weights.of(c.Blocks + 1)
	if r.m.spent {
		a.Launch(ops.Fill(r.m.weights.grad, 0))
	}
	r.x = r.alloc(c.Blocks+1, "dx", c.Width)
	a.Launch(ops.MatMul(dw[0], x, scores, ops.Product{TransposeA: true, Accumulate: true}))
	a.Launch(ops.MatMul(r.x, scores, w[0], ops.Product{TransposeB: true}))
}

// blockGrad turns the gradient of the block's output into that of its input, in place.
func (r *Run) blockGrad(layer int, x, pre, act device.Tensor) {
	c, a := r.m.config, r.m.arena
	w, dw := r.m.weights.of(layer)
	d := r.alloc(layer, "dpre", c.Hidden)
	a.Launch(ops.MatMul(d, r.x, w[1], ops.Product{TransposeB: true}))
	a.Launch(ops.MatMul(dw[1], act, r.x, ops.Product{TransposeA: true, Accumulate: true}))
	a.Launch(ops.SquaredReLUGrad(d, pre))
	a.Launch(ops.MatMul(dw[0], x, d, ops.Product{TransposeA: true, Accumulate: true}))
	a.Launch(ops.MatMul(r.x, d, w[0], ops.Product{TransposeB: true, Accumulate: true}))
	r.scope.Free(d)
}

func (r *Run) inputGrad(images device.Tensor) {
	_, dw := r.m.weights.of(0)
	r.m.arena.Launch(ops.MatMul(dw[0], images, r.x, ops.Product{TransposeA: true, Accumulate: true}))
	r.scope.Free(r.x)
	r.x = device.Tensor{}
}

// Result waits until the forward has ended on the device and returns its loss
// and accuracy. It may be called once, before or after Backward and Update: it
// waits for no work behind the forward.
func (r *Run) Result() (Result, error) {
	if r.stage == nil {
		return Result{}, errors.New("nn: the result of this run was read before, or the run was discarded")
	}
	if err := r.m.arena.Await(r.done); err != nil {
		return Result{}, errors.Join(fmt.Errorf("nn: result: %w", err), r.Discard())
	}
	loss, hits, err := r.stage.read()
	r.m.idle = append(r.m.idle, r.stage)
	r.stage = nil
	if err != nil {
		return Result{}, fmt.Errorf("nn: result: %w", err)
	}
	n := float64(r.samples)
	return Result{Samples: r.samples, Loss: float64(loss) / n, Accuracy: float64(hits) / n}, nil
}

// Discard ends a run whose pass is given up between Forward and Backward, or
// whose result is not wanted. It waits for the stream and frees what the run
// holds. It may be called at any time and more than once.
func (r *Run) Discard() error {
	r.saved = nil
	r.scope.Close()
	err := r.m.arena.Flush(device.Origin{Action: "discard run"})
	if r.stage == nil {
		return err
	}
	// The copies of the stage may still be under way.
	if err := errors.Join(err, r.m.arena.Sync()); err != nil {
		return err // the stage is not used again; Close gives it back
	}
	if !r.done.IsZero() {
		err = r.m.arena.Await(r.done)
	}
	r.m.idle = append(r.m.idle, r.stage)
	r.stage = nil
	return err
}

// alloc allocates an activation of the run. The name is for messages.
func (r *Run) alloc(layer int, name string, columns int) device.Tensor {
	full := r.m.config.LayerName(layer) + " " + name
	return r.scope.Alloc(full, device.Activation, device.Float32, r.samples, columns)
}

func (m *MLP) failed(layer int, phase string, err error) error {
	return &Error{Layer: layer, Name: m.config.LayerName(layer), Phase: phase, Err: err}
}

func origin(pass *offload.Pass, phase string, layer int) device.Origin {
	return device.Origin{Action: phase, Pass: pass.Number(), Layer: layer}
}
