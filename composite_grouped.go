package offload

import (
	"fmt"
	"slices"

	"offload/device"
)

// Grouped is several values, its members, whose data lie one after the other in
// shared tensors, as the experts of a grouped product want them. It has ten
// components, its tensors in the order of the fields; any of them may be absent.
//
// A nil *Grouped is an absent one and has no components. Take, Restore, Members
// and writes to the fields need the value for themselves; the other methods
// only read.
type Grouped struct {
	RowData            device.Tensor
	ColumnData         device.Tensor
	RowInverseScale    device.Tensor
	ColumnInverseScale device.Tensor
	RowAmax            device.Tensor
	ColumnAmax         device.Tensor
	Scale              device.Tensor // what the values were multiplied by
	FirstDims          device.Tensor // of each member, for launches; of class Index
	LastDims           device.Tensor // of each member, for launches; of class Index
	Offsets            device.Tensor // of each member's data, for launches; of class Index

	Layout *GroupLayout // nil: the host knows nothing of the members

	cache *members
}

// GroupLayout is what the host knows of a [Grouped] besides its tensors. It is
// shared between copies and must not be changed.
type GroupLayout struct {
	Format  Format
	DType   device.DType // that the values stand for, such as BFloat16
	Members int
	Shape   [2]int  // rows and columns of all members together
	Shapes  [][]int // of each member, in its own elements; nil: only the device knows

	// Where the data and the scales of each member begin, and behind the last one
	// where it ends. Data count values, of which NVFP4 has two in an element;
	// scales count elements. Nil data offsets: the members lie close together.
	// Nil scale offsets: each member has one.
	DataOffsets        []int64
	RowScaleOffsets    []int64
	ColumnScaleOffsets []int64

	Swizzled       bool    // the scales are in the order that matrix products want
	RowScaled      bool    // NVFP4: there is a row amax for each row, not for each member
	FourOverSix    bool    // NVFP4: a block is scaled to 4 or to 6, whichever loses less
	FourOverSixMax float32 // the largest inverse scale of a block then
	Quantizer      any     // the caller's; it is carried along and not looked at
}

var (
	groupedNames = []string{"row data", "column data", "row inverse scale", "column inverse scale", "row amax", "column amax",
		"scale", "first dims", "last dims", "offsets"}
	groupedRoles = []Role{Payload, Payload, Scales, Scales, Statistics, Statistics, Statistics, Control, Control, Control}
)

// fields returns where the components are.
func (g *Grouped) fields() []*device.Tensor {
	if g == nil {
		return nil
	}
	return []*device.Tensor{&g.RowData, &g.ColumnData, &g.RowInverseScale, &g.ColumnInverseScale, &g.RowAmax, &g.ColumnAmax,
		&g.Scale, &g.FirstDims, &g.LastDims, &g.Offsets}
}

// Components implements Composite.
func (g *Grouped) Components() []device.Tensor { return enumerate(g.fields()) }

// Roles returns what the components are for, in their order.
func (g *Grouped) Roles() []Role { return slices.Clone(groupedRoles[:len(g.fields())]) }

// WithComponents implements Composite: the new value is a *Grouped.
func (g *Grouped) WithComponents(cs []device.Tensor) (Composite, error) {
	var o *Grouped
	if g != nil {
		o = new(*g)
	}
	if err := refill("grouped tensor", o.fields(), cs); err != nil {
		return nil, err
	}
	return o, nil
}

// Take returns the components and leaves g without them. After Restore has put
// them back, g is what it was; the list of members is the same one.
func (g *Grouped) Take() []device.Tensor { return take(g.fields()) }

// Restore makes the first tensors the components, in their order, and returns
// the others. When there are too few, it returns [ErrComposite] and all of them.
func (g *Grouped) Restore(cs []device.Tensor) (rest []device.Tensor, err error) {
	return restore("grouped tensor", g.fields(), cs)
}

// Device returns the device of the first component that is there;
// [ErrNoDevice] when there is none. Call it before the push or after the pop.
func (g *Grouped) Device() (device.ID, error) { return deviceOf("grouped tensor", g.Components()) }

// Check returns [ErrComposite] when a component or the layout cannot be right,
// and when a component that launches need is not index data.
func (g *Grouped) Check() error {
	if g == nil {
		return nil
	}
	if err := checkComponents("grouped tensor", g.Components(), groupedRoles, groupedNames); err != nil {
		return err
	}
	if g.Layout == nil {
		return nil
	}
	if err := g.Layout.Format.check("grouped "+g.Layout.Format.String()+" tensor", g.fields(), groupedNames); err != nil {
		return err
	}
	return g.Layout.check()
}

// check compares the lists with the number of members.
func (l *GroupLayout) check() error {
	if l.Members < 0 {
		return fmt.Errorf("%w: the layout of a grouped tensor has %d members", ErrComposite, l.Members)
	}
	if l.Shapes != nil && len(l.Shapes) != l.Members {
		return fmt.Errorf("%w: the layout of a grouped tensor has %d shapes for %d members", ErrComposite, len(l.Shapes), l.Members)
	}
	for i, shape := range l.Shapes {
		if len(shape) > 0 && slices.Min(shape) < 0 {
			return fmt.Errorf("%w: the shape of member %d of a grouped tensor, %v, has a negative dimension", ErrComposite, i, shape)
		}
	}
	for _, o := range []struct {
		name string
		list []int64
	}{{"data", l.DataOffsets}, {"row scale", l.RowScaleOffsets}, {"column scale", l.ColumnScaleOffsets}} {
		if o.list == nil {
			continue
		}
		if len(o.list) != l.Members+1 {
			return fmt.Errorf("%w: the layout of a grouped tensor has %d %s offsets for %d members; it wants one each and the end",
				ErrComposite, len(o.list), o.name, l.Members)
		}
		if o.list[0] < 0 || !slices.IsSorted(o.list) {
			return fmt.Errorf("%w: the %s offsets of a grouped tensor, %v, do not ascend from zero or more", ErrComposite, o.name, o.list)
		}
	}
	return nil
}
