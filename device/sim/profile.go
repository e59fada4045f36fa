package sim

import (
	"fmt"
	"time"

	"offload/device"
)

// A Profile says how long operations take, on the host that enqueues them and on
// the device. Profiles are values; change a copy.
type Profile struct {
	Name string
	// Out and In are the two directions of the link. Each moves one copy at a
	// time, in the order in which they can begin.
	Out, In Link
	// Memory is the rate of device memory in bytes a second, counted for reading
	// and for writing. It gives the time of copies within the device, and of
	// kernels for which no cost is registered. Zero: they take no time.
	Memory float64
	// Host is the time for which one operation of each kind keeps the thread that
	// submits it. It includes making and destroying events. A synchronisation
	// takes this long after what it waits for has ended.
	Host [device.Kinds]time.Duration
	// Pin is the rate at which the host pins memory, in bytes a second. Zero: at once.
	Pin float64
}

// A Link is one direction between host and device.
type Link struct {
	// Copies are measured sizes and rates, ascending by size. The time of a copy
	// lies on the line between the two sizes next to it. A smaller one than the
	// first saves the bytes at the rate of the last, and a larger one than the last
	// runs at that rate. Empty: copies take no time.
	Copies []CopyRate
	// Shared is the part of its rate that is left while the other direction moves
	// bytes, too; above 0, and 1 if that makes no difference. Zero counts as 1.
	Shared float64
}

// CopyRate is the rate of copies of one size, one behind the other.
type CopyRate struct {
	Bytes int64
	Rate  float64 // bytes a second
}

// Time returns how long a copy of n bytes takes while the other direction is idle.
func (l *Link) Time(n int64) time.Duration { return time.Duration(l.seconds(n) * 1e9) }

func (l *Link) seconds(n int64) float64 {
	if len(l.Copies) == 0 || n <= 0 {
		return 0
	}
	took := func(c CopyRate) float64 { return float64(c.Bytes) / c.Rate }
	first, last := l.Copies[0], l.Copies[len(l.Copies)-1]
	if n <= first.Bytes {
		return max(took(first)-float64(first.Bytes-n)/last.Rate, 0)
	}
	for i, c := range l.Copies[1:] {
		if n <= c.Bytes {
			b := l.Copies[i]
			part := float64(n-b.Bytes) / float64(c.Bytes-b.Bytes)
			return took(b) + part*(took(c)-took(b))
		}
	}
	return float64(n) / last.Rate
}

func (l *Link) check(name string) error {
	if l.Shared < 0 || l.Shared > 1 {
		return fmt.Errorf("%s: Shared is %v; it is a part, above 0 and at most 1", name, l.Shared)
	}
	for i, c := range l.Copies {
		if c.Bytes <= 0 || c.Rate <= 0 || i > 0 && c.Bytes <= l.Copies[i-1].Bytes {
			return fmt.Errorf("%s: copy %d is of %d bytes at %v a second; sizes and rates are positive, and sizes ascend", name, i, c.Bytes, c.Rate)
		}
	}
	return nil
}

// H200 is an NVIDIA H200 on PCIe Gen5 x16 with driver 580 and CUDA 13.0, called
// from Go, as measured: copies of pinned memory one behind the other; both
// directions at once at 51.2 and 47.8 GB/s; a memory-bound kernel at 4.0 TB/s;
// the median time of each call on the thread that makes it, an event made,
// recorded and destroyed; 450 ms to pin 1 GiB; 5.8 us by which a copy and a
// synchronisation take longer than the copy in a row of copies, of which 2 us
// are the enqueueing. Not measured are synchronisations other than that.
func H200() *Profile {
	const (
		kib, mib, gib = 1 << 10, 1 << 20, 1 << 30
		giga          = 1e9
		us            = time.Microsecond
		ns            = time.Nanosecond
	)
	p := &Profile{
		Name: "h200",
		Out: Link{Shared: 51.2 / 55.25, Copies: []CopyRate{
			{64 * kib, 19.2 * giga}, {256 * kib, 39.6 * giga}, {mib, 50.4 * giga}, {4 * mib, 54.0 * giga}, {16 * mib, 55.0 * giga}, {64 * mib, 55.25 * giga}}},
		In: Link{Shared: 47.8 / 55.15, Copies: []CopyRate{
			{64 * kib, 17.3 * giga}, {256 * kib, 35.2 * giga}, {mib, 48.5 * giga}, {4 * mib, 53.5 * giga}, {16 * mib, 54.9 * giga}, {64 * mib, 55.15 * giga}}},
		Memory: 4000 * giga,
		Pin:    gib / 0.450,
	}
	p.Host[device.Record] = (180 + 215 + 120) * ns
	p.Host[device.Wait] = 215 * ns
	p.Host[device.CopyOut], p.Host[device.CopyIn], p.Host[device.CopyWithin] = 2*us, 2*us, 2*us
	p.Host[device.Launch] = 3500 * ns
	p.Host[device.Alloc], p.Host[device.Free] = 330*ns, 420*ns
	p.Host[device.SyncStream], p.Host[device.SyncEvent] = 3800*ns, 3800*ns
	return p
}

// A CostFunc returns the time that a launch of a kernel takes on the device. It
// must not keep k, nor call the device.
type CostFunc func(k *device.Kernel) time.Duration

// RegisterCost makes cost the time of the kernel with the given name, for a
// device with [Config.Profile]. It panics if there is one already. A kernel
// without one is taken to be bound by the memory that it declares to access.
func (d *Device) RegisterCost(name string, cost CostFunc) {
	if name == "" || cost == nil {
		panic("sim: a cost needs the name of a kernel and a function")
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.costs[name] != nil {
		panic(fmt.Sprintf("sim: cost of kernel %q registered twice", name))
	}
	if d.costs == nil {
		d.costs = make(map[string]CostFunc)
	}
	d.costs[name] = cost
}

// kernelTime returns the seconds that k takes.
func (d *Device) kernelTime(p *Profile, k *device.Kernel) float64 {
	if cost := d.costs[k.Name]; cost != nil {
		return max(cost(k).Seconds(), 0)
	}
	n := int64(0)
	for _, r := range k.Reads {
		n += r.Bytes
	}
	for _, w := range k.Writes {
		n += w.Bytes
	}
	return p.within(n)
}

// within returns the seconds for n bytes read or written on the device.
func (p *Profile) within(n int64) float64 {
	if p.Memory == 0 {
		return 0
	}
	return float64(n) / p.Memory
}

// Profile returns the profile of the device, or nil. It must not be changed.
func (d *Device) Profile() *Profile { return d.cfg.Profile }
