package rig

import (
	"sync/atomic"
	"testing"

	"offload"
	"offload/device"
)

// Gate is a device that lets every batch through unless told otherwise.
type Gate struct {
	device.Device
	before atomic.Pointer[func(*device.Batch) error]
}

// Before makes f see every batch first. When f returns an error, or panics, the
// batch does not reach the device. Nil lets everything through again.
func (g *Gate) Before(f func(*device.Batch) error) {
	if f == nil {
		g.before.Store(nil)
		return
	}
	g.before.Store(&f)
}

// Submit implements device.Device.
func (g *Gate) Submit(b *device.Batch) error {
	if f := g.before.Load(); f != nil {
		if err := (*f)(b); err != nil {
			return err
		}
	}
	return g.Device.Submit(b)
}

// EachDispatch runs f as a subtest for every way in which actors can run.
func EachDispatch(t *testing.T, f func(t *testing.T, d offload.Dispatch)) {
	t.Helper()
	for _, d := range []offload.Dispatch{offload.Inline, offload.Goroutines} {
		t.Run(d.String(), func(t *testing.T) { f(t, d) })
	}
}
