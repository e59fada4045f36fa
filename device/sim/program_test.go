package sim

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"offload/device"
)

// A program is a random list of operations on a few streams and buffers, with a
// model of its order beside it: for each operation the set of operations that
// happen before it, by nothing but the definition. The device is compared with
// the model; they share no code.
type program struct {
	ops []pop
}

// A pop is one operation of a program. Streams, buffers and events are numbers.
type pop struct {
	kind   device.Kind
	stream int
	event  int
	value  byte
	reads  []piece // of a Launch
	writes []piece
	buffer int // of an Alloc or a Free
}

type piece struct{ buffer, lo, hi int }

const (
	programStreams = 3
	bufferBytes    = 16
)

// A bitset is a set of operations of a program.
type bitset [3]uint64

func (b *bitset) has(i int) bool { return b[i/64]>>(i%64)&1 == 1 }
func (b *bitset) add(i int)      { b[i/64] |= 1 << (i % 64) }
func (b *bitset) addAll(o bitset) {
	for i, w := range o {
		b[i] |= w
	}
}

// before returns for every operation which earlier ones happen before it.
func (p *program) before() []bitset {
	b := make([]bitset, len(p.ops))
	recorded := make(map[int]int) // event -> operation
	last := make(map[int]int)     // stream -> operation
	var host bitset
	for i, op := range p.ops {
		b[i].addAll(host)
		after := func(j int) {
			b[i].add(j)
			b[i].addAll(b[j])
		}
		if j, ok := last[op.stream]; ok {
			after(j)
		}
		switch op.kind {
		case device.Record:
			recorded[op.event] = i
		case device.Wait:
			after(recorded[op.event])
		case device.SyncStream:
			host.addAll(b[i])
		}
		last[op.stream] = i
	}
	return b
}

// clash reports whether the operations need an order.
func (o pop) clash(q pop) bool {
	uses := func(a pop, buffer int) bool {
		for _, x := range append(append([]piece(nil), a.reads...), a.writes...) {
			if x.buffer == buffer {
				return true
			}
		}
		return (a.kind == device.Alloc || a.kind == device.Free) && a.buffer == buffer
	}
	whole := func(a pop) bool { return a.kind == device.Alloc || a.kind == device.Free }
	if whole(o) && uses(q, o.buffer) || whole(q) && uses(o, q.buffer) {
		return true
	}
	overlap := func(a, b []piece) bool {
		for _, x := range a {
			for _, y := range b {
				if x.buffer == y.buffer && x.lo < y.hi && y.lo < x.hi {
					return true
				}
			}
		}
		return false
	}
	return overlap(o.writes, q.writes) || overlap(o.writes, q.reads) || overlap(o.reads, q.writes)
}

// unordered returns two operations that need an order and have none.
func (p *program) unordered() (string, bool) {
	b := p.before()
	for i, o := range p.ops {
		for j, q := range p.ops[:i] {
			if o.clash(q) && !b[i].has(j) {
				return fmt.Sprintf("operations %d and %d", j, i), true
			}
		}
	}
	return "", false
}

// randomProgram makes a program in which every pair of operations that needs an
// order has one, by a record and a wait where nothing else gives it.
func randomProgram(r *rand.Rand) *program {
	p := &program{}
	events := 0
	add := func(op pop) {
		for {
			p.ops = append(p.ops, op)
			b, i := p.before(), len(p.ops)-1
			j := i - 1
			for j >= 0 && (b[i].has(j) || !op.clash(p.ops[j])) {
				j--
			}
			if j < 0 {
				return
			}
			p.ops = append(p.ops[:i], pop{kind: device.Record, stream: p.ops[j].stream, event: events},
				pop{kind: device.Wait, stream: op.stream, event: events})
			events++
		}
	}
	live := []int{}
	for buffer := 0; len(p.ops) < 60; {
		s := r.IntN(programStreams)
		switch n := r.IntN(12); {
		case len(live) < 2 || n == 0 && len(live) < 4:
			add(pop{kind: device.Alloc, stream: s, buffer: buffer})
			add(pop{kind: device.Launch, stream: r.IntN(programStreams), value: byte(buffer), writes: []piece{{buffer, 0, bufferBytes}}})
			live = append(live, buffer)
			buffer++
		case n == 1:
			k := r.IntN(len(live))
			add(pop{kind: device.Free, stream: s, buffer: live[k]})
			live = append(live[:k], live[k+1:]...)
		case n == 2:
			add(pop{kind: device.SyncStream, stream: s})
		default:
			random := func() piece {
				lo := r.IntN(bufferBytes)
				return piece{live[r.IntN(len(live))], lo, lo + 1 + r.IntN(bufferBytes-lo)}
			}
			op := pop{kind: device.Launch, stream: s, value: byte(r.Int()), writes: []piece{random()}}
			for range r.IntN(3) {
				op.reads = append(op.reads, random())
			}
			add(op)
		}
	}
	for _, b := range live {
		add(pop{kind: device.Free, stream: r.IntN(programStreams), buffer: b})
	}
	return p
}

