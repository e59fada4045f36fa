package sim

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"offload/device"
)

// roundTrip sends bytes through every kind of copy.
func roundTrip(t *testing.T, cfg Config) *rig {
	t.Helper()
	r := newRig(t, cfg)
	h, g := r.pinned(512), r.pinned(512)
	r.must(hostWrite(h))
	for i := range r.host(h) {
		r.host(h)[i] = byte(i)
	}
	x, y := r.buffer(r.a, 512), r.buffer(r.a, 512)
	e, f := r.ids.Event(), r.ids.Event()
	r.must(in(r.a, x, h), record(r.a, e), wait(r.b, e), move(r.b, y, x), record(r.b, f), wait(r.a, f), out(r.a, g, y), join(r.a), hostRead(g))
	for i, got := range r.host(g) {
		if want := byte(i); got != want {
			t.Fatalf("byte %d: got %d, want %d", i, got, want)
		}
	}
	r.must(free(r.a, x), free(r.a, y), unpin(h), unpin(g), retire(e), retire(f), shut(r.a), shut(r.b))
	return r
}

func TestBytesGoRound(t *testing.T) {
	for seed := range uint64(20) {
		for _, o := range []Order{Seeded, Eager} {
			r := roundTrip(t, Config{Seed: seed, Order: o})
			if err := r.dev.Close(); err != nil {
				t.Fatal(err)
			}
			if got := r.dev.Findings(); len(got) != 0 {
				t.Fatalf("%v, seed %d: got findings %v, want none", o, seed, got)
			}
		}
	}
}

func TestStats(t *testing.T) {
	r := roundTrip(t, Config{})
	s := r.dev.Stats()
	if s.BytesIn != 512 || s.BytesOut != 512 || s.BytesWithin != 512 || s.BytesAlloc != 1024 || s.BytesPinned != 1024 {
		t.Errorf("got %v, want 512 bytes in, out and within, 1024 allocated and pinned", s)
	}
	if got := s.Count(device.Wait); got != 2 {
		t.Errorf("got %d waits, want 2", got)
	}
	if got, want := s.String(), "8 batches, 24 operations"; !strings.HasPrefix(got, want) {
		t.Errorf("got %q, want it to start with %q", got, want)
	}
	r.dev.ResetStats()
	if got := r.dev.Stats(); got != (Stats{}) {
		t.Errorf("after ResetStats: got %v, want zero", got)
	}
}

func TestStrings(t *testing.T) {
	for _, tt := range []struct{ got, want string }{
		{Seeded.String(), "seeded"},
		{Eager.String(), "eager"},
		{Order(7).String(), "order(7)"},
		{FreeInFlight.String(), "HB5 (free in flight)"},
		{Leak.String(), "HB17 (leak)"},
		{Rule(0).String(), "rule(0)"},
		{Rule(99).String(), "rule(99)"},
		{Site{}.String(), "no operation"},
	} {
		if tt.got != tt.want {
			t.Errorf("got %q, want %q", tt.got, tt.want)
		}
	}
}

func TestDevicesHaveIdentitiesOfTheirOwn(t *testing.T) {
	a, b := New(Config{}).Info(), New(Config{Name: "second"}).Info()
	if a.ID == 0 || a.ID == b.ID {
		t.Errorf("got ids %d and %d, want two of their own", a.ID, b.ID)
	}
	if a.Name != "sim" || b.Name != "second" || a.Align != Align {
		t.Errorf("got %+v and %+v", a, b)
	}
}

func TestClosedDevice(t *testing.T) {
	r := newRig(t, Config{})
	b := r.buffer(r.a, 1)
	if err := r.dev.Close(); err != nil {
		t.Fatal(err)
	}
	_, lookup := r.dev.Lookup(b.Buffer)
	for name, err := range map[string]error{"Submit": r.do(join(r.a)), "empty Submit": r.do(), "Lookup": lookup, "Close": r.dev.Close()} {
		if !errors.Is(err, device.ErrClosed) {
			t.Errorf("%s: got %v, want %v", name, err, device.ErrClosed)
		}
	}
	want := []Rule{Leak, Leak, Leak}
	if got := r.rules(); !slices.Equal(got, want) {
		t.Errorf("got findings %v, want %v: a buffer and two streams", r.dev.Findings(), want)
	}
	if got := r.dev.Leaks(); len(got) != 0 {
		t.Errorf("got leaks %v after Close, want none", got)
	}
}
