package devicetest

import (
	"errors"

	"offload/device"
)

var closing = []check{
	{"a closed device returns ErrClosed", Options{}, closed},
	{"Close gives back what the caller did not", Options{Unclean: true}, forgotten},
	{"a device can be opened again and again", Options{}, again},
}

// closed closes the device with work in its queues.
func closed(r *rig) {
	const n = 4 << 20
	s := r.stream()
	x, y := r.buffer(s, n), r.buffer(s, n)
	h := r.pinned(n)
	r.write(h, pattern(12, n))
	r.must(copyIn(s, x, h), syncStream(s), unpin(h))
	for range 8 {
		r.must(copyWithin(s, y, x), copyWithin(s, x, y))
	}
	r.must(free(s, x), free(s, y), closeStream(s))
	r.close()

	for _, op := range []device.Op{openStream(r.ids.Stream()), syncStream(s), pin(h), unpin(h), {}} {
		if err := r.dev.Submit(&device.Batch{Ops: []device.Op{op}}); !errors.Is(err, device.ErrClosed) {
			r.Errorf("%v: got %v, want ErrClosed", op, err)
		}
	}
	if err := r.dev.Submit(&device.Batch{}); !errors.Is(err, device.ErrClosed) {
		r.Errorf("empty batch: got %v, want ErrClosed", err)
	}
	if _, err := r.dev.Lookup(x.Buffer); !errors.Is(err, device.ErrClosed) {
		r.Errorf("Lookup: got %v, want ErrClosed", err)
	}
	if err := r.dev.Close(); !errors.Is(err, device.ErrClosed) {
		r.Errorf("Close: got %v, want ErrClosed", err)
	}
	if got := r.dev.Info(); got.ID == 0 {
		r.Errorf("got %+v, want Info unchanged", got)
	}
}

func forgotten(r *rig) {
	s := r.stream()
	x, h := r.buffer(s, 1<<20), r.pinned(1<<20)
	r.must(copyIn(s, x, h), record(s, r.ids.Event()), record(s, r.ids.Event()), copyOut(s, h, x))
	r.close()
	if got := r.dev.Usage().InUse; got != 0 {
		r.Errorf("got %d bytes in use after Close, want 0", got)
	}
}

func again(r *rig) {
	seen := map[device.ID]bool{r.dev.Info().ID: true}
	for range 5 {
		o := r.another()
		if id := o.dev.Info().ID; seen[id] {
			r.Errorf("got id %d twice, want one of its own for each device", id)
		} else {
			seen[id] = true
		}
		s := o.stream()
		o.must(syncStream(s))
		o.buffer(s, 1<<20)
		o.finish()
	}
}