// mix is the kernel of random programs: what is written depends on all that is read.
func mix(value byte, reads, writes [][]byte) {
	h := value
	for _, r := range reads {
		for _, x := range r {
			h = h*31 + x
		}
	}
	for _, w := range writes {
		for i := range w {
			w[i] = h + byte(i)
		}
	}
}

// expected runs the program in the order of submission on plain memory and
// returns what each launch read and wrote.
func (p *program) expected() string {
	var log strings.Builder
	mem := make(map[int][]byte)
	for i, op := range p.ops {
		switch op.kind {
		case device.Alloc:
			mem[op.buffer] = make([]byte, bufferBytes)
		case device.Launch:
			view := func(ps []piece) (v [][]byte) {
				for _, x := range ps {
					v = append(v, mem[x.buffer][x.lo:x.hi])
				}
				return v
			}
			mix(op.value, view(op.reads), view(op.writes))
			fmt.Fprintf(&log, "%d: %x\n", i, view(op.writes))
		}
	}
	return log.String()
}

// run submits the program in batches of random size and returns what each launch
// wrote, by position in the program, and the device.
func (p *program) run(t *testing.T, cfg Config) (string, *Device) {
	t.Helper()
	d := New(cfg)
	wrote := make([]string, len(p.ops))
	d.Register("mix", func(c *Call) error {
		var reads, writes [][]byte
		for _, r := range c.reads {
			reads = append(reads, bytes.Clone(c.Read(r.Range)))
		}
		for _, w := range c.writes {
			writes = append(writes, c.Write(w.Range))
		}
		mix(byte(c.Arg(0).Int), reads, writes)
		wrote[c.Arg(1).Int] = fmt.Sprintf("%d: %x\n", c.Arg(1).Int, writes)
		return nil
	})
	ids := device.NewIDs(d)
	var streams []device.Stream
	b := &device.Batch{}
	for range programStreams {
		s := ids.Stream()
		streams = append(streams, s)
		b.Ops = append(b.Ops, device.Op{Kind: device.OpenStream, Stream: s})
	}
	events := make(map[int]device.Event)
	buffers := make(map[int]device.Buffer)
	r := rand.New(rand.NewPCG(cfg.Seed, 1))
	submit := func() {
		if err := d.Submit(b); err != nil {
			t.Fatal(err)
		}
		b.Reset(device.Origin{})
	}
	for i, op := range p.ops {
		o := device.Op{Kind: op.kind, Stream: streams[op.stream]}
		switch op.kind {
		case device.Record:
			events[op.event] = ids.Event()
			o.Event = events[op.event]
		case device.Wait:
			o.Event = events[op.event]
		case device.Alloc:
			buffers[op.buffer] = ids.Buffer(device.OnDevice)
			o.Dst = device.Range{Buffer: buffers[op.buffer], Bytes: bufferBytes}
		case device.Free:
			o.Dst = device.Range{Buffer: buffers[op.buffer], Bytes: bufferBytes}
			ids.PutBuffer(buffers[op.buffer])
		case device.Launch:
			ranges := func(ps []piece) (l []device.Range) {
				for _, x := range ps {
					l = append(l, device.Range{Buffer: buffers[x.buffer], Offset: int64(x.lo), Bytes: int64(x.hi - x.lo)})
				}
				return l
			}
			o.Kernel = &device.Kernel{Name: "mix", Args: []device.Arg{{Int: int64(op.value)}, {Int: int64(i)}},
				Reads: ranges(op.reads), Writes: ranges(op.writes)}
		}
		b.Ops = append(b.Ops, o)
		if r.IntN(4) == 0 {
			submit()
		}
	}
	for _, s := range streams {
		b.Ops = append(b.Ops, device.Op{Kind: device.SyncStream, Stream: s}, device.Op{Kind: device.CloseStream, Stream: s})
	}
	for _, e := range events {
		b.Ops = append(b.Ops, device.Op{Kind: device.Retire, Event: e})
	}
	submit()
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	return strings.Join(wrote, ""), d
}

