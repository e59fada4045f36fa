package tests

import (
	"testing"

	"offload"
	"offload/fsm"
)

// A tensor that stays has its storage stay, although another view of it moves:
// what was not copied must not be freed.
func TestOneViewStaysAnotherMoves(t *testing.T) {
	for _, tc := range []struct {
		name string
		opts offload.Options
		keep bool
	}{
		{"opted out", offload.Options{}, true},
		{"too small", offload.Options{MinElements: 512}, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			eachOrder(t, tc.opts, func(s *stage) {
				base := s.Tensor(s.Compute, "base", 8192)
				moves, other := bytesOf(base, 0, 1024), bytesOf(base, 4096, 256)
				other.Keep = tc.keep
				slot := s.forward(0)
				saved := s.push(slot, moves, other)
				s.reach(fsm.Reloading, slot)
				s.pop(slot, s.Compute, saved, moves, other)
			})
		})
	}
}

// The same, with the tensor that stays saved in another layer.
func TestOneViewStaysInAnotherLayer(t *testing.T) {
	eachOrder(t, offload.Options{MinElements: 512}, func(s *stage) {
		base, x := s.Tensor(s.Compute, "base", 8192), s.Tensor(s.Compute, "x", 1024)
		large, small := bytesOf(base, 0, 1024), bytesOf(base, 4096, 256)
		s0, s1 := s.forward(0), s.forward(1)
		v0, v1 := s.push(s0, large), s.push(s1, x, small)
		s.reach(fsm.Reloading, s0, s1)
		s.pop(s1, s.Compute, v1, x, small)
		s.pop(s0, s.Compute, v0, large)
	})
}

// What found no host memory stays, although other bytes of its storage have been copied.
func TestPiecesForWhichThereIsNoHostMemory(t *testing.T) {
	eachOrder(t, offload.Options{HostBudget: 64 << 10}, func(s *stage) {
		base, x := s.Tensor(s.Compute, "base", 256<<10), s.Tensor(s.Compute, "x", 48<<10)
		left, right := bytesOf(base, 0, 8<<10), bytesOf(base, 128<<10, 32<<10)
		s0, s1, s2 := s.forward(0), s.forward(1), s.forward(2)
		v0, v2 := s.push(s0, left), s.push(s2, x)
		s.reach(fsm.Offloading, s0, s2)
		v1 := s.push(s1, right)
		s.reach(fsm.Offloaded, s0, s1, s2)
		s.use("with one piece that is not on the host", 256<<10)
		s.reach(fsm.Reloading, s0, s1, s2)
		s.pop(s2, s.Compute, v2, x)
		s.pop(s1, s.Compute, v1, right)
		s.pop(s0, s.Compute, v0, left)
	})
}

// A tensor that was kept for want of host memory is needed on the device by the
// slot that could not move it, whoever else lets go of it.
func TestKeptForBudgetAndShared(t *testing.T) {
	eachOrder(t, offload.Options{HostBudget: 4 << 10}, func(s *stage) {
		x := s.Tensor(s.Compute, "x", 64<<10)
		s0, s1 := s.forward(0), s.forward(1)
		v0, _ := s.push(s0, x), s.push(s1, x)
		s.reach(fsm.Offloaded, s0)
		s.must(s1.Reset())
		s.must(s0.Reload())
		s.pop(s0, s.Compute, v0, x)
	})
}
