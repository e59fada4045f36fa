//go:build !cuda

package main

import (
	"strings"
	"testing"
)

// TestNoGPU asks a build without the tag cuda for a GPU.
func TestNoGPU(t *testing.T) {
	i := invoke(t, newMachine, small(t, "-device", "cuda")...)
	if i.status != exitFailed || !strings.Contains(i.stderr, "-tags cuda") {
		t.Errorf("got status %d and %q, want %d and the tag that is missing", i.status, i.stderr, exitFailed)
	}
}
