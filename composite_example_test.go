package offload_test

import (
	"context"
	"fmt"
	"log"

	"offload"
	"offload/device"
	"offload/device/sim"
)

// A quantised activation leaves the device and comes back as one value: the data
// move, the few scales stay, and the columns are still absent.
func ExampleSlot_PushComposite() {
	dev := sim.New(sim.Config{})
	ids := device.NewIDs(dev)
	compute := ids.Stream()
	submit := func(ops ...device.Op) {
		if err := dev.Submit(&device.Batch{Ops: ops}); err != nil {
			log.Fatal(err)
		}
	}
	must := func(err error) {
		if err != nil {
			log.Fatal(err)
		}
	}
	submit(device.Op{Kind: device.OpenStream, Stream: compute})
	tensor := func(name string, dt device.DType, shape ...int) device.Tensor {
		t := device.Tensor{DType: dt, Shape: shape}
		t.Storage = ids.NewStorage(name, device.Activation, t.Bytes(), compute)
		submit(device.Op{Kind: device.Alloc, Stream: compute, Dst: t.Range()},
			device.Op{Kind: device.Launch, Stream: compute, Kernel: &device.Kernel{
				Name: "quantise", Args: []device.Arg{{Range: t.Range()}}, Writes: []device.Range{t.Range()}}})
		return t
	}
	dev.Register("quantise", func(c *sim.Call) error {
		y := c.Write(c.Arg(0).Range)
		for i := range y {
			y[i] = byte(i)
		}
		return nil
	})

	engine, err := offload.Open(dev, offload.Options{Layers: 1}) // a manual plan
	must(err)
	pass, err := engine.Begin(context.Background(), offload.Train, compute)
	must(err)
	slot, err := pass.Forward(0)
	must(err)
	saved, err := slot.PushComposite(&offload.Quantized{
		RowData:         tensor("x", device.Float8E4M3, 1024, 1024),
		RowInverseScale: tensor("x scale", device.Scale8E0M0, 1024, 32),
		Format:          offload.MXFP8, DType: device.BFloat16, Shape: []int{1024, 1024},
	})
	must(err)
	must(slot.StartOffload())
	must(slot.Release())
	fmt.Println("on the device:", dev.Usage().InUse, "bytes")

	must(slot.Reload())
	c, err := slot.PopComposite(saved)
	must(err)
	x := c.(*offload.Quantized)
	fmt.Println(x.Format, x.RowData, "and", x.RowInverseScale)
	fmt.Println("columns:", x.ColumnData)

	must(pass.End())
	must(engine.Close())
	submit(device.Op{Kind: device.CloseStream, Stream: compute})
	must(dev.Close())
	fmt.Println("findings:", len(dev.Findings()))
	// Output:
	// on the device: 32768 bytes
	// MXFP8 float8e4m3[1024 1024] of x and scale8e0m0[1024 32] of x scale
	// columns: absent tensor
	// findings: 0
}
