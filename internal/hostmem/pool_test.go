package hostmem

import (
	"errors"
	"math"
	"math/rand/v2"
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
		{"one page", 4 * kib, 300 * mib},
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

func TestRefusal(t *testing.T) {
	p := newPool(Config{SlabBytes: mib, Budget: 2 * mib})
	take(t, p, mib)
	before := p.Stats()
	_, ops, err := p.Take(mib + 1)
	var be *BudgetError
	if !errors.As(err, &be) || len(ops) != 0 {
		t.Fatalf("got operations %v and error %v, want none and a *BudgetError", ops, err)
	}
	want := BudgetError{Asked: mib + 1, InUse: mib, Held: mib, Limit: 2 * mib, Fits: mib}
	if *be != want {
		t.Errorf("got %+v, want %+v", *be, want)
	}
	before.Refused++
	if got := p.Stats(); got != before {
		t.Errorf("after a refusal got %+v, want %+v", got, before)
	}
	take(t, p, be.Fits)
	for _, n := range []int64{0, -1, math.MaxInt64} {
		if b, _, err := p.Take(n); err == nil {
			t.Errorf("Take(%d) = %v, want an error", n, b.Ranges())
		}
	}
}
