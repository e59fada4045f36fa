package sim

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"offload/device"
)

// TestRules provokes every rule, and shows for each a program that differs in
// the one thing that the rule asks for and breaks none.
func TestRules(t *testing.T) {
	tests := []struct {
		name   string
		rule   Rule
		err    error // of the last operation of the broken program; nil: executed
		broken func(r *rig) error
		sound  func(r *rig) error
	}{
		{
			name: "copy out without a wait for the producer",
			rule: ReadAfterWrite,
			broken: func(r *rig) error {
				x, h := r.shared(64), r.pinned(64)
				return r.do(set(r.a, x, 1), out(r.b, h, x))
			},
			sound: func(r *rig) error {
				x, h, e := r.shared(64), r.pinned(64), r.ids.Event()
				return r.do(set(r.a, x, 1), record(r.a, e), wait(r.b, e), out(r.b, h, x))
			},
		},
		{
			name: "event recorded before the write instead of after it",
			rule: ReadAfterWrite,
			broken: func(r *rig) error {
				x, h, e := r.shared(64), r.pinned(64), r.ids.Event()
				return r.do(record(r.a, e), set(r.a, x, 1), wait(r.b, e), out(r.b, h, x))
			},
			sound: func(r *rig) error {
				x, h, e := r.shared(64), r.pinned(64), r.ids.Event()
				return r.do(set(r.a, x, 1), record(r.a, e), wait(r.b, e), out(r.b, h, x))
			},
		},
		{
			name: "one byte of overlap",
			rule: ReadAfterWrite,
			broken: func(r *rig) error {
				x, h := r.shared(64), r.pinned(64)
				return r.do(set(r.a, x.Sub(0, 33), 1), out(r.b, h.Sub(32, 32), x.Sub(32, 32)))
			},
			sound: func(r *rig) error {
				x, h := r.shared(64), r.pinned(64)
				return r.do(set(r.a, x.Sub(0, 32), 1), out(r.b, h.Sub(32, 32), x.Sub(32, 32)))
			},
		},
		{
			name: "source overwritten while it is copied out",
			rule: WriteAfterRead,
			broken: func(r *rig) error {
				x, h := r.shared(64), r.pinned(64)
				return r.do(out(r.b, h, x), set(r.a, x, 2))
			},
			sound: func(r *rig) error {
				x, h, e := r.shared(64), r.pinned(64), r.ids.Event()
				return r.do(out(r.b, h, x), record(r.b, e), wait(r.a, e), set(r.a, x, 2))
			},
		},
		{
			name: "an earlier reader on a third stream is not waited for",
			rule: WriteAfterRead,
			broken: func(r *rig) error {
				x, h, g, e, c := r.shared(64), r.pinned(64), r.pinned(64), r.ids.Event(), r.ids.Stream()
				defer r.must(join(c), shut(c))
				return r.do(open(c), out(c, g, x), out(r.b, h, x), record(r.b, e), wait(r.a, e), set(r.a, x, 2))
			},
			sound: func(r *rig) error {
				x, h, g, e, c := r.shared(64), r.pinned(64), r.pinned(64), r.ids.Event(), r.ids.Stream()
				f := r.ids.Event()
				defer r.must(join(c), shut(c))
				return r.do(open(c), out(c, g, x), record(c, f), wait(r.b, f), out(r.b, h, x), record(r.b, e), wait(r.a, e), set(r.a, x, 2))
			},
		},
		{
			name: "two writers",
			rule: WriteAfterWrite,
			broken: func(r *rig) error {
				x := r.shared(64)
				return r.do(set(r.a, x, 1), set(r.b, x, 2))
			},
			sound: func(r *rig) error {
				x := r.shared(64)
				return r.do(set(r.a, x, 1), join(r.a), set(r.b, x, 2))
			},
		},
		{
			name: "host buffer used again while it is read",
			rule: WriteAfterRead,
			broken: func(r *rig) error {
				x, y, h := r.shared(64), r.shared(64), r.pinned(64)
				r.must(hostWrite(h))
				return r.do(in(r.a, x, h), out(r.b, h, y))
			},
			sound: func(r *rig) error {
				x, y, h, e := r.shared(64), r.shared(64), r.pinned(64), r.ids.Event()
				r.must(hostWrite(h))
				return r.do(in(r.a, x, h), record(r.a, e), wait(r.b, e), out(r.b, h, y))
			},
		},
		{
			name: "declared access of other means",
			rule: WriteAfterWrite,
			broken: func(r *rig) error {
				x := r.shared(64)
				op := set(r.a, x, 1)
				op.Kind, op.Kernel.Name = device.Access, "of a library"
				return r.do(op, set(r.b, x, 2))
			},
			sound: func(r *rig) error {
				x := r.shared(64)
				op := set(r.a, x, 1)
				op.Kind, op.Kernel.Name = device.Access, "of a library"
				return r.do(op, set(r.a, x, 2))
			},
		},
		{
			name: "written on another stream than it was allocated on",
			rule: UseBeforeAlloc,
			broken: func(r *rig) error {
				return r.do(set(r.b, r.buffer(r.a, 64), 1))
			},
			sound: func(r *rig) error {
				x, e := r.buffer(r.a, 64), r.ids.Event()
				return r.do(record(r.a, e), wait(r.b, e), set(r.b, x, 1))
			},
		},
		{
			name: "freed while it is copied out",
			rule: FreeInFlight,
			broken: func(r *rig) error {
				x, h := r.shared(64), r.pinned(64)
				return r.do(out(r.b, h, x), free(r.a, x))
			},
			sound: func(r *rig) error {
				x, h, e := r.shared(64), r.pinned(64), r.ids.Event()
				return r.do(out(r.b, h, x), record(r.b, e), wait(r.a, e), free(r.a, x))
			},
		},
		{
			name: "freed before it is allocated",
			rule: FreeInFlight,
			broken: func(r *rig) error {
				return r.do(free(r.b, r.buffer(r.a, 64)))
			},
			sound: func(r *rig) error {
				return r.do(free(r.a, r.buffer(r.a, 64)))
			},
		},
		{
			name: "read after the free was submitted",
			rule: UseAfterFree,
			err:  device.ErrUnknown,
			broken: func(r *rig) error {
				x, h := r.shared(64), r.pinned(64)
				return r.do(free(r.a, x), out(r.a, h, x))
			},
			sound: func(r *rig) error {
				x, h := r.shared(64), r.pinned(64)
				return r.do(out(r.a, h, x), free(r.a, x))
			},
		},
		{
			name: "an old generation of a buffer",
			rule: UseAfterFree,
			err:  device.ErrUnknown,
			broken: func(r *rig) error {
				x := r.shared(64)
				r.must(free(r.a, x))
				r.ids.PutBuffer(x.Buffer)
				r.shared(64)
				return r.do(set(r.a, x, 1))
			},
			sound: func(r *rig) error {
				x := r.shared(64)
				r.must(free(r.a, x))
				r.ids.PutBuffer(x.Buffer)
				return r.do(set(r.a, r.shared(64), 1))
			},
		},
		{
			name: "freed twice",
			rule: DoubleFree,
			err:  device.ErrUnknown,
			broken: func(r *rig) error {
				x := r.shared(64)
				return r.do(free(r.a, x), free(r.a, x))
			},
			sound: func(r *rig) error {
				x, y := r.shared(64), r.shared(64)
				return r.do(free(r.a, x), free(r.a, y))
			},
		},
		{
			name: "unpinned twice",
			rule: DoubleFree,
			err:  device.ErrUnknown,
			broken: func(r *rig) error {
				h := r.pinned(64)
				return r.do(unpin(h), unpin(h))
			},
			sound: func(r *rig) error {
				return r.do(unpin(r.pinned(64)))
			},
		},
		{
			name: "read of bytes that nothing has written",
			rule: UninitialisedRead,
			broken: func(r *rig) error {
				x, h := r.buffer(r.a, 64), r.pinned(64)
				return r.do(set(r.a, x.Sub(0, 63), 1), out(r.a, h, x))
			},
			sound: func(r *rig) error {
				x, h := r.buffer(r.a, 64), r.pinned(64)
				return r.do(set(r.a, x.Sub(0, 63), 1), out(r.a, h.Sub(0, 63), x.Sub(0, 63)))
			},
		},
		{
			name: "copy in from pinned memory that nothing has written",
			rule: UninitialisedRead,
			broken: func(r *rig) error {
				x, h := r.shared(64), r.pinned(64)
				return r.do(in(r.a, x, h))
			},
			sound: func(r *rig) error {
				x, h := r.shared(64), r.pinned(64)
				return r.do(hostWrite(h), in(r.a, x, h))
			},
		},
		{
			name: "wait for an event that was never recorded",
			rule: UnrecordedEvent,
			err:  device.ErrUnrecorded,
			broken: func(r *rig) error {
				return r.do(wait(r.b, r.ids.Event()))
			},
			sound: func(r *rig) error {
				e := r.ids.Event()
				return r.do(record(r.a, e), wait(r.b, e))
			},
		},
		{
			name: "wait for an event of an old generation",
			rule: UnrecordedEvent,
			err:  device.ErrUnrecorded,
			broken: func(r *rig) error {
				e := r.ids.Event()
				r.must(record(r.a, e))
				r.ids.PutEvent(e)
				return r.do(record(r.b, r.ids.Event()), wait(r.a, e))
			},
			sound: func(r *rig) error {
				e := r.ids.Event()
				r.must(record(r.a, e), wait(r.b, e))
				r.ids.PutEvent(e)
				return r.do(record(r.b, r.ids.Event()))
			},
		},
		{
			name: "wait for the next generation of a recorded event",
			rule: UnrecordedEvent,
			err:  device.ErrUnrecorded,
			broken: func(r *rig) error {
				e := r.ids.Event()
				r.must(record(r.a, e))
				r.ids.PutEvent(e)
				return r.do(wait(r.b, r.ids.Event()))
			},
			sound: func(r *rig) error {
				e := r.ids.Event()
				return r.do(record(r.a, e), wait(r.b, e))
			},
		},
		{
			name: "synchronisation with an event that was retired",
			rule: UnrecordedEvent,
			err:  device.ErrUnrecorded,
			broken: func(r *rig) error {
				e := r.ids.Event()
				return r.do(record(r.a, e), retire(e), syncTo(e))
			},
			sound: func(r *rig) error {
				e := r.ids.Event()
				return r.do(record(r.a, e), syncTo(e), retire(e))
			},
		},
		{
			name: "recorded twice in one generation",
			rule: RecordedTwice,
			err:  device.ErrInvalid,
			broken: func(r *rig) error {
				e := r.ids.Event()
				return r.do(record(r.a, e), record(r.b, e))
			},
			sound: func(r *rig) error {
				return r.do(record(r.a, r.ids.Event()), record(r.b, r.ids.Event()))
			},
		},
		{
			name: "record of an old generation",
			rule: RecordedTwice,
			err:  device.ErrUnknown,
			broken: func(r *rig) error {
				e := r.ids.Event()
				r.ids.PutEvent(e)
				return r.do(record(r.a, r.ids.Event()), record(r.b, e))
			},
			sound: func(r *rig) error {
				e := r.ids.Event()
				r.must(record(r.a, e))
				r.ids.PutEvent(e)
				return r.do(record(r.b, r.ids.Event()))
			},
		},
		{
			name: "unpinned while it is copied from",
			rule: UnpinInFlight,
			broken: func(r *rig) error {
				x, h := r.shared(64), r.pinned(64)
				return r.do(hostWrite(h), in(r.a, x, h), unpin(h))
			},
			sound: func(r *rig) error {
				x, h := r.shared(64), r.pinned(64)
				return r.do(hostWrite(h), in(r.a, x, h), join(r.a), unpin(h))
			},
		},
		{
			name: "host reads before the copy out has ended",
			rule: HostUnsynchronised,
			broken: func(r *rig) error {
				x, h := r.shared(64), r.pinned(64)
				return r.do(out(r.a, h, x), hostRead(h))
			},
			sound: func(r *rig) error {
				x, h, e := r.shared(64), r.pinned(64), r.ids.Event()
				return r.do(out(r.a, h, x), record(r.a, e), syncTo(e), hostRead(h))
			},
		},
		{
			name: "host synchronises with the wrong stream",
			rule: HostUnsynchronised,
			broken: func(r *rig) error {
				x, h := r.shared(64), r.pinned(64)
				return r.do(out(r.a, h, x), join(r.b), hostRead(h))
			},
			sound: func(r *rig) error {
				x, h, e := r.shared(64), r.pinned(64), r.ids.Event()
				return r.do(out(r.a, h, x), record(r.a, e), wait(r.b, e), join(r.b), hostRead(h))
			},
		},
		{
			name: "host writes while it is copied from",
			rule: HostUnsynchronised,
			broken: func(r *rig) error {
				x, h := r.shared(64), r.pinned(64)
				return r.do(hostWrite(h), in(r.a, x, h), hostWrite(h))
			},
			sound: func(r *rig) error {
				x, h := r.shared(64), r.pinned(64)
				return r.do(hostWrite(h), in(r.a, x, h), join(r.a), hostWrite(h))
			},
		},
		{
			name: "one byte too far",
			rule: OutOfBounds,
			err:  device.ErrInvalid,
			broken: func(r *rig) error {
				return r.do(set(r.a, r.shared(64).Sub(1, 64), 1))
			},
			sound: func(r *rig) error {
				return r.do(set(r.a, r.shared(64).Sub(1, 63), 1))
			},
		},
		{
			name: "a length that overflows the offset",
			rule: OutOfBounds,
			err:  device.ErrInvalid,
			broken: func(r *rig) error {
				return r.do(set(r.a, r.shared(64).Sub(8, 1<<63-1), 1))
			},
			sound: func(r *rig) error {
				return r.do(set(r.a, r.shared(64).Sub(64, 0), 1))
			},
		},
		{
			name: "kernel writes what it declares to read only",
			rule: UndeclaredAccess,
			broken: func(r *rig) error {
				x := r.shared(64)
				r.dev.Register("write", func(c *Call) error { c.Write(c.Arg(0).Range); return nil })
				return r.do(call(r.a, "write", x, []device.Range{x}, nil), join(r.a))
			},
			sound: func(r *rig) error {
				x := r.shared(64)
				r.dev.Register("write", func(c *Call) error { c.Write(c.Arg(0).Range); return nil })
				// Two declared halves cover the whole.
				return r.do(call(r.a, "write", x, nil, []device.Range{x.Sub(32, 32), x.Sub(0, 32)}), join(r.a))
			},
		},
		{
			name: "kernel reads beyond what it declares",
			rule: UndeclaredAccess,
			broken: func(r *rig) error {
				x := r.shared(64)
				r.dev.Register("read", func(c *Call) error { c.Read(c.Arg(0).Range); return nil })
				return r.do(call(r.a, "read", x, []device.Range{x.Sub(0, 31), x.Sub(32, 32)}, nil), join(r.a))
			},
			sound: func(r *rig) error {
				x := r.shared(64)
				r.dev.Register("read", func(c *Call) error { c.Read(c.Arg(0).Range); return nil })
				return r.do(call(r.a, "read", x, []device.Range{x}, nil), join(r.a))
			},
		},
		{
			name: "kernel that is not registered",
			rule: UnknownKernel,
			err:  device.ErrInvalid,
			broken: func(r *rig) error {
				return r.do(call(r.a, "gelu", device.Range{}, nil, nil))
			},
			sound: func(r *rig) error {
				r.dev.Register("gelu", func(*Call) error { return nil })
				return r.do(call(r.a, "gelu", device.Range{}, nil, nil))
			},
		},
		{
			name: "event of another device",
			rule: ForeignDevice,
			err:  device.ErrForeign,
			broken: func(r *rig) error {
				return r.do(record(r.a, device.NewIDs(New(Config{})).Event()))
			},
			sound: func(r *rig) error {
				return r.do(record(r.a, device.NewIDs(r.dev).Event()))
			},
		},
		{
			name: "buffer of another device",
			rule: ForeignDevice,
			err:  device.ErrForeign,
			broken: func(r *rig) error {
				x, h := newRig(r.t, Config{}).shared(64), r.pinned(64)
				return r.do(out(r.a, h, x))
			},
			sound: func(r *rig) error {
				x, h := r.shared(64), r.pinned(64)
				return r.do(out(r.a, h, x))
			},
		},
	}
	seen := make(map[Rule]bool)
	for _, tt := range tests {
		seen[tt.rule] = true
		t.Run(tt.name, func(t *testing.T) {
			for seed := range uint64(8) {
				r := newRig(t, Config{Seed: seed})
				err := tt.broken(r)
				if tt.err == nil && err != nil {
					t.Fatalf("broken: got error %v, want none", err)
				}
				if !errors.Is(err, tt.err) {
					t.Fatalf("broken: got error %v, want %v", err, tt.err)
				}
				if got, want := r.rules(), []Rule{tt.rule}; !slices.Equal(got, want) {
					t.Fatalf("broken: got findings %v, want %v", r.dev.Findings(), want)
				}
				r = newRig(t, Config{Seed: seed})
				if err := tt.sound(r); err != nil {
					t.Fatalf("sound: got error %v, want none", err)
				}
				if got := r.dev.Findings(); len(got) > 0 {
					t.Fatalf("sound: got findings %v, want none", got)
				}
			}
		})
	}
	for rule := ReadAfterWrite; rule < Leak; rule++ { // TestLeaks has the last one
		if !seen[rule] {
			t.Errorf("no row provokes %v", rule)
		}
	}
}

