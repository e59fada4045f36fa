package hostmem

import (
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"offload/device"
)

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

func TestRefusalNamesTheLongestRun(t *testing.T) {
	p := newPool(Config{SlabBytes: 64 * kib, Budget: 64 * kib})
	a, _ := take(t, p, 20*kib)
	take(t, p, 32*kib)
	p.Give(a, 0)
	_, _, err := p.Take(24 * kib)
	var be *BudgetError
	if !errors.As(err, &be) || be.Fits != 20*kib {
		t.Errorf("got %v, want that 20 KiB would fit", err)
	}
}

func TestRandomSizesStayUnderTheBudget(t *testing.T) {
	const budget = 2 * gib
	ids := new(device.IDs)
	p := New[int](Config{Budget: budget}, ids)
	r := rand.New(rand.NewPCG(5, 7))
	pinned := map[device.Buffer]int64{} // as a device would count
	total := int64(0)
	var live []*Block[int]
	for i := range 5000 {
		b, ops, err := p.Take(mib + r.Int64N(63*mib))
		for _, op := range ops {
			if op.Kind == device.Pin {
				pinned[op.Dst.Buffer] = op.Dst.Bytes
				total += op.Dst.Bytes
			} else {
				total -= pinned[op.Dst.Buffer]
				delete(pinned, op.Dst.Buffer)
			}
			if total > budget {
				t.Fatalf("take %d: %d bytes pinned, want at most %d", i, total, budget)
			}
		}
		if err == nil {
			live = append(live, b)
		}
		for err != nil && len(live) > 0 || len(live) > 40 {
			j := r.IntN(len(live))
			p.Give(live[j], i)
			live = append(live[:j], live[j+1:]...)
			err = nil
		}
		p.Passed(func(f int) bool { return f < i-3 })
		s := p.Stats()
		if s.Held != total || s.Held != s.InUse+s.Free+s.Fenced {
			t.Fatalf("take %d: %d bytes are pinned, want %v", i, total, s)
		}
	}
	s := p.Stats()
	if s.HighWater < budget*3/4 {
		t.Errorf("of a budget of %d at most %d bytes were in use, want three quarters", int64(budget), s.HighWater)
	}
	t.Log(s)
}

func TestTrimKeepsWhatIsFenced(t *testing.T) {
	p := newPool(Config{SlabBytes: mib})
	a, _ := take(t, p, mib)
	b, _ := take(t, p, mib)
	c, _ := take(t, p, mib)
	last := c.Ranges()[0].Buffer
	p.Give(a, 7)
	p.Give(c, 0)
	if ops := p.Trim(); len(ops) != 1 || ops[0].Kind != device.Unpin || ops[0].Dst.Buffer != last {
		t.Errorf("got %v, want unpin %v", ops, last)
	}
	if ops := p.Trim(); len(ops) != 0 {
		t.Errorf("got %v, want nothing as one slab is in use and one fenced", ops)
	}
	p.Passed(func(f int) bool { return f == 7 })
	p.Give(b, 0)
	if ops := p.Trim(); len(ops) != 2 {
		t.Errorf("got %v, want two unpins", ops)
	}
	if s := p.Stats(); s.Held != 0 || s.Pins != 3 || s.Unpins != 3 || s.HighWaterHeld != 3*mib {
		t.Errorf("got %v, want nothing pinned after 3 pins and unpins and at most 3 MiB", s)
	}
}

func TestFreeSlabsMakeRoom(t *testing.T) {
	p := newPool(Config{SlabBytes: mib, Budget: 2 * mib})
	a, _ := take(t, p, mib)
	b, _ := take(t, p, 700*kib)
	slab := a.Ranges()[0].Buffer
	p.Give(a, 0)
	p.Give(b, 3)
	_, ops := take(t, p, mib+200*kib)
	if len(ops) != 3 || ops[0].Kind != device.Unpin || ops[0].Dst.Buffer != slab {
		t.Errorf("got %v, want unpin %v and two pins", ops, slab)
	}
	if s := p.Stats(); s.Held > 2*mib || s.Fenced != 700*kib {
		t.Errorf("got %v, want the budget kept and the fenced slab left alone", s)
	}
	var be *BudgetError
	if _, _, err := p.Take(mib); !errors.As(err, &be) || be.Fenced != 700*kib {
		t.Errorf("got %v, want a *BudgetError with 700 KiB fenced", err)
	}
}

