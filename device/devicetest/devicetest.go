// Package devicetest is the suite of tests that every device.Device passes.
//
// It knows the public interface alone, needs no kernels, and asks for exactly
// what package device promises: what is refused and with which error, what a
// batch that fails in its middle has done, in which order work runs, and which
// bytes come out.
//
// # Use
//
//	func TestConformance(t *testing.T) {
//		devicetest.Run(t, func(t *testing.T, o devicetest.Options) device.Device {
//			return mydevice.New(mydevice.Config{MemoryLimit: o.MemoryLimit})
//		})
//	}
//
// Copies go up to 64 MiB, up to 1 MiB under -short.
//
// # Concurrency
//
// The tests run one after the other. Some of them submit from many goroutines.
//
// # Ownership
//
// The suite closes every device that it opens. Before that it gives back what
// it made, except where [Options].Unclean says otherwise.
package devicetest

import (
	"testing"

	"offload/device"
)

// Options says what a test needs of a device.
type Options struct {
	// MemoryLimit is the device memory in bytes; zero means that a few hundred
	// MiB are enough.
	MemoryLimit int64
	// Unclean is set where the test asks for what must be refused, or leaves
	// something for Close to give back. A device that reports such things has
	// something to report then, and nothing otherwise.
	Unclean bool
}

// Open makes a device. It fails t when it cannot.
type Open func(t *testing.T, o Options) device.Device

// A check is one test of the suite.
type check struct {
	name    string
	options Options
	run     func(r *rig)
}

// Run runs the suite. Each test opens devices of its own.
func Run(t *testing.T, open Open) {
	for _, list := range [][]check{identity, events, memory, copies, batches, concurrency, closing} {
		for _, c := range list {
			t.Run(c.name, func(t *testing.T) {
				r := newRig(t, open, c.options)
				c.run(r)
				r.finish()
			})
		}
	}
}
