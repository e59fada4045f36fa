package nn

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"offload"
)

// StepInTurns trains on several micro-batches, whose passes of engine run in the
// given order, then updates the weights once. batch returns a micro-batch when
// its forward comes; it may use the memory of the one before again. Its Whole is
// the images of all of them, if their gradients shall have the mean over these.
// The result is that of all images. A micro-batch's backward is enqueued before
// its forward is waited for, and no other work of the step is waited for.
//
// After an error the passes are aborted, nothing of the step is held, the
// gradients summed up so far are dropped, and the weights are those of before,
// unless the error came from the device while kernels ran.
func (m *MLP) StepInTurns(ctx context.Context, engine *offload.Engine, order []offload.Turn,
	batch func(microBatch int) Batch) (Result, error) {
	step, err := engine.BeginStep(ctx, m.arena.Stream(), order...)
	if err != nil {
		return Result{}, fmt.Errorf("nn: begin: %w", err)
	}
	s := stepRun{m: m, step: step, runs: make(map[int]*Run)}
	for _, t := range order {
		err := s.turn(t, batch)
		if err != nil && len(order) > 2 {
			err = fmt.Errorf("micro-batch %d: %w", t.MicroBatch, err)
		}
		if err != nil {
			return Result{}, errors.Join(err, s.giveUp())
		}
	}
	if err := step.End(); err != nil {
		return Result{}, errors.Join(fmt.Errorf("nn: end: %w", err), s.giveUp())
	}
	if err := m.Update(); err != nil {
		return Result{}, errors.Join(err, s.giveUp())
	}
	return s.total.result(), nil
}

// stepRun is a step on its way.
type stepRun struct {
	m     *MLP
	step  *offload.Step
	runs  map[int]*Run // by micro-batch: those whose result has not been read
	total tally
}

func (s *stepRun) turn(t offload.Turn, batch func(int) Batch) error {
	if t.Backward {
		return s.backward(t.MicroBatch)
	}
	pass, err := s.step.Forward(t.MicroBatch)
	if err != nil {
		return fmt.Errorf("nn: begin: %w", err)
	}
	r, err := s.m.Forward(pass, batch(t.MicroBatch))
	if err != nil {
		return err
	}
	s.runs[t.MicroBatch] = r
	return nil
}

// backward ends the pass as well, and reads the result, so that the memory of
// this micro-batch is there for the next one.
func (s *stepRun) backward(microBatch int) error {
	pass, err := s.step.Backward(microBatch)
	if err != nil {
		return fmt.Errorf("nn: backward: %w", err)
	}
	r := s.runs[microBatch]
	if err := s.m.Backward(pass, r); err != nil {
		return err
	}
	if err := pass.End(); err != nil {
		// A pass that has ended is none of those that aborting the step ends.
		return errors.Join(fmt.Errorf("nn: end: %w", err), pass.Abort())
	}
	result, err := r.Result()
	if err != nil {
		return err
	}
	delete(s.runs, microBatch)
	s.total.add(result)
	return nil
}

// giveUp frees everything that the step holds.
func (s *stepRun) giveUp() error {
	s.m.spent = true
	var errs []error
	for _, n := range slices.Sorted(maps.Keys(s.runs)) { // in order, so that what is reported is, too
		errs = append(errs, s.runs[n].Discard())
	}
	return errors.Join(append(errs, s.step.Abort())...)
}
