package schedule

import (
	"errors"
	"fmt"
)

// ErrInvalid is returned, with the reason, for a plan that cannot be made.
var ErrInvalid = errors.New("invalid plan")

// Window plans to offload the first layers of a model, numbers 0 to
// offloaded-1, so that at most layers-offloaded sets are on the device at any
// time, the running layer's own among them.
//
// Layer i starts to move out at the forward of layer i+1. It is released at the
// forward of layer layers-offloaded+i, and starts to move in at the backward of
// layer layers-offloaded-1+i. Either copy has the compute of
// layers-offloaded-1 layers to hide behind. The order within a boundary is
// start-offload before release in forward, and reset before reload in backward.
//
// With offloaded = 0 nothing moves. With offloaded = layers-1, copies have
// nothing to hide behind; the plan is made all the same, with a
// [Plan.Warning]. More than that, or a negative number, is [ErrInvalid]: the
// running layer's own set cannot be elsewhere.
func Window(layers, offloaded int) (*Plan, error) {
	if err := checkLayers(layers); err != nil {
		return nil, err
	}
	if offloaded < 0 || offloaded >= layers {
		return nil, fmt.Errorf("%w: offloading %d of %d layers: want from 0 to %d, because the running layer must be on the device",
			ErrInvalid, offloaded, layers, layers-1)
	}
	stay := layers - offloaded
	b := newBuilder(fmt.Sprintf("window: %d layers, %d offloaded", layers, offloaded), layers)
	for layer := range layers {
		b.boundary(Boundary{Phase: Forward, Layer: layer})
		if before := layer - 1; before >= 0 && before < offloaded {
			b.add(StartOffload, before)
		}
		if layer >= stay {
			b.add(Release, layer-stay)
		}
	}
	for layer := layers - 1; layer >= 0; layer-- {
		b.backward(layer)
		if i := layer - (stay - 1); i >= 0 && i < offloaded {
			b.add(Reload, i)
		}
	}
	b.end()
	if offloaded > 0 && stay == 1 {
		b.plan.warning = fmt.Sprintf("offloading %d of %d layers leaves no compute to hide the copies behind; offload at most %d for that",
			offloaded, layers, layers-2)
	}
	return b.build(), nil
}

// Manual plans to move nothing: offload, release and reload of each layer are
// the caller's, in that order and before the layer's backward. A layer for
// which none is called stays on the device. The plan only resets each set at
// the first boundary after its backward. Fewer layers than one is [ErrInvalid].
func Manual(layers int) (*Plan, error) {
	if err := checkLayers(layers); err != nil {
		return nil, err
	}
	b := newBuilder(fmt.Sprintf("manual: %d layers", layers), layers)
	b.plan.manual = true
	for layer := range layers {
		b.boundary(Boundary{Phase: Forward, Layer: layer})
	}
	for layer := layers - 1; layer >= 0; layer-- {
		b.backward(layer)
	}
	b.end()
	return b.build(), nil
}

func checkLayers(layers int) error {
	if layers < 1 {
		return fmt.Errorf("%w: %d layers: want at least 1", ErrInvalid, layers)
	}
	return nil
}

// backward adds the boundary before the backward of layer, with the reset of
// the layer whose backward ran before it.
func (b *builder) backward(layer int) {
	b.boundary(Boundary{Phase: Backward, Layer: layer})
	if before := layer + 1; before < b.plan.layers {
		b.add(Reset, before)
	}
}

// end adds the boundary after the pass, with the reset of the layer whose
// backward ran last.
func (b *builder) end() {
	b.boundary(Boundary{Phase: End})
	b.add(Reset, 0)
}
