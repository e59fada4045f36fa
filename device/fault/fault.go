package fault

import (
	"fmt"
	"slices"
	"sync"

	"offload/device"
)

// Device is a device with faults. See the package comment.
type Device struct {
	inner device.Device

	mu     sync.Mutex
	plan   Plan
	counts Counts
	struck []*device.Error
	lost   error
}

var _ device.Device = (*Device)(nil)

// Counts is how many operations of each kind were submitted, those that a fault
// struck included, and those behind them in a batch not.
type Counts [device.Kinds]int

// Total returns the number of operations of all kinds.
func (c Counts) Total() int {
	n := 0
	for _, k := range c {
		n += k
	}
	return n
}

// Wrap returns d with the faults of the plan, of which it keeps a copy.
func Wrap(d device.Device, plan Plan) *Device {
	return &Device{inner: d, plan: slices.Clone(plan)}
}

// Arm replaces the plan and counts from zero again. A device that is lost stays lost.
func (d *Device) Arm(plan Plan) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.plan, d.counts, d.struck = slices.Clone(plan), Counts{}, nil
}

// Counts returns what was submitted since the device was wrapped or last armed.
func (d *Device) Counts() Counts {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.counts
}

// Struck returns the failures since the device was wrapped or last armed, in
// order. They name the operations that were struck, also where the error that
// Submit returned names another one. They must not be changed.
func (d *Device) Struck() []*device.Error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.struck)
}

// Submit passes b on, unless a fault strikes one of its operations.
func (d *Device) Submit(b *device.Batch) error {
	hit, failure, lost := d.look(b)
	if lost != nil && len(b.Ops) > 0 {
		return errorAt(b, 0, lost)
	}
	if hit == nil {
		return d.inner.Submit(b)
	}
	switch hit.How {
	case RefuseBatch:
		return errorAt(b, 0, failure.Err)
	case PanicBefore:
		panic(fmt.Errorf("%v: %w", failure.Op, failure.Err))
	case LoseLate:
		if err := d.inner.Submit(b); err != nil {
			return err
		}
		d.lose(fmt.Errorf("%w by an earlier operation: %w", device.ErrLost, failure))
		return nil
	}
	if failure.Index > 0 {
		ahead := device.Batch{Origin: b.Origin, Ops: b.Ops[:failure.Index]}
		if err := d.inner.Submit(&ahead); err != nil {
			return err
		}
	}
	switch hit.How {
	case PanicMidway:
		panic(failure)
	case Lose:
		d.lose(failure.Err)
	}
	return failure
}

// look counts the operations of b up to the first one that is struck, and
// returns the fault and what it amounts to; or why there is no device any more.
func (d *Device) look(b *device.Batch) (hit *Fault, failure *device.Error, lost error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.lost != nil {
		return nil, nil, d.lost
	}
	for i := range b.Ops {
		k := b.Ops[i].Kind
		if int(k) >= device.Kinds {
			continue // the device refuses it
		}
		d.counts[k]++
		if hit = d.fault(k); hit != nil {
			failure = errorAt(b, i, hit.cause())
			d.struck = append(d.struck, failure)
			return hit, failure, nil
		}
	}
	return nil, nil, nil
}

// fault returns a copy of the fault that strikes the operation, of kind k, that
// was counted last.
func (d *Device) fault(k device.Kind) *Fault {
	for _, f := range d.plan {
		if f.Kind == k && f.strikes(d.counts[k]) || f.Kind == device.None && f.strikes(d.counts.Total()) {
			return &f
		}
	}
	return nil
}

// cause returns why a struck operation fails.
func (f *Fault) cause() error {
	err := f.Err
	if err == nil {
		err = ErrInjected
	}
	if f.How == Lose {
		err = fmt.Errorf("%w: %w", device.ErrLost, err)
	}
	return err
}

func (d *Device) lose(why error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.lost = why
}

// errorAt returns the error that operation i of b was not enqueued.
func errorAt(b *device.Batch, i int, cause error) *device.Error {
	op := b.Ops[i]
	if k := op.Kernel; k != nil { // which is the caller's
		op.Kernel = &device.Kernel{Name: k.Name, Args: slices.Clone(k.Args), Reads: slices.Clone(k.Reads), Writes: slices.Clone(k.Writes)}
	}
	return &device.Error{Origin: b.Origin, Index: i, Op: op, Err: cause}
}

// Lookup implements device.Device.
func (d *Device) Lookup(b device.Buffer) (device.Memory, error) {
	d.mu.Lock()
	lost := d.lost
	d.mu.Unlock()
	if lost != nil {
		return device.Memory{}, lost
	}
	return d.inner.Lookup(b)
}

// Info implements device.Device.
func (d *Device) Info() device.Info { return d.inner.Info() }

// NewSpace implements device.Device.
func (d *Device) NewSpace() uint16 { return d.inner.NewSpace() }

// Usage implements device.Device.
func (d *Device) Usage() device.Usage { return d.inner.Usage() }

// ResetPeak implements device.Device.
func (d *Device) ResetPeak() { d.inner.ResetPeak() }

// Close closes the device behind. It returns what lost this one, if anything did.
func (d *Device) Close() error {
	d.mu.Lock()
	lost := d.lost
	d.lost = nil // what comes now is that the device is closed
	d.mu.Unlock()
	if err := d.inner.Close(); err != nil {
		return err
	}
	return lost
}
