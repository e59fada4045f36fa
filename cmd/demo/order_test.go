package main

import (
	"fmt"
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
