package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/dustin/go-humanize"
	"github.com/rs/zerolog"
)

// automatic is the value of a size or count that was left to the program.
const automatic = 0

// The bounds of the flags keep every product of two of them far from an overflow.
const (
	maxLayers       = 1024
	maxWidth        = 1 << 14
	maxBatch        = 1 << 20
	maxMicroBatches = 1024
	maxAccumulate   = 1024
	maxSteps        = 1 << 20
)

// config is what the flags say.
type config struct {
	device       string
	layers       int // residual blocks
	width        int
	batch        int
	microBatches int // of a batch
	order        order
	accumulate   int // batches of a step
	steps        int
	offload      count    // layers to offload, or automatic
	limit        byteSize // of device memory, or automatic
	seed         uint64
	data         string
	json         string
	log          logLevel
	quiet        bool
}

// byteSize is a flag such as 24MiB.
type byteSize int64

func (s *byteSize) String() string {
	if *s == automatic {
		return ""
	}
	return sizeText(int64(*s))
}

func (s *byteSize) Set(text string) error {
	n, err := humanize.ParseBytes(text)
	if err != nil {
		return errors.New("want a size such as 24MiB")
	}
	if n == 0 || n > 1<<62 {
		return errors.New("want a size from 1 byte to 4EiB")
	}
	*s = byteSize(n)
	return nil
}

// count is a flag that is a positive number if it is given.
type count int

func (n *count) String() string {
	if *n == automatic {
		return ""
	}
	return strconv.Itoa(int(*n))
}

func (n *count) Set(text string) error {
	x, err := strconv.Atoi(text)
	if err != nil || x < 1 {
		return errors.New("want a number from 1 on")
	}
	*n = count(x)
	return nil
}

// logLevel is a flag such as debug.
type logLevel zerolog.Level

var logLevels = []zerolog.Level{zerolog.TraceLevel, zerolog.DebugLevel, zerolog.InfoLevel, zerolog.WarnLevel, zerolog.ErrorLevel, zerolog.Disabled}

func (l *logLevel) String() string { return zerolog.Level(*l).String() }

func (l *logLevel) Set(text string) error {
	names := make([]string, len(logLevels))
	for i, level := range logLevels {
		if level.String() == text {
			*l = logLevel(level)
			return nil
		}
		names[i] = level.String()
	}
	return fmt.Errorf("want one of %s", strings.Join(names, ", "))
}

// newFlags returns the flags and where their values go, defaults for now.
func newFlags() (*flag.FlagSet, *config) {
	c := &config{order: forwardsFirst, log: logLevel(zerolog.WarnLevel)}
	flags := flag.NewFlagSet("demo", flag.ContinueOnError)
	flags.SetOutput(io.Discard) // Parse would print the usage after every error
	flags.StringVar(&c.device, "device", "sim", "`device` to train on: sim, the simulated device, or cuda, the first GPU (with the build tag cuda)")
	flags.IntVar(&c.layers, "layers", 6, "residual blocks of the model; the input projection and the head are layers as well")
	flags.IntVar(&c.width, "width", 128, "`features` between the blocks")
	flags.IntVar(&c.batch, "batch", 2048, "`images` of a batch")
	flags.IntVar(&c.microBatches, "micro-batches", 1, "split a batch into `N` micro-batches with a pass each; tensors N times smaller are offloaded then")
	flags.Var(&c.order, "order", "`order` of the micro-batches of a batch: ffbb, all forwards, then the backwards in the opposite order;\n"+
		"1f1b, two in flight; fbfb, one by one")
	flags.IntVar(&c.accumulate, "accumulate", 1, "sum up the gradients of `N` batches for one training step")
	flags.IntVar(&c.steps, "steps", 100, "training steps of each run")
	flags.Var(&c.offload, "offload", "offload the first `N` layers (default the number of blocks)")
	flags.Var(&c.limit, "device-memory", "`size` of the device memory of the limited and the offloaded run, such as 24MiB\n"+
		"(default half-way between what a step needs with and without offloading)")
	flags.Uint64Var(&c.seed, "seed", 1, "`number` that fixes weights, batches and the order of the simulated device")
	flags.StringVar(&c.data, "data", "", "`folder` with the MNIST files (default data/mnist, else the Go module cache)")
	flags.StringVar(&c.json, "json", "", "write the results to this `file`")
	flags.Var(&c.log, "log", "`level` of what is logged on stderr: trace, debug, info, warn, error, disabled")
	flags.BoolVar(&c.quiet, "quiet", false, "print neither progress nor results: only errors, the exit status and the -json file are left")
	return flags, c
}

