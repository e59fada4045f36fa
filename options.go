package offload

import (
	"errors"
	"fmt"
	"strings"

	"offload/actors"
	"offload/schedule"
)

// Dispatch says on which goroutine the engine's actors run.
type Dispatch = actors.Dispatch

const (
	// Inline runs an idle actor on the goroutine that sends to it. It is the default.
	Inline = actors.Inline
	// Goroutines runs every actor on a goroutine of its own while it has
	// messages. Results are the same; a call takes microseconds.
	Goroutines = actors.Goroutines
)

// Options configures an engine. The zero value works: nothing moves unless the
// caller says so.
type Options struct {
	// Plan says what moves when. Nil: a manual plan of Layers layers.
	Plan *schedule.Plan
	// Layers is the number of layers when Plan is nil. Zero: 128.
	Layers int
	// Dispatch says on which goroutine the actors run.
	Dispatch Dispatch
	// MinElements is the least number of elements with which a tensor is moved.
	// Zero: 262,144, the limit of TransformerEngine. Use 1 for no limit.
	MinElements int64
	// MinBytes is the least number of bytes with which a tensor is moved. Zero: no limit.
	MinBytes int64
	// CoalesceBytes is the size from which the tensors of a slot that are below
	// the limits are moved together, by one copy. Zero: they stay on the device.
	CoalesceBytes int64
	// KeepStrided keeps tensors that are not contiguous on the device. Otherwise
	// they are packed, or moved with their whole storage.
	KeepStrided bool
	// CopyAtPush lets copies out begin when a tensor is pushed, instead of when
	// the slot's offload starts. The host memory is in use that much longer.
	CopyAtPush bool
	// Explain keeps a record for every tensor; see [Pass.Explain].
	Explain bool
	// Strict makes End return [ErrNothingMoved] after a training pass in which
	// offloads were started and nothing was moved.
	Strict bool
	// HostBudget is the most pinned host memory, in bytes, that is held for each
	// device at any instant. Zero: no limit.
	HostBudget int64
	// SlabBytes is about how much host memory is pinned at a time. Zero: 64 MiB.
	SlabBytes int64
	// Listener is told what happens. Nil: nobody is.
	Listener *EventListener
}

// EnsureDefaults sets the fields that are zero. Faults are left for Validate.
func (o *Options) EnsureDefaults() {
	if o.Layers == 0 {
		o.Layers = 128
		if o.Plan != nil {
			o.Layers = o.Plan.Layers()
		}
	}
	if o.Plan == nil && o.Layers > 0 {
		o.Plan, _ = schedule.Manual(o.Layers) // refuses only what is excluded here
	}
	if o.MinElements == 0 {
		o.MinElements = 256 * 1024
	}
	if o.SlabBytes == 0 {
		o.SlabBytes = 64 << 20
	}
}

// Validate reports every fault of options whose defaults are set.
func (o *Options) Validate() error {
	var errs []error
	fault := func(format string, args ...any) { errs = append(errs, fmt.Errorf("options: "+format, args...)) }
	if o.Layers < 1 {
		fault("Layers is %d; a model has at least one", o.Layers)
	}
	if o.Plan != nil && o.Layers > 0 && o.Layers != o.Plan.Layers() {
		fault("Layers is %d and the plan has %d; leave Layers at zero to take the plan's", o.Layers, o.Plan.Layers())
	}
	if o.Dispatch > Goroutines {
		fault("Dispatch is %v; it is Inline or Goroutines", o.Dispatch)
	}
	for _, f := range []struct {
		name  string
		value int64
	}{
		{"MinElements", o.MinElements}, {"MinBytes", o.MinBytes}, {"CoalesceBytes", o.CoalesceBytes}, {"HostBudget", o.HostBudget}, {"SlabBytes", o.SlabBytes},
	} {
		if f.value < 0 {
			fault("%s is %d; it is zero for the default, or positive", f.name, f.value)
		}
	}
	return errors.Join(errs...)
}

// String lists the options, one a line.
func (o *Options) String() string {
	var b strings.Builder
	plan := "manual"
	switch {
	case o.Plan == nil:
		plan = "none"
	case !o.Plan.IsManual():
		n := 0
		for i := range o.Plan.Layers() {
			if o.Plan.Offloaded(i) {
				n++
			}
		}
		plan = fmt.Sprintf("offloads %d of %d layers", n, o.Plan.Layers())
	}
	fmt.Fprintf(&b, "plan         %s\n", plan)
	fmt.Fprintf(&b, "layers       %d\n", o.Layers)
	fmt.Fprintf(&b, "dispatch     %v\n", o.Dispatch)
	fmt.Fprintf(&b, "min elements %d\n", o.MinElements)
	fmt.Fprintf(&b, "min bytes    %d\n", o.MinBytes)
	fmt.Fprintf(&b, "coalesce     %d\n", o.CoalesceBytes)
	fmt.Fprintf(&b, "keep strided %v\n", o.KeepStrided)
	fmt.Fprintf(&b, "copy at push %v\n", o.CopyAtPush)
	fmt.Fprintf(&b, "explain      %v\n", o.Explain)
	fmt.Fprintf(&b, "strict       %v\n", o.Strict)
	fmt.Fprintf(&b, "host budget  %d\n", o.HostBudget)
	fmt.Fprintf(&b, "slab bytes   %d\n", o.SlabBytes)
	return b.String()
}
