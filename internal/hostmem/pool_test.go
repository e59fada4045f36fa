package hostmem

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"offload/device"
)

const (
	kib = int64(1) << 10
	mib = int64(1) << 20
	gib = int64(1) << 30
)

// newPool returns a pool with ids of its own.
func newPool(cfg Config) *Pool[int] { return New[int](cfg, new(device.IDs)) }

// take takes n bytes that must be granted.
func take(t *testing.T, p *Pool[int], n int64) (*Block[int], []device.Op) {
	t.Helper()
	b, ops, err := p.Take(n)
	if err != nil {
		t.Fatalf("Take(%d): %v", n, err)
	}
	return b, ops
}

func TestSizesAreRoundedToPagesOnly(t *testing.T) {
	tests := []struct {
		name         string
		piece, total int64
	}{
		{"33 MiB pieces", 33 * mib, 4147 * mib},
		{"64 KiB", 64 * kib, 300 * mib},
		{"just over a page multiple", mib + 1, gib},
		{"just under a slab", 64*mib - 1, gib},
		{"half a slab and a page", 32*mib + 4*kib, gib},
		{"two thirds of a slab", 43 * mib, gib},
		{"a slab", 64 * mib, gib},
		{"several slabs", 200 * mib, 4 * gib},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := newPool(Config{})
			asked := int64(0)
			for asked < tt.total {
				take(t, p, tt.piece)
				asked += tt.piece
			}
			held := p.Stats().Held
			if last := 86 * mib; float64(held) > 1.05*float64(asked) && held-asked > last {
				t.Errorf("held %d bytes for %d, ratio %.3f", held, asked, float64(held)/float64(asked))
			}
		})
	}
}

func TestReplayPinsNothing(t *testing.T) {
	for seed := range uint64(200) {
		p := newPool(Config{SlabBytes: mib})
		var first []device.Range
		for step := range 3 {
			r := rand.New(rand.NewPCG(seed, 1))
			pins := p.Stats().Pins
			var live []*Block[int]
			var at []device.Range
			for i := range 100 {
				if len(live) > 0 && r.IntN(5) < 2 {
					j := r.IntN(len(live))
					p.Give(live[j], 1+i)
					live = append(live[:j], live[j+1:]...)
					continue
				}
				b, _ := take(t, p, 1+r.Int64N(3*mib/2))
				live, at = append(live, b), append(at, b.Ranges()...)
			}
			for i, b := range live {
				p.Give(b, 200+i)
			}
			// What has passed by the next step differs from step to step.
			p.Passed(func(f int) bool { return f%(step+2) == 0 })
			if step == 0 {
				first = at
				continue
			}
			if got := p.Stats().Pins; got != pins {
				t.Fatalf("seed %d: %d pins in step %d, want none", seed, got-pins, step)
			}
			for i := range at {
				if at[i] != first[i] {
					t.Fatalf("seed %d: range %d of step %d is %v, in the first step it was %v", seed, i, step, at[i], first[i])
				}
			}
		}
	}
}

func TestFencesOfExactlyThePiecesReused(t *testing.T) {
	p := newPool(Config{SlabBytes: 64 * kib})
	var bs [4]*Block[int]
	for i := range bs {
		bs[i], _ = take(t, p, 16*kib)
	}
	for i, b := range bs {
		p.Give(b, 1+i/2) // fences 1, 1, 2, 2
	}
	a, ops := take(t, p, 20*kib)
	if len(ops) != 0 || !slices.Equal(a.Fences(), []int{1}) {
		t.Errorf("got operations %v and fences %v, want none and [1]", ops, a.Fences())
	}
	b, _ := take(t, p, 16*kib)
	if !slices.Equal(b.Fences(), []int{1, 2}) {
		t.Errorf("got fences %v, want [1 2]", b.Fences())
	}
	p.Passed(func(f int) bool { return f == 1 })
	if !slices.Equal(b.Fences(), []int{2}) {
		t.Errorf("after 1 has passed got fences %v, want [2]", b.Fences())
	}
	p.Return(b)
	c, _ := take(t, p, 12*kib)
	if len(c.Fences()) != 0 {
		t.Errorf("got fences %v for bytes whose fence has passed, want none", c.Fences())
	}
	d, _ := take(t, p, 4*kib)
	if !slices.Equal(d.Fences(), []int{2}) {
		t.Errorf("got fences %v for bytes that were returned unused, want [2]", d.Fences())
	}
}

