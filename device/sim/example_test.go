package sim_test

import (
	"fmt"

	"offload/device"
	"offload/device/sim"
)

// A copy out that does not wait for the kernel that produces its bytes. Whether
// the bytes come out right depends on the seed; the finding does not.
func Example() {
	d := sim.New(sim.Config{ID: 1})
	d.Register("produce", func(c *sim.Call) error {
		for i := range c.WriteFloat32(c.Arg(0).Range) {
			c.WriteFloat32(c.Arg(0).Range)[i] = 1
		}
		return nil
	})
	ids := device.NewIDs(d)
	compute, copies := ids.Stream(), ids.Stream()
	x := device.Range{Buffer: ids.Buffer(device.OnDevice), Bytes: 1024}
	h := device.Range{Buffer: ids.Buffer(device.OnHost), Bytes: 1024}
	allocated := ids.Event()
	err := d.Submit(&device.Batch{Origin: device.Origin{Action: "example"}, Ops: []device.Op{
		{Kind: device.OpenStream, Stream: compute},
		{Kind: device.OpenStream, Stream: copies},
		{Kind: device.Pin, Dst: h},
		{Kind: device.Alloc, Stream: compute, Dst: x},
		{Kind: device.Record, Stream: compute, Event: allocated},
		{Kind: device.Launch, Stream: compute, Kernel: &device.Kernel{
			Name: "produce", Args: []device.Arg{{Range: x}}, Writes: []device.Range{x}}},
		{Kind: device.Wait, Stream: copies, Event: allocated},
		{Kind: device.CopyOut, Stream: copies, Dst: h, Src: x},
		{Kind: device.SyncStream, Stream: copies},
	}})
	if err != nil {
		fmt.Println(err)
	}
	for _, f := range d.Findings() {
		fmt.Println(f.Rule)
		fmt.Println("first:", f.First)
		fmt.Println("second:", f.Second)
		fmt.Println("missing:", f.Missing)
	}
	// Output:
	// HB1 (read after write)
	// first: #6 launch "produce" on d1/s1.0 (operation 5 of example)
	// second: #8 copy-out on d1/s1.1 (operation 7 of example)
	// missing: stream d1/s1.1 must wait for an event recorded on stream d1/s1.0 after #6, before #8
}
