package cuda

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"offload/device"
)

func TestOneCallPerBatch(t *testing.T) {
	r, f := newFakeRig(t, Options{})
	a, b := r.stream(), r.stream()
	h := r.pinned(64)
	x, e := device.Range{Buffer: r.ids.Buffer(device.OnDevice), Bytes: 64}, r.ids.Event()
	runs := f.runs
	r.must(alloc(a, x), copyIn(a, x, h), record(a, e), wait(b, e), copyOut(b, h, x), free(b, x))
	if got := f.runs - runs; got != 1 {
		t.Errorf("got %d calls for a batch, want 1", got)
	}

	// What stands before a refused operation is enqueued at once, not with the next batch.
	y := device.Range{Buffer: r.ids.Buffer(device.OnDevice), Bytes: 64}
	f.log = nil
	if err := r.do(alloc(a, y), copyIn(a, y, h), alloc(a, y)); err == nil {
		t.Error("got no error for a buffer made twice, want one")
	}
	if want := []verb{verbAlloc, verbCopyIn}; !slices.Equal(f.log, want) {
		t.Errorf("got %v enqueued, want %v", f.log, want)
	}
	r.close()
}

func TestWaitsLeftOut(t *testing.T) {
	r, f := newFakeRig(t, Options{})
	a, b, c := r.stream(), r.stream(), r.stream()
	early, middle, late := r.ids.Event(), r.ids.Event(), r.ids.Event()
	r.must(record(a, early), record(a, middle), record(a, late))
	waits := func(ops ...device.Op) int {
		t.Helper()
		f.log = nil
		r.must(ops...)
		n := 0
		for _, v := range f.log {
			if v == verbWait {
				n++
			}
		}
		return n
	}
	for _, tc := range []struct {
		name string
		ops  []device.Op
		want int
	}{
		{"another stream waits", []device.Op{wait(b, early), wait(b, late)}, 2},
		{"the same stream is in order anyway", []device.Op{wait(a, early), wait(a, late)}, 0},
		{"the host has seen one event, and with it the earlier ones", []device.Op{{Kind: device.SyncEvent, Event: middle}, wait(b, early), wait(b, middle), wait(b, late)}, 1},
		{"synchronising another stream says nothing", []device.Op{join(c), wait(b, late)}, 1},
		{"synchronising the stream tells all", []device.Op{join(a), wait(b, late)}, 0},
	} {
		if got := waits(tc.ops...); got != tc.want {
			t.Errorf("%s: got %d waits, want %d", tc.name, got, tc.want)
		}
	}
	next := late
	next.Gen += 2
	if got := waits(record(a, next), wait(b, next)); got != 1 {
		t.Errorf("the next generation: got %d waits, want 1", got)
	}
	r.close()
}

// TestBlockedSync submits, closes and records while something else blocks.
func TestBlockedSync(t *testing.T) {
	r, f := newFakeRig(t, Options{})
	s, other := r.stream(), r.stream()
	e := r.ids.Event()
	r.must(record(s, e))
	f.entered, f.resume = make(chan struct{}), make(chan struct{})
	results := make(chan error, 3)
	blockedOn := func(op device.Op) {
		go func() { results <- r.do(op, device.Op{Kind: device.HostRead}) }()
		<-f.entered
	}
	blockedOn(device.Op{Kind: device.SyncEvent, Event: e})
	blockedOn(join(s))
	blockedOn(join(s))

	// A record of the next generation does not touch the event that is waited for.
	next := e
	next.Gen += 2
	f.answers["cuEventRecord"] = 1
	if err := r.do(record(other, next)); err == nil {
		t.Fatal("got no error, want one")
	}
	marks := len(f.events)
	r.must(wait(other, e)) // the older generation is still there
	r.must(record(other, next), wait(s, next))
	if len(f.events) != 2 || marks != 2 {
		t.Errorf("got %d events of the driver and then %d, want 2: the one that is waited for and one more", marks, len(f.events))
	}
	streams := len(f.streams)
	r.must(device.Op{Kind: device.CloseStream, Stream: s})
	if len(f.streams) != streams {
		t.Error("a stream was destroyed while something waits for it")
	}
	closed := make(chan error)
	go func() { closed <- r.dev.Close() }()
	for range 3 {
		f.resume <- struct{}{}
	}
	for range 3 {
		// Close came first or did not: the operation after the synchronisation
		// is refused either way.
		if err := <-results; !errors.Is(err, device.ErrInvalid) && !errors.Is(err, device.ErrClosed) {
			t.Errorf("got %v, want the operation after the synchronisation refused", err)
		}
	}
	if err := <-closed; err != nil {
		t.Error(err)
	}
}

