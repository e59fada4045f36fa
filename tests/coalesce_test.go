package tests

import (
	"context"
	"fmt"
	"testing"

	"offload"
	"offload/device"
	"offload/device/null"
	"offload/device/sim"
	"offload/fsm"
	"offload/schedule"
)

// stagingBuffer is the device memory that an engine keeps for each direction in
// which it has packed anything.
const stagingBuffer = 4 << 20

// tiny makes n tensors of the given size in the order of the compute stream.
func (s *stage) tiny(n int, bytes int64) []device.Tensor {
	s.t.Helper()
	ts := make([]device.Tensor, n)
	for i := range ts {
		ts[i] = s.Tensor(s.Compute, fmt.Sprint("tiny ", i), bytes)
	}
	return ts
}

// A2-10: 10,000 tensors of 2 KiB in one layer. What moves is 20 MB by as many
// copies as the staging buffer of 4 MiB asks for, with one event each way.
func TestTenThousandTinyTensors(t *testing.T) {
	const n, bytes = 10_000, 2 << 10
	s := newStage(t, offload.Options{MinElements: 256 << 10, CoalesceBytes: 1 << 20, SlabBytes: 64 << 20}, sim.Config{})
	defer s.close()
	ts := s.tiny(n, bytes)
	slot := s.forward(0)
	saved := s.push(slot, ts...)
	s.must(slot.StartOffload())
	s.moved(5, n*bytes)
	if got := len(s.recorded("start-offload")); got != 1 {
		s.t.Errorf("%d events for the copies out, want 1", got)
	}
	s.must(slot.Release())
	s.use("with the tensors away", stagingBuffer)
	s.must(slot.Reload())
	if m := s.engine.Metrics(); m.CopiesIn != 5 || m.BytesIn != n*bytes {
		s.t.Errorf("%d bytes came back by %d copies, want %d by 5", m.BytesIn, m.CopiesIn, n*bytes)
	}
	s.pop(slot, s.Compute, saved, ts...)
	if got := len(s.waits("pop", device.AfterCopyIn)); got != 1 {
		s.t.Errorf("%d waits for %d tensors, want 1", got, n)
	}
}

// The memory of small tensors that never moved may be given back a little later,
// with the next batch, so that they cost the device nothing; but no more than
// 4 MiB of it, however many there are in one slot.
func TestLittleIsGivenBackLate(t *testing.T) {
	s := newStage(t, offload.Options{MinElements: 4 << 10}, sim.Config{})
	defer s.close()
	slot := s.forward(0)
	s.push(slot, s.tiny(3000, 2<<10)...)
	s.must(slot.Reset())
	s.use("after the reset", 4<<20)
	s.must(s.pass.End())
	s.use("after the pass", 0)
}

// Small tensors stay when together they are not worth a copy, and without the option.
func TestSmallTensorsTogether(t *testing.T) {
	for _, tc := range []struct {
		name         string
		coalesce     int64
		tensors      int
		copies, want int64
	}{
		{"the option is off", 0, 10, 0, 0},
		{"one below what makes it worth a copy", 1000, 9, 0, 0},
		{"exactly what makes it worth a copy", 1000, 10, 1, 1000},
		{"more", 1000, 11, 1, 1100},
	} {
		t.Run(tc.name, func(t *testing.T) {
			eachOrder(t, offload.Options{MinElements: 101, CoalesceBytes: tc.coalesce}, func(s *stage) {
				ts := s.tiny(tc.tensors, 100)
				slot := s.forward(0)
				saved := s.push(slot, ts...)
				s.reach(fsm.Offloaded, slot)
				s.moved(tc.copies, tc.want)
				s.reach(fsm.Reloading, slot)
				s.pop(slot, s.Compute, saved, ts...)
			})
		})
	}
}

