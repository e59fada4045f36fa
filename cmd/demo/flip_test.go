package main

import (
	"strings"
	"sync"
	"testing"

	"offload/device"
)

// flipper changes one byte of what the engine has copied to the host, between
// the copy out and the copy in. It waits for the copy out and declares the
// write, so that the bytes are all that is wrong: the checker finds nothing.
type flipper struct {
	device.Device
	mask byte

	mu      sync.Mutex
	out     map[device.Range]device.Stream // by host range: the stream of its copy out
	flipped device.Range
}

func (f *flipper) Submit(b *device.Batch) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, op := range b.Ops {
		switch {
		case op.Kind == device.CopyOut && ofEngine(b):
			f.out[op.Dst] = op.Stream
		case op.Kind == device.CopyIn && f.flipped.Buffer.IsZero():
			if stream, ok := f.out[op.Src]; ok {
				if err := f.flip(op.Src, stream); err != nil {
					return err
				}
			}
		}
	}
	return f.Device.Submit(b)
}

// flip changes the byte of the first element that holds its sign and the high
// bits of its exponent.
func (f *flipper) flip(r device.Range, stream device.Stream) error {
	const high = 3 // little-endian
	f.flipped = r.Sub(high, 1)
	err := f.Device.Submit(&device.Batch{
		Origin: device.Origin{Action: "flip"},
		Ops: []device.Op{
			{Kind: device.SyncStream, Stream: stream},
			{Kind: device.HostWrite, Dst: f.flipped},
		},
	})
	if err != nil {
		return err
	}
	m, err := f.Lookup(r.Buffer)
	if err != nil {
		return err
	}
	m.Host[f.flipped.Offset] ^= f.mask
	return nil
}

// TestFlippedByte is the negative control: when one byte of one tensor comes
// back changed, the runs are no longer identical. With no bit to flip they are.
func TestFlippedByte(t *testing.T) {
	for _, test := range []struct {
		name      string
		mask      byte
		identical bool
		flags     []string
	}{
		{"nothing changed", 0x00, true, nil},
		{"sign and exponent of one float changed", 0xc0, false, nil},
		{"one float of a micro-batch changed", 0xc0, false, []string{"-micro-batches", "4"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			if test.identical && testing.Short() {
				t.Skip("every other test has the runs identical")
			}
			var f *flipper
			newMachine := wrapped(func(run string, d device.Device) device.Device {
				if run != "offloaded" {
					return d
				}
				f = &flipper{Device: d, mask: test.mask, out: make(map[device.Range]device.Stream)}
				return f
			})
			i := invoke(t, newMachine, small(t, append(test.flags, "-steps", "1")...)...)
			if f == nil || f.flipped.Buffer.IsZero() {
				t.Fatal("nothing was copied in that had been copied out")
			}
			if i.report == nil {
				t.Fatalf("no report: %s", i.stderr)
			}
			if i.report.Identical != test.identical || i.report.Findings != 0 {
				t.Errorf("identical %t with %d findings, want %t with none", i.report.Identical, i.report.Findings, test.identical)
			}
			if test.identical {
				i.holds(t)
				return
			}
			if i.status != exitFailed || !strings.Contains(i.stderr, "demo: the offloaded run differs from the resident one\n") ||
				!strings.Contains(i.stdout, "DIFFERENT") {
				t.Errorf("exit status %d, stderr %q, want %d and a line that says so, in the table too:\n%s", i.status, i.stderr, exitFailed, i.stdout)
			}
		})
	}
}
