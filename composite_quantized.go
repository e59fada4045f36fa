package offload

import (
	"errors"
	"fmt"
	"slices"

	"offload/device"
)

// Format says how the data of a quantised value are laid out and scaled.
type Format uint8

const (
	// Unquantized values have data and no scales.
	Unquantized Format = iota
	// PerTensorFP8 has one inverse scale for both directions, RowInverseScale.
	// The column-wise data are the transpose.
	PerTensorFP8
	// BlockFP8 has an inverse scale for each block of each direction. The
	// column-wise data are transposed.
	BlockFP8
	// MXFP8 has a power-of-two inverse scale for each block of each direction.
	// The column-wise data are not transposed.
	MXFP8
	// NVFP4 has two values in a byte, and an inverse scale for each block of each
	// direction beside its largest magnitude (amax). The column-wise data are
	// transposed.
	NVFP4

	formats = int(NVFP4) + 1
)

var formatNames = [formats]string{"unquantized", "per-tensor FP8", "block FP8", "MXFP8", "NVFP4"}

// String returns a name such as "per-tensor FP8".
func (f Format) String() string {
	if int(f) < formats {
		return formatNames[f]
	}
	return fmt.Sprintf("format(%d)", uint8(f))
}

// packed returns how many values one element of the data holds.
func (f Format) packed() int {
	if f == NVFP4 {
		return 2
	}
	return 1
}

// columns returns the shape, in values, of the column-wise data of a value of
// the given shape. Transposed data have the last dimension first.
func (f Format) columns(shape []int) []int {
	switch last := len(shape) - 1; {
	case f == MXFP8 || f == Unquantized || last < 1:
		return shape
	default:
		return slices.Concat(shape[last:], shape[:last])
	}
}

// Quantized is a value that is quantised along its rows, along its columns, or
// both; the data and the scale of a direction that nobody reads are absent. It
// has six components, its tensors in the order of the fields. What a format
// does not have is absent, so that the present ones come in this order:
//
//	PerTensorFP8     data, transpose, inverse scale
//	BlockFP8, MXFP8  row data, column data, row inverse scale, column inverse scale
//	NVFP4            the same, then row amax, column amax
//
// Shapes and types of the components are those that the kernels want. A nil
// *Quantized is an absent one and has no components. Take, Restore and writes
// to the fields need the value for themselves; the other methods only read.
type Quantized struct {
	RowData            device.Tensor
	ColumnData         device.Tensor
	RowInverseScale    device.Tensor
	ColumnInverseScale device.Tensor
	RowAmax            device.Tensor
	ColumnAmax         device.Tensor

	Format   Format
	DType    device.DType // that the value stands for, such as BFloat16
	Shape    []int        // of the value in its own elements; shared between copies
	Swizzled bool         // the scales are in the order that matrix products want
}

var (
	quantizedNames = []string{"row data", "column data", "row inverse scale", "column inverse scale", "row amax", "column amax"}
	quantizedRoles = []Role{Payload, Payload, Scales, Scales, Statistics, Statistics}
)

// fields returns where the components are.
func (q *Quantized) fields() []*device.Tensor {
	if q == nil {
		return nil
	}
	return []*device.Tensor{&q.RowData, &q.ColumnData, &q.RowInverseScale, &q.ColumnInverseScale, &q.RowAmax, &q.ColumnAmax}
}

// Components implements Composite.
func (q *Quantized) Components() []device.Tensor { return enumerate(q.fields()) }

// Roles returns what the components are for, in their order.
func (q *Quantized) Roles() []Role { return slices.Clone(quantizedRoles[:len(q.fields())]) }

// WithComponents implements Composite: the new value is a *Quantized.
func (q *Quantized) WithComponents(cs []device.Tensor) (Composite, error) {
	var o *Quantized
	if q != nil {
		o = new(*q)
	}
	if err := refill("quantised tensor", o.fields(), cs); err != nil {
		return nil, err
	}
	return o, nil
}

// Take returns the components and leaves q without them; Restore puts them back.
func (q *Quantized) Take() []device.Tensor { return take(q.fields()) }

// Restore makes the first tensors the components, in their order, and returns
// the others. When there are too few, it returns [ErrComposite] and all of them.
func (q *Quantized) Restore(cs []device.Tensor) (rest []device.Tensor, err error) {
	return restore("quantised tensor", q.fields(), cs)
}