// shared allocates n bytes that are written and that both streams may use.
func (r *rig) shared(n int64) device.Range {
	r.t.Helper()
	b := r.buffer(r.a, n)
	r.must(set(r.a, b, 0), join(r.a))
	return b
}

func call(s device.Stream, name string, arg device.Range, reads, writes []device.Range) device.Op {
	return device.Op{Kind: device.Launch, Stream: s, Kernel: &device.Kernel{
		Name: name, Args: []device.Arg{{Range: arg}}, Reads: reads, Writes: writes}}
}

func TestFindingNamesBothOperationsAndTheEdge(t *testing.T) {
	r := newRig(t, Config{ID: 9})
	x, h := r.shared(64), r.pinned(64)
	batch := func(o device.Origin, ops ...device.Op) {
		t.Helper()
		if err := r.dev.Submit(&device.Batch{Origin: o, Ops: ops}); err != nil {
			t.Fatal(err)
		}
	}
	batch(device.Origin{Action: "forward", Layer: 3, Pass: 7}, set(r.a, x, 1))
	batch(device.Origin{Action: "start-offload", Layer: 3, Pass: 7}, record(r.b, r.ids.Event()), out(r.b, h, x))
	batch(device.Origin{Action: "read-back"}, hostRead(h))
	want := []string{
		`HB1 (read after write): #9 copy-out on d9/s1.1 (operation 1 of layer 3 start-offload (pass 7)) reads d9/b1.0#1[0:64], ` +
			`which may still be written by #7 launch "set" on d9/s1.0 (operation 0 of layer 3 forward (pass 7)). ` +
			`Missing: stream d9/s1.1 must wait for an event recorded on stream d9/s1.0 after #7, before #9.`,
		`HB12 (host access before synchronisation): #10 host-read (operation 0 of read-back) touches d9/h1.0#1[0:64], ` +
			`which may still be in use by #9 copy-out on d9/s1.1 (operation 1 of layer 3 start-offload (pass 7)). ` +
			`Missing: the host must synchronise with an event recorded on stream d9/s1.1 after #9, or with the stream.`,
	}
	got := r.dev.Findings()
	if len(got) != len(want) {
		t.Fatalf("got %v, want %d findings", got, len(want))
	}
	for i, w := range want {
		if got[i].String() != w {
			t.Errorf("got\n%v\nwant\n%v", got[i], w)
		}
	}
}

