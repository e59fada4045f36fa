package devicetest

import (
	"errors"

	"offload/device"
)

var batches = []check{
	{"what stands before a refused operation is enqueued, what follows is not", Options{Unclean: true}, middle},
	{"a batch may make, use and give back", Options{}, wholeLife},
	{"a batch belongs to the caller again after Submit", Options{Unclean: true}, batchIsFree},
	{"an empty batch is no error", Options{}, emptyBatch},
}

// middle breaks a batch at every position in turn.
func middle(r *rig) {
	const n = 512
	s := r.stream()
	from, to := r.pinned(n), r.pinned(n)
	want := pattern(9, n)
	r.write(from, want)
	for broken := range 8 {
		r.write(to, make([]byte, n))
		x := device.Range{Buffer: r.ids.Buffer(device.OnDevice), Bytes: n}
		e := r.ids.Event()
		ops := []device.Op{alloc(s, x), copyIn(s, x, from), record(s, e), wait(s, e), copyOut(s, to, x), free(s, x), syncStream(s)}
		bad := copyWithin(s, x, device.Range{Buffer: r.ids.Buffer(device.OnDevice), Bytes: n})
		ops = append(ops[:broken], append([]device.Op{bad}, ops[broken:]...)...)
		cause := device.ErrUnknown
		r.refused(cause, broken, ops...)
		if _, err := r.dev.Lookup(x.Buffer); (err == nil) != (broken > 0 && broken < 6) {
			r.Errorf("broken at %d: Lookup of the buffer returned %v", broken, err)
		}
		if err := r.submit(wait(s, e)); (err == nil) != (broken > 2) {
			r.Errorf("broken at %d: a wait for the event returned %v", broken, err)
		}
		r.must(syncStream(s))
		if broken > 4 {
			r.holds(to, want)
		} else {
			r.holds(to, make([]byte, n))
		}
	}
}

func wholeLife(r *rig) {
	const n = 4096
	s, h, g := r.ids.Stream(), r.pinned(n), r.pinned(n)
	x := device.Range{Buffer: r.ids.Buffer(device.OnDevice), Bytes: n}
	e := r.ids.Event()
	want := pattern(10, n)
	r.write(h, want)
	r.must(openStream(s), alloc(s, x), copyIn(s, x, h), copyOut(s, g, x), free(s, x), record(s, e), syncEvent(e), hostRead(g), retire(e), closeStream(s))
	r.equal(r.host(g), want)
	r.must(unpin(h), unpin(g))
}

func batchIsFree(r *rig) {
	const n = 1 << 20
	s := r.stream()
	from, to := r.pinned(n), r.pinned(n)
	x := r.buffer(s, n)
	want := pattern(11, n)
	r.write(from, want)
	k := device.Kernel{Name: "k", Reads: []device.Range{x}, Args: []device.Arg{{Int: 1}}}
	b := &device.Batch{Origin: origin, Ops: []device.Op{
		copyIn(s, x, from), {Kind: device.Access, Stream: s, Kernel: &k}, copyOut(s, to, x)}}
	if err := r.dev.Submit(b); err != nil {
		r.Fatal(err)
	}
	clear(b.Ops)
	b.Reset(device.Origin{})
	k.Reads[0], k.Args[0] = device.Range{}, device.Arg{}
	r.must(syncStream(s))
	r.holds(to, want)

	// So does one that was refused: the error has a copy.
	k = device.Kernel{Name: "a kernel that nobody registered", Reads: []device.Range{x}, Args: []device.Arg{{Int: 1}}}
	b.Ops = append(b.Ops, device.Op{Kind: device.Launch, Stream: s, Kernel: &k})
	err := r.dev.Submit(b)
	k.Name, k.Reads[0], k.Args[0] = "", device.Range{}, device.Arg{}
	clear(b.Ops)
	var failed *device.Error
	if !errors.As(err, &failed) || failed.Op.Kernel == nil {
		r.Fatalf("got %v, want a *device.Error with the kernel", err)
	}
	if got := failed.Op.Kernel; got.Name == "" || got.Reads[0] != x || got.Args[0].Int != 1 {
		r.Errorf("got kernel %+v in the error, want it as it was submitted", got)
	}
}

func emptyBatch(r *rig) {
	if err := r.dev.Submit(&device.Batch{}); err != nil {
		r.Errorf("got %v, want no error", err)
	}
}
