package offload_test

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"testing"

	"offload"
	"offload/device"
	"offload/fsm"
)

// described returns a tensor without a device behind it.
func described(name string, class device.Class, dt device.DType, shape ...int) device.Tensor {
	t := device.Tensor{DType: dt, Shape: shape}
	home := device.Stream{Device: 1, Space: 1}
	t.Storage = device.NewStorage(name, class, device.Buffer{Device: 1, Space: 1, Place: device.OnDevice}, t.Bytes(), home)
	return t
}

func describedGroup() *offload.Grouped {
	vector := func(name string, n int) device.Tensor { return described(name, device.Activation, device.Float32, n) }
	control := func(name string) device.Tensor { return described(name, device.Index, device.Int64, 2) }
	return &offload.Grouped{
		RowData: vector("row data", 12), ColumnData: vector("column data", 12),
		RowInverseScale: vector("row inverse scale", 2), ColumnInverseScale: vector("column inverse scale", 2),
		RowAmax: vector("row amax", 2), ColumnAmax: vector("column amax", 2), Scale: vector("scale", 2),
		FirstDims: control("first dims"), LastDims: control("last dims"), Offsets: control("offsets"),
		Layout: &offload.GroupLayout{Format: offload.MXFP8, Members: 2, Shapes: [][]int{{2, 4}, {1, 4}}},
	}
}

func names(cs []device.Tensor) []string {
	var names []string
	for _, t := range cs {
		if t.IsNil() {
			names = append(names, "-")
			continue
		}
		names = append(names, t.Storage.Name())
	}
	return names
}

// Enumerating the ten components of a group twice gives the same ones, in their
// order, and leaves the list of members alone.
func TestGroupedComponents(t *testing.T) {
	g := describedGroup()
	before, err := g.Members()
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"row data", "column data", "row inverse scale", "column inverse scale", "row amax", "column amax", "scale",
		"first dims", "last dims", "offsets"}
	for range 2 {
		cs := g.Components()
		if got := names(cs); !slices.Equal(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
		clear(cs) // the slice is the caller's
	}
	after, err := g.Members()
	if err != nil {
		t.Fatal(err)
	}
	if &after[0] != &before[0] {
		t.Error("the list of members was made again")
	}
	wantRoles := []offload.Role{offload.Payload, offload.Payload, offload.Scales, offload.Scales, offload.Statistics, offload.Statistics,
		offload.Statistics, offload.Control, offload.Control, offload.Control}
	if got := g.Roles(); !slices.Equal(got, wantRoles) {
		t.Errorf("roles: got %v, want %v", got, wantRoles)
	}
}

// The components of a quantised tensor are in the order of its fields, which is
// the order of every format when those that it lacks are left out.
func TestQuantizedComponents(t *testing.T) {
	vector := func(name string) device.Tensor { return described(name, device.Activation, device.Uint8, 1) }
	for _, tc := range []struct {
		q    *offload.Quantized
		want []string
	}{
		{nil, nil},
		{&offload.Quantized{}, []string{"-", "-", "-", "-", "-", "-"}},
		{&offload.Quantized{Format: offload.PerTensorFP8, RowData: vector("data"), ColumnData: vector("transpose"), RowInverseScale: vector("scale")},
			[]string{"data", "transpose", "scale", "-", "-", "-"}},
		{&offload.Quantized{Format: offload.BlockFP8, ColumnData: vector("column"), ColumnInverseScale: vector("column scale")},
			[]string{"-", "column", "-", "column scale", "-", "-"}},
		{&offload.Quantized{Format: offload.NVFP4, RowData: vector("row"), ColumnData: vector("column"), RowInverseScale: vector("row scale"),
			ColumnInverseScale: vector("column scale"), RowAmax: vector("row amax"), ColumnAmax: vector("column amax")},
			[]string{"row", "column", "row scale", "column scale", "row amax", "column amax"}},
	} {
		if got := names(tc.q.Components()); !slices.Equal(got, tc.want) {
			t.Errorf("got %q, want %q", got, tc.want)
		}
		if got := len(tc.q.Roles()); got != len(tc.want) {
			t.Errorf("%q have %d roles", tc.want, got)
		}
		if err := tc.q.Check(); err != nil {
			t.Errorf("%q: %v", tc.want, err)
		}
	}
}

