package offload

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"offload/actors"
	"offload/internal/hostmem"
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

// HostPolicy says what start-offload does with a tensor for which the host
// budget has no memory. No policy blocks a goroutine until memory is given back.
// Only where slabs for other sizes have to be unpinned to make room does the call
// wait for the copies that are under way, since unpinning takes that.
type HostPolicy = actors.HostPolicy

const (
	// KeepOnDevice keeps the tensor on the device. It is the default.
	KeepOnDevice = actors.KeepOnDevice
	// WaitForHost orders the copy after one that is enqueued already and whose end
	// frees enough memory. If there is none, the call returns [ErrBudget].
	WaitForHost = actors.WaitForHost
	// RefuseOffload returns [ErrBudget]; memory that is still being read does not
	// count as free.
	RefuseOffload = actors.RefuseOffload
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
	// device at any instant. Zero: three quarters of what the process may have,
	// by the limits of its container and the free memory of the machine, shared
	// among the devices; no limit where neither is known.
	HostBudget int64
	// HostPolicy says what happens to a tensor for which the host budget has no
	// memory.
	HostPolicy HostPolicy
	// RetainHost lets a layer use the same host memory, at the same addresses, in
	// every pass, from its first offload on. A tensor that no retained buffer of
	// the layer can take is refused with [ErrShape] then.
	RetainHost bool
	// DeviceBudget is the device memory in use, in bytes, above which nothing is
	// reloaded: a reload is refused with [ErrBudget] then, and works when memory
	// has been given back. Reloads that a plan has ahead of time are put off until
	// then. Zero: the device's own limit.
	DeviceBudget int64
	// LayerBytes is what one layer is known to save, in bytes. Open refuses
	// budgets that are too small for it. Zero: not known; Begin refuses a budget
	// that was too small for every layer of an earlier pass.
	LayerBytes int64
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
	if o.Plan == nil && o.Layers > 0 && o.Layers <= mostLayers {
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
	if o.Layers > mostLayers {
		fault("Layers is %d; at most %d have an actor each", o.Layers, mostLayers)
	}
	if o.SlabBytes > mostSlab {
		fault("SlabBytes is %d; at most %d are pinned at a time", o.SlabBytes, int64(mostSlab))
	}
	if o.Dispatch > Goroutines {
		fault("Dispatch is %v; it is Inline or Goroutines", o.Dispatch)
	}
	for _, f := range []struct {
		name  string
		value int64
	}{
		{"MinElements", o.MinElements}, {"MinBytes", o.MinBytes}, {"CoalesceBytes", o.CoalesceBytes}, {"HostBudget", o.HostBudget}, {"SlabBytes", o.SlabBytes},
		{"DeviceBudget", o.DeviceBudget}, {"LayerBytes", o.LayerBytes},
	} {
		if f.value < 0 {
			fault("%s is %d; it is zero for the default, or positive", f.name, f.value)
		}
	}
	if o.HostPolicy > RefuseOffload {
		fault("HostPolicy is %v; it is KeepOnDevice, WaitForHost or RefuseOffload", o.HostPolicy)
	}
	for _, b := range []struct {
		name  string
		bytes int64
	}{{"HostBudget", o.HostBudget}, {"DeviceBudget", o.DeviceBudget}} {
		if b.bytes > 0 && b.bytes < o.LayerBytes {
			fault("%s is %d and one layer saves %d bytes: %w; %d would be enough for one", b.name, b.bytes, o.LayerBytes, ErrBudget, o.LayerBytes)
		}
	}
	if o.HostBudget > 0 && o.HostBudget < hostPage {
		fault("HostBudget is %d: %w; host memory is pinned by pages of %d bytes", o.HostBudget, ErrBudget, hostPage)
	}
	return errors.Join(errs...)
}

const (
	mostLayers = 1 << 24
	mostSlab   = 1 << 40
)

// hostPage is the unit of pinned host memory in bytes.
const hostPage = 4096

// hostBudget returns the host budget of each of n devices; zero: no limit.
func (o *Options) hostBudget(n int) int64 {
	if o.HostBudget > 0 {
		return o.HostBudget
	}
	limit, _ := hostmem.Limit(os.DirFS("/"))
	if limit <= 0 {
		return 0
	}
	return max(limit/4*3/int64(n), hostPage)
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
	for _, f := range []struct {
		name  string
		value any
	}{
		{"plan", plan}, {"layers", o.Layers}, {"dispatch", o.Dispatch},
		{"min elements", o.MinElements}, {"min bytes", o.MinBytes}, {"coalesce", o.CoalesceBytes}, {"keep strided", o.KeepStrided},
		{"copy at push", o.CopyAtPush}, {"explain", o.Explain}, {"strict", o.Strict},
		{"host budget", o.HostBudget}, {"host policy", o.HostPolicy}, {"retain host", o.RetainHost}, {"device budget", o.DeviceBudget},
		{"layer bytes", o.LayerBytes}, {"slab bytes", o.SlabBytes},
	} {
		fmt.Fprintf(&b, "%-13s %v\n", f.name, f.value)
	}
	return b.String()
}
