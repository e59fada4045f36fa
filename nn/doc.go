// Package nn trains a small residual network with offloaded activations. It is
// the model of the demo, and a user of package offload like any other.
//
// # The network
//
// An [MLP] maps images of Inputs pixels to Classes scores:
//
//	x0     = images · W                            input projection, Inputs to Width
//	x(i+1) = xi + squaredReLU(xi · W1) · W2        Blocks residual blocks, Width to Hidden to Width
//	scores = x · W                                 head, Width to Classes
//
// The loss is the softmax cross-entropy, averaged over the batch. The optimiser
// is plain stochastic gradient descent on gradients whose global norm is
// clipped. Everything is float32; the weights start from Config.Seed alone.
//
// The first weights suit images whose elements have mean 0 and standard
// deviation 1. Pixels of written digits, 0 to 1, have mean 0.1307 and deviation
// 0.3081: standardised with these, the default configuration learns them to 94
// percent in 100 steps; as they are, to 90 percent.
//
// # Layers
//
// Offloading sees Config.Layers layers, forward in this order and backward in
// the opposite one; [Config.LayerName] names them:
//
//	layer            saves for backward
//	0                images [batch Inputs]
//	1 .. Blocks      x [batch Width], pre = x·W1 and act = squaredReLU(pre) [batch Hidden]
//	Blocks+1         x [batch Width], the gradient of the scores [batch Classes]
//
// Between its forward and its backward a [Run] holds nothing of these but the
// offload.Saved values. A model that shall keep everything on the device is
// given an engine whose plan offloads nothing.
//
// # Order
//
// [MLP.Step] is a whole training step, and [MLP.StepInTurns] one of several
// micro-batches whose passes are in flight together. Their parts are there for
// other loops: [MLP.Forward] and [MLP.Backward] for each pass, in any order that
// keeps a pass's own order, gradients adding up, then one [MLP.Update]. Each
// part enqueues work on the model's stream and returns; only [Run.Result] waits.
//
// # Concurrency
//
// An MLP and its runs belong to one goroutine. Passes must be begun on the
// stream that the model was made with.
//
// # Ownership
//
// The model owns weights, gradients and the pinned memory for its batches until
// [MLP.Close]. What a layer saves is the engine's from the push on in a training
// pass, and freed by the model as soon as the next layer has it in an inference
// pass. When Forward or Backward fails, the run has freed all that it held; the
// caller aborts the pass, which frees what the engine holds.
//
// # Use
//
//	m, err := nn.New(dev, stream, nn.Config{Seed: 1})
//	plan, err := schedule.Window(m.Config().Layers(), 4)
//	engine, err := offload.Open(dev, offload.Options{Plan: plan})
//	result, err := m.Step(ctx, engine, nn.Batch{Images: images, Labels: labels})
package nn
