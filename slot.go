package offload

import (
	"fmt"

	"offload/device"
	"offload/fsm"
	"offload/messages"
)

// Slot is one run of one layer within one pass, seen from a compute stream.
type Slot struct {
	run    *run
	stream device.Stream
}

// Saved stands for a tensor between Push and Pop. It names the engine, the
// pass, the layer, its run and the tensor, so that a stale or foreign one is an
// error and never another tensor's bytes. It is comparable; the zero value
// stands for nothing.
type Saved struct {
	run   *run
	gen   uint32
	index int32
}

// String returns for example "pass 3 layer 1 tensor 0".
func (s Saved) String() string {
	if s.run == nil {
		return "nothing saved"
	}
	return fmt.Sprintf("pass %d layer %d tensor %d", s.run.pass.number, s.run.layer, s.index)
}

// Layer returns the layer whose slot it is.
func (s *Slot) Layer() int { return s.run.layer }

// Occurrence returns which run of its layer within the pass the slot is, from zero.
func (s *Slot) Occurrence() int { return s.run.occurrence }

// On returns a view of the slot whose operations belong to another compute
// stream of the same device: what is pushed is complete there, and what is
// popped is used there.
func (s *Slot) On(stream device.Stream) *Slot { return &Slot{run: s.run, stream: stream} }

// State returns where the slot's tensors are after the last call on the slot
// that has returned; Resident after the slot was reset. It waits for nothing,
// so that listeners may call it.
func (s *Slot) State() fsm.State { return s.run.at() }

// Push saves tensors for the backward. They have to be complete in the order of
// the slot's stream. It takes over the hold on the storages of activations; see
// the package comment. Absent tensors, weights, index data, host tensors and
// tensors without elements are noted and come back as they are. A push that is
// refused takes nothing over; after one that the device failed, and with it the
// slot, the storages are the engine's.
func (s *Slot) Push(ts ...device.Tensor) ([]Saved, error) {
	return s.AppendPush(make([]Saved, 0, len(ts)), ts...)
}

// AppendPush is Push for loops that must not allocate: it appends to dst.
func (s *Slot) AppendPush(dst []Saved, ts ...device.Tensor) ([]Saved, error) {
	q, err := s.begin(fsm.Push)
	if err != nil {
		return dst, err
	}
	defer s.run.pass.unlock()
	q.Tensors = append(q.Tensors, ts...)
	if err := s.run.pass.call(s.run); err != nil {
		return dst, err
	}
	for i := range ts {
		dst = append(dst, Saved{run: s.run, gen: s.run.gen, index: int32(q.First + i)})
	}
	return dst, nil
}

// Pop returns the tensors that were saved, bit for bit. Work enqueued on the
// slot's stream from now on may use them. The same Saved may be popped again and
// gives the same buffer.
func (s *Slot) Pop(saved ...Saved) ([]device.Tensor, error) {
	return s.AppendPop(make([]device.Tensor, 0, len(saved)), saved...)
}

// AppendPop is Pop for loops that must not allocate: it appends to dst.
func (s *Slot) AppendPop(dst []device.Tensor, saved ...Saved) ([]device.Tensor, error) {
	q, err := s.begin(fsm.Pop)
	if err != nil {
		return dst, err
	}
	defer s.run.pass.unlock()
	for _, v := range saved {
		if err := s.run.owns(v); err != nil {
			return dst, err
		}
		q.Indices = append(q.Indices, int(v.index))
	}
	if err := s.run.pass.call(s.run); err != nil {
		return dst, err
	}
	return append(dst, q.Tensors...), nil
}

// owns refuses what was not saved in this slot since it was last reset.
func (r *run) owns(v Saved) error {
	switch {
	case v.run == nil:
		return fmt.Errorf("pop layer %d: %w: the zero Saved stands for nothing; pass one that Push returned", r.layer, ErrForeign)
	case v.run.pass != r.pass && v.run.pass.ended.Load():
		return fmt.Errorf("pop layer %d of pass %d: %w: %v was saved in a pass that is over", r.layer, r.pass.number, ErrStale, v)
	case v.run != r:
		where := v.String()
		if v.run.pass.engine != r.pass.engine {
			where += " of another engine"
		}
		return fmt.Errorf("pop layer %d of pass %d: %w: %s was saved in another slot; pop it from the one that it was pushed to",
			r.layer, r.pass.number, ErrForeign, where)
	case v.gen != r.gen:
		return fmt.Errorf("pop layer %d of pass %d: %w: %v was saved before the slot was reset", r.layer, r.pass.number, ErrStale, v)
	}
	return nil
}

// StartOffload enqueues the copy of the slot's tensors to the host. The bytes
// must not be changed any more. Manual plans only.
func (s *Slot) StartOffload() error { return s.manual(fsm.StartOffload) }

// Release frees the slot's tensors on the device, in the order of the slot's
// stream, after the copy. Manual plans only.
func (s *Slot) Release() error { return s.manual(fsm.Release) }

// Reload enqueues the copy of the slot's tensors back to the device, into memory
// allocated in the order of the slot's stream. Manual plans only.
func (s *Slot) Reload() error { return s.manual(fsm.Reload) }

// Revive gives up an offload whose bytes have not been released: they stay on
// the device, and nothing is copied back. Manual plans only.
func (s *Slot) Revive() error { return s.manual(fsm.Revive) }

// Reset gives back what the slot holds and makes it empty and Resident; what was
// saved in it is stale. It is what Backward and End do. Manual plans only.
func (s *Slot) Reset() error { return s.manual(fsm.Reset) }

func (s *Slot) manual(e fsm.Event) error {
	if !s.run.pass.engine.opts.Plan.IsManual() {
		return fmt.Errorf("%v layer %d: %w: the engine follows a plan that is not manual; open it with schedule.Manual to call %v yourself",
			e, s.run.layer, ErrPlanned, e)
	}
	if _, err := s.begin(e); err != nil {
		return err
	}
	defer s.run.pass.unlock()
	return s.run.pass.call(s.run)
}

// begin locks the pass and makes its request ready. The caller calls unlock,
// unless there is an error.
func (s *Slot) begin(e fsm.Event) (*messages.Request, error) {
	r := s.run
	if err := r.pass.lock(e.String(), r.layer); err != nil {
		return nil, err
	}
	if err := r.usable(s.stream); err != nil {
		r.pass.mu.Unlock()
		return nil, fmt.Errorf("%v layer %d: %w", e, r.layer, err)
	}
	q := r.pass.fill(r, s.stream)
	q.Event = e
	return q, nil
}

func (r *run) usable(stream device.Stream) error {
	if r.closed {
		return fmt.Errorf("%w: the slot was reset, since its backward is over", ErrStale)
	}
	if stream.Device != r.pass.stream.Device || stream.IsZero() {
		return fmt.Errorf("%w: %v is not a stream of the device of pass %d, which runs on %v", ErrForeign, stream, r.pass.number, r.pass.stream)
	}
	return nil
}