// Rows come before columns; parts that are absent contribute nothing.
func TestHybridComponents(t *testing.T) {
	x := func(name string) list { return list{described(name, device.Activation, device.Uint8, 1)} }
	for _, tc := range []struct {
		h    *offload.Hybrid
		want []string
	}{
		{nil, nil},
		{&offload.Hybrid{}, nil},
		{&offload.Hybrid{Row: x("row")}, []string{"row"}},
		{&offload.Hybrid{Column: x("column")}, []string{"column"}},
		{&offload.Hybrid{Row: x("row"), Column: &offload.Hybrid{Row: x("inner row"), Column: x("inner column")}}, []string{"row", "inner row", "inner column"}},
	} {
		if got := names(tc.h.Components()); !slices.Equal(got, tc.want) {
			t.Errorf("got %q, want %q", got, tc.want)
		}
		for _, n := range []int{len(tc.want) - 1, len(tc.want) + 1} {
			if n < 0 {
				continue
			}
			if got, err := tc.h.WithComponents(make([]device.Tensor, n)); !errors.Is(err, offload.ErrComposite) {
				t.Errorf("%q from %d tensors: got %v and %v, want ErrComposite", tc.want, n, got, err)
			}
		}
	}
}

// taker is what can be emptied and filled again.
type taker interface {
	offload.Composite
	Take() []device.Tensor
	Restore([]device.Tensor) ([]device.Tensor, error)
}

// Take and then Restore changes nothing, and both name what is too little or
// left over.
func TestTakeRestore(t *testing.T) {
	x := described("x", device.Activation, device.Uint8, 4)
	for _, tc := range []struct {
		name string
		make func() taker
	}{
		{"quantised", func() taker {
			return &offload.Quantized{Format: offload.MXFP8, ColumnData: x, ColumnInverseScale: x, Shape: []int{4}}
		}},
		{"grouped", func() taker { return describedGroup() }},
		{"absent", func() taker { return (*offload.Quantized)(nil) }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := tc.make()
			want := c.Components()
			cs := c.Take()
			if !reflect.DeepEqual(cs, want) {
				t.Errorf("taken: got %v, want %v", cs, want)
			}
			for i, o := range c.Components() {
				if !o.IsNil() {
					t.Errorf("component %d is still there after Take: %v", i, o)
				}
			}
			if n := len(cs); n > 0 {
				rest, err := c.Restore(cs[:n-1])
				if !errors.Is(err, offload.ErrComposite) || len(rest) != n-1 {
					t.Errorf("too few: got %d tensors and %v, want %d and ErrComposite", len(rest), err, n-1)
				}
				if got := c.Components(); !reflect.DeepEqual(got, make([]device.Tensor, n)) {
					t.Errorf("restored from too few: %v", got)
				}
				if _, err := c.WithComponents(cs[:n-1]); !errors.Is(err, offload.ErrComposite) {
					t.Errorf("with too few: got %v, want ErrComposite", err)
				}
			}
			if _, err := c.WithComponents(append(slices.Clone(cs), x)); !errors.Is(err, offload.ErrComposite) {
				t.Errorf("with too many: got %v, want ErrComposite", err)
			}
			rest, err := c.Restore(append(slices.Clone(cs), x, device.Tensor{}))
			if err != nil || !reflect.DeepEqual(rest, []device.Tensor{x, {}}) {
				t.Errorf("restore: %v and %v are left over, want x and an absent one", rest, err)
			}
			if got := c.Components(); !reflect.DeepEqual(got, want) {
				t.Errorf("restored: got %v, want %v", got, want)
			}
		})
	}
}

// The list of members is that of the present components: putting them back
// brings it back, others make another one.
func TestMembersKept(t *testing.T) {
	g := describedGroup()
	members := func(c *offload.Grouped) []*offload.Quantized {
		t.Helper()
		list, err := c.Members()
		if err != nil {
			t.Fatal(err)
		}
		return list
	}
	first := members(g)
	cs := g.Take()
	if list, err := g.Members(); !errors.Is(err, offload.ErrComposite) {
		t.Errorf("members of an empty group: got %v and %v, want ErrComposite", list, err)
	}
	if _, err := g.Restore(cs); err != nil {
		t.Fatal(err)
	}
	if got := members(g); &got[0] != &first[0] {
		t.Error("the list was made again although the same components are back")
	}
	other := slices.Clone(cs)
	other[0] = described("other", device.Activation, device.Float32, 12)
	c, err := g.WithComponents(other)
	if err != nil {
		t.Fatal(err)
	}
	if got := members(c.(*offload.Grouped))[1].RowData; got.Storage != other[0].Storage {
		t.Errorf("a member of other components is a view of %v", got)
	}
	if got := members(g); &got[0] != &first[0] {
		t.Error("making another group has changed this one")
	}
}

