package offload

import (
	"errors"
	"fmt"
	"slices"

	"offload/device"
)

var (
	// ErrComposite is returned for a composite that breaks the rules of
	// [Composite] or of its own type. Nothing of it has been saved.
	ErrComposite = errors.New("invalid composite")
	// ErrNoDevice is returned when a composite has no component that says on
	// which device it is.
	ErrNoDevice = errors.New("no device")
)

// Composite is a value made of several tensors, such as quantised data with its
// scales. [Quantized], [Hybrid] and [Grouped] are composites; a program can have
// its own, which may contain others.
//
// A composite that has a method Check() error is checked by PushComposite.
type Composite interface {
	// Components returns the tensors, in an order and a number that never
	// change for the value; absent ones are zero Tensors. It changes nothing,
	// and the slice belongs to the caller.
	Components() []device.Tensor
	// WithComponents returns a new value that is like the receiver, which stays
	// as it is, but has these components, in the order of Components. It
	// returns [ErrComposite] when their number is not that of Components.
	WithComponents(cs []device.Tensor) (Composite, error)
}

// Role says what a component is for.
type Role uint8

const (
	// Payload is the data themselves.
	Payload Role = iota
	// Scales is what the data are multiplied by. It is needed to read them.
	Scales
	// Statistics is what scales are computed from.
	Statistics
	// Control is sizes and offsets, which launches need: its storage is of class
	// [device.Index], which never moves.
	Control
)

// String returns the role in lower case.
func (r Role) String() string {
	switch r {
	case Payload:
		return "payload"
	case Scales:
		return "scales"
	case Statistics:
		return "statistics"
	case Control:
		return "control"
	}
	return fmt.Sprintf("role(%d)", uint8(r))
}

// SavedComposite stands for a composite between PushComposite and PopComposite,
// as a [Saved] does for a tensor. It has no hold on any storage. It is comparable;
// the zero value stands for nothing.
type SavedComposite struct {
	v *savedComposite
}

type savedComposite struct {
	shell Composite // as it was pushed, but without its components
	parts []Saved
}

// String returns for example "composite of 6: pass 3 layer 1 tensor 0".
func (s SavedComposite) String() string {
	switch {
	case s.v == nil:
		return "nothing saved"
	case len(s.v.parts) == 0:
		return "composite of 0"
	}
	return fmt.Sprintf("composite of %d: %v", len(s.v.parts), s.v.parts[0])
}

// PushComposite saves a composite for the backward. Each component is judged,
// and moved, kept or noted as absent, as if it had been pushed alone; the
// storage of a component that was pushed before is not copied again.
//
// c and its tensors stay as they are, and c may be changed or dropped
// afterwards: what PopComposite returns is like c was at the push. The storages
// of its activations are taken over, as by Push, and not when the push is
// refused. Work that is enqueued on the slot's stream before the slot is
// released may still read them; Retain those that are read later.
func (s *Slot) PushComposite(c Composite) (SavedComposite, error) {
	shell, cs, err := dismantle(c)
	if err != nil {
		return SavedComposite{}, fmt.Errorf("push layer %d: %w", s.run.layer, err)
	}
	parts, err := s.Push(cs...)
	if err != nil {
		return SavedComposite{}, err
	}
	return SavedComposite{&savedComposite{shell: shell, parts: parts}}, nil
}

// PopComposite returns a new composite that is like the one that was pushed: its
// type, its absent components and all that is not a tensor are those of the
// push, and the bytes are the same. The tensors belong to the engine, as those
// that Pop returns do.
func (s *Slot) PopComposite(saved SavedComposite) (Composite, error) {
	if saved.v == nil {
		return nil, fmt.Errorf("pop layer %d: %w: the zero SavedComposite stands for nothing; pass one that PushComposite returned",
			s.run.layer, ErrForeign)
	}
	cs, err := s.Pop(saved.v.parts...)
	if err != nil {
		return nil, err
	}
	c, err := saved.v.shell.WithComponents(cs)
	if err != nil {
		return nil, fmt.Errorf("pop layer %d: refill the %T that was pushed: %w", s.run.layer, saved.v.shell, err)
	}
	return c, nil
}

