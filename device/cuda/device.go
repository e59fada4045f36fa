package cuda

import (
	"errors"
	"fmt"
	"sync"

	"offload/device"
)

// Device is an NVIDIA GPU. See the package comment.
type Device struct {
	info device.Info
	drv  driver

	mu      sync.Mutex
	idle    sync.Cond // blocked has become 0
	blocked int       // calls that have let go of mu and block in the driver
	closed  bool
	lost    error // what every call returns since the context failed
	kernels map[string]Launcher
	spaces  []space // by number; 0 is not used
	adopted *device.IDs
	memory  account
	pinned  account
	spare   []*mark
	list    []command // of the batch that is being translated
	changes []change  // that the commands in list made in the tables
	call    Call      // of the launch that is under way
	combs   []device.Comb
}

var _ device.Device = (*Device)(nil)

// newDevice makes a device that has drv to itself.
func newDevice(drv driver, name string, o Options) *Device {
	if o.ID == 0 {
		o.ID = device.NextID()
	}
	d := &Device{
		info:    device.Info{ID: o.ID, Name: name, Align: Align},
		drv:     drv,
		kernels: make(map[string]Launcher),
		spaces:  make([]space, 1),
		memory:  account{limit: o.MemoryLimit},
	}
	d.idle.L = &d.mu
	d.adopted = device.NewIDs(d)
	return d
}

// Info describes the device.
func (d *Device) Info() device.Info { return d.info }

// NewSpace opens an id space. Their numbers start at 1; there are 65,535, one
// of which holds the streams that were adopted.
func (d *Device) NewSpace() uint16 {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.spaces) > 1<<16-1 {
		panic("cuda: no more than 65535 id spaces on one device")
	}
	d.spaces = append(d.spaces, space{})
	return uint16(len(d.spaces) - 1)
}

// Register makes l the implementation of the kernel with the given name. It
// panics if there is one already: two packages that use one name for different
// kernels would give wrong results.
func (d *Device) Register(name string, l Launcher) {
	if name == "" || l == nil {
		panic("cuda: a kernel needs a name and a launcher")
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.kernels[name] != nil || name == device.GatherKernel || name == device.ScatterKernel {
		panic(fmt.Sprintf("cuda: kernel %q registered twice", name))
	}
	d.kernels[name] = l
}

// AdoptStream gives an id to a stream that the caller made in the GPU's primary
// context; zero is the legacy default stream. The stream is open. CloseStream
// ends the use of the id and leaves the stream alone. Adopted twice, a stream
// has two ids.
func (d *Device) AdoptStream(handle uintptr) (device.Stream, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.usable(); err != nil {
		return device.Stream{}, err
	}
	id := d.adopted.Stream()
	sp := d.space(id.Space)
	sp.streams = append(sp.streams, &stream{handle: handle, adopted: true})
	return id, nil
}

// Handle returns the handle (CUstream) of an open stream, valid until CloseStream.
func (d *Device) Handle(id device.Stream) (uintptr, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.usable(); err != nil {
		return 0, err
	}
	s, err := d.stream(id)
	if err != nil {
		return 0, err
	}
	return s.handle, nil
}

// Lookup returns where b is and its size in bytes, as it was asked for. The
// address of device memory is valid for work in the order of its stream.
func (d *Device) Lookup(b device.Buffer) (device.Memory, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.usable(); err != nil {
		return device.Memory{}, err
	}
	if b.IsZero() {
		return device.Memory{}, fmt.Errorf("%w: %v", device.ErrUnknown, b)
	}
	e, err := d.live(b, device.Nowhere)
	if err != nil {
		return device.Memory{}, err
	}
	return device.Memory{Address: e.address, Size: e.bytes, Host: e.host}, nil
}

// usable returns why the device takes no calls any more.
func (d *Device) usable() error {
	if d.closed {
		return device.ErrClosed
	}
	return d.lost
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

// Close waits for all work of the GPU's primary context and gives everything
// back, also what the caller has not. It returns the failure that lost the
// device, if one did.
func (d *Device) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return device.ErrClosed
	}
	d.closed = true
	for d.blocked > 0 {
		d.idle.Wait()
	}
	errs := []error{d.drv.wait()}
	for i := range d.spaces {
		errs = append(errs, d.clear(&d.spaces[i])...)
	}
	for _, m := range d.spare {
		errs = append(errs, d.drv.destroyEvent(m.handle))
	}
	errs = append(errs, d.drv.close())
	d.spaces, d.spare, d.memory.inUse, d.pinned.inUse = nil, nil, 0, 0
	if d.lost != nil {
		return d.lost // a lost context refuses everything else
	}
	return d.answered(errors.Join(errs...))
}

// clear gives back what is left of an id space.
func (d *Device) clear(sp *space) (errs []error) {
	for _, b := range sp.buffers[device.OnDevice] {
		if b.live && !b.adopted {
			errs = append(errs, d.drv.free(b.address))
		}
	}
	for _, b := range sp.buffers[device.OnHost] {
		if b.live {
			errs = append(errs, d.drv.unpin(b.host))
		}
	}
	for _, e := range sp.events {
		if e.mark != nil {
			errs = append(errs, d.drv.destroyEvent(e.mark.handle))
		}
	}
	for _, s := range sp.streams {
		if s != nil && !s.closed && !s.adopted {
			errs = append(errs, d.drv.destroyStream(s.handle))
		}
	}
	return errs
}