// The tensors of a bundle go their own ways: one is shared with another layer,
// which has it come back alone, one is retained, one is a view, one is large.
func TestMembersOfABundleAreSharedWithOthers(t *testing.T) {
	eachOrder(t, offload.Options{MinElements: 1024, CoalesceBytes: 256}, func(s *stage) {
		ts := s.tiny(6, 256)
		large := s.Tensor(s.Compute, "large", 4096)
		ts[2] = bytesOf(ts[2], 0, 64) // a quarter of its storage
		s.Keep(ts[4])
		s0, s1 := s.forward(0), s.forward(1)
		v0 := s.push(s0, append(ts, large)...)
		v1 := s.push(s1, ts[1], ts[3])
		s.reach(fsm.Offloaded, s0, s1)
		s.moved(2, 4096+5*256+64)
		s.must(s1.Reload())
		s.pop(s1, s.Compute, v1, ts[1], ts[3])
		s.must(s1.Reset())
		s.must(s0.Reload())
		s.pop(s0, s.Compute, v0, append(ts, large)...)
		s.must(s.pass.End())
		s.Drop(s.Compute, ts[4])
	})
}

// A bundle for which there is no host memory stays as a whole, and the large
// tensor of the slot moves.
func TestBundleWithoutHostMemory(t *testing.T) {
	eachOrder(t, offload.Options{MinElements: 1024, CoalesceBytes: 1, HostBudget: 4096, Explain: true}, func(s *stage) {
		small, large := s.Tensor(s.Compute, "small", 1000), s.Tensor(s.Compute, "large", 4096)
		slot := s.forward(0)
		saved := s.push(slot, small, large)
		s.reach(fsm.Reloading, slot)
		s.pop(slot, s.Compute, saved, small, large)
		s.must(s.pass.End())
		s.explained("0.0 kept 0/1000: no host memory within the budget", "0.1 moved 4096/4096")
		if m := s.engine.Metrics(); m.KeptForBudget != 1 {
			s.t.Errorf("%d tensors or bundles found no memory, want 1", m.KeptForBudget)
		}
	})
}

// Where there is no memory for the staging buffers, pieces are copied one by one.
func TestPiecesWithoutStagingBuffer(t *testing.T) {
	s := newStage(t, offload.Options{MinElements: 1024, CoalesceBytes: 1}, sim.Config{MemoryLimit: 1 << 20})
	defer s.close()
	ts := s.tiny(20, 512)
	columns := s.Tensor(s.Compute, "matrix", 16<<10)
	ts = append(ts, view(columns, device.Uint8, 3, []int{128, 16}, []int{128, 1}))
	slot := s.forward(0)
	saved := s.push(slot, ts...)
	s.reach(fsm.Offloaded, slot)
	s.moved(20+128, 20*512+128*16)
	s.use("with everything away", 0)
	s.reach(fsm.Reloading, slot)
	s.pop(slot, s.Compute, saved, ts...)
}

// BenchmarkTinyTensors is the host's time for one cycle of a layer with 10,000
// tensors of 2 KiB: per tensor, with one call for all of them.
func BenchmarkTinyTensors(b *testing.B) {
	for _, coalesce := range []int64{0, 1 << 20} {
		b.Run(fmt.Sprintf("coalesce=%d", coalesce), func(b *testing.B) {
			const n, bytes = 10_000, 2 << 10
			plan, err := schedule.Manual(1)
			if err != nil {
				b.Fatal(err)
			}
			dev := null.New()
			e, err := offload.Open(dev, offload.Options{Plan: plan, CoalesceBytes: coalesce})
			if err != nil {
				b.Fatal(err)
			}
			defer e.Close()
			ids := device.NewIDs(dev)
			compute := ids.Stream()
			ts := make([]device.Tensor, n)
			saved := make([]offload.Saved, 0, n)
			for b.Loop() {
				b.StopTimer()
				for i := range ts {
					ts[i] = device.Tensor{Storage: ids.NewStorage("", device.Activation, bytes, compute), DType: device.Uint8, Shape: []int{bytes}}
				}
				b.StartTimer()
				p, err := e.Begin(context.Background(), offload.Train, compute)
				if err != nil {
					b.Fatal(err)
				}
				slot, err := p.Forward(0)
				if err == nil {
					saved, err = slot.AppendPush(saved[:0], ts...)
				}
				for _, step := range []func() error{slot.StartOffload, slot.Release, slot.Reload} {
					if err == nil {
						err = step()
					}
				}
				if err == nil {
					_, err = slot.Pop(saved...)
				}
				if err == nil {
					err = p.End()
				}
				if err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/n, "ns/tensor")
		})
	}
}
