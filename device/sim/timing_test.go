package sim

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"offload/device"
)

// plain is a profile with round numbers: copies of a byte a microsecond without
// more, half of that in both directions when both move, and a host that takes no time.
func plain() *Profile {
	l := Link{Copies: []CopyRate{{1, 1e6}}, Shared: 0.5}
	return &Profile{Name: "plain", Out: l, In: l}
}

// timedRig is a rig on a virtual clock, with the kernel "work" that takes its
// argument in microseconds.
func timedRig(t *testing.T, cfg Config) *rig {
	t.Helper()
	r := newRig(t, cfg)
	r.dev.Register("work", func(*Call) error { return nil })
	r.dev.RegisterCost("work", func(k *device.Kernel) time.Duration { return time.Duration(k.Args[0].Int) * time.Microsecond })
	r.dev.Lap()
	return r
}

func work(s device.Stream, us int64) device.Op {
	return device.Op{Kind: device.Launch, Stream: s, Kernel: &device.Kernel{Name: "work", Args: []device.Arg{{Int: us}}}}
}

func because(why device.Reason, o device.Op) device.Op {
	o.Reason = why
	return o
}

const us = time.Microsecond

// A forward, a copy out that waits for its middle, and a stream that waits for
// the copy: all of it can be worked out by hand.
func TestTimeOfAStep(t *testing.T) {
	r := timedRig(t, Config{Profile: plain(), Timeline: true})
	x, h := r.buffer(r.a, 100), r.pinned(100)
	e, f := r.ids.Event(), r.ids.Event()
	r.must(
		work(r.a, 30), record(r.a, e), // 0 to 30
		because(device.AfterProducer, wait(r.b, e)), out(r.b, h, x), record(r.b, f), // 30 to 130
		work(r.a, 40), // 30 to 70
		because(device.AfterCopyOut, wait(r.a, f)), work(r.a, 10), // 130 to 140
		free(r.a, x))
	got := r.dev.Lap()
	if got.Total != 140*us || got.Compute != 80*us || got.Exposed != 60*us || got.Both != 0 || got.Enqueue != 0 || got.Blocked != 140*us {
		t.Errorf("got %v", got)
	}
	if got.Out != (LinkTime{100 * us, 100}) || got.Out.Rate() != 1e6 || got.In != (LinkTime{}) {
		t.Errorf("got out %+v at %v and in %+v", got.Out, got.Out.Rate(), got.In)
	}
	a, b := got.Stream(r.a), got.Stream(r.b)
	if a.Busy != 80*us || !slices.Equal(a.Stalls, []Stall{{device.AfterCopyOut, 60 * us}}) || a.Stalled() != 60*us {
		t.Errorf("the first stream: got %+v", a)
	}
	if b.Busy != 100*us || !slices.Equal(b.Stalls, []Stall{{device.AfterProducer, 30 * us}}) {
		t.Errorf("the second stream: got %+v", b)
	}
	// 256 bytes are allocated at the beginning and freed at the end, by the stream's time.
	if want := []MemoryChange{{0, 0}, {0, 256}, {140 * us, 0}}; got.Peak != 256 || got.Left != 0 || !slices.Equal(got.Memory, want) {
		t.Errorf("memory: got peak %d, left %d, %v, want %v", got.Peak, got.Left, got.Memory, want)
	}
	var chart strings.Builder
	if err := got.WriteGantt(&chart, 14); err != nil {
		t.Fatal(err)
	}
	want := fmt.Sprintf("%-10v #######......#\n%-10v ...>>>>>>>>>>.\n", r.a, r.b)
	if chart.String() != want {
		t.Errorf("got\n%swant\n%s", &chart, want)
	}
}

// Both directions move: the copy out of 100 alone for 50, then both at half of
// their rates for 100, then the copy in of 80 alone for 30.
func TestBothDirectionsAtOnce(t *testing.T) {
	r := timedRig(t, Config{Profile: plain()})
	x, y, h := r.buffer(r.a, 100), r.buffer(r.b, 80), r.pinned(180)
	r.must(out(r.a, h.Sub(0, 100), x), work(r.b, 50), in(r.b, y, h.Sub(100, 80)))
	got := r.dev.Lap()
	if got.Total != 180*us || got.Both != 100*us || got.Out.Busy != 150*us || got.In.Busy != 130*us || got.Exposed != 130*us {
		t.Errorf("got %v", got)
	}
}

