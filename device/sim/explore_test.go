package sim

import (
	"errors"
	"fmt"
	"math/big"
	"slices"
	"strings"
	"testing"

	"offload/device"
)

// programOf makes a program of operations that f lists for a device with the
// rig's kernels, on three open streams.
func programOf(t testing.TB, f func(r *rig, c device.Stream) []device.Op) Program {
	return func(d *Device) error {
		r := rigOn(t, d)
		c := r.ids.Stream()
		r.must(open(c))
		ops := f(r, c)
		r.must(ops...)
		r.must(join(r.a), join(r.b), join(c))
		return nil
	}
}

func many(n int, s device.Stream) []device.Op {
	var ops []device.Op
	for range n {
		ops = append(ops, device.Op{Kind: device.Launch, Stream: s, Kernel: &device.Kernel{Name: "set", Args: []device.Arg{{}}}})
	}
	return ops
}

// orders are programs of which it is known how many orders they have.
var orders = []struct {
	name string
	want int64
	ops  func(r *rig, c device.Stream) []device.Op
}{
	{"nothing", 1, func(*rig, device.Stream) []device.Op { return nil }},
	// Of 7 places, 3 belong to the first stream: 7 over 3.
	{"three and four independent operations", 35, func(r *rig, _ device.Stream) []device.Op {
		return append(many(3, r.a), many(4, r.b)...)
	}},
	// 4 comes after 2: the four of the second stream follow the first two, and the
	// third has 5 places among them.
	{"the second stream waits for two of three", 5, func(r *rig, _ device.Stream) []device.Op {
		e := r.ids.Event()
		return slices.Concat(many(2, r.a), []device.Op{record(r.a, e)}, many(1, r.a), []device.Op{wait(r.b, e)}, many(4, r.b))
	}},
	// a1 a2 a3 and b1 b2 b3, where b2 is after a1, and a3 after b1. Of the 20 orders
	// without the edges, 4 have b2 before a1 (b1 b2 first, and b3 anywhere among the
	// others), one has a3 before b1 (a1 a2 a3 first), and none has both.
	{"two streams wait for each other in turn", 15, func(r *rig, _ device.Stream) []device.Op {
		e, f := r.ids.Event(), r.ids.Event()
		return slices.Concat(many(1, r.a), []device.Op{record(r.a, e)}, many(1, r.b), []device.Op{record(r.b, f), wait(r.b, e)},
			many(2, r.b), many(1, r.a), []device.Op{wait(r.a, f)}, many(1, r.a))
	}},
	// The host waits for the first stream in the middle: a1 a2 before a3 a4, and
	// b1 b2 at any place: those of b that the host had submitted before need not
	// be first. 6 over 2 = 15.
	{"a host that waits for one of the streams", 15, func(r *rig, _ device.Stream) []device.Op {
		return slices.Concat(many(2, r.a), many(2, r.b), []device.Op{join(r.a)}, many(2, r.a))
	}},
	// As before, but b1 b2 are submitted after the wait: a1 a2 come first, and then 4 over 2 = 6.
	{"operations submitted after the host has waited", 6, func(r *rig, _ device.Stream) []device.Op {
		return slices.Concat(many(2, r.a), []device.Op{join(r.a)}, many(2, r.a), many(2, r.b))
	}},
	// (2+2+2)! / (2! 2! 2!)
	{"three streams of two", 90, func(r *rig, c device.Stream) []device.Op {
		return slices.Concat(many(2, r.a), many(2, r.b), many(2, c))
	}},
	// a1, then b1 b2 and c1 c2 beside each other (4 over 2 = 6), then a2.
	{"a fork and a join", 6, func(r *rig, c device.Stream) []device.Op {
		e, f, g := r.ids.Event(), r.ids.Event(), r.ids.Event()
		return slices.Concat(many(1, r.a), []device.Op{record(r.a, e), wait(r.b, e), wait(c, e)}, many(2, r.b), many(2, c),
			[]device.Op{record(r.b, f), record(c, g), wait(r.a, f), wait(r.a, g)}, many(1, r.a))
	}},
}

