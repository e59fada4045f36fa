// Demo trains a small network on the MNIST digits three times and compares the
// runs: with all activations on the device; the same under a memory limit, which
// it runs into; and offloaded under that limit. Losses and weights of the first
// and the last run must be the same bit for bit.
//
// Usage:
//
//	demo [flags]
//
// Run demo -h for the flags. The exit status is 0 if all went as it must, 1 if
// a run failed or a result is not as it must be, and 2 for bad flags or data;
// then nothing has been written.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"

	"github.com/rs/zerolog"

	"offload/internal/mnist"
)

// The exit statuses.
const (
	exitOK     = 0
	exitFailed = 1
	exitUsage  = 2
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	context.AfterFunc(ctx, stop) // a second interrupt ends the process at once
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// run is the whole program; it returns the exit status.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	return runOn(ctx, args, stdout, stderr, newMachine)
}

// machines makes the device of the run with the given name.
type machines func(c config, run string, limit int64) (machine, error)

func runOn(ctx context.Context, args []string, stdout, stderr io.Writer, newMachine machines) int {
	c, err := parse(args)
	if errors.Is(err, flag.ErrHelp) {
		usage(stdout)
		return exitOK
	}
	if err != nil {
		complain(stderr, fmt.Errorf("%w (demo -h lists the flags)", err))
		return exitUsage
	}
	d := demo{
		config:   c,
		progress: &progress{},
		log:      newLog(stderr, zerolog.Level(c.log)),
		machine:  func(run string, limit int64) (machine, error) { return newMachine(c, run, limit) },
	}
	if err := d.load(ctx); err != nil {
		complain(stderr, err)
		return exitUsage
	}
	if !c.quiet && zerolog.Level(c.log) >= zerolog.WarnLevel { // the lines of a log would break the bar
		d.progress = newProgress(stderr)
	}
	r, err := d.run(ctx)
	if err != nil {
		complain(stderr, err)
		return exitFailed
	}
	if !c.quiet {
		r.table(stdout)
	}
	status := exitOK
	for _, fault := range r.faults() {
		complain(stderr, errors.New(fault))
		status = exitFailed
	}
	if c.json != "" {
		if err := r.report().write(c.json); err != nil {
			complain(stderr, fmt.Errorf("-json: %w", err))
			status = exitFailed
		}
	}
	return status
}

// load reads the digits.
func (d *demo) load(ctx context.Context) error {
	dir, err := mnist.Locate(ctx, d.config.data)
	if err != nil {
		return err
	}
	d.training, d.test, err = mnist.Load(dir)
	if err != nil {
		return err
	}
	if n := d.training.Len(); d.config.batch > n {
		return fmt.Errorf("-batch %d is more than the %d training images in %s", d.config.batch, n, dir)
	}
	return nil
}

// complain writes err as one line.
func complain(w io.Writer, err error) {
	fmt.Fprintf(w, "demo: %s\n", strings.ReplaceAll(err.Error(), "\n", "; "))
}
