package sim

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"testing"

	"offload/device"
)

func disown(s device.Stream, b device.Range) device.Op {
	return device.Op{Kind: device.Disown, Stream: s, Dst: b}
}

// adopt adopts n bytes of x from off on, and reports what the device answers.
func (r *rig) adopt(x *External, off, n int64) (device.Range, error) {
	b := device.Range{Buffer: r.ids.Buffer(device.OnDevice), Bytes: n}
	return b, r.do(device.Op{Kind: device.Adopt, Dst: b, Address: x.Uintptr() + uintptr(off)})
}

// adopted adopts all of x.
func (r *rig) adopted(x *External) device.Range {
	r.t.Helper()
	b, err := r.adopt(x, 0, int64(x.MemSize()))
	if err != nil {
		r.t.Fatal(err)
	}
	return b
}

// TestAdoptRules shows for each rule that adopted memory is under a program that
// breaks it, and one that differs in what the rule asks for.
func TestAdoptRules(t *testing.T) {
	tests := []struct {
		name          string
		rule          Rule
		err           error // of the broken program; nil: executed
		broken, sound func(r *rig, x *External) error
	}{
		{
			name: "disowned while another stream uses it", rule: FreeInFlight,
			broken: func(r *rig, x *External) error {
				b := r.adopted(x)
				return r.do(set(r.a, b, 1), disown(r.b, b))
			},
			sound: func(r *rig, x *External) error {
				b, e := r.adopted(x), r.ids.Event()
				return r.do(set(r.a, b, 1), record(r.a, e), wait(r.b, e), disown(r.b, b))
			},
		},
		{
			name: "used after it was disowned", rule: UseAfterFree, err: device.ErrUnknown,
			broken: func(r *rig, x *External) error {
				b := r.adopted(x)
				return r.do(disown(r.a, b), set(r.a, b, 1))
			},
			sound: func(r *rig, x *External) error {
				b := r.adopted(x)
				return r.do(set(r.a, b, 1), disown(r.a, b))
			},
		},
		{
			name: "disowned twice", rule: DoubleFree, err: device.ErrUnknown,
			broken: func(r *rig, x *External) error {
				b := r.adopted(x)
				return r.do(disown(r.a, b), disown(r.a, b))
			},
			sound: func(r *rig, x *External) error { return r.do(disown(r.a, r.adopted(x))) },
		},
		{
			name: "adopted in two buffers", rule: AdoptedTwice, err: device.ErrInvalid,
			broken: func(r *rig, x *External) error {
				r.adopted(x)
				_, err := r.adopt(x, 0, int64(x.MemSize()))
				return err
			},
			sound: func(r *rig, x *External) error {
				if err := r.do(disown(r.a, r.adopted(x))); err != nil {
					return err
				}
				_, err := r.adopt(x, 0, int64(x.MemSize()))
				return err
			},
		},
		{
			name: "parts that share one byte", rule: AdoptedTwice, err: device.ErrInvalid,
			broken: func(r *rig, x *External) error {
				_, first := r.adopt(x, 0, 33)
				_, err := r.adopt(x, 32, 32)
				return errors.Join(first, err)
			},
			sound: func(r *rig, x *External) error {
				_, first := r.adopt(x, 0, 32)
				_, err := r.adopt(x, 32, 32)
				return errors.Join(first, err)
			},
		},
		{
			name: "read again on a stream that is not after the disown", rule: ReadAfterWrite,
			broken: func(r *rig, x *External) error {
				r.must(disown(r.a, r.adopted(x)))
				return r.do(out(r.b, r.pinned(64), r.adopted(x)))
			},
			sound: func(r *rig, x *External) error {
				r.must(disown(r.a, r.adopted(x)))
				return r.do(out(r.a, r.pinned(64), r.adopted(x)))
			},
		},
		{
			name: "written again on a stream that is not after the disown", rule: WriteAfterWrite,
			broken: func(r *rig, x *External) error {
				r.must(disown(r.a, r.adopted(x)))
				return r.do(set(r.b, r.adopted(x), 2))
			},
			sound: func(r *rig, x *External) error {
				e := r.ids.Event()
				r.must(disown(r.a, r.adopted(x)), record(r.a, e), wait(r.b, e))
				return r.do(set(r.b, r.adopted(x), 2))
			},
		},
		{
			name: "read by the host while it is adopted", rule: HostUnsynchronised,
			broken: func(r *rig, x *External) error {
				r.adopted(x)
				x.Read()
				return nil
			},
			sound: func(r *rig, x *External) error {
				x.Read()
				r.adopted(x)
				return nil
			},
		},
		{
			name: "read by the host before it has seen the end", rule: HostUnsynchronised,
			broken: func(r *rig, x *External) error {
				b := r.adopted(x)
				r.must(set(r.a, b, 1), disown(r.a, b))
				x.Read()
				return nil
			},
			sound: func(r *rig, x *External) error {
				b := r.adopted(x)
				r.must(set(r.a, b, 1), disown(r.a, b), join(r.a))
				x.Read()
				return nil
			},
		},
		{
			name: "written by the host before it has seen the end", rule: HostUnsynchronised,
			broken: func(r *rig, x *External) error {
				r.must(disown(r.a, r.adopted(x)))
				x.Write(60, []byte{1})
				return nil
			},
			sound: func(r *rig, x *External) error {
				r.must(disown(r.a, r.adopted(x)), join(r.a))
				x.Write(60, []byte{1})
				return nil
			},
		},
		{
			name: "a range behind its end", rule: OutOfBounds, err: device.ErrInvalid,
			broken: func(r *rig, x *External) error {
				b, err := r.adopt(x, 0, 32)
				return errors.Join(err, r.do(set(r.a, b.Sub(16, 32), 1)))
			},
			sound: func(r *rig, x *External) error {
				b, err := r.adopt(x, 0, 32)
				return errors.Join(err, r.do(set(r.a, b.Sub(16, 16), 1)))
			},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			for seed := range uint64(5) {
				r := newRig(t, Config{Seed: seed})
				if err := tt.broken(r, r.dev.External(64)); !errors.Is(err, tt.err) {
					t.Fatalf("broken: got error %v, want %v", err, tt.err)
				}
				if got, want := r.rules(), []Rule{tt.rule}; !slices.Equal(got, want) {
					t.Fatalf("broken: got findings %v, want %v", r.dev.Findings(), want)
				}
				r = newRig(t, Config{Seed: seed})
				if err := tt.sound(r, r.dev.External(64)); err != nil {
					t.Fatalf("sound: got error %v, want none", err)
				}
				if got := r.dev.Findings(); len(got) > 0 {
					t.Fatalf("sound: got findings %v, want none", got)
				}
			}
		})
	}
}

