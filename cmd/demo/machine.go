package main

import (
	"offload/device"
	"offload/device/sim"
	kernels "offload/nn/ops/sim"
)

// machine is a device to train on, with what its checker has to say.
type machine struct {
	device.Device
	// findings returns how many breaches of the order of streams, events and
	// memory the checker found, and describes the first of them.
	findings func() (n int64, first string)
}

// newMachine makes the device of one run, with the kernels of package nn. limit
// is its memory in bytes, zero for no limit.
func newMachine(c config, _ string, limit int64) (machine, error) {
	if c.device == "cuda" {
		return newGPU(limit)
	}
	d := sim.New(sim.Config{MemoryLimit: limit, Seed: c.seed})
	kernels.Register(d)
	return machine{Device: d, findings: func() (int64, string) {
		list := d.Findings()
		if len(list) == 0 {
			return 0, ""
		}
		return int64(d.Stats().Findings), list[0].String()
	}}, nil
}
