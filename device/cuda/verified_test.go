package cuda

import (
	"errors"
	"testing"

	"offload/device"
	"offload/device/devicetest"
)

// A flipper changes a byte of what a copy leaves behind, once.
type flipper struct {
	*Device
	armed device.Kind // of the copies, the one that goes wrong
	flip  func()
}

func (f *flipper) Submit(b *device.Batch) error {
	err := f.Device.Submit(b)
	for _, op := range b.Ops {
		if op.Kind == f.armed && b.Origin == origin {
			f.flip()
		}
	}
	return err
}

func TestVerified(t *testing.T) {
	const n = 1000
	for _, tc := range []struct {
		name  string
		wrong string // which byte changes when
		want  error
		at    int
	}{
		{"all is well", "", nil, 0},
		{"the copy out goes wrong", "out", ErrCorrupt, 0},
		{"the copy in goes wrong", "in", ErrCorrupt, 0},
		{"host memory changes in between", "between", ErrCorrupt, 1},
		{"the host says that it writes", "declared", nil, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r, fake := newFakeRig(t, Options{})
			s := r.stream()
			x, y, h := r.buffer(s, n), r.buffer(s, n), r.pinned(n)
			host := r.host(h)
			broken := &flipper{Device: r.dev}
			flipHost := func() { r.must(join(s)); host[7] ^= 1 }
			switch tc.wrong {
			case "out":
				broken.armed, broken.flip = device.CopyOut, flipHost
			case "in":
				broken.armed, broken.flip = device.CopyIn, func() {
					r.must(join(s))
					m, err := r.dev.Lookup(y.Buffer)
					if err != nil {
						t.Fatal(err)
					}
					fake.onGPU[m.Address][7] ^= 1
				}
			}
			v := Verify(broken)
			submit := func(ops ...device.Op) error { return v.Submit(&device.Batch{Origin: origin, Ops: ops}) }
			err := submit(copyOut(s, h, x))
			if tc.wrong == "between" || tc.wrong == "declared" {
				host[7] ^= 1
			}
			if err == nil {
				ops := []device.Op{{Kind: device.HostRead, Src: h}, copyIn(s, y, h), record(s, r.ids.Event())}
				if tc.wrong == "declared" {
					ops[0] = device.Op{Kind: device.HostWrite, Dst: h}
				}
				err = submit(ops...)
			}
			var failed *device.Error
			if !errors.Is(err, tc.want) || err != nil && !errors.As(err, &failed) {
				t.Errorf("got %v, want %v", err, tc.want)
			}
			if err == nil && v.Copies() != 2 {
				t.Errorf("got %d copies verified, want 2", v.Copies())
			}
			if err := v.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestVerifiedConformance runs the suite through the wrapper: it must not change
// what a device does.
func TestVerifiedConformance(t *testing.T) {
	devicetest.Run(t, func(t *testing.T, o devicetest.Options) device.Device {
		return Verify(newDevice(newFake(1<<40), "fake", Options{MemoryLimit: o.MemoryLimit}))
	})
}
