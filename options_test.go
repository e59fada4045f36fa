package offload_test

import (
	"strings"
	"testing"

	"offload"
	"offload/schedule"
)

func TestOptionsDefaults(t *testing.T) {
	var o offload.Options
	o.EnsureDefaults()
	if err := o.Validate(); err != nil {
		t.Errorf("the zero value does not work: %v", err)
	}
	if o.Layers != 128 || o.MinElements != 262144 || o.MinBytes != 0 || o.SlabBytes != 64<<20 || o.Dispatch != offload.Inline {
		t.Errorf("got %+v", o)
	}
	if !o.Plan.IsManual() || o.Plan.Layers() != 128 {
		t.Errorf("the plan is %v", o.Plan)
	}
	again := o
	again.EnsureDefaults()
	if again.String() != o.String() {
		t.Errorf("defaults change defaults:\n%v\n%v", &o, &again)
	}
	plan, err := schedule.Window(5, 2)
	if err != nil {
		t.Fatal(err)
	}
	o = offload.Options{Plan: plan, MinElements: 7}
	o.EnsureDefaults()
	if o.Layers != 5 || o.Plan != plan || o.MinElements != 7 {
		t.Errorf("got %+v", o)
	}
}

// All faults are in one error, each with what was found and what would be right.
func TestOptionsValidate(t *testing.T) {
	plan, err := schedule.Window(5, 2)
	if err != nil {
		t.Fatal(err)
	}
	o := offload.Options{Plan: plan, Layers: 3, Dispatch: 7, MinElements: -1, MinBytes: -2, CoalesceBytes: -5, HostBudget: -3, SlabBytes: -4}
	o.EnsureDefaults()
	err = o.Validate()
	if err == nil {
		t.Fatal("got no error")
	}
	want := []string{
		"options: Layers is 3 and the plan has 5; leave Layers at zero to take the plan's",
		"options: Dispatch is dispatch(7); it is Inline or Goroutines",
		"options: MinElements is -1; it is zero for the default, or positive",
		"options: MinBytes is -2; it is zero for the default, or positive",
		"options: CoalesceBytes is -5; it is zero for the default, or positive",
		"options: HostBudget is -3; it is zero for the default, or positive",
		"options: SlabBytes is -4; it is zero for the default, or positive",
	}
	if got := err.Error(); got != strings.Join(want, "\n") {
		t.Errorf("got\n%s\nwant\n%s", got, strings.Join(want, "\n"))
	}
	o = offload.Options{Layers: -1}
	o.EnsureDefaults()
	if err := o.Validate(); err == nil || err.Error() != "options: Layers is -1; a model has at least one" {
		t.Errorf("got %v", err)
	}
	if _, err := offload.Open(nil, o); err == nil {
		t.Error("Open does not validate")
	}
}

func TestOptionsString(t *testing.T) {
	plan, err := schedule.Window(5, 2)
	if err != nil {
		t.Fatal(err)
	}
	o := offload.Options{Plan: plan, Dispatch: offload.Goroutines, HostBudget: 1 << 20}
	o.EnsureDefaults()
	want := `plan          offloads 2 of 5 layers
layers        5
dispatch      goroutines
min elements  262144
min bytes     0
coalesce      0
keep strided  false
copy at push  false
explain       false
strict        false
host budget   1048576
host policy   keep on the device
retain host   false
device budget 0
layer bytes   0
slab bytes    67108864
`
	if got := o.String(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	o = offload.Options{}
	if got, want := strings.SplitN(o.String(), "\n", 2)[0], "plan          none"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	o.EnsureDefaults()
	if got, want := strings.SplitN(o.String(), "\n", 2)[0], "plan          manual"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// A tensor moves if it reaches both limits; the default is 262,144 elements.
func TestLimits(t *testing.T) {
	for _, tc := range []struct {
		name        string
		opts        offload.Options
		bytes, want int64
	}{
		{"one element below the default", offload.Options{}, 262143, 0},
		{"the default", offload.Options{}, 262144, 1},
		{"one element above the default", offload.Options{}, 262145, 1},
		{"enough elements and too few bytes", offload.Options{MinElements: 10, MinBytes: 101}, 100, 0},
		{"enough of both", offload.Options{MinElements: 10, MinBytes: 100}, 100, 1},
		{"enough bytes and too few elements", offload.Options{MinElements: 101, MinBytes: 10}, 100, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tc.opts.Layers, tc.opts.SlabBytes = 1, 64<<10
			b := open(t, tc.opts)
			defer b.close()
			p := b.begin()
			slot := b.forward(p, 0)
			b.pushTensor(slot, b.Tensor(b.Compute, "x", tc.bytes))
			b.must(slot.StartOffload())
			if got := b.engine.Metrics().Offloads; got != tc.want {
				t.Errorf("%d slots were copied out, want %d", got, tc.want)
			}
			b.must(p.End())
		})
	}
}
