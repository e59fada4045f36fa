package sim

import (
	"fmt"
	"slices"

	"offload/device"
)

// External is device memory that belongs to the program and not to the device's
// allocator, as another library would have it. It counts in no limit and lives
// as long as the device. Operations use it through a buffer of an Adopt of all
// or part of it; it is an [device.Addressed].
type External struct {
	dev     *Device
	index   uint32 // among the external memory of the device
	address uintptr
	mem     []byte
	shadow  shadow    // what its last adoptions left behind
	adopted []*buffer // now, of parts that do not overlap
}

// External makes external memory of the given size, which is poisoned. It
// panics if bytes is not positive.
func (d *Device) External(bytes int64) *External {
	if bytes <= 0 {
		panic(fmt.Sprintf("sim: %d bytes of external memory", bytes))
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	size := align(bytes)
	x := &External{dev: d, index: uint32(len(d.externals)), address: externalBase, mem: newMemory(size)[:bytes:bytes]}
	if n := len(d.externals); n > 0 {
		last := d.externals[n-1]
		// A gap, so that what runs over the end of one is not within the next.
		x.address = last.address + uintptr(align(int64(len(last.mem)))) + Align
	}
	if !d.cfg.NoChecker {
		x.shadow = shadow{{hi: bytes}}
	}
	d.externals = append(d.externals, x)
	return x
}

// externalBase is the first simulated address. Simulated addresses are there to
// be told apart and added to; they stand for no memory of the process.
const externalBase = 1 << 40

// Uintptr returns the simulated address of the first byte.
func (x *External) Uintptr() uintptr { return x.address }

// MemSize returns the number of bytes.
func (x *External) MemSize() uintptr { return uintptr(len(x.mem)) }

// Read returns a copy of the bytes as the host sees them now. If the memory is
// adopted, or the host has not seen the end of the stream that disowned it, the
// bytes are those of this run's order, and this is a finding (HB12).
func (x *External) Read() []byte {
	x.dev.mu.Lock()
	defer x.dev.mu.Unlock()
	x.touch(device.HostRead, 0, int64(len(x.mem)))
	return slices.Clone(x.mem)
}

// Write overwrites the bytes from off on, as the host does now. The rule of
// Read holds for it. It panics if b does not fit.
func (x *External) Write(off int64, b []byte) {
	x.dev.mu.Lock()
	defer x.dev.mu.Unlock()
	x.touch(device.HostWrite, off, int64(len(b)))
	copy(x.mem[off:off+int64(len(b))], b)
}

// touch checks an access of the host, which is no operation of a batch.
func (x *External) touch(kind device.Kind, off, n int64) {
	d := x.dev
	if off < 0 || off+n > int64(len(x.mem)) {
		panic(fmt.Sprintf("sim: bytes %d to %d of external memory of %d", off, off+n, len(x.mem)))
	}
	if d.closed || n == 0 || len(x.shadow) == 0 {
		return
	}
	d.seq++
	r := request{dev: d, site: Site{Seq: d.seq, Origin: device.Origin{Action: "external memory"}, Kind: kind}}
	f := Finding{Rule: HostUnsynchronised, Second: r.site, Subject: x.describe(off, n)}
	for _, b := range x.adopted {
		if from := int64(b.address - x.address); from < off+n && off < from+b.bytes {
			f.First, f.Missing = *b.made.site, "a disown before, and that the host has seen its end"
			d.report(f)
			return
		}
	}
	a := access{hostLane, d.host.tick(hostLane), r.keep()}
	if kind == device.HostRead {
		d.conflicts = x.shadow.read(off, off+n, a, d.host, d.conflicts[:0])
	} else {
		d.conflicts = x.shadow.write(off, off+n, a, d.host, d.conflicts[:0])
	}
	for _, c := range d.conflicts {
		if c.rule != UninitialisedRead { // what it holds was written by means of its owner
			f.First, f.Missing = *c.first.site, edge(*c.first.site, r.site)
			d.report(f)
		}
	}
}

func (x *External) describe(off, n int64) string {
	return fmt.Sprintf("external memory %#x[%d:%d]", x.address, off, off+n)
}

// external returns the external memory that has all of the bytes at an address.
func (d *Device) external(address uintptr, bytes int64) *External {
	for _, x := range d.externals {
		if x.address <= address && address-x.address <= uintptr(len(x.mem)) &&
			bytes <= int64(len(x.mem))-int64(address-x.address) {
			return x
		}
	}
	return nil
}

// span names n bytes of b from off on, so that two buffers that are adopted one
// after the other of the same memory have the same names for it.
func (b *buffer) span(off, n int64) device.Range {
	if x := b.owner; x != nil {
		place := device.Buffer{Device: x.dev.info.ID, Index: x.index, Place: device.OnDevice} // of space 0, which no client has
		return device.Range{Buffer: place, Offset: int64(b.address-x.address) + off, Bytes: n}
	}
	return device.Range{Buffer: b.id, Offset: off, Bytes: n}
}

// adopt makes a buffer of external memory, at once.
func (r *request) adopt() error {
	d, rg := r.dev, r.op.Dst
	sl, err := r.unmade(rg, device.OnDevice)
	if err != nil {
		return err
	}
	x := d.external(r.op.Address, rg.Bytes)
	if x == nil {
		return fmt.Errorf("%w: the %d bytes at address %#x are not external memory of this device; see Device.External",
			device.ErrInvalid, rg.Bytes, r.op.Address)
	}
	off := int64(r.op.Address - x.address)
	for _, b := range x.adopted {
		if b.address < r.op.Address+uintptr(rg.Bytes) && r.op.Address < b.address+uintptr(b.bytes) {
			d.report(Finding{Rule: AdoptedTwice, First: *b.made.site, Second: r.site, Subject: x.describe(off, rg.Bytes),
				Missing: "a disown before, or one buffer for all who use the memory"})
			return fmt.Errorf("%w: %s is adopted as %v already; disown it first", device.ErrInvalid, x.describe(off, rg.Bytes), b.id)
		}
	}
	b := r.make(sl, rg.Bytes)
	b.made = access{hostLane, d.host.tick(hostLane), r.keep()}
	b.mem, b.owner, b.address = x.mem[off:off+rg.Bytes:off+rg.Bytes], x, r.op.Address
	if len(x.shadow) > 0 {
		b.shadow = x.history(off, off+rg.Bytes, b.made)
	}
	x.adopted = append(x.adopted, b)
	return nil
}

// history returns what happened to bytes lo to hi before they were adopted. What
// no operation has written since then, the owner has.
func (x *External) history(lo, hi int64, adopted access) shadow {
	i := x.shadow.cut(lo)
	j := x.shadow.cut(hi)
	var s shadow
	for _, g := range x.shadow[i:j] {
		g.lo, g.hi, g.reads = g.lo-lo, g.hi-lo, slices.Clone(g.reads)
		if g.write.site == nil {
			g.write = adopted
		}
		s = append(s, g)
	}
	return s
}

// disown ends the adoption of a buffer in the order of s. It leaves a write in
// the history of the bytes: whoever uses them next has to come after it.
func (r *request) disown(s *stream) error {
	b, err := r.live(r.op.Dst.Buffer, device.OnDevice)
	if err != nil {
		return err
	}
	if b.owner == nil {
		return fmt.Errorf("%w: %v is memory of the device; free it", device.ErrInvalid, b.id)
	}
	r.enqueue(s, task{dst: b})
	r.checkIdle(b, s.now, FreeInFlight)
	x := b.owner
	if len(x.shadow) > 0 {
		off := int64(b.address - x.address)
		x.shadow.write(off, off+b.bytes, access{s.lane, s.now.at(s.lane), r.keep()}, s.now, nil)
	}
	x.adopted = slices.DeleteFunc(x.adopted, func(o *buffer) bool { return o == b })
	r.forget(b)
	return nil
}
