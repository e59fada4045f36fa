package main

import (
	"context"
	"fmt"
	"io"

	"github.com/rs/zerolog"

	"offload"
	"offload/internal/mnist"
	"offload/nn"
)

// demo is one invocation: the runs of one configuration on one set of digits.
type demo struct {
	config   config
	training *mnist.Set
	test     *mnist.Set
	progress *progress
	log      zerolog.Logger
	// machine makes the device of the run with the given name; limit is its
	// memory in bytes, zero for no limit.
	machine func(run string, limit int64) (machine, error)
}

// results are what the runs gave.
type results struct {
	config                       config
	resident, limited, offloaded *outcome
	trial                        *outcome  // nil if the limit was given
	identical                    bool      // resident and offloaded
	test                         nn.Result // of the offloaded run's model
	inferenceOps                 int64     // device operations of the engine while testing
}

// run trains resident without a limit, resident under a limit, and offloaded
// under the same limit, each with a device, an engine and a model of its own,
// then tests the model of the last run. An error is a run that failed, not a
// result that is not as it must be.
func (d *demo) run(ctx context.Context) (*results, error) {
	r := results{config: d.config}
	var err error
	if r.resident, err = d.train(ctx, setting{name: "resident", steps: d.config.steps}, nil); err != nil {
		return nil, err
	}
	limit := int64(d.config.limit)
	if limit == automatic {
		// One step more, to see what offloading needs.
		if r.trial, err = d.train(ctx, setting{name: "trial", offload: int(d.config.offload), steps: 1}, nil); err != nil {
			return nil, err
		}
		if limit, err = d.chooseLimit(r.trial, r.resident); err != nil {
			return nil, err
		}
	}
	d.log.Info().Int64("bytes", limit).Msg("device memory limit")
	if r.limited, err = d.train(ctx, setting{name: "limited", limit: limit, steps: d.config.steps}, nil); err != nil {
		return nil, err
	}
	offloaded := setting{name: "offloaded", limit: limit, offload: int(d.config.offload), steps: d.config.steps}
	r.offloaded, err = d.train(ctx, offloaded, func(s *session) error { return r.evaluate(ctx, s, d.test) })
	if err != nil {
		return nil, err
	}
	if err := r.offloaded.shortage; err != nil {
		return nil, fmt.Errorf("offloaded run: step %d: %w: it needs more than -device-memory %s", len(r.offloaded.losses)+1, err, sizeText(limit))
	}
	r.identical = identical(r.resident, r.offloaded)
	return &r, nil
}

// chooseLimit returns a device memory limit half-way between the peak of an
// offloaded run and that of a resident one.
func (d *demo) chooseLimit(offloaded, resident *outcome) (int64, error) {
	if offloaded.peak >= resident.peak {
		return 0, fmt.Errorf("with %d layers offloaded a step needs %d bytes of device memory, not less than the %d without: "+
			"tensors of less than %d elements stay on the device; raise -batch or -width, or give -device-memory",
			offloaded.offload, offloaded.peak, resident.peak, d.config.minElements())
	}
	return between(offloaded.peak, resident.peak), nil
}

// report returns the results for scripts.
func (r *results) report() report {
	n, _ := r.findings()
	limited := limitedReport{Fits: r.limited.shortage == nil}
	if !limited.Fits {
		limited.Error = r.limited.shortage.Error()
	}
	return report{
		MicroBatches: r.config.microBatches,
		Accumulate:   r.config.accumulate,
		Identical:    r.identical,
		TestAccuracy: r.test.Accuracy,
		LimitBytes:   r.limited.limit,
		Resident:     residentReport{PeakDeviceBytes: r.resident.peak},
		Limited:      limited,
		Offload: offloadReport{
			PeakDeviceBytes: r.offloaded.peak,
			MovedOutBytes:   r.offloaded.metrics.BytesOut,
			MovedInBytes:    r.offloaded.metrics.BytesIn,
			LayersOffloaded: len(r.offloaded.moved),
			EventsRecorded:  r.offloaded.metrics.EventsRecorded,
			WaitsIssued:     r.offloaded.metrics.WaitsIssued,
			ShortCircuits:   r.offloaded.metrics.ShortCircuits,
		},
		Inference: inferenceReport{OffloadDeviceOps: r.inferenceOps},
		Findings:  n,
	}
}

// between returns the rounded middle of two sizes: at least low, below high.
func between(low, high int64) int64 {
	middle := low + (high-low)/2
	for _, unit := range []int64{1 << 20, 1 << 16, 1 << 12} {
		if n := middle / unit * unit; n >= low {
			return n
		}
	}
	return middle
}

// evaluate tests the model, and counts what the engine asks of the device meanwhile.
func (r *results) evaluate(ctx context.Context, s *session, set *mnist.Set) (err error) {
	images, labels := all(set)
	before := s.engine.Metrics()
	r.test, err = s.model.Evaluate(ctx, s.engine, images, labels)
	r.inferenceOps = s.engine.Metrics().Operations - before.Operations
	return err
}

// findings returns the number of findings of all runs, and the first one.
func (r *results) findings() (n int64, first string) {
	for _, o := range []*outcome{r.resident, r.trial, r.limited, r.offloaded} {
		if o == nil {
			continue
		}
		if n == 0 {
			first = o.finding
		}
		n += o.findings
	}
	return n, first
}

// faults lists what is not as it must be, whatever the flags say.
func (r *results) faults() []string {
	var list []string
	if !r.identical {
		list = append(list, "the offloaded run differs from the resident one")
	}
	if r.inferenceOps > 0 {
		list = append(list, fmt.Sprintf("offloading asked the device for %d operations in an inference pass", r.inferenceOps))
	}
	if n, first := r.findings(); n > 0 {
		list = append(list, fmt.Sprintf("%d findings of the simulated device, the first one: %s", n, first))
	}
	if o := r.offloaded; o.peak > o.limit {
		list = append(list, fmt.Sprintf("the offloaded run used %d bytes of device memory under a limit of %d", o.peak, o.limit))
	}
	return list
}

// minElements returns the number of elements from which on a tensor is moved.
// It shrinks with the micro-batches, so that the same activations move however
// a batch is split.
func (c config) minElements() int64 {
	var o offload.Options
	o.EnsureDefaults()
	return max(o.MinElements/int64(c.microBatches), 1)
}

// newLog writes what level allows to w, for people.
func newLog(w io.Writer, level zerolog.Level) zerolog.Logger {
	return zerolog.New(zerolog.ConsoleWriter{Out: w, NoColor: true, PartsExclude: []string{zerolog.TimestampFieldName}}).Level(level)
}