// TestBlockedSyncAfterFailure keeps the event that something waits for when the
// record of its next generation fails.
func TestBlockedSyncAfterFailure(t *testing.T) {
	r, f := newFakeRig(t, Options{})
	s := r.stream()
	e := r.ids.Event()
	r.must(record(s, e))
	f.entered, f.resume = make(chan struct{}), make(chan struct{})
	result := make(chan error)
	go func() { result <- r.do(device.Op{Kind: device.SyncEvent, Event: e}) }()
	<-f.entered
	next := e
	next.Gen += 2
	f.answers["cuEventRecord"] = 1
	if err := r.do(record(s, next)); err == nil {
		t.Fatal("got no error, want one")
	}
	f.resume <- struct{}{}
	if err := <-result; err != nil {
		t.Fatal(err)
	}
	r.must(record(s, r.ids.Event()), record(s, r.ids.Event()))
	if got := len(f.events); got != 3 {
		t.Errorf("got %d events of the driver for three that are recorded, want one each", got)
	}
	r.close()
}

func TestLaunch(t *testing.T) {
	r, f := newFakeRig(t, Options{})
	s := r.stream()
	x := r.buffer(s, 1000)
	m, _ := r.dev.Lookup(x.Buffer)
	handle, _ := r.dev.Handle(s)
	failure := errors.New("no such shape")
	r.dev.Register("check", func(c *Call) error {
		if c.Name() != "check" || c.Args() != 3 || c.Arg(1).Int != 7 || c.Arg(2).Float != 0.5 || c.Stream() != handle {
			t.Errorf("got %q with %d arguments on %#x, want \"check\", 3, %#x", c.Name(), c.Args(), c.Stream(), handle)
		}
		if got, want := c.Write(c.Arg(0).Range.Sub(10, 5)), m.Address+110; got != want {
			t.Errorf("got address %#x, want %#x", got, want)
		}
		if f.bound != 1 {
			t.Errorf("got the context on %d threads, want 1", f.bound)
		}
		return nil
	})
	r.dev.Register("fail", func(*Call) error { return failure })
	r.dev.Register("read", func(c *Call) error { c.Read(c.Arg(0).Range); return nil })
	r.dev.Register("outside", func(c *Call) error { c.Write(device.Range{Buffer: x.Buffer, Bytes: 1000}); return nil })
	r.dev.Register("third", func(c *Call) error { c.Arg(2); return nil })
	part := device.Arg{Range: x.Sub(100, 50)}
	r.must(launch(s, "check", part, device.Arg{Int: 7}, device.Arg{Float: 0.5}),
		launch(s, "check", part, device.Arg{Int: 7}, device.Arg{Float: 0.5}))
	if f.bound != 0 {
		t.Errorf("got the context on %d threads after Submit, want 0", f.bound)
	}

	for _, tc := range []struct {
		kernel string
		is     error
		text   string
	}{
		{"fail", failure, "no such shape"},
		{"read", device.ErrInvalid, "does not declare as read"},
		{"outside", device.ErrInvalid, "does not declare as written"},
		{"third", device.ErrInvalid, "argument 2 of 1"},
		{"unregistered", device.ErrInvalid, `no kernel "unregistered"`},
	} {
		f.log = nil
		e := r.ids.Event()
		err := r.do(record(s, e), launch(s, tc.kernel, part), record(s, r.ids.Event()))
		var failed *device.Error
		if !errors.Is(err, tc.is) || !errors.As(err, &failed) || failed.Index != 1 || !strings.Contains(err.Error(), tc.text) {
			t.Errorf("%s: got %v, want operation 1 refused and %q", tc.kernel, err, tc.text)
		}
		if !slices.Equal(f.log, []verb{verbRecord}) {
			t.Errorf("%s: got %v enqueued, want what stands before the launch", tc.kernel, f.log)
		}
		if f.bound != 0 {
			t.Errorf("%s: got the context on %d threads after Submit, want 0", tc.kernel, f.bound)
		}
	}

	// A launcher that fails because the context did.
	f.answers["cuStreamQuery"] = 719
	err := r.do(launch(s, "fail", part))
	if !errors.Is(err, device.ErrLost) || !errors.Is(err, failure) {
		t.Errorf("got %v, want the device lost, and what the launcher returned", err)
	}
	if err := r.dev.Close(); !errors.Is(err, device.ErrLost) {
		t.Errorf("Close: got %v, want ErrLost", err)
	}
}

func TestRegisterPanics(t *testing.T) {
	d := newDevice(newFake(0), "fake", Options{})
	nothing := func(*Call) error { return nil }
	d.Register("k", nothing)
	for name, f := range map[string]func(){
		"twice":       func() { d.Register("k", nothing) },
		"no name":     func() { d.Register("", nothing) },
		"no launcher": func() { d.Register("l", nil) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: got no panic, want one", name)
				}
			}()
			f()
		}()
	}
}

