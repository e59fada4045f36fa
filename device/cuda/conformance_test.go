package cuda

import (
	"testing"

	"offload/device"
	"offload/device/devicetest"
)

func TestConformanceWithoutGPU(t *testing.T) {
	devicetest.Run(t, func(t *testing.T, o devicetest.Options) device.Device {
		return newDevice(newFake(1<<40), "fake", Options{MemoryLimit: o.MemoryLimit})
	})
}