// Every order is run once: as many are run as are known to be there, and all of
// them differ.
func TestExploreRunsEveryOrder(t *testing.T) {
	for _, tt := range orders {
		t.Run(tt.name, func(t *testing.T) {
			seen := make(map[string]bool)
			run := programOf(t, tt.ops)
			report, err := Explore(Config{}, func(d *Device) error {
				defer func() { seen[fmt.Sprint(d.order.(*recorder).steps)] = true }()
				return run(d)
			}, ExploreOptions{Every: true, Count: true, KeepGoing: true})
			if err != nil {
				t.Fatal(err)
			}
			if !report.Complete || int64(report.Orders) != tt.want || report.Total.Cmp(big.NewInt(tt.want)) != 0 {
				t.Errorf("got %v, want %d orders", report, tt.want)
			}
			delete(seen, "[]") // the run that finds out what the operations are
			if tt.want > 1 && int64(len(seen)) != tt.want {
				t.Errorf("got %d different orders, want %d", len(seen), tt.want)
			}
		})
	}
}

// Independent streams of n operations have (kn)! / n!^k orders.
func TestCountOfManyOrders(t *testing.T) {
	for _, n := range []int{1, 5, 20} {
		p := programOf(t, func(r *rig, c device.Stream) []device.Op {
			return slices.Concat(many(n, r.a), many(n, r.b), many(n, c))
		})
		report, err := Explore(Config{}, p, ExploreOptions{Count: true})
		if err != nil {
			t.Fatal(err)
		}
		one := new(big.Int).MulRange(1, int64(n))
		want := new(big.Int).MulRange(1, int64(3*n))
		for range 3 {
			want.Div(want, one)
		}
		if report.Total == nil || report.Total.Cmp(want) != 0 {
			t.Errorf("three streams of %d: got %v orders, want %v", n, report.Total, want)
		}
		if report.Orders != 1 {
			t.Errorf("three streams of %d: %d orders of independent operations were run, want 1", n, report.Orders)
		}
	}
}

// result is a program that fails unless the sums on the streams are what they are
// when the streams run one after the other.
func result(t testing.TB, edge bool, outcomes map[byte]bool) Program {
	return func(d *Device) error {
		r := rigOn(t, d)
		x, h := r.buffer(r.a, 8), r.pinned(8)
		e := r.ids.Event()
		r.must(set(r.a, x, 1), record(r.a, e), wait(r.b, e)) // both streams may write x from here on
		r.must(sum(r.a, x, x), sum(r.a, x, x))
		if edge {
			f := r.ids.Event()
			r.must(record(r.a, f), wait(r.b, f), retire(f))
		}
		r.must(set(r.b, x, 10), sum(r.b, x, x))
		f := r.ids.Event()
		r.must(record(r.a, f), wait(r.b, f), out(r.b, h, x), free(r.b, x), join(r.b), hostRead(h))
		got := r.host(h)[0]
		r.must(unpin(h), join(r.a), shut(r.a), shut(r.b), retire(e), retire(f))
		if outcomes != nil {
			outcomes[got] = true
		}
		if got != 11 {
			return fmt.Errorf("got %d, want 11", got)
		}
		return nil
	}
}

// What one order of each kind gives is all that every order gives.
func TestReductionMissesNothing(t *testing.T) {
	for _, edge := range []bool{false, true} {
		all, some := make(map[byte]bool), make(map[byte]bool)
		cfg := Config{NoChecker: true}
		every, err := Explore(cfg, result(t, edge, all), ExploreOptions{Every: true, KeepGoing: true})
		if err != nil {
			t.Fatal(err)
		}
		reduced, err := Explore(cfg, result(t, edge, some), ExploreOptions{KeepGoing: true})
		if err != nil {
			t.Fatal(err)
		}
		if fmt.Sprint(all) != fmt.Sprint(some) {
			t.Errorf("edge %v: every order gives %v, one of each kind gives %v", edge, all, some)
		}
		if edge {
			if len(all) != 1 || reduced.Orders != 1 {
				t.Errorf("with the edge: got results %v and %d kinds of orders, want one of each", all, reduced.Orders)
			}
			continue
		}
		// s s on one stream and set s on the other, all on the same bytes: 4 over 2.
		if every.Orders != 6 || reduced.Orders != 6 || every.Failing == 0 {
			t.Errorf("without it: got %v and %v, want 6 orders each, some of which fail", every, reduced)
		}
	}
}

// racyProgram makes operations on few bytes, with few edges.
func racyProgram(t testing.TB, seed uint64, see func(string)) Program {
	return func(d *Device) error {
		r := rigOn(t, d)
		rnd := newSeeded(seed).r
		x, h := r.buffer(r.a, 3), r.pinned(3)
		e := r.ids.Event()
		r.must(set(r.a, x, 1), record(r.a, e), wait(r.b, e))
		streams := []device.Stream{r.a, r.b}
		for range 6 {
			s, to, from := streams[rnd.IntN(2)], x.Sub(int64(rnd.IntN(3)), 1), x.Sub(int64(rnd.IntN(3)), 1)
			switch rnd.IntN(5) {
			case 0:
				f := r.ids.Event()
				r.must(record(s, f), wait(streams[rnd.IntN(2)], f))
			case 1:
				r.must(set(s, to, int64(rnd.IntN(100))))
			default:
				r.must(sum(s, to, from, to))
			}
		}
		f := r.ids.Event()
		r.must(record(r.a, f), wait(r.b, f), out(r.b, h, x), join(r.b))
		see(fmt.Sprint(r.host(h)))
		return nil
	}
}

