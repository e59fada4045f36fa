package offload_test

import (
	"context"
	"errors"
	"testing"

	"offload"
	"offload/device"
	"offload/device/null"
)

// What a device's actor held when it panicked stays on the device: the end of
// every later pass says so.
func TestEndAfterAPanicOfTheDeviceActor(t *testing.T) {
	dev := null.New()
	ids := device.NewIDs(dev)
	stream := ids.Stream()
	armed := false
	engine, err := offload.Open(dev, offload.Options{Layers: 1, MinElements: 1, Listener: &offload.EventListener{
		Batch: func(offload.BatchInfo) {
			if armed {
				panic("a listener that panics")
			}
		},
	}})
	if err != nil {
		t.Fatal(err)
	}
	var panicked *offload.PanicError
	for range 2 {
		pass, err := engine.Begin(context.Background(), offload.Train, stream)
		if err != nil {
			t.Fatal(err)
		}
		slot, err := pass.Forward(0)
		if err != nil {
			t.Fatal(err)
		}
		armed = true
		s := ids.NewStorage("x", device.Activation, 64, stream)
		if _, err := slot.Push(device.Tensor{Storage: s, DType: device.Uint8, Shape: []int{64}}); !errors.As(err, &panicked) {
			t.Errorf("push: got %v, want the panic", err)
		}
		armed = false
		if err := pass.End(); !errors.As(err, &panicked) {
			t.Errorf("end: got %v, want the panic", err)
		}
	}
	if err := engine.Close(); !errors.As(err, &panicked) {
		t.Errorf("close: got %v, want the panic", err)
	}
}