// One direction moves one copy at a time, whatever the streams; the one that can
// begin first is first.
func TestOneCopyInEachDirection(t *testing.T) {
	r := timedRig(t, Config{Profile: plain()})
	x, y, h := r.buffer(r.a, 100), r.buffer(r.b, 60), r.pinned(160)
	r.must(work(r.a, 10), out(r.a, h.Sub(0, 100), x), out(r.b, h.Sub(100, 60), y)) // b: 0 to 60, a: 60 to 160
	got := r.dev.Lap()
	if got.Total != 160*us || got.Stream(r.a).Queued != 50*us || got.Stream(r.b).Queued != 0 {
		t.Errorf("got %v", got)
	}
}

// The host takes its time: what it has not submitted cannot begin, and what it
// waits for keeps it from submitting more.
func TestTimeOfTheHost(t *testing.T) {
	p := plain()
	p.Host[device.Launch], p.Host[device.SyncStream], p.Host[device.SyncEvent] = 10*us, 5*us, 5*us
	r := timedRig(t, Config{Profile: p})
	e := r.ids.Event()
	r.must(work(r.a, 4), work(r.a, 100)) // 10 to 14, 20 to 120
	r.must(record(r.a, e), work(r.a, 7)) // 120 to 127, submitted at 30
	r.must(syncTo(e))                    // until 120, and 5
	r.must(work(r.b, 1))                 // 135 to 136
	r.must(join(r.a))                    // long over: 140
	got := r.dev.Lap()
	if got.Total != 140*us || got.Enqueue != 50*us || got.Blocked != 90*us {
		t.Errorf("got %v", got)
	}
	if a := got.Stream(r.a); a.Starved != 6*us || a.Busy != 111*us {
		t.Errorf("the stream: got %+v, want 6us for which nothing was submitted", a)
	}
	r.must(work(r.b, 1))
	if got := r.dev.Lap(); got.Total != 11*us || got.Compute != us || got.Peak != 0 {
		t.Errorf("the next step: got %v", got)
	}
}

// Pinning takes the host's time, and copies within the device read and write.
func TestTimeOfMemory(t *testing.T) {
	p := plain()
	p.Pin, p.Memory = 1e6, 4e6
	r := timedRig(t, Config{Profile: p})
	r.pinned(1000)
	x, y := r.buffer(r.a, 200), r.buffer(r.a, 200)
	r.must(move(r.a, y, x), sum(r.a, y, x)) // 400 bytes each
	got := r.dev.Lap()
	if got.Enqueue != 1000*us || got.Total != 1200*us || got.Compute != 200*us {
		t.Errorf("got %v", got)
	}
}

// Virtual time does not depend on the order in which operations run, nor on
// whether buffers have bytes.
func TestTimeIsThatOfTheProgram(t *testing.T) {
	want := ""
	for i, cfg := range []Config{{Order: Eager}, {Seed: 1}, {Seed: 2}, {Phantom: true}, {NoChecker: true}} {
		cfg.ID, cfg.Profile, cfg.Timeline = device.NextID(), H200(), true
		r := timedRig(t, cfg)
		x, h := r.buffer(r.a, 1<<16), r.pinned(1<<16)
		y := r.buffer(r.a, 1<<16)
		for range 10 {
			e, f := r.ids.Event(), r.ids.Event()
			r.must(set(r.a, x, 1), record(r.a, e), wait(r.b, e), out(r.b, h, x), record(r.b, f), work(r.a, 15))
			r.must(wait(r.a, f), in(r.a, y, h), sum(r.a, x, y))
		}
		r.must(join(r.b))
		step := r.dev.Lap()
		got := strings.ReplaceAll(step.String()+fmt.Sprint(step.Timeline, step.Memory), fmt.Sprintf("d%d/", cfg.ID), "")
		if i == 0 {
			want = got
		} else if got != want {
			t.Errorf("%+v:\ngot  %s\nwant %s", cfg, got, want)
		}
	}
}