func TestReductionMissesNothingInRandomPrograms(t *testing.T) {
	fewer := 0
	for seed := range uint64(60) {
		results := [2]map[string]bool{{}, {}}
		var reports [2]Report
		for i, every := range []bool{true, false} {
			var err error
			reports[i], err = Explore(Config{NoChecker: true}, racyProgram(t, seed, func(s string) { results[i][s] = true }),
				ExploreOptions{Every: every})
			if err != nil {
				t.Fatal(err)
			}
		}
		if fmt.Sprint(results[0]) != fmt.Sprint(results[1]) {
			t.Errorf("seed %d: %v gives %v, %v gives %v", seed, reports[0], results[0], reports[1], results[1])
		}
		if reports[1].Orders < reports[0].Orders {
			fewer++
		}
	}
	if fewer < 30 {
		t.Errorf("the reduction ran fewer orders for %d programs of 60", fewer)
	}
}

// A failing order prints as a text, and the text fails in the same way.
func TestFailureReplays(t *testing.T) {
	p := result(t, false, nil)
	cfg := Config{ID: device.NextID(), NoChecker: true}
	report, err := Explore(cfg, p, ExploreOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if report.First == nil || report.Complete {
		t.Fatalf("got %v, want a failure that ends the exploration", report)
	}
	s, err := ParseSchedule(report.First.Schedule.String())
	if err != nil {
		t.Fatal(err)
	}
	again := Run(cfg, p, s)
	if again == nil || again.String() != report.First.String() {
		t.Errorf("got %v\nwant %v", again, report.First)
	}
}

// A program with a race fails under its checker in the first order, and the
// finding says which edge is missing.
func TestExploreReportsFindings(t *testing.T) {
	report, err := Explore(Config{}, result(t, false, nil), ExploreOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if report.Orders != 1 || report.First == nil || len(report.First.Findings) == 0 {
		t.Fatalf("got %v, want findings in the first order", report)
	}
	if text := report.String(); !strings.Contains(text, "HB3 (write after write)") || !strings.Contains(text, stepsText) {
		t.Errorf("the report names neither rule nor schedule:\n%s", text)
	}
	if clean, err := Explore(Config{}, result(t, true, nil), ExploreOptions{Every: true}); err != nil || clean.Failing != 0 {
		t.Errorf("with the edge: got %v, %v", clean, err)
	}
}

func TestExploreRefusesProgramsThatChange(t *testing.T) {
	n := 0
	_, err := Explore(Config{}, func(d *Device) error {
		n++
		r := rigOn(t, d)
		r.must(many(n, r.a)...)
		return nil
	}, ExploreOptions{Every: true, KeepGoing: true})
	if err == nil || !strings.Contains(err.Error(), "does not do the same in every order") {
		t.Errorf("got %v, want an error that says that the program changes", err)
	}
}

func TestExploreStopsAtItsLimit(t *testing.T) {
	p := programOf(t, orders[1].ops)
	report, err := Explore(Config{}, p, ExploreOptions{Every: true, Max: 10, KeepGoing: true})
	if err != nil || report.Orders != 10 || report.Complete {
		t.Errorf("got %v, %v; want 10 orders and not complete", report, err)
	}
}

// TestShrink: a seed that fails in a long program becomes the one change of
// streams that it takes.
func TestShrink(t *testing.T) {
	cfg := Config{ID: device.NextID(), NoChecker: true}
	wrong := errors.New("the other stream was first")
	p := func(d *Device) error {
		r := rigOn(t, d)
		x, h := r.buffer(r.a, 8), r.pinned(8)
		e, f := r.ids.Event(), r.ids.Event()
		r.must(set(r.a, x, 1), record(r.a, e), wait(r.b, e))
		r.must(many(8, r.a)...)
		r.must(many(8, r.b)...)
		r.must(set(r.a, x, 2), set(r.b, x, 3)) // the last one wins, and that should be b
		r.must(many(8, r.a)...)
		r.must(many(8, r.b)...)
		r.must(record(r.a, f), wait(r.b, f), out(r.b, h, x), join(r.b))
		if r.host(h)[0] != 3 {
			return wrong
		}
		return nil
	}
	seed := uint64(0)
	for Run(cfg, p, SeedSchedule(seed)) == nil {
		if seed++; seed == 1000 {
			t.Fatal("no seed fails")
		}
	}
	got, err := Shrink(cfg, p, SeedSchedule(seed), func(f *Failure) bool { return errors.Is(f.Err, wrong) })
	if err != nil {
		t.Fatal(err)
	}
	// After the allocation and the first kernel of stream 0, stream 1 goes on, as far
	// as it can; the write of stream 0 comes then.
	if want := "sim schedule v1: 0x2 1"; got.Schedule.String() != want {
		t.Errorf("seed %d: got %q, want %q", seed, got.Schedule, want)
	}
	if got.Schedule.Switches() != 1 || got.Schedule.Len() != 3 {
		t.Errorf("got %d switches and %d steps, want 1 and 3", got.Schedule.Switches(), got.Schedule.Len())
	}
	if _, err := Shrink(cfg, p, Steps(), nil); err == nil {
		t.Error("a schedule that does not fail was shrunk")
	}
}

// TestDrop: of a long program those operations remain that it takes to race.
func TestDrop(t *testing.T) {
	cfg := Config{ID: device.NextID()}
	ids := device.NewIDs(New(cfg))
	a, b := ids.Stream(), ids.Stream()
	x := device.Range{Buffer: ids.Buffer(device.OnDevice), Bytes: 8}
	y := device.Range{Buffer: ids.Buffer(device.OnDevice), Bytes: 8}
	h := device.Range{Buffer: ids.Buffer(device.OnHost), Bytes: 8}
	e := ids.Event()
	p := Batches{List: []device.Batch{
		{Ops: []device.Op{open(a), open(b), pin(h)}},
		{Ops: []device.Op{alloc(a, x), alloc(a, y), move(a, y, x), record(a, e)}},
		{Ops: []device.Op{wait(b, e), out(b, h, y), move(a, y, x), free(a, x)}},
		{Ops: []device.Op{join(a), join(b), hostRead(h), free(a, y)}},
	}}
	fails := func(p Batches) bool {
		f := Run(cfg, p.Run, Steps())
		return f != nil && slices.ContainsFunc(f.Findings, func(f Finding) bool { return f.Rule == WriteAfterRead })
	}
	if !fails(p) {
		t.Fatal("the program has no race")
	}
	var kinds []string
	for _, b := range p.Drop(fails).List {
		for _, op := range b.Ops {
			kinds = append(kinds, op.Kind.String())
		}
	}
	// The copy out of y on b, unordered with the second copy to it on a. All three
	// buffers have to exist. The allocation of y is before both only by the event, which HB2 does not ask for.
	want := "open-stream open-stream pin alloc alloc copy-out copy-within"
	if got := strings.Join(kinds, " "); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestParseSchedule(t *testing.T) {
	for _, s := range []Schedule{SeedSchedule(0), SeedSchedule(1<<64 - 1), Steps(), Steps(0), Steps(0, 0, 0, 1, 12, 12, 0)} {
		got, err := ParseSchedule("\t" + s.String() + "\n")
		if err != nil || got.String() != s.String() || got.Len() != s.Len() {
			t.Errorf("%v: got %v, %v", s, got, err)
		}
	}
	if got := Steps(0, 0, 0, 1, 12, 12, 0).String(); got != "sim schedule v1: 0x3 1 12x2 0" {
		t.Errorf("got %q", got)
	}
	for _, text := range []string{"", "0 1", "sim seed v1:", "sim seed v1: -1", "sim seed v2: 1", "sim schedule v1: x", "sim schedule v1: 0x",
		"sim schedule v1: 0x0", "sim schedule v1: -1", "sim schedule v1: 0x99999999", "sim schedule v1: 1.5"} {
		if s, err := ParseSchedule(text); err == nil {
			t.Errorf("%q: got %v, want an error", text, s)
		}
	}
}

func TestScheduleOfAnotherProgram(t *testing.T) {
	p := programOf(t, func(r *rig, _ device.Stream) []device.Op { return many(2, r.a) })
	f := Run(Config{NoChecker: true}, p, Steps(0, 1))
	if f == nil || !strings.Contains(f.Err.Error(), "step 1 of 2 is of stream 1, which has no operation that may run") {
		t.Errorf("got %v, want an error that names the step", f)
	}
}
