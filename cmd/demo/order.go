package main

import (
	"fmt"
	"slices"
	"strings"

	"offload"
)

// order says how the passes of a batch's micro-batches follow each other.
type order string

const (
	// forwardsFirst has all forwards, then the backwards in the opposite order.
	forwardsFirst order = "ffbb"
	// alternating has a backward behind every forward but the first: two
	// micro-batches are in flight.
	alternating order = "1f1b"
	// oneByOne has one micro-batch after the other.
	oneByOne order = "fbfb"
)

var orders = []order{forwardsFirst, alternating, oneByOne}

// String and Set make it a flag.
func (o *order) String() string { return string(*o) }

func (o *order) Set(text string) error {
	names := make([]string, len(orders))
	for i, known := range orders {
		names[i] = string(known)
	}
	if !slices.Contains(names, text) {
		return fmt.Errorf("want one of %s", strings.Join(names, ", "))
	}
	*o = order(text)
	return nil
}

// turns returns the order of the n micro-batches from first on.
func (o order) turns(first, n int) []offload.Turn {
	var list []offload.Turn
	turn := func(microBatch int, backward bool) {
		list = append(list, offload.Turn{MicroBatch: first + microBatch, Backward: backward})
	}
	for i := range n {
		turn(i, false)
		switch {
		case o == oneByOne:
			turn(i, true)
		case o == alternating && i > 0:
			turn(i-1, true)
		}
	}
	switch o {
	case forwardsFirst:
		for i := n - 1; i >= 0; i-- {
			turn(i, true)
		}
	case alternating:
		turn(n-1, true)
	}
	return list
}

// turns returns the order of a step: one batch behind the other, each in the
// order of its micro-batches.
func (c config) turns() (list []offload.Turn) {
	for i := range c.accumulate {
		list = append(list, c.order.turns(i*c.microBatches, c.microBatches)...)
	}
	return list
}
