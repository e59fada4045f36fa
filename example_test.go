package offload_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"log"

	"offload"
	"offload/device"
	"offload/device/sim"
	"offload/schedule"
)

// A model of three layers, each of which adds its number to every element. In
// forward a layer saves its input; in backward it takes it back.
func Example() {
	const layers, elements = 3, 1024
	dev := sim.New(sim.Config{})
	dev.Register("add", func(c *sim.Call) error {
		x, y := c.ReadFloat32(c.Arg(0).Range), c.WriteFloat32(c.Arg(1).Range)
		for i := range y {
			y[i] = x[i] + float32(c.Arg(2).Float)
		}
		return nil
	})
	dev.Register("fill", func(c *sim.Call) error {
		y := c.WriteFloat32(c.Arg(0).Range)
		for i := range y {
			y[i] = float32(c.Arg(1).Float)
		}
		return nil
	})

	// The device side of the loop: a compute stream, and a way to submit work.
	ids := device.NewIDs(dev)
	compute := ids.Stream()
	submit := func(ops ...device.Op) {
		if err := dev.Submit(&device.Batch{Ops: ops}); err != nil {
			log.Fatal(err)
		}
	}
	submit(device.Op{Kind: device.OpenStream, Stream: compute})
	tensor := func(name string) device.Tensor {
		s := ids.NewStorage(name, device.Activation, elements*4, compute)
		t := device.Tensor{Storage: s, DType: device.Float32, Shape: []int{elements}}
		submit(device.Op{Kind: device.Alloc, Stream: compute, Dst: t.Range()})
		return t
	}
	launch := func(name string, args []device.Arg, reads, writes []device.Range) {
		submit(device.Op{Kind: device.Launch, Stream: compute,
			Kernel: &device.Kernel{Name: name, Args: args, Reads: reads, Writes: writes}})
	}

	// The first of the three layers goes to the host, the others stay.
	plan, err := schedule.Window(layers, 1)
	if err != nil {
		log.Fatal(err)
	}
	engine, err := offload.Open(dev, offload.Options{Plan: plan, MinElements: elements})
	if err != nil {
		log.Fatal(err)
	}

	pass, err := engine.Begin(context.Background(), offload.Train, compute)
	if err != nil {
		log.Fatal(err)
	}
	saved := make([][]offload.Saved, layers)
	x := tensor("x0")
	launch("fill", []device.Arg{{Range: x.Range()}, {Float: 0.5}}, nil, []device.Range{x.Range()})
	for i := range layers {
		slot, err := pass.Forward(i)
		if err != nil {
			log.Fatal(err)
		}
		y := tensor(fmt.Sprintf("x%d", i+1))
		launch("add", []device.Arg{{Range: x.Range()}, {Range: y.Range()}, {Float: float64(i)}},
			[]device.Range{x.Range()}, []device.Range{y.Range()})
		if saved[i], err = slot.Push(x); err != nil { // x is the engine's from here on
			log.Fatal(err)
		}
		x = y
	}
	submit(device.Op{Kind: device.Free, Stream: compute, Dst: x.Range()}) // the output
	x.Storage.Freed()

	for i := layers - 1; i >= 0; i-- {
		slot, err := pass.Backward(i)
		if err != nil {
			log.Fatal(err)
		}
		back, err := slot.Pop(saved[i]...)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("layer %d: %v begins with %v\n", i, back[0], first(dev, ids, compute, back[0]))
	}
	if err := pass.End(); err != nil {
		log.Fatal(err)
	}
	m := engine.Metrics()
	fmt.Printf("%d bytes out, %d bytes in, %d storages held\n", m.BytesOut, m.BytesIn, m.StoragesHeld)

	if err := engine.Close(); err != nil {
		log.Fatal(err)
	}
	submit(device.Op{Kind: device.CloseStream, Stream: compute})
	if err := dev.Close(); err != nil {
		log.Fatal(err)
	}
	fmt.Println("findings:", len(dev.Findings()))
	// Output:
	// layer 2: float32[1024] of x2 begins with 1.5
	// layer 1: float32[1024] of x1 begins with 0.5
	// layer 0: float32[1024] of x0 begins with 0.5
	// 4096 bytes out, 4096 bytes in, 0 storages held
	// findings: 0
}

// first copies the first element to the host and returns it.
func first(dev device.Device, ids *device.IDs, stream device.Stream, t device.Tensor) float32 {
	host := device.Range{Buffer: ids.Buffer(device.OnHost), Bytes: 4}
	err := dev.Submit(&device.Batch{Ops: []device.Op{
		{Kind: device.Pin, Dst: host},
		{Kind: device.CopyOut, Stream: stream, Dst: host, Src: t.Range().Sub(0, 4)},
		{Kind: device.SyncStream, Stream: stream},
		{Kind: device.HostRead, Src: host},
	}})
	if err != nil {
		log.Fatal(err)
	}
	memory, err := dev.Lookup(host.Buffer)
	if err != nil {
		log.Fatal(err)
	}
	var value float32
	if _, err := binary.Decode(memory.Host, binary.LittleEndian, &value); err != nil {
		log.Fatal(err)
	}
	if err := dev.Submit(&device.Batch{Ops: []device.Op{{Kind: device.Unpin, Dst: host}}}); err != nil {
		log.Fatal(err)
	}
	ids.PutBuffer(host.Buffer)
	return value
}
