package tests

import (
	"errors"
	"fmt"
	"testing"
	"testing/fstest"

	"offload"
	"offload/device"
	"offload/device/sim"
	"offload/fsm"
	"offload/internal/hostmem"
)

// 4.05 GiB in pieces of 33 MiB: what is pinned is less than five per cent more,
// by few pins (A4-01).
func TestPinnedForPiecesOf33MiB(t *testing.T) {
	const piece, pieces = 33 << 20, 126
	s := newStage(t, offload.Options{Layers: pieces, SlabBytes: 64 << 20, HostBudget: 8 << 30}, sim.Config{Phantom: true})
	var slots []*offload.Slot
	for i := range pieces {
		slots = append(slots, s.forward(i))
		s.push(slots[i], s.Tensor(s.Compute, fmt.Sprint("x", i), piece))
	}
	s.reach(fsm.Offloaded, slots...)
	m := s.engine.Metrics()
	if asked := int64(pieces * piece); float64(m.HostHeld) >= 1.05*float64(asked) || m.HostInUse != asked || m.HostHighWater != asked {
		t.Errorf("%d bytes are pinned and %d in use, at most %d; asked for %d", m.HostHeld, m.HostInUse, m.HostHighWater, asked)
	}
	if m.Pins > pieces/2+1 {
		t.Errorf("%d pins for %d pieces", m.Pins, pieces)
	}
	if got := hostBytes(s.Sim); got != m.HostHeld {
		t.Errorf("%d bytes are pinned on the device, the engine says %d", got, m.HostHeld)
	}
	s.close()
}

// One tensor of 20 GiB goes through slabs of 1 GiB (A4-07).
func TestOneTensorInManySlabs(t *testing.T) {
	const slab, slabs = 1 << 30, 20
	s := newStage(t, offload.Options{SlabBytes: slab, HostBudget: 2 * slabs * slab}, sim.Config{Phantom: true})
	x := s.Tensor(s.Compute, "x", slabs*slab)
	slot := s.forward(0)
	s.push(slot, x)
	s.reach(fsm.Offloading, slot)
	largest := int64(0)
	for _, r := range s.hostRanges() {
		largest = max(largest, r.Bytes)
	}
	s.reach(fsm.Reloading, slot)
	m := s.engine.Metrics()
	if m.CopiesOut != slabs || m.CopiesIn != slabs || m.BytesIn != slabs*slab || m.HostHeld != slabs*slab || largest > slab {
		t.Errorf("%d copies out and %d in, of %d bytes, the largest of %d, with %d pinned; want %d of %d each",
			m.CopiesOut, m.CopiesIn, m.BytesIn, largest, m.HostHeld, slabs, slab)
	}
	s.close()
}

// Whatever the policy, start-offload asks the device to wait for nothing while
// the sizes stay the same: neither the host nor the compute stream is held up by
// want of host memory.
func TestNoPolicyWaitsOnTheHost(t *testing.T) {
	for _, policy := range []offload.HostPolicy{offload.KeepOnDevice, offload.WaitForHost, offload.RefuseOffload} {
		t.Run(policy.String(), func(t *testing.T) {
			opts := offload.Options{HostPolicy: policy, HostBudget: 2 * oneBlock, SlabBytes: oneBlock, Layers: 8}
			eachOrder(t, opts, func(s *stage) {
				slots, saved, xs := s.pushEach(8)
				var away []int
				back := func() {
					i := away[0]
					away = away[1:]
					s.reach(fsm.Reloading, slots[i])
					s.pop(slots[i], s.Compute, saved[i], xs[i])
					s.must(slots[i].Reset())
				}
				waits := func() uint64 {
					st := s.Sim.Stats()
					return st.Count(device.SyncStream) + st.Count(device.SyncEvent)
				}
				before := waits()
				for i, slot := range slots {
					if len(away) == 2 {
						back()
					}
					err := slot.StartOffload()
					switch {
					case policy == offload.RefuseOffload && errors.Is(err, offload.ErrBudget):
						continue // what is being read does not count as free
					case err != nil:
						t.Fatal(err)
					}
					for _, op := range s.last("start-offload") {
						if op.Kind == device.Wait && op.Stream == s.Compute {
							t.Errorf("layer %d: the compute stream waits: %v", i, op)
						}
					}
					s.must(slot.Release())
					away = append(away, i)
				}
				for len(away) > 0 {
					back()
				}
				if got := waits(); got != before {
					t.Errorf("the host waited %d times", got-before)
				}
				m := s.engine.Metrics()
				if want := policy != offload.RefuseOffload; (m.CopiesOut == 8) != want || m.KeptForBudget != 0 {
					t.Errorf("%d copied out and %d kept, want all of them to move: %v", m.CopiesOut, m.KeptForBudget, want)
				}
			})
		})
	}
}

// The budget that an engine takes by itself is bounded by the container: with a
// limit of 3 GiB on a machine of 8, a plan that needs more moves what fits and
// says what it kept (A4-08).
func TestContainerLimit(t *testing.T) {
	const gib = 1 << 30
	limit, source := hostmem.Limit(fstest.MapFS{
		"proc/meminfo":                 {Data: []byte("MemTotal: 8388608 kB\nMemAvailable: 8388608 kB\n")},
		"proc/self/cgroup":             {Data: []byte("0::/job\n")},
		"proc/self/mountinfo":          {Data: []byte("36 35 0:33 / /sys/fs/cgroup rw - cgroup2 cgroup rw\n")},
		"sys/fs/cgroup/job/memory.max": {Data: []byte("3221225472\n")},
	})
	if limit != 3*gib || source != "/sys/fs/cgroup/job/memory.max" {
		t.Fatalf("got %d by %s, want %d by the group of the process", limit, source, 3*gib)
	}
	s := newStage(t, offload.Options{HostBudget: limit, SlabBytes: 64 << 20, Layers: 8, Explain: true}, sim.Config{Phantom: true})
	var slots []*offload.Slot
	for i := range 8 {
		slots = append(slots, s.forward(i))
		s.push(slots[i], s.Tensor(s.Compute, fmt.Sprint("x", i), gib))
	}
	s.reach(fsm.Reloading, slots...)
	s.must(s.pass.End())
	if m := s.engine.Metrics(); m.CopiesIn == 0 || m.BytesOut != 3*gib || m.KeptForBudget != 5 || s.Sim.HostUsage().Peak > limit {
		t.Errorf("%d bytes moved and %d tensors kept, with %d pinned at most; want %d and 5 within %d",
			m.BytesOut, m.KeptForBudget, s.Sim.HostUsage().Peak, 3*gib, limit)
	}
	for i, r := range s.pass.Explain() {
		want := offload.Moves
		if r.Layer >= 3 {
			want = offload.NoHostMemory
		}
		if r.Verdict != want {
			t.Errorf("record %d: got %v, want %v", i, r, want)
		}
	}
	s.close()
}
