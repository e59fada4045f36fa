package sim

import (
	"fmt"
	"slices"
	"sync"

	"offload/device"
)

// Config says what a device is like. The zero value is a device without limits,
// with the checker on and operations run in the order of seed 0.
type Config struct {
	// ID is the identity of the device; zero takes one that no device made by
	// New has. Set it where texts that contain ids are compared, to a value
	// that no other device of the program has.
	ID device.ID
	// Name is the name in Info; empty means "sim".
	Name string
	// MemoryLimit is the device memory in bytes; zero means no limit.
	MemoryLimit int64
	// HostLimit bounds pinned host memory in bytes; zero means no limit.
	HostLimit int64
	// Order says when queued operations run.
	Order Order
	// Seed chooses among the legal orders. The same calls with the same seed
	// run in the same order.
	Seed uint64
	// Schedule is used instead of Order and Seed where it is not nil.
	Schedule *Schedule
	// Profile switches the virtual clock on: it says how long operations take.
	// See Device.Lap.
	Profile *Profile
	// Timeline keeps what ran when for Lap. It needs memory for every operation
	// of a step.
	Timeline bool
	// Phantom gives buffers no bytes, so that programs run that would not fit into
	// the memory of this machine. Nothing is copied, and kernels are not run: one
	// with a cost need not be registered. All else is as without it, limits and
	// findings included, but Lookup returns no host bytes.
	Phantom bool
	// NoChecker switches findings off, those of operations that are refused included.
	NoChecker bool
	// OnFinding is called for each finding that Findings will list, at once. It
	// must not call the device.
	OnFinding func(Finding)
}

// Device is the simulated device. See the package comment.
type Device struct {
	info device.Info
	cfg  Config

	mu      sync.Mutex
	closed  bool
	lost    error // what every call returns since a kernel failed
	kernels map[string]KernelFunc
	costs   map[string]CostFunc
	spaces  []space // by number; 0 is not used

	lanes  []*stream // by lane; the host's is nil
	host   clock
	order  chooser
	timer  *timer    // nil without a profile
	graph  *graph    // of what is submitted; nil unless it is being explored
	queued int       // operations in all queues
	ready  []*stream // of settle

	heap      heap
	externals []*External
	memory    ledger
	pinned    ledger
	seq       uint64
	stats     Stats
	found     findings
	calls     []*Call    // for launches to come
	reads     []span     // of the launch that is being submitted
	writes    []span     // likewise
	conflicts []conflict // of the access that is being entered
}

var _ device.Device = (*Device)(nil)

// New makes a device. It panics if a profile has rates that cannot be.
func New(cfg Config) *Device {
	if cfg.ID == 0 {
		cfg.ID = device.NextID()
	}
	if cfg.Name == "" {
		cfg.Name = "sim"
	}
	d := &Device{
		info:    device.Info{ID: cfg.ID, Name: cfg.Name, Align: Align},
		cfg:     cfg,
		kernels: make(map[string]KernelFunc),
		spaces:  make([]space, 1),
		lanes:   make([]*stream, 1),
		memory:  newLedger(cfg.MemoryLimit),
		pinned:  newLedger(cfg.HostLimit),
	}
	d.Register(device.GatherKernel, gather)
	d.Register(device.ScatterKernel, scatter)
	d.order = cfg.chooser()
	if cfg.Profile != nil {
		d.timer = newTimer(d, *cfg.Profile, cfg.Timeline)
	}
	return d
}

// Info describes the device.
func (d *Device) Info() device.Info { return d.info }

// NewSpace opens an id space. Their numbers start at 1; there are 65,535.
func (d *Device) NewSpace() uint16 {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.spaces) > 1<<16-1 {
		panic("sim: no more than 65535 id spaces on one device")
	}
	d.spaces = append(d.spaces, space{})
	return uint16(len(d.spaces) - 1)
}

// Register makes k the implementation of the kernel with the given name. It
// panics if there is one already: two packages that use one name for different
// kernels would give wrong results.
func (d *Device) Register(name string, k KernelFunc) {
	if name == "" || k == nil {
		panic("sim: a kernel needs a name and a function")
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.kernels[name] != nil {
		panic(fmt.Sprintf("sim: kernel %q registered twice", name))
	}
	d.kernels[name] = k
}

// Lookup returns the size of b in bytes, as it was asked for, and for pinned
// memory the bytes themselves. Simulated memory has no addresses, except that
// adopted memory has the one that it was adopted at.
func (d *Device) Lookup(b device.Buffer) (device.Memory, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return device.Memory{}, device.ErrClosed
	}
	if d.lost != nil {
		return device.Memory{}, d.lost
	}
	if !b.IsZero() && b.Device != d.info.ID {
		return device.Memory{}, fmt.Errorf("%w: %v is not of device %d", device.ErrForeign, b, d.info.ID)
	}
	s := d.slot(b)
	if s == nil || s.live == nil || s.gen != b.Gen {
		return device.Memory{}, fmt.Errorf("%w: there is no buffer %v", device.ErrUnknown, b)
	}
	m := device.Memory{Address: s.live.address, Size: s.live.bytes}
	if b.Place == device.OnHost && !d.cfg.Phantom {
		m.Host = s.live.memory(&d.heap)[:m.Size:m.Size]
	}
	return m, nil
}

// Usage returns the device memory in use in the order of submission: an
// allocation counts from its Submit, and no longer once its free is submitted.
func (d *Device) Usage() device.Usage {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.memory.usage()
}

// HostUsage returns the pinned host memory in use.
func (d *Device) HostUsage() device.Usage {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.pinned.usage()
}

// ResetPeak sets the peaks of Usage and HostUsage to what is in use now.
func (d *Device) ResetPeak() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.memory.peak = d.memory.inUse
	d.pinned.peak = d.pinned.inUse
}

// Stats returns what was counted since the last ResetStats.
func (d *Device) Stats() Stats {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.stats
}

// ResetStats starts counting from zero. It does not touch Findings.
func (d *Device) ResetStats() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.stats = Stats{}
}

// Findings returns what the checker found, in the order in which it was found.
// With the same calls and the same seed it is the same list. Findings that
// differ in ids and passes only are one entry with a count; at most 256 entries
// are kept, and Stats counts all.
func (d *Device) Findings() []Finding {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.found.list)
}

// Close runs everything that is queued, reports what was not given back as
// findings, and gives it back. It returns the failure that lost the device, if
// one did; then nothing could have been given back, and that is no finding.
func (d *Device) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return device.ErrClosed
	}
	for d.step() {
	}
	if d.lost == nil {
		for _, f := range d.leaks() {
			d.report(f)
		}
	}
	d.closed = true
	d.spaces, d.lanes, d.host, d.calls = nil, nil, nil, nil
	d.reads, d.writes, d.ready = nil, nil, nil
	d.heap, d.externals = heap{}, nil
	d.memory.inUse, d.pinned.inUse = 0, 0
	return d.lost
}

// report keeps a finding.
func (d *Device) report(f Finding) {
	if d.cfg.NoChecker {
		return
	}
	d.stats.Findings++
	if d.found.add(f) && d.cfg.OnFinding != nil {
		f.Count = 1
		d.cfg.OnFinding(f)
	}
}