// What is adopted is the owner's bytes, before and after, and costs no memory of
// the device.
func TestAdoptedBytes(t *testing.T) {
	for seed := range uint64(10) {
		r := newRig(t, Config{Seed: seed, MemoryLimit: Align})
		x, h := r.dev.External(600), r.pinned(600)
		if got := x.Read(); got[0] != Poison || got[599] != Poison {
			t.Fatalf("new external memory holds %#x and %#x, want poison", got[0], got[599])
		}
		x.Write(0, bytes.Repeat([]byte{7}, 600))
		b := r.adopted(x)
		if m, err := r.dev.Lookup(b.Buffer); err != nil || m.Address != x.Uintptr() || m.Size != 600 || m.Host != nil {
			t.Errorf("lookup gave %+v, %v; want %#x and 600 bytes", m, err, x.Uintptr())
		}
		own := r.buffer(r.a, Align) // all that there is
		r.must(out(r.a, h, b), set(r.a, b.Sub(100, 200), 9), disown(r.a, b), free(r.a, own), join(r.a))
		if got := r.dev.Usage(); got.Peak != Align || got.InUse != 0 {
			t.Errorf("usage %+v, want a peak of %d and nothing in use", got, Align)
		}
		r.must(hostRead(h))
		if got, want := r.host(h), bytes.Repeat([]byte{7}, 600); !bytes.Equal(got, want) {
			t.Error("the copy does not have the owner's bytes")
		}
		want := append(append(bytes.Repeat([]byte{7}, 100), bytes.Repeat([]byte{9}, 200)...), bytes.Repeat([]byte{7}, 300)...)
		if got := x.Read(); !bytes.Equal(got, want) {
			t.Error("the owner does not have what was written")
		}
		if _, err := r.dev.Lookup(b.Buffer); !errors.Is(err, device.ErrUnknown) {
			t.Errorf("lookup after the disown: got %v, want %v", err, device.ErrUnknown)
		}
		if got := r.dev.Findings(); len(got) > 0 {
			t.Errorf("got %v, want no findings", got)
		}
	}
}

