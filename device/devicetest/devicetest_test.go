package devicetest_test

import (
	"testing"

	"offload/device"
	"offload/device/devicetest"
	"offload/device/sim"
)

func TestSim(t *testing.T) {
	for _, order := range []sim.Order{sim.Eager, sim.Seeded} {
		t.Run(order.String(), func(t *testing.T) {
			devicetest.Run(t, func(t *testing.T, o devicetest.Options) device.Device {
				c := sim.Config{MemoryLimit: o.MemoryLimit, Order: order, Seed: 1}
				if !o.Unclean {
					c.OnFinding = func(f sim.Finding) { t.Errorf("finding: %v", f) }
				}
				return sim.New(c)
			})
		})
	}
}
