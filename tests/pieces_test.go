package tests

import (
	"errors"
	"fmt"
	"testing"

	"offload"
	"offload/device"
	"offload/device/sim"
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

// A2-03: what moves is the union of the bytes of all views that are saved: the
// whole storage if that is half of it or more, and otherwise the pieces.
func TestUnionOfViews(t *testing.T) {
	const k, m = 1 << 10, 1 << 20
	row := func(base device.Tensor, lo, n int64) device.Tensor { return bytesOf(base, lo, n) }
	for _, tc := range []struct {
		name   string
		bytes  int64 // of the storage
		views  func(base device.Tensor) []device.Tensor
		copies int64
		moved  int64
	}{
		{"three interleaved views", 12 * m, func(b device.Tensor) []device.Tensor {
			var views []device.Tensor
			for i := range int64(3) { // row r of view i is row 3r+i of the base
				views = append(views, view(b, device.Uint8, i*m, []int{4, m}, []int{3 * m, 1}))
			}
			return views
		}, 1, 12 * m},
		{"three views with interleaved elements", 12 * k, func(b device.Tensor) []device.Tensor {
			var views []device.Tensor
			for i := range int64(3) {
				views = append(views, view(b, device.Float32, i, []int{k}, []int{3}))
			}
			return views
		}, 1, 12 * k},
		{"a small view of a large base", 100 * m, func(b device.Tensor) []device.Tensor {
			return []device.Tensor{row(b, 30*m, m)}
		}, 1, m},
		{"two disjoint views of 60 and 40 per cent", 10 * m, func(b device.Tensor) []device.Tensor {
			return []device.Tensor{row(b, 0, 6*m), row(b, 6*m, 4*m)}
		}, 1, 10 * m},
		{"two overlapping views", 10 * m, func(b device.Tensor) []device.Tensor {
			return []device.Tensor{row(b, 0, 3*m), row(b, 2*m, 2*m)}
		}, 1, 4 * m},
		{"two overlapping views of half", 10 * m, func(b device.Tensor) []device.Tensor {
			return []device.Tensor{row(b, 0, 3*m), row(b, 2*m, 3*m)}
		}, 1, 10 * m},
		{"a view within a view", 10 * m, func(b device.Tensor) []device.Tensor {
			return []device.Tensor{row(b, m, 3*m), row(b, 2*m, m)}
		}, 1, 3 * m},
		{"two views with a gap", 10 * m, func(b device.Tensor) []device.Tensor {
			return []device.Tensor{row(b, 0, m), row(b, 9*m, m)}
		}, 2, 2 * m},
		{"one byte less than half", 2 * k, func(b device.Tensor) []device.Tensor {
			return []device.Tensor{row(b, 1, k-1)}
		}, 1, k - 1},
		{"half", 2 * k, func(b device.Tensor) []device.Tensor { return []device.Tensor{row(b, 1, k)} }, 1, 2 * k},
		{"the base and a view of it", 8 * k, func(b device.Tensor) []device.Tensor {
			return []device.Tensor{b, row(b, k, k)}
		}, 1, 8 * k},
		{"columns, packed", 64 * k, func(b device.Tensor) []device.Tensor {
			return []device.Tensor{view(b, device.Uint8, 8, []int{k, 16}, []int{64, 1})}
		}, 1, 16 * k},
		{"more bytes in columns than the staging buffer has", 24 * m, func(b device.Tensor) []device.Tensor {
			return []device.Tensor{view(b, device.Uint8, 0, []int{256, 20 * k}, []int{96 * k, 1})}
		}, 2, 256 * 20 * k},
		{"long pieces are not packed", 12 * m, func(b device.Tensor) []device.Tensor {
			return []device.Tensor{view(b, device.Uint8, 0, []int{8, 512 * k}, []int{1536 * k, 1})}
		}, 8, 4 * m},
		{"more pieces than are worth it", 128 * k, func(b device.Tensor) []device.Tensor {
			return []device.Tensor{view(b, device.Uint8, 0, []int{8 * k, 2}, []int{16, 1})}
		}, 1, 128 * k},
	} {
		t.Run(tc.name, func(t *testing.T) {
			scenario := func(s *stage) {
				base := s.Tensor(s.Compute, "base", tc.bytes)
				views := tc.views(base)
				slot := s.forward(0)
				saved := s.push(slot, views...)
				s.reach(fsm.Reloading, slot)
				s.moved(tc.copies, tc.moved)
				if got := s.engine.Metrics().BytesIn; got != tc.moved {
					s.t.Errorf("%d bytes came back, want %d", got, tc.moved)
				}
				s.pop(slot, s.Compute, saved, views...)
			}
			if tc.bytes < 100*k {
				eachOrder(t, offload.Options{SlabBytes: 256 << 10}, scenario)
				return
			}
			if testing.Short() {
				t.Skip("it is large; the others show the rule")
			}
			s := newStage(t, offload.Options{SlabBytes: 16 << 20}, sim.Config{Seed: 1})
			scenario(s)
			s.close()
		})
	}
}

// A2-04: shapes, strides, offsets and types come back as they were, and so does
// what shares memory with what.
func TestLayoutsComeBack(t *testing.T) {
	const n, c, h, w = 2, 3, 4, 5
	for _, tc := range []struct {
		name  string
		view  func(base device.Tensor) device.Tensor
		moved int64
	}{
		{"channels last", func(b device.Tensor) device.Tensor {
			return view(b, device.Float32, 0, []int{n, c, h, w}, []int{c * h * w, 1, c * w, c})
		}, 4096},
		{"expanded: the small base moves, not the expanded size", func(b device.Tensor) device.Tensor {
			return view(b, device.Float32, 16, []int{1000, 64}, []int{0, 1})
		}, 256},
		{"reversed", func(b device.Tensor) device.Tensor {
			return view(b, device.Int32, 127, []int{64}, []int{-1})
		}, 256},
		{"reversed in one dimension and offset", func(b device.Tensor) device.Tensor {
			return view(b, device.BFloat16, 100, []int{4, 10}, []int{-20, 2})
		}, 4 * 10 * 2},
		{"overlapping windows", func(b device.Tensor) device.Tensor {
			return view(b, device.Float32, 8, []int{10, 16}, []int{4, 1})
		}, (9*4 + 16) * 4},
		{"a diagonal", func(b device.Tensor) device.Tensor {
			return view(b, device.Float64, 0, []int{16}, []int{17})
		}, 16 * 8},
		{"a dimension of one with any stride", func(b device.Tensor) device.Tensor {
			return view(b, device.Uint8, 5, []int{1, 100}, []int{-77, 1})
		}, 100},
		{"a number", func(b device.Tensor) device.Tensor { return view(b, device.Float64, 3, nil, nil) }, 8},
	} {
		t.Run(tc.name, func(t *testing.T) {
			eachOrder(t, offload.Options{}, func(s *stage) {
				bytes := int64(4096)
				if tc.moved == bytes {
					bytes = n * c * h * w * 4
				}
				base := s.Tensor(s.Compute, "base", bytes)
				x := tc.view(base)
				moved := min(tc.moved, bytes)
				slot := s.forward(0)
				saved := s.push(slot, x)
				s.reach(fsm.Reloading, slot)
				if m := s.engine.Metrics(); m.BytesOut != moved || m.BytesIn != moved {
					s.t.Errorf("%d bytes left and %d came back, want %d", m.BytesOut, m.BytesIn, moved)
				}
				s.pop(slot, s.Compute, saved, x)
			})
		})
	}
}

// Views of one storage that are pushed to several layers at several times: what
// is on the host already is not copied again, and comes back with whichever
// layer comes first.
func TestPiecesOfSeveralLayers(t *testing.T) {
	const k = 1 << 10
	eachOrder(t, offload.Options{}, func(s *stage) {
		base := s.Tensor(s.Compute, "base", 64*k)
		first, second, third := bytesOf(base, 0, 8*k), bytesOf(base, 4*k, 8*k), bytesOf(base, 40*k, 20*k)
		s0, s1, s2 := s.forward(0), s.forward(1), s.forward(2)
		v0 := s.push(s0, first)
		s.must(s0.StartOffload())
		s.moved(1, 8*k)
		v1 := s.push(s1, second)
		s.must(s1.StartOffload()) // 4 KiB of it are there
		s.moved(2, 12*k)
		v2 := s.push(s2, third)
		s.must(s2.StartOffload()) // half of the storage now: all that is left
		s.moved(3, 64*k)
		s.reach(fsm.Offloaded, s0, s1)
		s.use("while the third layer has it", 64*k)
		s.reach(fsm.Offloaded, s2)
		s.use("with every layer away", 0)
		s.must(s1.Reload())
		s.pop(s1, s.Compute, v1, second)
		s.must(s1.Reset())
		s.use("with no layer that has come back", 0)
		s.reach(fsm.Reloading, s2, s0)
		ts := append(s.pop(s2, s.Compute, v2, third), s.pop(s0, s.Compute, v0, first)...)
		if a, b := ts[0].Range().Buffer, ts[1].Range().Buffer; a != b {
			s.t.Errorf("views of one storage came back in %v and %v", a, b)
		}
	})
}

// An offload of pieces that is given up, and one that begins again.
func TestPiecesRevived(t *testing.T) {
	eachOrder(t, offload.Options{}, func(s *stage) {
		base := s.Tensor(s.Compute, "base", 64<<10)
		x := view(base, device.Uint8, 3, []int{100, 16}, []int{512, 1})
		slot := s.forward(0)
		saved := s.push(slot, x)
		for round := range int64(3) {
			s.reach(fsm.Offloading, slot)
			s.moved(round+1, (round+1)*1600)
			s.must(slot.Revive())
			s.pop(slot, s.Compute, saved, x)
		}
		s.reach(fsm.Reloading, slot)
		s.moved(4, 4*1600)
		s.pop(slot, s.Compute, saved, x)
	})
}

// Retained host memory takes pieces and bundles like anything else: pinned once,
// used in every pass.
func TestPiecesInRetainedHostMemory(t *testing.T) {
	eachOrder(t, offload.Options{RetainHost: true, MinElements: 1000, CoalesceBytes: 100}, func(s *stage) {
		var pins int64
		for pass := range 5 {
			base := s.Tensor(s.Compute, fmt.Sprint("base ", pass), 64<<10)
			x := view(base, device.Uint8, 3, []int{100, 16}, []int{512, 1})
			list := append(s.tiny(3, 200), x)
			slot := s.forward(0)
			saved := s.push(slot, list...)
			s.reach(fsm.Reloading, slot)
			s.pop(slot, s.Compute, saved, list...)
			s.must(s.pass.End())
			m := s.engine.Metrics()
			if pass == 0 {
				pins = m.Pins
			}
			if m.Pins != pins || pins == 0 {
				s.t.Errorf("pass %d: %d pins, want %d as in the first", pass, m.Pins, pins)
			}
			s.begin()
		}
		if err := s.engine.Trim(); err != nil {
			s.t.Error(err)
		}
	})
}

// A tensor that is changed after its push is not packed either.
func TestChangedPieces(t *testing.T) {
	eachOrder(t, offload.Options{}, func(s *stage) {
		base := s.Tensor(s.Compute, "base", 64<<10)
		x := view(base, device.Uint8, 3, []int{100, 16}, []int{512, 1})
		slot := s.forward(0)
		saved := s.push(slot, x)
		base.Storage.Touch()
		before := s.Sim.Stats()
		if err := slot.StartOffload(); !errors.Is(err, offload.ErrChanged) {
			s.t.Errorf("got %v, want ErrChanged", err)
		}
		if got := s.Sim.Stats(); got != before || slot.State() != fsm.Resident {
			s.t.Errorf("the slot is %v and the device was asked for something:\ngot  %v\nwant %v", slot.State(), got, before)
		}
		s.pop(slot, s.Compute, saved, x)
	})
}
