package main

import (
	"sync"
	"time"

	"offload/device"
)

// A meter is a device that times the copies between device and host which go
// through it while it is on: it puts a launch of the mark kernel before the first
// and behind the last of copies that follow each other in a batch.
type meter struct {
	device.Device
	on bool // changed between steps only

	mu     sync.Mutex
	next   int // number of the next mark
	runs   []copies
	bytes  [2]int64 // out, in
	took   [2]time.Duration
	batch  device.Batch
	marker []*device.Kernel // one for each mark
}

// markKernel is the name of the kernel that notes the time, under the number
// that is its argument.
const markKernel = "bench/mark"

// copies are a run of copies between two marks.
type copies struct {
	in       int // 0: out; 1: in
	from, to int
	bytes    int64
}

func (m *meter) Submit(b *device.Batch) error {
	if !m.on {
		return m.Device.Submit(b)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.batch.Reset(b.Origin)
	for i := 0; i < len(b.Ops); {
		n := alike(b.Ops[i:])
		if n == 0 {
			m.batch.Ops = append(m.batch.Ops, b.Ops[i])
			i++
			continue
		}
		run := copies{from: m.next, to: m.next + 1}
		if b.Ops[i].Kind == device.CopyIn {
			run.in = 1
		}
		m.next += 2
		m.mark(b.Ops[i].Stream, run.from)
		for _, op := range b.Ops[i : i+n] {
			run.bytes += op.Src.Bytes
		}
		m.batch.Ops = append(m.batch.Ops, b.Ops[i:i+n]...)
		m.mark(b.Ops[i].Stream, run.to)
		m.runs = append(m.runs, run)
		i += n
	}
	return m.Device.Submit(&m.batch)
}

// alike returns the number of copies in one direction and on one stream that ops
// begins with.
func alike(ops []device.Op) int {
	n := 0
	for n < len(ops) && (ops[n].Kind == device.CopyOut || ops[n].Kind == device.CopyIn) &&
		ops[n].Kind == ops[0].Kind && ops[n].Stream == ops[0].Stream {
		n++
	}
	return n
}

func (m *meter) mark(stream device.Stream, number int) {
	for number >= markCopies+len(m.marker) {
		m.marker = append(m.marker, &device.Kernel{Name: markKernel, Args: []device.Arg{{Int: int64(markCopies + len(m.marker))}}})
	}
	m.batch.Ops = append(m.batch.Ops, device.Op{Kind: device.Launch, Stream: stream, Kernel: m.marker[number-markCopies]})
}

// settle adds up the copies of a step that has ended.
func (m *meter) settle(c clock) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, r := range m.runs {
		took, err := c.between(r.from, r.to)
		if err != nil {
			return err
		}
		m.bytes[r.in] += r.bytes
		m.took[r.in] += took
	}
	m.runs, m.next = m.runs[:0], markCopies
	return nil
}

// rates returns GB/s out and in since the last call; zero if nothing was copied.
func (m *meter) rates() (out, in float64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	rate := func(i int) float64 {
		if m.took[i] <= 0 {
			return 0
		}
		return float64(m.bytes[i]) / m.took[i].Seconds() / 1e9
	}
	out, in = rate(0), rate(1)
	m.bytes, m.took = [2]int64{}, [2]time.Duration{}
	return out, in
}