func TestLeaks(t *testing.T) {
	r := newRig(t, Config{ID: 9})
	other := device.NewIDs(r.dev)
	x, h, e := r.buffer(r.a, 300), r.pinned(64), r.ids.Event()
	y := device.Range{Buffer: other.Buffer(device.OnDevice), Bytes: 8}
	r.must(record(r.a, e), alloc(r.a, y))
	subjects := func() (s []string) {
		for _, f := range r.dev.Leaks() {
			if f.Rule != Leak {
				t.Errorf("got rule %v, want %v", f.Rule, Leak)
			}
			s = append(s, f.Subject)
		}
		return s
	}
	want := []string{"d9/b1.0#1 (300 bytes)", "d9/h1.0#1 (64 bytes)", "d9/s1.0", "d9/s1.1", "d9/e1.0#1", "d9/b2.0#1 (8 bytes)"}
	if got := subjects(); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	const text = `HB17 (leak): d9/b1.0#1 (300 bytes) was made by #3 alloc on d9/s1.0 (operation 0 of test) and not given back. Missing: a free before Close.`
	if got := r.dev.Leaks()[0].String(); got != text {
		t.Errorf("got\n%s\nwant\n%s", got, text)
	}
	r.must(free(r.a, x), unpin(h), retire(e), shut(r.b))
	want = []string{"d9/s1.0", "d9/b2.0#1 (8 bytes)"}
	if got := subjects(); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := r.dev.Findings(); len(got) > 0 {
		t.Errorf("got findings %v before Close, want none", got)
	}
	if err := r.dev.Close(); err != nil {
		t.Fatal(err)
	}
	if got, want := r.rules(), []Rule{Leak, Leak}; !slices.Equal(got, want) {
		t.Errorf("got %v after Close, want %v", got, want)
	}
}