// without returns the program less one operation.
func (p *program) without(i int) *program {
	return &program{append(append([]pop(nil), p.ops[:i]...), p.ops[i+1:]...)}
}

// TestRandomPrograms: a program that is ordered well gives the bytes of its
// order of submission under every seed, and no finding. If one wait is dropped,
// there is a finding exactly if the model says that an order is missing now,
// and without a finding the bytes are still right.
func TestRandomPrograms(t *testing.T) {
	programs := 60
	if testing.Short() {
		programs = 10
	}
	needed, needless, wrong := 0, 0, 0
	for n := range programs {
		p := randomProgram(rand.New(rand.NewPCG(uint64(n), 0)))
		if pair, found := p.unordered(); found {
			t.Fatalf("program %d: the generator left %s without order", n, pair)
		}
		want := p.expected()
		for seed := range uint64(8) {
			got, d := p.run(t, Config{Seed: seed})
			if f := d.Findings(); len(f) > 0 {
				t.Fatalf("program %d, seed %d: got findings %v, want none", n, seed, f)
			}
			if got != want {
				t.Fatalf("program %d, seed %d: got\n%s\nwant\n%s", n, seed, got, want)
			}
		}
		for i, op := range p.ops {
			if op.kind != device.Wait {
				continue
			}
			q := p.without(i)
			pair, missing := q.unordered()
			want := q.expected()
			for seed := range uint64(3) {
				got, d := q.run(t, Config{Seed: seed})
				if found := len(d.Findings()) > 0; found != missing {
					t.Fatalf("program %d without operation %d, seed %d: got findings %v, want some: %v (%s)", n, i, seed, d.Findings(), missing, pair)
				}
				if got != want && !missing {
					t.Fatalf("program %d without operation %d, seed %d: wrong bytes without a finding", n, i, seed)
				}
				if got != want {
					wrong++
				}
			}
			if missing {
				needed++
			} else {
				needless++
			}
		}
	}
	t.Logf("waits dropped: %d needed, %d needless; wrong bytes in %d runs", needed, needless, wrong)
	if needed == 0 || wrong == 0 {
		t.Errorf("got %d needed waits and %d runs with wrong bytes, want some of both", needed, wrong)
	}
}

// TestSameSeedSameRun: findings, bytes and counts depend on the calls and the seed alone.
func TestSameSeedSameRun(t *testing.T) {
	p := randomProgram(rand.New(rand.NewPCG(3, 0)))
	for i := len(p.ops) - 1; i >= 0; i-- {
		if p.ops[i].kind == device.Wait {
			p = p.without(i)
		}
	}
	runs := make(map[string]bool)
	for seed := range uint64(10) {
		var first string
		for again := range 3 {
			wrote, d := p.run(t, Config{ID: 9, Seed: seed})
			text := fmt.Sprintf("%s%v%v", wrote, d.Findings(), d.Stats())
			if again == 0 {
				first = text
				runs[wrote] = true
			} else if text != first {
				t.Fatalf("seed %d: got\n%s\nafter\n%s", seed, text, first)
			}
		}
	}
	if len(runs) < 2 {
		t.Errorf("got the same bytes under every seed, want races to show")
	}
}
