package offload

import (
	"fmt"
	"slices"

	"offload/device"
)

// members is a list of views and what they are views of. It is never changed,
// and counts for as long as a Grouped has those components: taking them and
// putting them back brings it back too, other components make a new one.
type members struct {
	layout *GroupLayout
	of     []device.Tensor
	list   []*Quantized
}

// Members returns each member as views of the components: data in the shape of
// the member, transposed as the format has it; scales and amaxes as vectors.
// What the group lacks, its members lack.
//
// The list is kept, and must not be changed. The views share the storages of
// the group, so that they are where it is, and move with it. It returns
// [ErrComposite] when the layout does not say where the members are, when they
// are not within the components, or when there are no components.
func (g *Grouped) Members() ([]*Quantized, error) {
	c := g.cache
	if c != nil && c.layout == g.Layout && slices.EqualFunc(c.of, g.fields(), func(t device.Tensor, f *device.Tensor) bool { return same(t, *f) }) {
		return c.list, nil
	}
	list, err := g.views()
	if err != nil {
		return nil, fmt.Errorf("members: %w", err)
	}
	g.cache = &members{layout: g.Layout, of: g.Components(), list: list}
	return list, nil
}

// views makes the list of members.
func (g *Grouped) views() ([]*Quantized, error) {
	if err := g.Check(); err != nil {
		return nil, err
	}
	l := g.Layout
	switch {
	case l == nil || l.Shapes == nil:
		return nil, fmt.Errorf("%w: the layout of the grouped tensor has no shapes of members; only the device knows them", ErrComposite)
	case g.RowData.IsNil() && g.ColumnData.IsNil():
		return nil, fmt.Errorf("%w: the grouped tensor has neither row data nor column data; restore them first", ErrComposite)
	}
	list := make([]*Quantized, l.Members)
	var value, row int64 // where the next member begins
	for i, shape := range l.Shapes {
		n := device.Tensor{Shape: shape}.Elements()
		if l.DataOffsets != nil {
			value = l.DataOffsets[i]
			if next := l.DataOffsets[i+1]; value+n > next {
				return nil, fmt.Errorf("%w: member %d of the grouped tensor has %d values from offset %d on, and the next one begins at %d",
					ErrComposite, i, n, value, next)
			}
		}
		rows := int64(1)
		if len(shape) > 0 {
			rows = device.Tensor{Shape: shape[:len(shape)-1]}.Elements()
		}
		c := cutter{member: i, members: l.Members, packed: l.Format.packed()}
		m := &Quantized{Format: l.Format, DType: l.DType, Shape: shape, Swizzled: l.Swizzled}
		m.RowData = c.data(0, g.RowData, value, shape)
		m.ColumnData = c.data(1, g.ColumnData, value, l.Format.columns(shape))
		m.RowInverseScale = c.vector(2, g.RowInverseScale, l.RowScaleOffsets)
		m.ColumnInverseScale = c.vector(3, g.ColumnInverseScale, l.ColumnScaleOffsets)
		if l.RowScaled {
			m.RowAmax = c.cut(4, g.RowAmax, row, []int{int(rows)})
		} else {
			m.RowAmax = c.vector(4, g.RowAmax, nil)
		}
		m.ColumnAmax = c.vector(5, g.ColumnAmax, nil)
		if c.err != nil {
			return nil, c.err
		}
		list[i] = m
		value, row = value+n, row+rows
	}
	return list, nil
}

// cutter cuts the views of one member out of components, and keeps the first
// error. Components are named by their number.
type cutter struct {
	member, members int
	packed          int // values in one element of the data
	err             error
}

// data returns the values of the member, of the given shape, from the value at begin on.
func (c *cutter) data(component int, t device.Tensor, begin int64, shape []int) device.Tensor {
	if c.packed > 1 && !t.IsNil() {
		last := len(shape) - 1
		if last < 0 || shape[last]%c.packed != 0 || begin%int64(c.packed) != 0 {
			c.fail(component, "its shape %v at value %d does not fill whole elements of %d values", shape, begin, c.packed)
			return device.Tensor{}
		}
		shape = slices.Clone(shape)
		shape[last] /= c.packed
		begin /= int64(c.packed)
	}
	return c.cut(component, t, begin, shape)
}

// vector returns the elements between two offsets; the one of the member where
// there are no offsets.
func (c *cutter) vector(component int, t device.Tensor, offsets []int64) device.Tensor {
	if offsets != nil {
		begin, end := offsets[c.member], offsets[c.member+1]
		return c.cut(component, t, begin, []int{int(end - begin)})
	}
	if !t.IsNil() && t.Elements() != int64(c.members) {
		c.fail(component, "%v has no offsets, and not one element for each of %d members", t, c.members)
		return device.Tensor{}
	}
	return c.cut(component, t, int64(c.member), []int{1})
}

// cut returns the elements of t, one after the other, from begin on.
func (c *cutter) cut(component int, t device.Tensor, begin int64, shape []int) device.Tensor {
	if t.IsNil() {
		return t
	}
	if !t.Contiguous() {
		c.fail(component, "%v is not contiguous", t)
		return device.Tensor{}
	}
	v := t
	v.Shape, v.Strides, v.Offset = shape, nil, t.Offset+begin
	if begin+v.Elements() > t.Elements() {
		c.fail(component, "elements %d to %d are not within %v", begin, begin+v.Elements(), t)
		return device.Tensor{}
	}
	return v
}

func (c *cutter) fail(component int, format string, args ...any) {
	if c.err == nil {
		c.err = fmt.Errorf("%w: %s of member %d of the grouped tensor: %s", ErrComposite, groupedNames[component], c.member, fmt.Sprintf(format, args...))
	}
}
