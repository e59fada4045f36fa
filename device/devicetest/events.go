package devicetest

import "offload/device"

var events = []check{
	{"a wait for an event that is not recorded is refused", Options{Unclean: true}, waitBeforeRecord},
	{"an event is recorded once in each generation", Options{Unclean: true}, recordOnce},
	{"a retired event is gone", Options{Unclean: true}, retireEvents},
	{"a wait orders streams", Options{}, waitOrders},
	{"a wait keeps to the record before it", Options{}, waitBinds},
	{"synchronising shows the host the bytes", Options{}, syncShows},
}

func waitBeforeRecord(r *rig) {
	s, e := r.stream(), r.ids.Event()
	r.refused(device.ErrUnrecorded, 0, wait(s, e))
	r.refused(device.ErrUnrecorded, 0, syncEvent(e))
	r.refused(device.ErrUnrecorded, 0, wait(s, e), record(s, e))
	r.refused(device.ErrUnrecorded, 0, wait(s, e)) // the record of the batch above was not looked at
	r.must(record(s, e), wait(s, e), syncEvent(e))
}

func recordOnce(r *rig) {
	a, b, e := r.stream(), r.stream(), r.ids.Event()
	r.must(record(a, e))
	r.refused(device.ErrInvalid, 0, record(a, e))
	r.refused(device.ErrInvalid, 0, record(b, e))
	for range 100 {
		r.ids.PutEvent(e)
		e = r.ids.Event()
		r.must(record(b, e), wait(a, e))
		r.refused(device.ErrInvalid, 0, record(b, e))
	}
}

func retireEvents(r *rig) {
	s, e, f := r.stream(), r.ids.Event(), r.ids.Event()
	r.refused(device.ErrUnknown, 0, retire(e))
	r.must(record(s, e), record(s, f), retire(e))
	r.refused(device.ErrUnknown, 0, retire(e))
	r.refused(device.ErrUnrecorded, 0, wait(s, e))
	r.refused(device.ErrUnrecorded, 0, syncEvent(e))
	r.refused(device.ErrUnknown, 0, record(s, e))
	r.must(wait(s, f), syncEvent(f), retire(f))
	r.ids.PutEvent(e)
	r.must(record(s, r.ids.Event()))
}

// waitOrders hands bytes from stream to stream, so that each copy must see
// what the one before it wrote.
func waitOrders(r *rig) {
	const n, hops = 1 << 20, 12
	streams := []device.Stream{r.stream(), r.stream(), r.stream()}
	from, to := r.pinned(n), r.pinned(n)
	want := pattern(1, n)
	r.write(from, want)
	x := r.buffer(streams[0], n)
	r.must(copyIn(streams[0], x, from))
	at := 0
	for i := range hops {
		e, next := r.ids.Event(), (i+1)%len(streams)
		r.must(record(streams[at], e), wait(streams[next], e))
		y := r.buffer(streams[next], n)
		r.must(copyWithin(streams[next], y, x), free(streams[next], x))
		x, at = y, next
	}
	r.must(copyOut(streams[at], to, x), syncStream(streams[at]))
	r.holds(to, want)
}

// waitBinds uses the index of an event again while a wait for its older
// generation is queued. That wait is not moved to the newer record, which
// comes after what the waiting stream does: it would never end.
func waitBinds(r *rig) {
	const n = 1 << 20
	a, b := r.stream(), r.stream()
	from, to := r.pinned(n), r.pinned(n)
	x := r.buffer(a, n)
	for i := range uint64(20) {
		want := pattern(i, n)
		r.write(from, want)
		first := r.ids.Event()
		r.must(copyIn(a, x, from), record(a, first), wait(b, first), copyOut(b, to, x))
		r.ids.PutEvent(first)
		second := r.ids.Event()
		r.must(record(b, second), wait(a, second), syncStream(a))
		r.ids.PutEvent(second)
		r.holds(to, want)
	}
}

func syncShows(r *rig) {
	const n = 4 << 20
	s, quiet := r.stream(), r.stream()
	from, to := r.pinned(n), r.pinned(n)
	x := r.buffer(s, n)
	for i := range uint64(4) {
		want := pattern(i, n)
		r.write(from, want)
		r.must(copyIn(s, x, from), copyOut(s, to, x))
		if i%2 == 0 {
			r.must(syncStream(s))
		} else {
			e := r.ids.Event()
			r.must(record(s, e), syncEvent(e), syncEvent(e))
		}
		r.holds(to, want)
	}
	r.must(syncStream(quiet))
}