func TestNoMoreIsUnpinnedThanNeeded(t *testing.T) {
	p := newPool(Config{SlabBytes: mib, Budget: 3 * mib})
	var bs [3]*Block[int]
	for i := range bs {
		bs[i], _ = take(t, p, 700*kib)
	}
	for _, b := range bs {
		p.Give(b, 0)
	}
	_, ops := take(t, p, mib)
	if len(ops) != 2 || ops[0].Kind != device.Unpin || ops[1].Kind != device.Pin {
		t.Errorf("got %v, want one unpin and one pin", ops)
	}
}

func TestFailedPin(t *testing.T) {
	tests := []struct {
		name  string
		asked int64
		first []int64 // bytes of the first pins
		at    int     // which of them fails
		again []int64 // bytes of the second pins
	}{
		{"without the rest of the slab", 256 * kib, []int64{mib}, 0, []int64{256 * kib}},
		{"in halves", mib, []int64{mib}, 0, []int64{512 * kib, 512 * kib}},
		{"in halves of whole pages", 900 * kib, []int64{900 * kib}, 0, []int64{448 * kib, 452 * kib}},
		{"after one that was pinned", 2 * mib, []int64{mib, mib}, 1, []int64{512 * kib, 512 * kib}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := newPool(Config{SlabBytes: mib})
			b, ops := take(t, p, tt.asked)
			if got := sizes(ops); !slices.Equal(got, tt.first) {
				t.Fatalf("got pins of %d bytes, want %d", got, tt.first)
			}
			b, ops, err := p.Failed(b, tt.at)
			if err != nil {
				t.Fatal(err)
			}
			if got := sizes(ops); !slices.Equal(got, tt.again) {
				t.Fatalf("got pins of %d bytes at the second attempt, want %d", got, tt.again)
			}
			if b.Bytes() != tt.asked {
				t.Errorf("got a block of %d bytes, want %d", b.Bytes(), tt.asked)
			}
			_, ops, err = p.Failed(b, 0)
			var be *BudgetError
			if !errors.As(err, &be) || !be.PinFailed || len(ops) != 0 {
				t.Fatalf("after the second failure got %v and %v, want a *BudgetError that says so", ops, err)
			}
			s := p.Stats()
			if s.InUse != 0 || s.Limit != s.Held || s.FailedPins != 2 || s.Pins != tt.at || s.Misses != 0 {
				t.Errorf("after two failures got %+v, want nothing in use and no more than what is pinned", s)
			}
			if _, _, err := p.Take(4 * mib); !errors.As(err, &be) || !be.PinFailed {
				t.Errorf("got %v, want a *BudgetError because of the failed pin", err)
			}
			p.SetBudget(0)
			take(t, p, 4*mib)
		})
	}
}

func TestEveryTakeMayBeRetried(t *testing.T) {
	p := newPool(Config{SlabBytes: mib})
	for range 3 {
		b, _ := take(t, p, mib)
		b, _, err := p.Failed(b, 0)
		if err != nil {
			t.Fatal(err)
		}
		p.Give(b, 0)
		p.Trim()
	}
}

func TestOnePageCannotBeSmaller(t *testing.T) {
	p := newPool(Config{SlabBytes: 4 * kib})
	b, _ := take(t, p, 1)
	var be *BudgetError
	if _, _, err := p.Failed(b, 0); !errors.As(err, &be) || be.Limit != 0 {
		t.Errorf("got %v, want a *BudgetError with a limit of 0", err)
	}
}

func TestLowerBudgetPinsNoMore(t *testing.T) {
	p := newPool(Config{SlabBytes: mib})
	a, _ := take(t, p, mib)
	b, _ := take(t, p, mib)
	c, _ := take(t, p, mib)
	p.SetBudget(mib)
	p.Give(a, 0)
	p.Give(c, 0)
	a, ops := take(t, p, mib)
	if len(ops) != 0 {
		t.Errorf("got %v for memory that is pinned, want nothing", ops)
	}
	p.Give(a, 0)
	p.Give(b, 0)
	if _, ops := take(t, p, 2*mib+512*kib); len(ops) != 0 {
		t.Errorf("got %v for memory that is pinned, want nothing", ops)
	}
	if b, _, err := p.Take(mib); err == nil {
		t.Errorf("got %v, want an error as the budget is exceeded", b.Ranges())
	}
}

// sizes returns the bytes of the Pin operations.
func sizes(ops []device.Op) (n []int64) {
	for _, op := range ops {
		if op.Kind == device.Pin {
			n = append(n, op.Dst.Bytes)
		}
	}
	return n
}
