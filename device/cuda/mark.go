//go:build cuda

package cuda

import (
	"errors"
	"fmt"
	"time"

	"gorgonia.org/cu"

	"offload/device"
)

// A Mark is a point in the order of a stream whose time the GPU notes. It is for
// measurements; events of the device carry no time.
type Mark struct {
	dev   *Device
	event cu.Event
}

// NewMark makes a mark that is not recorded.
func (d *Device) NewMark() (*Mark, error) {
	m := &Mark{dev: d}
	err := d.Do(func() (err error) {
		m.event, err = cu.MakeEvent(cu.DefaultEvent)
		return failure("cuEventCreate", err)
	})
	if err != nil {
		return nil, fmt.Errorf("cuda: mark: %w", err)
	}
	return m, nil
}

// Record notes the point that an open stream has reached.
func (m *Mark) Record(stream device.Stream) error {
	h, err := m.dev.Handle(stream)
	if err != nil {
		return err
	}
	return m.dev.Do(func() error { return m.RecordOn(h) })
}

// RecordOn is Record for launchers, which have the handle of a stream and the
// context current.
func (m *Mark) RecordOn(stream uintptr) error {
	return failure("cuEventRecord", m.event.Record(fromHandle[cu.Stream](stream)))
}

// Since waits until the GPU has passed m and returns the time from an earlier mark.
func (m *Mark) Since(earlier *Mark) (time.Duration, error) {
	var ms float64
	err := m.dev.Do(func() (err error) {
		if err := m.event.Synchronize(); err != nil {
			return failure("cuEventSynchronize", err)
		}
		ms, err = earlier.event.Elapsed(m.event)
		return failure("cuEventElapsedTime", err)
	})
	return time.Duration(ms * float64(time.Millisecond)), err
}

// CloseMarks gives marks back.
func CloseMarks(marks ...*Mark) error {
	var errs []error
	for _, m := range marks {
		errs = append(errs, m.dev.drv.destroyEvent(handleOf(m.event)))
	}
	return errors.Join(errs...)
}
