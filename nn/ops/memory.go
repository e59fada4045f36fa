package ops

import (
	"errors"
	"fmt"
	"slices"

	"offload/device"
)

// MemoryError says for what no memory was found. It wraps the device's error,
// so that errors.Is(err, device.ErrOutOfMemory) holds.
type MemoryError struct {
	Name  string       // what the memory was for
	Place device.Place // where it was asked for
	Need  int64        // bytes asked for
	InUse int64        // bytes of device memory in use at the time
	Limit int64        // the device's limit in bytes; zero if it has none of its own
	Err   error
}

// Error names the need, what is in use and the limit. The device's own words
// are left to Unwrap.
func (e *MemoryError) Error() string {
	what := fmt.Sprintf("%v: %s needs %d bytes of %v memory", device.ErrOutOfMemory, e.Name, e.Need, e.Place)
	switch {
	case e.Place != device.OnDevice:
		return what
	case e.Limit == 0:
		return fmt.Sprintf("%s; %d are in use", what, e.InUse)
	}
	return fmt.Sprintf("%s; %d are in use and the limit is %d", what, e.InUse, e.Limit)
}

// Unwrap returns the device's error.
func (e *MemoryError) Unwrap() error { return e.Err }

// explain turns the refusal of an allocation for want of memory into a *MemoryError.
func (a *Arena) explain(err error, op device.Op, s *device.Storage) error {
	if op.Kind != device.Alloc || !errors.Is(err, device.ErrOutOfMemory) {
		return err
	}
	u := a.dev.Usage()
	return &MemoryError{Name: s.Name(), Place: device.OnDevice, Need: s.Bytes(), InUse: u.InUse, Limit: u.Limit, Err: err}
}

// Scope is a set of tensors of one arena that are freed together, unless they
// are freed one by one before. It holds the storage of each; whoever else holds
// one when the scope lets go of it is the one to free it.
type Scope struct {
	a    *Arena
	held []*device.Storage
}

// Scope opens a scope. It lasts until [Scope.Close] or [Arena.Close].
func (a *Arena) Scope() *Scope {
	s := &Scope{a: a}
	a.scopes = append(a.scopes, s)
	return s
}

// Alloc queues the allocation of a contiguous tensor and returns it. Name is
// for messages. Kernels that use it may be queued at once. Whether there was
// memory for it is known at the next Flush.
func (s *Scope) Alloc(name string, class device.Class, t device.DType, shape ...int) device.Tensor {
	x := device.Tensor{DType: t, Shape: shape}
	if x.Bytes() <= 0 {
		s.a.fail(fmt.Errorf("alloc %s: %v%v has no bytes", name, t, shape))
		return device.Tensor{}
	}
	x.Storage = s.a.ids.NewStorage(name, class, x.Bytes(), s.a.stream)
	// The scope's hold cannot be taken over: an engine becomes a holder of its
	// own. Free is then right after every Push, whether it took the tensor,
	// left it, or failed half-way.
	x.Storage.Take()
	s.a.queue(device.Op{Kind: device.Alloc, Stream: s.a.stream, Dst: whole(x.Storage)}, x.Storage)
	s.held = append(s.held, x.Storage)
	return x
}

// Free takes tensors out of the scope and queues freeing their memory, unless
// somebody else holds their storage, such as the engine that they were pushed
// to. A tensor that is not in the scope is an error, returned by the next
// Flush. Absent tensors are skipped.
func (s *Scope) Free(ts ...device.Tensor) {
	for _, t := range ts {
		if t.IsNil() {
			continue
		}
		i := slices.Index(s.held, t.Storage)
		if i < 0 {
			s.a.fail(fmt.Errorf("free %v: it is not in the scope (allocated elsewhere, or freed before)", t))
			continue
		}
		s.held = slices.Delete(s.held, i, i+1)
		s.drop(t.Storage)
	}
}

// Close frees what the scope still holds, as Free does.
func (s *Scope) Close() {
	for _, st := range s.held {
		s.drop(st)
	}
	s.held = nil
	s.a.scopes = slices.DeleteFunc(s.a.scopes, func(o *Scope) bool { return o == s })
}

// Held returns the number of storages that the scope holds.
func (s *Scope) Held() int { return len(s.held) }

func (s *Scope) drop(st *device.Storage) {
	// No buffer: the allocation was refused, and there is nothing to free.
	if st.Release() && !st.Buffer().IsZero() {
		s.a.queue(device.Op{Kind: device.Free, Stream: s.a.stream, Dst: whole(st)}, st)
	}
}
