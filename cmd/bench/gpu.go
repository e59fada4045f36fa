package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"
)

// runGPU is `bench -gpu`: it measures the named workloads, separated by commas,
// and returns the report, also of what was measured before an error.
func runGPU(ctx context.Context, names string, runs int, progress io.Writer) (r *gpuReport, err error) {
	if runs < 1 {
		return nil, fmt.Errorf("-runs %d: want at least 1", runs)
	}
	chosen, err := choose(names)
	if err != nil {
		return nil, err
	}
	// The context stays current on the thread, and the thread warm.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	g, close, err := openGPU()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, close()) }()
	return measureGPU(ctx, g, chosen, runs, progress)
}

func choose(names string) (list []workload, err error) {
	for name := range strings.SplitSeq(names, ",") {
		i := slices.IndexFunc(workloads, func(w workload) bool { return w.name == name })
		if i < 0 {
			return nil, fmt.Errorf("-workloads: no workload %q; there are W1, W1b, W2 and W3", name)
		}
		list = append(list, workloads[i])
	}
	return list, nil
}
