package main

import (
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/rs/zerolog"

	"offload"
	"offload/device"
	"offload/nn"
	"offload/schedule"
)

// setting is what a run differs in from the other ones.
type setting struct {
	name    string
	limit   int64 // of device memory; zero for none
	offload int   // layers to offload
	steps   int
}

// outcome is what a run gave.
type outcome struct {
	setting
	losses  []float64 // by step
	last    nn.Result // of the last step
	weights []float32 // at the end
	peak    int64     // bytes of device memory
	metrics offload.Metrics
	moved   map[int]bool // the layers of which something was copied out
	// shortage is the device's refusal of memory that ended the run in step
	// len(losses)+1; nil if the run came to its end.
	shortage error
	findings int64
	finding  string // the first one
}

// identical reports whether two runs had the same loss in every step and ended
// with the same weights, bit for bit: -0 is not 0, and a NaN is itself.
func identical(a, b *outcome) bool {
	if len(a.losses) != len(b.losses) || len(a.weights) != len(b.weights) {
		return false
	}
	for i, x := range a.losses {
		if math.Float64bits(x) != math.Float64bits(b.losses[i]) {
			return false
		}
	}
	for i, x := range a.weights {
		if math.Float32bits(x) != math.Float32bits(b.weights[i]) {
			return false
		}
	}
	return true
}

// session is a model with a device and an engine of its own.
type session struct {
	machine
	ids    *device.IDs
	stream device.Stream
	engine *offload.Engine
	model  *nn.MLP
	moved  map[int]bool
}

// layersOf returns the number of layers that the engine sees of a model with
// the given number of blocks.
func layersOf(blocks int) int { return nn.Config{Blocks: blocks}.Layers() }

// open makes the device, the engine and the model of a run.
func (d *demo) open(s setting) (*session, error) {
	plan, err := schedule.Window(layersOf(d.config.layers), s.offload)
	if err != nil {
		return nil, err
	}
	m, err := d.machine(s.name, s.limit)
	if err != nil {
		return nil, err
	}
	ses := &session{machine: m, ids: device.NewIDs(m), moved: make(map[int]bool)}
	ses.stream = ses.ids.Stream()
	if err := ses.submit("open", device.OpenStream); err != nil {
		return nil, errors.Join(err, m.Close())
	}
	ses.engine, err = offload.Open(m, offload.Options{
		Plan:        plan,
		MinElements: d.config.minElements(),
		Listener:    ses.listener(d.log.With().Str("run", s.name).Logger()),
	})
	if err == nil {
		ses.model, err = nn.New(m, ses.stream, nn.Config{
			Blocks: d.config.layers,
			Width:  d.config.width,
			Batch:  d.config.batch / d.config.microBatches,
			Seed:   d.config.seed,
		})
	}
	if err != nil {
		return nil, errors.Join(err, ses.close())
	}
	return ses, nil
}

// listener writes to log, and notes which layers move. With inline dispatch the
// engine calls it on the goroutine that trains, so the map needs no lock.
func (s *session) listener(log zerolog.Logger) *offload.EventListener {
	l := offload.LogTo(log)
	write := l.Batch
	l.Batch = func(i offload.BatchInfo) {
		write(i)
		for _, op := range i.Batch.Ops {
			if op.Kind == device.CopyOut {
				s.moved[i.Batch.Origin.Layer] = true
			}
		}
	}
	return l
}

// close gives everything back, in the opposite order.
func (s *session) close() error {
	var errs []error
	if s.model != nil {
		errs = append(errs, s.model.Close())
	}
	if s.engine != nil {
		errs = append(errs, s.engine.Close())
	}
	errs = append(errs, s.submit("close", device.CloseStream), s.Close())
	return errors.Join(errs...)
}

func (s *session) submit(action string, kind device.Kind) error {
	return s.Submit(&device.Batch{
		Origin: device.Origin{Action: action},
		Ops:    []device.Op{{Kind: kind, Stream: s.stream}},
	})
}

// train runs the steps of a setting on a device, an engine and a model of its
// own. That there is not enough device memory for a step is an outcome, every
// other failure an error. After the last step, then is called, if not nil, while
// the model is still there.
func (d *demo) train(ctx context.Context, s setting, then func(*session) error) (o *outcome, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("%s run: %w", s.name, err)
		}
	}()
	ses, err := d.open(s)
	if err != nil {
		return nil, err
	}
	o = &outcome{setting: s}
	defer func() {
		err = errors.Join(err, ses.close())
		o.findings, o.finding = ses.findings() // closing brings out what was not given back
	}()
	if err := d.steps(ctx, ses, o); err != nil {
		return o, err
	}
	o.peak = ses.Usage().Peak
	o.metrics, o.moved = ses.engine.Metrics(), ses.moved
	if o.shortage != nil {
		return o, nil
	}
	if o.weights, err = ses.model.Weights(); err != nil {
		return o, err
	}
	if then != nil {
		err = then(ses)
	}
	return o, err
}

func (d *demo) steps(ctx context.Context, ses *session, o *outcome) error {
	c := d.config
	draw := newBatches(d.training, c.batch, c.seed)
	var batch nn.Batch
	next := func(microBatch int) nn.Batch {
		i := microBatch % c.microBatches
		if i == 0 { // every order begins a batch with its first micro-batch
			batch = draw.draw()
		}
		b := part(batch, i, c.microBatches)
		b.Whole = c.batch * c.accumulate
		return b
	}
	turns := c.turns()
	d.progress.begin(o.name, o.steps)
	defer d.progress.end()
	for range o.steps {
		if err := ctx.Err(); err != nil {
			return err
		}
		r, err := ses.model.StepInTurns(ctx, ses.engine, turns, next)
		if errors.Is(err, device.ErrOutOfMemory) {
			o.shortage = err
			return nil
		}
		if err != nil {
			return fmt.Errorf("step %d: %w", len(o.losses)+1, err)
		}
		o.losses = append(o.losses, r.Loss)
		o.last = r
		d.progress.step(o.name, r.Loss)
	}
	return nil
}