// parse reads the flags. Its error is one line about everything that is wrong,
// or flag.ErrHelp.
func parse(args []string) (config, error) {
	flags, c := newFlags()
	err := flags.Parse(args)
	if err == nil && flags.NArg() > 0 {
		err = fmt.Errorf("unexpected argument %q: everything is said by flags", flags.Arg(0))
	}
	if err == nil {
		err = c.validate()
	}
	if err != nil {
		return config{}, err
	}
	if c.offload == automatic {
		c.offload = count(c.layers)
	}
	return *c, nil
}

// usage writes what the flags are.
func usage(w io.Writer) {
	flags, _ := newFlags()
	fmt.Fprint(w, "Demo trains a small model on MNIST three times: with all activations on the device, the same under a memory\n"+
		"limit that is too small for it, and offloaded under that limit. Then it compares the runs bit for bit.\n\n"+
		"Exit status: 0, all went as it must; 1, a run failed or the results are not as they must be; 2, bad flags or data.\n\n"+
		"Usage: demo [flags]\n\n")
	flags.SetOutput(w)
	flags.PrintDefaults()
}

func (c *config) validate() error {
	var faults []string
	fault := func(format string, args ...any) { faults = append(faults, fmt.Sprintf(format, args...)) }
	within := func(name string, value, low, high int) {
		if value < low || value > high {
			fault("-%s %d: want from %d to %d", name, value, low, high)
		}
	}
	if c.device != "sim" && c.device != "cuda" {
		fault("-device %q: want sim or cuda", c.device)
	}
	within("layers", c.layers, 1, maxLayers)
	within("width", c.width, 1, maxWidth)
	within("batch", c.batch, 1, maxBatch)
	within("micro-batches", c.microBatches, 1, maxMicroBatches)
	if n := c.microBatches; n > 1 && n <= maxMicroBatches && c.batch >= 1 && c.batch%n != 0 {
		fault("-micro-batches %d: want a divisor of -batch %d", n, c.batch)
	}
	within("accumulate", c.accumulate, 1, maxAccumulate)
	within("steps", c.steps, 1, maxSteps)
	if c.offload != automatic && c.layers >= 1 && c.layers <= maxLayers {
		within("offload", int(c.offload), 1, layersOf(c.layers)-1)
	}
	if c.json != "" {
		if err := checkTarget(c.json); err != nil {
			fault("-json %v", err)
		}
	}
	if len(faults) > 0 {
		return errors.New(strings.Join(faults, "; "))
	}
	return nil
}

// checkTarget finds out before the training whether a report can be written to
// path, without writing anything.
func checkTarget(path string) error {
	if info, err := os.Stat(path); err == nil {
		if info.IsDir() {
			return fmt.Errorf("%s: it is a folder; want a file", path)
		}
		return nil
	}
	dir := filepath.Dir(path)
	info, err := os.Stat(dir)
	if err != nil {
		return fmt.Errorf("%s: there is no folder %s to write it to", path, dir)
	}
	if !info.IsDir() {
		return fmt.Errorf("%s: %s is not a folder", path, dir)
	}
	// The report is written beside its place first, so that is tried.
	probe, err := os.CreateTemp(dir, ".probe")
	if err != nil {
		return fmt.Errorf("%s: nothing can be written to %s", path, dir)
	}
	probe.Close()
	return os.Remove(probe.Name())
}

// sizeText writes a number of bytes for people.
func sizeText(n int64) string { return humanize.IBytesN(uint64(n), 3) }
