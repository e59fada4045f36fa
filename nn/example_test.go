package nn_test

import (
	"context"
	"fmt"
	"math/rand/v2"

	"offload"
	"offload/device"
	"offload/device/sim"
	"offload/nn"
	opssim "offload/nn/ops/sim"
	"offload/schedule"
)

// A network learns which of its inputs is the largest, while the activations of
// three of its four layers wait for the backward in host memory.
func Example() {
	if err := learn(); err != nil {
		fmt.Println(err)
	}
	// Output:
	// mlp 4-32-4, 2 blocks of 32, batch 64, learning rate 0.3, clip 0.5, seed 1
	// loss below a third: true
	// bytes left: 0
}

func learn() error {
	dev := sim.New(sim.Config{})
	opssim.Register(dev)
	stream := device.NewIDs(dev).Stream()
	open := device.Batch{Ops: []device.Op{{Kind: device.OpenStream, Stream: stream}}}
	if err := dev.Submit(&open); err != nil {
		return err
	}
	model, err := nn.New(dev, stream, nn.Config{Inputs: 4, Width: 32, Blocks: 2, Classes: 4, Batch: 64, Seed: 1})
	if err != nil {
		return err
	}
	fmt.Println(model.Config())
	plan, err := schedule.Window(model.Config().Layers(), 3)
	if err != nil {
		return err
	}
	engine, err := offload.Open(dev, offload.Options{Plan: plan, MinElements: 1, SlabBytes: 1 << 20})
	if err != nil {
		return err
	}

	rng := rand.New(rand.NewPCG(1, 0))
	var first, last nn.Result
	for i := range 200 {
		last, err = model.Step(context.Background(), engine, largest(rng, 64))
		if err != nil {
			return err
		}
		if i == 0 {
			first = last
		}
	}
	fmt.Println("loss below a third:", last.Loss < first.Loss/3)

	if err := model.Close(); err != nil {
		return err
	}
	if err := engine.Close(); err != nil {
		return err
	}
	fmt.Println("bytes left:", dev.Usage().InUse)
	return dev.Close()
}

// largest returns n images of four random elements; the label is the largest one.
func largest(rng *rand.Rand, n int) nn.Batch {
	var b nn.Batch
	for range n {
		label := 0
		image := make([]float32, 4)
		for j := range image {
			image[j] = float32(rng.NormFloat64())
			if image[j] > image[label] {
				label = j
			}
		}
		b.Images = append(b.Images, image...)
		b.Labels = append(b.Labels, int32(label))
	}
	return b
}