// Device returns the device of the first component that is there;
// [ErrNoDevice] when there is none. Call it before the push or after the pop.
func (q *Quantized) Device() (device.ID, error) { return deviceOf("quantised tensor", q.Components()) }

// Check returns [ErrComposite] when a component cannot be right, or does not
// belong to the format. A value without any component is right.
func (q *Quantized) Check() error {
	if q == nil {
		return nil
	}
	what := q.Format.String() + " tensor"
	if err := checkComponents(what, q.Components(), quantizedRoles, quantizedNames); err != nil {
		return err
	}
	return q.Format.check(what, q.fields(), quantizedNames)
}

// check compares data and inverse scales, which are the first four components of
// c, with what the format has. Amaxes are optional in every format.
func (f Format) check(what string, c []*device.Tensor, names []string) error {
	const rowData, columnData, rowScale, columnScale = 0, 1, 2, 3
	has := func(i int) bool { return !c[i].IsNil() }
	lacks := func(i int) error {
		if has(i) {
			return fmt.Errorf("%w: a %s has no %s, but there is %v", ErrComposite, what, names[i], *c[i])
		}
		return nil
	}
	both := func(data, scale int) error {
		if has(data) != has(scale) {
			return fmt.Errorf("%w: of %s and %s, a %s has both or neither; one is absent", ErrComposite, names[data], names[scale], what)
		}
		return nil
	}
	switch f {
	case Unquantized:
		return errors.Join(lacks(rowScale), lacks(columnScale))
	case PerTensorFP8:
		if (has(rowData) || has(columnData)) != has(rowScale) {
			return fmt.Errorf("%w: a %s has %s exactly if it has %s or %s", ErrComposite, what, names[rowScale], names[rowData], names[columnData])
		}
		return lacks(columnScale)
	case BlockFP8, MXFP8, NVFP4:
		return errors.Join(both(rowData, rowScale), both(columnData, columnScale))
	}
	return fmt.Errorf("%w: %v is none of the formats %v to %v", ErrComposite, f, Unquantized, Format(formats-1))
}

// Hybrid is a value whose rows and columns are quantised in different ways. Its
// components are those of Row, then those of Column; an absent one is nil and
// contributes none, and so does a nil *Hybrid. Its methods only read.
type Hybrid struct {
	Row    Composite
	Column Composite
}

// Components implements Composite.
func (h *Hybrid) Components() []device.Tensor {
	row, column := h.parts()
	return append(row, column...)
}

// parts returns the components of the rows and of the columns.
func (h *Hybrid) parts() (row, column []device.Tensor) {
	if h == nil {
		return nil, nil
	}
	if h.Row != nil {
		row = h.Row.Components()
	}
	if h.Column != nil {
		column = h.Column.Components()
	}
	return row, column
}

// WithComponents implements Composite: the new value is a *Hybrid, whose parts
// are of the same types.
func (h *Hybrid) WithComponents(cs []device.Tensor) (Composite, error) {
	row, column := h.parts()
	n := len(row)
	if len(cs) != n+len(column) {
		return nil, fmt.Errorf("%w: %d tensors for the %d components of a hybrid tensor", ErrComposite, len(cs), n+len(column))
	}
	if h == nil {
		return h, nil
	}
	o := new(*h)
	var err error
	if h.Row != nil {
		if o.Row, err = h.Row.WithComponents(cs[:n]); err != nil {
			return nil, fmt.Errorf("rows of a hybrid tensor: %w", err)
		}
	}
	if h.Column != nil {
		if o.Column, err = h.Column.WithComponents(cs[n:]); err != nil {
			return nil, fmt.Errorf("columns of a hybrid tensor: %w", err)
		}
	}
	return o, nil
}

// Device returns the device of the first component that is there;
// [ErrNoDevice] when there is none. Call it before the push or after the pop.
func (h *Hybrid) Device() (device.ID, error) { return deviceOf("hybrid tensor", h.Components()) }

// Check checks the parts that can be checked.
func (h *Hybrid) Check() error {
	if h == nil {
		return nil
	}
	if err := check(h.Row); err != nil {
		return fmt.Errorf("rows of a hybrid tensor: %w", err)
	}
	if err := check(h.Column); err != nil {
		return fmt.Errorf("columns of a hybrid tensor: %w", err)
	}
	return nil
}
