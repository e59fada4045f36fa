package devicetest

import (
	"errors"
	"fmt"
	"runtime"
	"sync"

	"offload/device"
)

const goroutines = 64

var concurrency = []check{
	{"64 goroutines on two devices keep their bytes", Options{}, manyClients},
	{"operations of one batch are enqueued together", Options{}, together},
	{"ids and usage may be asked for from anywhere", Options{}, questions},
}

// each runs f in many goroutines and reports their errors.
func (r *rig) each(f func(i int) error) {
	r.Helper()
	errs := make([]error, goroutines)
	var all sync.WaitGroup
	for i := range errs {
		all.Go(func() {
			if err := f(i); err != nil {
				errs[i] = fmt.Errorf("goroutine %d: %w", i, err)
			}
		})
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		r.Error(err)
	}
}

// manyClients gives each goroutine an id space, streams and memory of its own
// and lets it go to another thread between any two calls.
func manyClients(r *rig) {
	o := r.another()
	r.each(func(i int) error {
		rigs := [2]*rig{r, o}
		return rigs[i%2].client(uint64(i))
	})
	o.finish()
}

func (r *rig) client(seed uint64) error {
	const n, rounds = 10_000, 8
	ids := device.NewIDs(r.dev)
	in, out := ids.Stream(), ids.Stream()
	from := device.Range{Buffer: ids.Buffer(device.OnHost), Bytes: n}
	to := device.Range{Buffer: ids.Buffer(device.OnHost), Bytes: n}
	var err error
	do := func(ops ...device.Op) {
		if err == nil {
			err = r.submit(ops...)
		}
		runtime.Gosched()
	}
	bytes := func(g device.Range) []byte {
		m, lookupErr := r.dev.Lookup(g.Buffer)
		if err == nil {
			err = lookupErr
		}
		runtime.Gosched()
		return m.Host
	}
	do(openStream(in), openStream(out))
	do(pin(from), pin(to))
	for i := range uint64(rounds) {
		want := pattern(seed*rounds+i, n)
		do(hostWrite(from))
		copy(bytes(from), want)
		x := device.Range{Buffer: ids.Buffer(device.OnDevice), Bytes: n}
		there, back := ids.Event(), ids.Event()
		do(alloc(in, x))
		do(copyIn(in, x, from), record(in, there))
		do(wait(out, there), copyOut(out, to, x), record(out, back))
		do(wait(in, back), free(in, x))
		if i%2 == 0 {
			do(syncEvent(back))
		} else {
			do(syncStream(in))
		}
		do(hostRead(to))
		if got := bytes(to); err == nil {
			err = compare(got, want)
		}
		ids.PutBuffer(x.Buffer)
		ids.PutEvent(there)
		ids.PutEvent(back)
	}
	return err
}

// together lets every goroutine write both halves of one buffer in one batch.
// In the end both halves are of the same goroutine.
func together(r *rig) {
	const n, rounds = 4096, 20
	s := r.stream()
	to := r.pinned(n)
	x := r.buffer(s, n)
	from := make([]device.Range, goroutines)
	for i := range from {
		from[i] = r.pinned(n)
		r.write(from[i], pattern(uint64(i), n))
	}
	for range rounds {
		r.each(func(i int) error {
			runtime.Gosched()
			return r.submit(copyIn(s, x.Sub(0, n/2), from[i].Sub(0, n/2)), copyIn(s, x.Sub(n/2, n/2), from[i].Sub(n/2, n/2)))
		})
		r.must(copyOut(s, to, x), syncStream(s))
		r.must(hostRead(to))
		got, whole := r.host(to), false
		for i := range from {
			whole = whole || compare(got, pattern(uint64(i), n)) == nil
		}
		if !whole {
			r.Fatal("the halves are of different batches")
		}
	}
}

func questions(r *rig) {
	r.each(func(i int) error {
		s := r.ids.Stream()
		x := device.Range{Buffer: r.ids.Buffer(device.OnDevice), Bytes: int64(i + 1)}
		if err := r.submit(openStream(s), alloc(s, x)); err != nil {
			return err
		}
		m, err := r.dev.Lookup(x.Buffer)
		if err != nil || m.Size != x.Bytes {
			return fmt.Errorf("looked up %d bytes, %v; want %d", m.Size, err, x.Bytes)
		}
		if u := r.dev.Usage(); u.InUse < r.dev.Info().Align || u.Peak < u.InUse {
			return fmt.Errorf("got usage %+v while a buffer is allocated", u)
		}
		r.dev.ResetPeak()
		return r.submit(free(s, x), closeStream(s))
	})
	r.uses(0, r.dev.Usage().Peak)
}
