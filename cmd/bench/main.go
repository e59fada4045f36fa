// Command bench measures what offloading costs.
//
//	bench -hot [-json FILE]
//
// measures the host's share on a device that does nothing: time and allocations
// of the calls, per slot and per tensor, and how they grow.
//
//	bench -gpu [-workloads W1,W1b,W2,W3] [-runs 3] [-json FILE]
//
// measures training steps and forwards on the first GPU, offloaded and not; it
// needs a build with the tag cuda (make bench-gpu), and of the machine the driver
// and cuBLAS.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"runtime/pprof"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// run is main without the process: it returns the exit status, 2 for wrong flags.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	hot := flags.Bool("hot", false, "measure the host's share on a device that does nothing")
	gpu := flags.Bool("gpu", false, "measure training steps on a GPU; needs a build with the tag cuda")
	names := flags.String("workloads", "W1,W1b,W2,W3", "`names` of what -gpu measures")
	runs := flags.Int("runs", 3, "how often -gpu measures everything")
	file := flags.String("json", "", "write the figures to `FILE`, too")
	profile := flags.String("cpuprofile", "", "write a profile of the host's time to `FILE`")
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			flags.SetOutput(stdout)
			flags.Usage()
			return 0
		}
		fmt.Fprintf(stderr, "bench: %v\n", err)
		return 2
	}
	if flags.NArg() > 0 || *hot == *gpu {
		fmt.Fprintln(stderr, "bench: say what to measure: bench -hot, or bench -gpu")
		return 2
	}
	stop, err := startProfile(*profile)
	if err != nil {
		fmt.Fprintf(stderr, "bench: -cpuprofile: %v\n", err)
		return 2
	}
	defer stop()
	var report interface{ print(io.Writer) }
	if *gpu {
		report, err = runGPU(ctx, *names, *runs, stderr)
	} else {
		report, err = measureHot(ctx)
	}
	if err != nil {
		fmt.Fprintf(stderr, "bench: %v\n", err)
		return 1
	}
	report.print(stdout)
	if *file == "" {
		return 0
	}
	if err := writeJSON(*file, report); err != nil {
		fmt.Fprintf(stderr, "bench: %v\n", err)
		return 1
	}
	return 0
}

// startProfile starts a profile with a sample every millisecond, unless name is
// empty. stop ends it.
func startProfile(name string) (stop func(), err error) {
	if name == "" {
		return func() {}, nil
	}
	f, err := os.Create(name)
	if err != nil {
		return nil, err
	}
	runtime.SetCPUProfileRate(1000) // StartCPUProfile leaves a rate that is set
	if err := pprof.StartCPUProfile(f); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return func() {
		pprof.StopCPUProfile()
		f.Close()
	}, nil
}

func writeJSON(name string, report any) error {
	data, err := json.MarshalIndent(report, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(name, append(data, '\n'), 0o644)
}