// The device is that of the first component that is there.
func TestCompositeDevice(t *testing.T) {
	on := func(buffer, home device.ID) device.Tensor {
		b := device.Buffer{}
		if buffer != 0 {
			b = device.Buffer{Device: buffer, Space: 1, Place: device.OnDevice}
		}
		return device.Tensor{Storage: device.NewStorage("x", device.Activation, b, 1, device.Stream{Device: home}), DType: device.Uint8, Shape: []int{1}}
	}
	type placed interface {
		Device() (device.ID, error)
	}
	for _, tc := range []struct {
		name string
		c    placed
		want device.ID // zero: ErrNoDevice
	}{
		{"the first one of two", &offload.Quantized{RowData: on(3, 3), ColumnData: on(4, 4)}, 3},
		{"the first one of a group that is there", &offload.Grouped{ColumnAmax: on(5, 5)}, 5},
		{"columns of a hybrid", &offload.Hybrid{Row: &offload.Quantized{}, Column: list{on(6, 6)}}, 6},
		{"bytes that have left", &offload.Quantized{RowData: on(0, 7)}, 7},
		{"a storage that names none", &offload.Quantized{RowData: on(0, 0), ColumnData: on(8, 8)}, 0},
		{"all of a quantised tensor absent", &offload.Quantized{}, 0},
		{"all of a group absent", &offload.Grouped{}, 0},
		{"nothing in a hybrid", &offload.Hybrid{}, 0},
	} {
		got, err := tc.c.Device()
		if got != tc.want || errors.Is(err, offload.ErrNoDevice) != (tc.want == 0) {
			t.Errorf("%s: got %d and %v, want %d", tc.name, got, err, tc.want)
		}
	}
}