func TestTightestPlaceIsTaken(t *testing.T) {
	p := newPool(Config{SlabBytes: 64 * kib})
	var bs [4]*Block[int]
	for i, n := range []int64{16 * kib, 20 * kib, 12 * kib, 16 * kib} {
		bs[i], _ = take(t, p, n)
	}
	p.Give(bs[0], 0)
	p.Give(bs[2], 0)
	for _, want := range []int64{36 * kib, 0} { // 12 KiB fit best where 12 KiB are free
		if b, _ := take(t, p, 12*kib); b.Ranges()[0].Offset != want {
			t.Errorf("got %v, want offset %d", b.Ranges(), want)
		}
	}
}

func TestSpan(t *testing.T) {
	p := newPool(Config{SlabBytes: 16 * kib})
	b, _ := take(t, p, 40*kib-1) // ranges of 8, 16 and 16 KiB
	r := b.Ranges()
	tests := []struct {
		name   string
		off, n int64
		want   []device.Range
	}{
		{"all", 0, b.Capacity(), r},
		{"nothing", 5, 0, nil},
		{"within one", 9 * kib, kib, []device.Range{r[1].Sub(kib, kib)}},
		{"across two", 7 * kib, 2 * kib, []device.Range{r[0].Sub(7*kib, kib), r[1].Sub(0, kib)}},
		{"the end", 39 * kib, kib, []device.Range{r[2].Sub(15*kib, kib)}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := b.Span(nil, tt.off, tt.n); !slices.Equal(got, tt.want) {
				t.Errorf("got %v, want %v", got, tt.want)
			}
		})
	}
}

func TestBrokenInvariantsPanic(t *testing.T) {
	p := newPool(Config{})
	b, _ := take(t, p, mib)
	tests := []struct {
		name string
		do   func()
	}{
		{"span outside", func() { b.Span(nil, mib, 1) }},
		{"failure without operations", func() { p.Failed(b, 1) }},
		{"given back twice", func() { p.Give(b, 0); p.Give(b, 0) }},
		{"returned after it was given back", func() { p.Return(b) }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			defer func() {
				if recover() == nil {
					t.Error("no panic")
				}
			}()
			tt.do()
		})
	}
}

// step takes and gives back what the layers of a model might.
func step(p *Pool[int], blocks []*Block[int]) error {
	for i := range blocks {
		b, ops, err := p.Take(mib + int64(i%3)*33*mib)
		if err != nil || len(ops) > 0 {
			return fmt.Errorf("operations %v, error %v", ops, err)
		}
		blocks[i] = b
	}
	for i, b := range slices.Backward(blocks) {
		p.Give(b, 1+i)
	}
	p.Passed(func(f int) bool { return f%2 == 0 })
	return nil
}

func TestSteadyStateDoesNotAllocate(t *testing.T) {
	p := newPool(Config{})
	blocks := make([]*Block[int], 40)
	for i := range blocks {
		blocks[i], _ = take(t, p, mib+int64(i%3)*33*mib)
	}
	for _, b := range slices.Backward(blocks) {
		p.Give(b, 0)
	}
	for range 3 { // lists grow to their size
		if err := step(p, blocks); err != nil {
			t.Fatal(err)
		}
	}
	if n := testing.AllocsPerRun(20, func() {
		if err := step(p, blocks); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("got %v allocations a step, want none", n)
	}
}

func BenchmarkTakeGive(b *testing.B) {
	p := newPool(Config{})
	var live []*Block[int]
	for range 155 { // as many tensors as a step of a larger model has
		l, _, err := p.Take(33 * mib)
		if err != nil {
			b.Fatal(err)
		}
		live = append(live, l)
	}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		j := i % len(live)
		p.Give(live[j], 1+i)
		live[j], _, _ = p.Take(33 * mib)
	}
}