// dismantle returns the components of c and a copy of c that has none.
func dismantle(c Composite) (shell Composite, cs []device.Tensor, err error) {
	if c == nil {
		return nil, nil, fmt.Errorf("%w: there is none; an absent part of a composite is a zero Tensor", ErrComposite)
	}
	if err := check(c); err != nil {
		return nil, nil, err
	}
	cs = c.Components()
	shell, err = c.WithComponents(make([]device.Tensor, len(cs)))
	if err != nil {
		return nil, nil, fmt.Errorf("a %T without its components: %w", c, err)
	}
	if shell == nil {
		return nil, nil, fmt.Errorf("%w: WithComponents of a %T returned nil", ErrComposite, c)
	}
	if n := len(shell.Components()); n != len(cs) {
		return nil, nil, fmt.Errorf("%w: a %T has %d components and %d without their tensors; absent ones are zero Tensors", ErrComposite, c, len(cs), n)
	}
	return shell, cs, nil
}

// check calls the Check method of a composite that has one.
func check(c Composite) error {
	if c, ok := c.(interface{ Check() error }); ok {
		return c.Check()
	}
	return nil
}

// deviceOf returns the device of the first component that is there.
func deviceOf(what string, cs []device.Tensor) (device.ID, error) {
	for i, t := range cs {
		if t.IsNil() {
			continue
		}
		if id := t.Storage.Buffer().Device; id != 0 {
			return id, nil
		}
		if id := t.Storage.Home().Device; id != 0 { // the bytes have left it
			return id, nil
		}
		return 0, fmt.Errorf("%w: component %d of the %s, %v, has a storage that names none", ErrNoDevice, i, what, t)
	}
	return 0, fmt.Errorf("%w: all %d components of the %s are absent", ErrNoDevice, len(cs), what)
}

// enumerate returns the tensors that the fields hold.
func enumerate(fields []*device.Tensor) []device.Tensor {
	cs := make([]device.Tensor, len(fields))
	for i, f := range fields {
		cs[i] = *f
	}
	return cs
}

// take is enumerate, and empties the fields.
func take(fields []*device.Tensor) []device.Tensor {
	cs := enumerate(fields)
	for _, f := range fields {
		*f = device.Tensor{}
	}
	return cs
}

// restore fills the fields, unless there are too few tensors, and returns those
// that are left.
func restore(what string, fields []*device.Tensor, cs []device.Tensor) (rest []device.Tensor, err error) {
	if len(cs) < len(fields) {
		return cs, fmt.Errorf("%w: %d tensors for the %d components of a %s; absent ones are zero Tensors", ErrComposite, len(cs), len(fields), what)
	}
	for i, f := range fields {
		*f = cs[i]
	}
	return cs[len(fields):], nil
}

// refill is restore for exactly as many tensors as there are fields.
func refill(what string, fields []*device.Tensor, cs []device.Tensor) error {
	rest, err := restore(what, fields, cs)
	if err == nil && len(rest) > 0 {
		err = fmt.Errorf("%w: %d tensors for the %d components of a %s", ErrComposite, len(cs), len(fields), what)
	}
	return err
}

// checkComponents checks every tensor, and that those of control are index data.
func checkComponents(what string, cs []device.Tensor, roles []Role, names []string) error {
	for i, t := range cs {
		if err := t.Check(); err != nil {
			return fmt.Errorf("%w: %s of the %s: %w", ErrComposite, names[i], what, err)
		}
		if roles[i] == Control && !t.IsNil() && t.Storage.Class() != device.Index {
			return fmt.Errorf("%w: %s of the %s, %v, is of class %v; launches need it where it is, so its storage has to be of class %v",
				ErrComposite, names[i], what, t, t.Storage.Class(), device.Index)
		}
	}
	return nil
}

// same reports whether two tensors are the same view of the same storage.
func same(a, b device.Tensor) bool {
	return a.Storage == b.Storage && a.DType == b.DType && a.Offset == b.Offset && a.Keep == b.Keep &&
		slices.Equal(a.Shape, b.Shape) && slices.Equal(a.Strides, b.Strides)
}