// What cannot be adopted, freed or disowned is refused, and nothing changes.
func TestAdoptRefusals(t *testing.T) {
	r := newRig(t, Config{})
	x, y := r.dev.External(64), r.dev.External(64)
	own, b := r.buffer(r.a, 64), r.adopted(y)
	other := New(Config{}).External(4096)
	for name, f := range map[string]func() error{
		"no address": func() error {
			return r.do(device.Op{Kind: device.Adopt, Dst: device.Range{Buffer: r.ids.Buffer(device.OnDevice), Bytes: 8}})
		},
		"more bytes than there are": func() error { _, err := r.adopt(x, 32, 33); return err },
		"an address behind it":      func() error { _, err := r.adopt(x, 65, 1); return err },
		"an address before it":      func() error { _, err := r.adopt(x, -1, 8); return err },
		"memory of another device":  func() error { _, err := r.adopt(other, 2048, 8); return err },
		"no bytes":                  func() error { _, err := r.adopt(x, 0, 0); return err },
		"a buffer that is in use":   func() error { return r.do(device.Op{Kind: device.Adopt, Dst: own, Address: x.Uintptr()}) },
		"a host buffer": func() error {
			return r.do(device.Op{Kind: device.Adopt, Dst: device.Range{Buffer: r.ids.Buffer(device.OnHost), Bytes: 8}, Address: x.Uintptr()})
		},
		"disown of the device's memory": func() error { return r.do(disown(r.a, own)) },
		"free of adopted memory":        func() error { return r.do(free(r.a, b)) },
	} {
		if err := f(); !errors.Is(err, device.ErrInvalid) {
			t.Errorf("%s: got %v, want %v", name, err, device.ErrInvalid)
		}
	}
	r.must(set(r.a, r.adopted(x), 1), set(r.a, own, 1), set(r.a, b, 1))
	if got := r.dev.Findings(); len(got) > 0 {
		t.Errorf("got %v, want no findings", got)
	}
}

// What is not disowned is a leak, and names the operation that is missing.
func TestAdoptedLeaks(t *testing.T) {
	r := newRig(t, Config{ID: 9})
	b := r.adopted(r.dev.External(64))
	const text = `HB17 (leak): d9/b1.0#1 (64 adopted bytes) was made by #3 adopt (operation 0 of test) and not given back. Missing: a disown before Close.`
	if got := r.dev.Leaks()[0].String(); got != text {
		t.Errorf("got\n%s\nwant\n%s", got, text)
	}
	r.must(disown(r.a, b), shut(r.a), shut(r.b))
	if got := r.dev.Leaks(); len(got) > 0 {
		t.Errorf("got %v after the disown, want none", got)
	}
}

func TestAdoptedTwiceNamesBoth(t *testing.T) {
	r := newRig(t, Config{ID: 9})
	x := r.dev.External(64)
	r.adopted(x)
	if _, err := r.adopt(x, 16, 16); err == nil {
		t.Fatal("adopted twice without an error")
	}
	const text = `HB18 (adopted twice): #4 adopt (operation 0 of test) adopts external memory 0x10000000000[16:32], ` +
		`part of which was adopted by #3 adopt (operation 0 of test). Missing: a disown before, or one buffer for all who use the memory.`
	if got := r.dev.Findings(); len(got) != 1 || got[0].String() != text {
		t.Errorf("got\n%v\nwant\n%s", got, text)
	}
}

// Two adoptions of the same bytes are the same bytes to the search for orders:
// without an edge between them it finds both outcomes, with one a single order.
func TestExploreAdopted(t *testing.T) {
	for _, tt := range []struct {
		edge     bool
		outcomes int
	}{{false, 2}, {true, 1}} {
		seen := make(map[string]bool)
		program := func(d *Device) error {
			r := rigOn(t, d)
			x := d.External(64)
			first := r.adopted(x)
			r.must(set(r.a, first, 1), disown(r.a, first))
			if tt.edge {
				e := r.ids.Event()
				r.must(record(r.a, e), wait(r.b, e))
			}
			second := r.adopted(x)
			r.must(set(r.b, second, 2), disown(r.b, second), join(r.a), join(r.b))
			seen[fmt.Sprint(x.Read()[0])] = true
			return nil
		}
		report, err := Explore(Config{NoChecker: true}, program, ExploreOptions{})
		if err != nil || report.Failing > 0 {
			t.Fatalf("%v: %v", report, err)
		}
		if len(seen) != tt.outcomes || report.Orders != tt.outcomes {
			t.Errorf("edge %v: outcomes %v in %d orders, want %d of each", tt.edge, seen, report.Orders, tt.outcomes)
		}
	}
}

// Without the checker memory is adopted and given back all the same.
func TestAdoptWithoutChecker(t *testing.T) {
	r := newRig(t, Config{NoChecker: true})
	x := r.dev.External(64)
	b := r.adopted(x)
	r.must(set(r.a, b, 3), disown(r.b, b))
	if _, err := r.adopt(x, 0, 64); err != nil {
		t.Error(err)
	}
	if _, err := r.adopt(x, 0, 64); !errors.Is(err, device.ErrInvalid) {
		t.Errorf("adopted twice: got %v, want %v", err, device.ErrInvalid)
	}
	if err := r.dev.Close(); err != nil || x.Read()[0] != 3 {
		t.Errorf("close: %v; the first byte is %d, want 3", err, x.Read()[0])
	}
}
