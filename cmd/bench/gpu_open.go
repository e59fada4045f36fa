//go:build cuda

package main

import (
	"errors"
	"fmt"
	"time"

	"offload/device"
	"offload/device/cuda"
	kernels "offload/nn/ops/cuda"
)

// openGPU opens the first GPU.
func openGPU() (g *gpu, close func() error, err error) {
	d, err := cuda.Open(0, cuda.Options{})
	if err != nil {
		return nil, nil, err
	}
	k, err := kernels.Register(d)
	if err != nil {
		return nil, nil, errors.Join(err, d.Close())
	}
	marks := &marks{dev: d}
	d.Register(markKernel, func(c *cuda.Call) error {
		m := int(c.Arg(0).Int)
		if m >= len(marks.list) {
			return fmt.Errorf("mark %d of %d", m, len(marks.list))
		}
		return marks.list[m].RecordOn(c.Stream())
	})
	g = &gpu{Device: d, meter: &meter{Device: d, next: markCopies}, clock: marks, blas: k.BLAS(), rest: 1500 * time.Millisecond}
	g.stream = device.NewIDs(d).Stream()
	close = func() error { return errors.Join(cuda.CloseMarks(marks.list...), k.Close(), d.Close()) }
	err = d.Submit(&device.Batch{Origin: device.Origin{Action: "open"}, Ops: []device.Op{{Kind: device.OpenStream, Stream: g.stream}}})
	if err == nil {
		err = marks.grow(maxMarks) // not in a step, and not in a launch
	}
	if err != nil {
		return nil, nil, errors.Join(err, close())
	}
	return g, close, nil
}

// maxMarks is enough for two around the copies of each layer in each direction.
const maxMarks = 1024

// marks are a clock of the GPU.
type marks struct {
	dev  *cuda.Device
	list []*cuda.Mark
}

func (m *marks) grow(n int) error {
	for len(m.list) < n {
		mark, err := m.dev.NewMark()
		if err != nil {
			return err
		}
		m.list = append(m.list, mark)
	}
	return nil
}

func (m *marks) mark(stream device.Stream, number int) error { return m.list[number].Record(stream) }

func (m *marks) between(from, to int) (time.Duration, error) { return m.list[to].Since(m.list[from]) }