// H200 gives back what was measured.
func TestH200(t *testing.T) {
	p := H200()
	for _, l := range []Link{p.Out, p.In} {
		for _, c := range l.Copies {
			if got := float64(c.Bytes) / l.Time(c.Bytes).Seconds(); got < 0.999*c.Rate || got > 1.001*c.Rate {
				t.Errorf("%d bytes: got %v bytes a second, want %v", c.Bytes, got, c.Rate)
			}
		}
		last := time.Duration(0)
		for n := int64(0); n < 1<<28; n = 2*n + 1000 {
			if got := l.Time(n); got < last {
				t.Errorf("%d bytes take %v, fewer take %v", n, got, last)
			} else {
				last = got
			}
		}
	}
	r := timedRig(t, Config{Profile: p, Phantom: true})
	x, y, h := r.buffer(r.a, 1<<30), r.buffer(r.b, 1<<30), r.pinned(2<<30)
	r.dev.Lap()
	r.must(out(r.a, h.Sub(0, 1<<30), x), in(r.b, y, h.Sub(1<<30, 1<<30)))
	got := r.dev.Lap()
	if rate := float64(1<<30) / got.Out.Busy.Seconds() / 1e9; rate < 51 || rate > 51.4 {
		t.Errorf("out with both directions: got %v GB/s, want 51.2", rate)
	}
	// The copy in is longer under way: the rest of it has the link to itself.
	if rate := float64(1<<30) / got.In.Busy.Seconds() / 1e9; rate < 47.8 || rate > 48.5 {
		t.Errorf("in with both directions: got %v GB/s, want 47.8 or a little more", rate)
	}
	// One copy and a synchronisation: 50.1 GB/s for 4 MiB, within 2 %.
	r.must(out(r.a, h.Sub(0, 4<<20), x.Sub(0, 4<<20)), join(r.a))
	if rate := float64(4<<20) / r.dev.Lap().Total.Seconds() / 1e9; rate < 0.98*50.1 || rate > 1.02*50.1 {
		t.Errorf("one copy of 4 MiB and a synchronisation: got %v GB/s, want 50.1", rate)
	}
}

// A phantom has every rule and limit, and no bytes.
func TestPhantom(t *testing.T) {
	r := newRig(t, Config{Phantom: true, MemoryLimit: 1 << 40})
	x, h := r.buffer(r.a, 1<<39), r.pinned(1<<39)
	r.must(set(r.a, x, 1), out(r.b, h, x), join(r.a), join(r.b))
	if got, want := r.rules(), []Rule{UseBeforeAlloc, ReadAfterWrite}; !slices.Equal(got, want) {
		t.Errorf("got findings %v, want %v", got, want)
	}
	if m, err := r.dev.Lookup(h.Buffer); err != nil || m.Host != nil || m.Size != 1<<39 {
		t.Errorf("got %d bytes with %d on the host, %v", m.Size, len(m.Host), err)
	}
	if err := r.do(work(r.a, 1)); err == nil {
		t.Error("a kernel that is neither registered nor has a cost was launched")
	}
	r.dev.RegisterCost("work", func(*device.Kernel) time.Duration { return 0 })
	r.must(work(r.a, 1), unpin(h), free(r.a, x))
}

func TestProfileThatCannotBe(t *testing.T) {
	for _, l := range []Link{{Shared: 2}, {Shared: -1}, {Copies: []CopyRate{{0, 1}}}, {Copies: []CopyRate{{1, 0}}}, {Copies: []CopyRate{{2, 1}, {1, 1}}}} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%+v was accepted", l)
				}
			}()
			New(Config{Profile: &Profile{Out: l}})
		}()
	}
}

// What the clock keeps is bounded when nobody asks it.
func TestTimerIsBounded(t *testing.T) {
	r := timedRig(t, Config{Profile: plain()})
	for range 3 * maxBehind {
		r.must(work(r.a, 1))
	}
	l := r.dev.timer.lane(r.dev.lanes[1])
	if l.pending() > maxBehind || cap(l.queue) > 4*maxBehind {
		t.Errorf("%d operations are kept, want at most %d", l.pending(), maxBehind)
	}
	if got := r.dev.Lap().Total; got != 3*maxBehind*us {
		t.Errorf("got %v, want %v", got, 3*maxBehind*us)
	}
}