// Where a member is within its group depends on format and layout.
func TestMembers(t *testing.T) {
	bytes := func(shape ...int) device.Tensor { return described("bytes", device.Activation, device.Uint8, shape...) }
	floats := func(n int) device.Tensor { return described("floats", device.Activation, device.Float32, n) }
	shapes := [][]int{{2, 4}, {0, 4}, {3, 4}}
	strided := bytes(5, 4)
	strided.Strides = []int{1, 5}
	layout := func(f offload.Format, change func(l *offload.GroupLayout)) *offload.GroupLayout {
		l := &offload.GroupLayout{Format: f, Members: 3, Shapes: shapes}
		if change != nil {
			change(l)
		}
		return l
	}
	for _, tc := range []struct {
		name string
		g    offload.Grouped
		want string // the last member: shape@offset of each component that is there; empty: ErrComposite
	}{
		{"not quantised, one after the other", offload.Grouped{RowData: bytes(5, 4), ColumnData: bytes(5, 4), Layout: layout(offload.Unquantized, nil)},
			"[3 4]@8 [3 4]@8 - - - -"},
		{"with gaps", offload.Grouped{RowData: bytes(64), Layout: layout(offload.Unquantized, func(l *offload.GroupLayout) { l.DataOffsets = []int64{0, 16, 32, 64} })},
			"[3 4]@32 - - - - -"},
		{"a view of more", offload.Grouped{RowData: device.Tensor{Storage: bytes(30).Storage, DType: device.Uint8, Shape: []int{20}, Offset: 10}, Layout: layout(offload.Unquantized, nil)},
			"[3 4]@18 - - - - -"},
		{"per-tensor FP8: transposes, a scale each", offload.Grouped{RowData: bytes(20), ColumnData: bytes(20), RowInverseScale: floats(3), Layout: layout(offload.PerTensorFP8, nil)},
			"[3 4]@8 [4 3]@8 [1]@2 - - -"},
		{"MXFP8: not transposed, scales by offset", offload.Grouped{ColumnData: bytes(20), ColumnInverseScale: bytes(100), Layout: layout(offload.MXFP8, func(l *offload.GroupLayout) { l.ColumnScaleOffsets = []int64{0, 30, 30, 90} })},
			"- [3 4]@8 - [60]@30 - -"},
		{"NVFP4: two in a byte, an amax each", offload.Grouped{RowData: bytes(10), RowInverseScale: bytes(3), RowAmax: floats(3), ColumnAmax: floats(3), Layout: layout(offload.NVFP4, nil)},
			"[3 2]@4 - [1]@2 - [1]@2 [1]@2"},
		{"NVFP4: an amax for each row", offload.Grouped{RowData: bytes(10), RowInverseScale: bytes(3), RowAmax: floats(5), Layout: layout(offload.NVFP4, func(l *offload.GroupLayout) { l.RowScaled = true })},
			"[3 2]@4 - [1]@2 - [3]@2 -"},
		{"NVFP4: a transpose of odd rows", offload.Grouped{ColumnData: bytes(10), ColumnInverseScale: bytes(3), Layout: layout(offload.NVFP4, nil)}, ""},
		{"NVFP4: a member within an element", offload.Grouped{RowData: bytes(40), RowInverseScale: bytes(3), Layout: layout(offload.NVFP4, func(l *offload.GroupLayout) { l.DataOffsets = []int64{0, 9, 9, 30} })}, ""},
		{"without a layout", offload.Grouped{RowData: bytes(20)}, ""},
		{"without shapes", offload.Grouped{RowData: bytes(20), Layout: &offload.GroupLayout{Members: 3}}, ""},
		{"a layout that is wrong", offload.Grouped{RowData: bytes(20), Layout: layout(offload.Unquantized, func(l *offload.GroupLayout) { l.Members = 2 })}, ""},
		{"without data", offload.Grouped{RowAmax: floats(3), Layout: layout(offload.Unquantized, nil)}, ""},
		{"too little data", offload.Grouped{RowData: bytes(19), Layout: layout(offload.Unquantized, nil)}, ""},
		{"too few scales", offload.Grouped{RowData: bytes(20), RowInverseScale: bytes(10), Layout: layout(offload.MXFP8, func(l *offload.GroupLayout) { l.RowScaleOffsets = []int64{0, 5, 5, 11} })}, ""},
		{"scales without offsets", offload.Grouped{RowData: bytes(20), RowInverseScale: bytes(10), Layout: layout(offload.MXFP8, nil)}, ""},
		{"members that overlap", offload.Grouped{RowData: bytes(20), Layout: layout(offload.Unquantized, func(l *offload.GroupLayout) { l.DataOffsets = []int64{0, 7, 7, 20} })}, ""},
		{"data that are not contiguous", offload.Grouped{RowData: strided, Layout: layout(offload.Unquantized, nil)}, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			list, err := tc.g.Members()
			if tc.want == "" {
				if !errors.Is(err, offload.ErrComposite) {
					t.Errorf("got %v and %v, want ErrComposite", list, err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			last := list[len(list)-1]
			got := ""
			for i, c := range last.Components() {
				if i > 0 {
					got += " "
				}
				if c.IsNil() {
					got += "-"
				} else {
					got += fmt.Sprintf("%v@%d", c.Shape, c.Offset)
				}
			}
			if got != tc.want {
				t.Errorf("got %s, want %s", got, tc.want)
			}
			for i, m := range list {
				if err := m.Check(); err != nil {
					t.Errorf("member %d: %v", i, err)
				}
				if !slices.Equal(m.Shape, shapes[i]) || m.Format != tc.g.Layout.Format {
					t.Errorf("member %d is a %v tensor of shape %v", i, m.Format, m.Shape)
				}
			}
		})
	}
}

// Members are where their group is: views that were made before the group left
// the device see its bytes when it is back, and so do those of the popped group.
func TestMembersMoveAlong(t *testing.T) {
	b := open(t, offload.Options{Layers: 1, MinElements: limit, SlabBytes: 64 << 10})
	defer b.close()
	g := b.grouped("g")
	list, err := g.Members()
	b.must(err)
	for i, m := range list {
		b.Fill(b.Compute, m.RowData, fmt.Sprint("row data of member ", i))
	}
	p := b.begin()
	slot := b.forward(p, 0)
	saved, err := slot.PushComposite(g)
	b.must(err)
	b.reach(slot, fsm.Reloading)
	popped, err := slot.PopComposite(saved)
	b.must(err)
	back, err := popped.(*offload.Grouped).Members()
	b.must(err)
	if &back[0] != &list[0] {
		t.Error("the popped group has made a list of its own")
	}
	for i, m := range back {
		b.Check(b.Compute, m.RowData, fmt.Sprint("row data of member ", i))
	}
	b.must(p.End())
	b.drop(g)
}

func TestCompositeNames(t *testing.T) {
	for _, tc := range []struct {
		value fmt.Stringer
		want  string
	}{
		{offload.Payload, "payload"}, {offload.Scales, "scales"}, {offload.Statistics, "statistics"}, {offload.Control, "control"},
		{offload.Role(9), "role(9)"},
		{offload.Unquantized, "unquantized"}, {offload.NVFP4, "NVFP4"}, {offload.Format(9), "format(9)"},
	} {
		if got := tc.value.String(); got != tc.want {
			t.Errorf("got %q, want %q", got, tc.want)
		}
	}
}