func TestAdoptedStream(t *testing.T) {
	r, f := newFakeRig(t, Options{})
	h, err := f.createStream()
	if err != nil {
		t.Fatal(err)
	}
	s, err := r.dev.AdoptStream(h)
	if err != nil {
		t.Fatal(err)
	}
	again, err := r.dev.AdoptStream(h)
	if err != nil || again == s {
		t.Errorf("got %v, %v; want an id of its own", again, err)
	}
	if got, err := r.dev.Handle(s); err != nil || got != h {
		t.Errorf("got handle %#x, %v; want %#x", got, err, h)
	}
	x := r.buffer(s, 10)
	r.must(free(s, x), join(s), device.Op{Kind: device.CloseStream, Stream: s})
	if _, err := r.dev.Handle(s); !errors.Is(err, device.ErrUnknown) {
		t.Errorf("got %v, want ErrUnknown for the handle of a closed stream", err)
	}
	if err := r.do(join(s)); !errors.Is(err, device.ErrUnknown) {
		t.Errorf("got %v, want ErrUnknown", err)
	}
	r.must(join(again))
	if err := f.destroyStream(h); err != nil {
		t.Errorf("got %v, want the stream alive", err)
	}
	r.close()
	if _, err := r.dev.AdoptStream(h); !errors.Is(err, device.ErrClosed) {
		t.Errorf("got %v, want ErrClosed", err)
	}
}

// quiet is a driver that does nothing, fast and without allocations.
type quiet struct{ *fake }

func (q quiet) enqueue(list []command) (int, error) {
	for i := range list {
		list[i].dst = 1 << 20
	}
	return len(list), nil
}

func (q quiet) syncStream(uintptr) error { return nil }

func TestSteadyStateAllocatesNothing(t *testing.T) {
	r := newRig(t, newDevice(quiet{newFake(0)}, "quiet", Options{MemoryLimit: 1 << 20}))
	r.dev.Register("k", func(c *Call) error { c.Write(c.Arg(0).Range); return nil })
	a, b := r.stream(), r.stream()
	h := r.pinned(100)
	x, e := device.Range{Buffer: r.ids.Buffer(device.OnDevice), Bytes: 100}, r.ids.Event()
	batch := &device.Batch{Ops: []device.Op{alloc(a, x), copyIn(a, x, h), launch(a, "k", device.Arg{Range: x}), record(a, e), wait(b, e), copyOut(b, h, x), free(b, x), join(b)}}
	got := testing.AllocsPerRun(100, func() {
		if err := r.dev.Submit(batch); err != nil {
			t.Fatal(err)
		}
		for i := range batch.Ops { // the next generation
			op := &batch.Ops[i]
			op.Event.Gen += 2
			if op.Dst.Buffer.Place == device.OnDevice {
				op.Dst.Buffer.Gen += 2
			}
			if op.Src.Buffer.Place == device.OnDevice {
				op.Src.Buffer.Gen += 2
			}
			if op.Kernel != nil {
				op.Kernel.Writes[0].Buffer.Gen += 2
				op.Kernel.Args[0].Range.Buffer.Gen += 2
			}
		}
	})
	if got != 0 {
		t.Errorf("got %v allocations for a batch, want 0", got)
	}
}

func TestAccount(t *testing.T) {
	a := account{limit: 1000}
	for _, step := range []struct {
		take, give  int64
		fits        bool
		inUse, peak int64
	}{
		{take: 600, fits: true, inUse: 600, peak: 600},
		{take: 401, fits: false, inUse: 600, peak: 600},
		{take: 400, fits: true, inUse: 1000, peak: 1000},
		{give: 600, inUse: 400, peak: 1000},
		{take: 1 << 62, fits: false, inUse: 400, peak: 1000},
		{take: 1, fits: true, inUse: 401, peak: 1000},
	} {
		var err error
		if step.take > 0 {
			err = a.take(step.take)
		}
		a.give(step.give)
		if step.take > 0 && (err == nil) != step.fits || err != nil && !errors.Is(err, device.ErrOutOfMemory) {
			t.Errorf("%+v: got %v", step, err)
		}
		if got, want := a.usage(), (device.Usage{InUse: step.inUse, Peak: step.peak, Limit: 1000}); got != want {
			t.Errorf("%+v: got %+v, want %+v", step, got, want)
		}
	}
}

func TestIdentity(t *testing.T) {
	a, b := newDevice(newFake(0), "fake", Options{}), newDevice(newFake(0), "fake", Options{})
	if next := device.NextID(); a.Info().ID >= b.Info().ID || b.Info().ID >= next {
		t.Errorf("got ids %d and %d, then %d; want three of one sequence", a.Info().ID, b.Info().ID, next)
	}
	if got := newDevice(newFake(0), "fake", Options{ID: 5}).Info().ID; got != 5 {
		t.Errorf("got id %d, want the one asked for, 5", got)
	}
	if err := (Options{MemoryLimit: -1}).Validate(); err == nil {
		t.Error("got no error for a negative limit, want one")
	}
	if err := (Options{}).Validate(); err != nil {
		t.Errorf("got %v for the zero Options, want no error", err)
	}
}