func TestFindingsAreBounded(t *testing.T) {
	calls := 0
	r := newRig(t, Config{OnFinding: func(f Finding) { calls++ }})
	x := r.shared(64)
	const passes = 8
	for pass := range uint64(passes) {
		for layer := range 2 * maxFindings {
			o := device.Origin{Action: "race", Layer: layer, Pass: pass + 1}
			for _, s := range []device.Stream{r.a, r.b} {
				if err := r.dev.Submit(&device.Batch{Origin: o, Ops: []device.Op{set(s, x, 1)}}); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	got := r.dev.Findings()
	if len(got) != maxFindings || calls != maxFindings {
		t.Errorf("got %d findings and %d calls, want %d", len(got), calls, maxFindings)
	}
	if got[0].Count != passes {
		t.Errorf("got count %d of the first finding, want %d", got[0].Count, passes)
	}
	if s := got[0].String(); !strings.HasSuffix(s, "Found 8 times.") {
		t.Errorf("got %q, want the count at its end", s)
	}
	if got, want := r.dev.Stats().Findings, uint64(passes*2*maxFindings*2-1); got != want {
		t.Errorf("got %d findings counted, want %d", got, want)
	}
}

func TestNoChecker(t *testing.T) {
	r := newRig(t, Config{NoChecker: true})
	x := r.shared(64)
	r.must(set(r.a, x, 1), set(r.b, x, 2), free(r.a, x))
	if err := r.do(free(r.a, x)); !errors.Is(err, device.ErrUnknown) {
		t.Errorf("got %v, want %v: refusals stay", err, device.ErrUnknown)
	}
	if err := r.dev.Close(); err != nil {
		t.Fatal(err)
	}
	if got := r.dev.Findings(); len(got) > 0 {
		t.Errorf("got %v, want no findings", got)
	}
}
