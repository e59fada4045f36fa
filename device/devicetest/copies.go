package devicetest

import "testing"

var copies = []check{
	{"every size comes back", Options{}, sizes},
	{"odd offsets touch no neighbours", Options{}, offsets},
	{"copies of no bytes do nothing", Options{}, nothing},
	{"both directions run at once", Options{}, bothWays},
}

// largest is the size of the largest copy.
func largest() int64 {
	if testing.Short() {
		return 1 << 20
	}
	return 64 << 20
}

func sizes(r *rig) {
	s := r.stream()
	from, to := r.pinned(largest()), r.pinned(largest())
	all := pattern(2, largest())
	r.write(from, all)
	for _, n := range []int64{1, 2, 3, 4, 7, 255, 256, 257, 4095, 4096, 65535, 65536, 65537, 1<<20 - 1, 1 << 20, 1<<20 + 1, 16 << 20, 64 << 20} {
		if n > largest() {
			continue
		}
		x, y := r.buffer(s, n), r.buffer(s, n)
		r.must(copyIn(s, x, from.Sub(0, n)), copyWithin(s, y, x), copyOut(s, to.Sub(0, n), y), free(s, x), free(s, y), syncStream(s))
		r.holds(to.Sub(0, n), all[:n])
		r.write(to.Sub(0, n), make([]byte, n))
	}
}

// offsets copies a middle part into the middle of other bytes.
func offsets(r *rig) {
	const n = 1 << 16
	s := r.stream()
	from, to := r.pinned(n), r.pinned(n)
	x, y := r.buffer(s, n), r.buffer(s, n)
	ground, data := pattern(3, n), pattern(4, n)
	for _, at := range []struct{ src, dst, n int64 }{
		{0, 1, 1}, {1, 0, 1}, {3, 5, 7}, {255, 257, 511}, {1, 2, n - 2}, {4097, 13, 12345}, {n - 1, n - 1, 1}, {n / 2, 0, n / 2},
	} {
		want := append([]byte(nil), ground...)
		copy(want[at.dst:at.dst+at.n], data[at.src:at.src+at.n])
		r.write(from, ground)
		r.must(copyIn(s, x, from), copyIn(s, y, from), syncStream(s))
		r.write(from, data)
		r.must(
			copyIn(s, x.Sub(at.dst, at.n), from.Sub(at.src, at.n)),
			copyWithin(s, y.Sub(at.dst, at.n), x.Sub(at.dst, at.n)),
			copyOut(s, to, x), syncStream(s))
		r.holds(to, want)
		r.must(copyOut(s, to, y), syncStream(s))
		r.holds(to, want)
		// Out into the middle of host bytes.
		r.write(to, ground)
		r.must(copyOut(s, to.Sub(at.dst, at.n), y.Sub(at.dst, at.n)), syncStream(s))
		r.holds(to, want)
	}
}

func nothing(r *rig) {
	s := r.stream()
	h, g := r.pinned(64), r.pinned(64)
	x := r.buffer(s, 64)
	want := pattern(5, 64)
	r.write(h, want)
	r.write(g, make([]byte, 64))
	r.must(copyIn(s, x, h), copyIn(s, x.Sub(64, 0), g.Sub(0, 0)), copyWithin(s, x.Sub(3, 0), x.Sub(3, 0)),
		copyOut(s, h.Sub(1, 0), x.Sub(0, 0)), copyOut(s, g, x), syncStream(s))
	r.holds(h, want)
	r.holds(g, want)
}

// bothWays copies out on one stream while it copies in on another.
func bothWays(r *rig) {
	const rounds = 4
	n := largest() / 4
	out, in := r.stream(), r.stream()
	seed, away := r.pinned(n), r.pinned(n*rounds)
	home := r.pinned(n)
	x, y := r.buffer(out, n), r.buffer(in, n*rounds)
	first, second := pattern(5, n), pattern(6, n)
	r.write(seed, first)
	r.write(home, second)
	r.must(copyIn(out, x, seed), syncStream(out))
	for i := range int64(rounds) {
		r.must(copyOut(out, away.Sub(i*n, n), x), copyIn(in, y.Sub(i*n, n), home))
	}
	r.must(syncStream(out), syncStream(in))
	for i := range int64(rounds) {
		r.holds(away.Sub(i*n, n), first)
	}
	e := r.ids.Event()
	r.must(record(in, e), wait(out, e), copyOut(out, away, y), syncStream(out))
	for i := range int64(rounds) {
		r.holds(away.Sub(i*n, n), second)
	}
}
