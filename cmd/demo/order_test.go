package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
)

func TestTurns(t *testing.T) {
	for _, test := range []struct {
		order               order
		microBatches, accum int
		want                string
	}{
		{forwardsFirst, 1, 1, "F0 B0"},
		{alternating, 1, 1, "F0 B0"},
		{oneByOne, 1, 1, "F0 B0"},
		{forwardsFirst, 3, 1, "F0 F1 F2 B2 B1 B0"},
		{alternating, 3, 1, "F0 F1 B0 F2 B1 B2"},
		{oneByOne, 3, 1, "F0 B0 F1 B1 F2 B2"},
		{forwardsFirst, 1, 3, "F0 B0 F1 B1 F2 B2"},
		{forwardsFirst, 2, 2, "F0 F1 B1 B0 F2 F3 B3 B2"},
		{alternating, 2, 2, "F0 F1 B0 B1 F2 F3 B2 B3"},
	} {
		c := config{order: test.order, microBatches: test.microBatches, accumulate: test.accum}
		if got := strings.Trim(fmt.Sprint(c.turns()), "[]"); got != test.want {
			t.Errorf("%s, %d micro-batches, %d batches: %s, want %s", test.order, test.microBatches, test.accum, got, test.want)
		}
	}
}

// TestMicroBatches splits batches and sums batches up. Whatever the order is, the
// offloaded run gives the bits of the resident one and moves the same bytes for
// every batch; the more micro-batches are in flight, the more memory it takes.
func TestMicroBatches(t *testing.T) {
	steps := 3
	if testing.Short() {
		steps = 1
	}
	var moved int64                   // of a batch
	peaks := make(map[string][]int64) // of the resident runs, by the flags without the order
	for _, test := range []struct {
		microBatches, accumulate int
		orders                   []order
		long                     bool
		prints                   string // in front of the order, if any
	}{
		{1, 1, []order{forwardsFirst}, false, "2,048 images"},
		{2, 1, orders, true, "2,048 images in 2 micro-batches"},
		{4, 1, orders, true, "2,048 images in 4 micro-batches"},
		{1, 2, []order{forwardsFirst}, true, "2 batches of 2,048 images"},
		{4, 2, []order{alternating}, false, "2 batches of 2,048 images in 4 micro-batches"},
	} {
		if test.long && testing.Short() {
			continue
		}
		for _, order := range test.orders {
			flags := fmt.Sprintf("-micro-batches %d -accumulate %d", test.microBatches, test.accumulate)
			t.Run(fmt.Sprintf("%s -order %s", flags, order), func(t *testing.T) {
				args := append(strings.Fields(flags), "-order", string(order), "-steps", strconv.Itoa(steps))
				i := invoke(t, newMachine, small(t, args...)...)
				i.holds(t)
				if i.report.MicroBatches != test.microBatches || i.report.Accumulate != test.accumulate {
					t.Errorf("the report tells of %d micro-batches and %d batches, want %d and %d",
						i.report.MicroBatches, i.report.Accumulate, test.microBatches, test.accumulate)
				}
				line := "training step:       " + test.prints
				if test.microBatches > 1 {
					line += ", order " + string(order)
				}
				if !strings.Contains(i.stdout, line+"\n") {
					t.Errorf("the table lacks %q:\n%s", line, i.stdout)
				}
				batches := int64(steps * test.accumulate)
				if moved == 0 {
					moved = i.report.Offload.MovedOutBytes / batches
				}
				if o := i.report.Offload; o.MovedOutBytes != moved*batches || o.MovedInBytes != moved*batches {
					t.Errorf("%d bytes moved out and %d in, want %d for each of %d batches", o.MovedOutBytes, o.MovedInBytes, moved, batches)
				}
				peaks[flags] = append(peaks[flags], -i.report.Resident.PeakDeviceBytes)
			})
		}
	}
	// The orders are listed from the most micro-batches in flight to the least.
	for flags, list := range peaks {
		if !slices.IsSorted(list) {
			t.Errorf("%s: the peaks by order, negated, are %d; want none above the one before", flags, list)
		}
	}
	// A selection of the subtests may leave some out.
	if list := peaks["-micro-batches 4 -accumulate 1"]; len(list) == len(orders) && len(slices.Compact(slices.Clone(list))) < len(list) {
		t.Errorf("4 micro-batches: the peaks by order, negated, are %d; want all different", list)
	}
}
