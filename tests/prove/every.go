package main

import (
	"errors"
	"fmt"

	"offload/device"
	"offload/device/fault"
	"offload/device/sim"
)

// injected are the seeds whose programs are run with every operation of the
// engine failing.
var injected = []uint64{1, 4, 6, 9, 10, 12, 15, 18, 22, 25}

// explored is the number of programs of which every kind of order is run. Orders
// that differ in independent operations alone are of one kind, so that a program
// without a race has one.
const explored = 300

// explore runs programs under every kind of order.
func explore(t *tally) error {
	for seed := range uint64(explored) {
		var ignored tally
		report, err := sim.Explore(sim.Config{ID: 1}, func(d *sim.Device) error {
			return live(&ignored, d, d, seed, 1)
		}, sim.ExploreOptions{Max: 1000})
		if err != nil {
			return fmt.Errorf("explore seed %d: %w", seed, err)
		}
		t.orders += report.Orders
		if report.Failing > 0 {
			t.findings += report.Failing
			return fmt.Errorf("explore seed %d: %v", seed, report)
		}
	}
	return nil
}

// inject fails every operation of the engine in turn, in every way.
func inject(t *tally) error {
	for _, seed := range injected {
		dev := sim.New(sim.Config{ID: 1, Seed: seed})
		counted := fault.Wrap(dev, nil)
		var ignored tally
		if err := live(&ignored, dev, counted, seed, 2); err != nil {
			return fmt.Errorf("inject seed %d: without a fault: %w", seed, err)
		}
		total := 0
		for _, n := range counted.Counts() {
			total += n
		}
		for n := 1; n <= total; n++ {
			for _, cause := range []error{nil, device.ErrOutOfMemory, device.ErrLost} {
				t.faults++
				dev := sim.New(sim.Config{ID: 1, Seed: seed})
				err := live(&ignored, dev, fault.Wrap(dev, fault.Plan{{Nth: n, Err: cause}}), seed, 2)
				if errors.Is(err, errFound) && !errors.Is(cause, device.ErrLost) {
					t.findings++
					return fmt.Errorf("inject seed %d, operation %d, %v: %w", seed, n, cause, err)
				}
			}
		}
	}
	return nil
}
