package ops

import (
	"errors"
	"fmt"
	"slices"

	"offload/device"
)

// ErrShape is returned by the kernel constructors for operands that do not fit
// the kernel: a wrong type, shape or layout, or operands that share bytes where
// they must not.
var ErrShape = errors.New("operands do not fit the kernel")

// checker checks the operands of one kernel and keeps the first fault.
type checker struct {
	name string
	err  error
}

func check(name string) *checker { return &checker{name: name} }

func (k *checker) fail(format string, args ...any) {
	if k.err == nil {
		k.err = fmt.Errorf("%s: %w: %s", k.name, ErrShape, fmt.Sprintf(format, args...))
	}
}

// tensor wants a contiguous tensor of the given type whose bytes are on the device.
func (k *checker) tensor(role string, t device.Tensor, want device.DType) {
	switch {
	case t.IsNil():
		k.fail("%s is absent", role)
	case t.DType != want:
		k.fail("%s is %v; its type must be %v", role, t, want)
	case !t.Contiguous():
		k.fail("%s is %v; it must be contiguous", role, t)
	case t.Storage.Buffer().IsZero():
		k.fail("%s is %v, whose bytes are not on the device", role, t)
	default:
		if err := t.Check(); err != nil {
			k.fail("%s: %v", role, err)
		}
	}
}

func (k *checker) matrix(role string, t device.Tensor, want device.DType) {
	k.tensor(role, t, want)
	if k.err == nil && len(t.Shape) != 2 {
		k.fail("%s is %v; it must have two dimensions", role, t)
	}
}

func (k *checker) vector(role string, t device.Tensor, want device.DType, n int) {
	k.tensor(role, t, want)
	if k.err == nil && (len(t.Shape) != 1 || t.Shape[0] != n) {
		k.fail("%s is %v; its shape must be [%d]", role, t, n)
	}
}

// same wants two float32 tensors of one shape that are the same bytes or share none.
func (k *checker) same(role1 string, t1 device.Tensor, role2 string, t2 device.Tensor) {
	k.tensor(role1, t1, device.Float32)
	k.tensor(role2, t2, device.Float32)
	if k.err != nil {
		return
	}
	if !slices.Equal(t1.Shape, t2.Shape) {
		k.fail("%s is %v and %s is %v; the shapes must be equal", role1, t1, role2, t2)
	} else if t1.Range() != t2.Range() {
		k.apart(role1, t1, role2, t2)
	}
}

func (k *checker) apart(role1 string, t1 device.Tensor, role2 string, t2 device.Tensor) {
	if k.err == nil && t1.Range().Overlaps(t2.Range()) {
		k.fail("%s is %v and %s is %v; they must not share bytes", role1, t1, role2, t2)
	}
}

// kernel makes the kernel, unless a check failed, and marks the storages that
// it writes as changed.
func (k *checker) kernel(args []device.Arg, reads []device.Tensor, writes ...device.Tensor) (device.Kernel, error) {
	if k.err != nil {
		return device.Kernel{}, k.err
	}
	for _, t := range writes {
		t.Storage.Touch()
	}
	all := make([]device.Range, 0, len(reads)+len(writes)) // for both
	r := ranges(all, reads)
	return device.Kernel{Name: k.name, Args: args, Reads: r[:len(r):len(r)], Writes: ranges(r[len(r):], writes)}, nil
}

// ranges appends the ranges of ts to rs, which is empty, each once.
func ranges(rs []device.Range, ts []device.Tensor) []device.Range {
	for _, t := range ts {
		if r := t.Range(); !slices.Contains(rs, r) {
			rs = append(rs, r)
		}
	}
	return rs
}
