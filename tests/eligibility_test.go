package tests

import (
	"fmt"
	"reflect"
	"testing"

	"offload"
	"offload/device"
	"offload/fsm"
)

// L03, W14: a tensor moves if it has the least number of elements and the least
// number of bytes. What counts is the tensor that is handed in, and of an
// expanded one the elements that there are.
func TestThresholds(t *testing.T) {
	const limit = 262144 // the default
	for _, tc := range []struct {
		name     string
		elements int64 // MinElements; zero: the default
		bytes    int64
		storage  int64
		x        func(base device.Tensor) device.Tensor
		moves    bool
	}{
		{"one element below the default", theDefault, 0, limit - 1, whole, false},
		{"the default", theDefault, 0, limit, whole, true},
		{"one element above the default", theDefault, 0, limit + 1, whole, true},
		{"elements of four bytes, one too few", theDefault, 0, 4 * (limit - 1), float32s(limit - 1), false},
		{"elements of four bytes, as many as it takes", theDefault, 0, 4 * limit, float32s(limit), true},
		{"bytes: one too few", 1, 1000, 999, whole, false},
		{"bytes: as many as it takes", 1, 1000, 1000, whole, true},
		{"both: bytes and too few elements", 251, 1000, 1000, float32s(250), false},
		{"both: elements and too few bytes", 250, 1001, 1000, float32s(250), false},
		{"both", 250, 1000, 1000, float32s(250), true},
		{"a small view of a large storage", theDefault, 0, limit, func(b device.Tensor) device.Tensor { return bytesOf(b, 0, limit-1) }, false},
		{"an expanded tensor with too few elements in memory", 1000, 0, 1000, func(b device.Tensor) device.Tensor {
			return view(b, device.Uint8, 0, []int{100, 999}, []int{0, 1})
		}, false},
		{"an expanded tensor with enough", 999, 0, 1000, func(b device.Tensor) device.Tensor {
			return view(b, device.Uint8, 0, []int{100, 999}, []int{0, 1})
		}, true},
		{"a negative stride", 1000, 0, 1000, func(b device.Tensor) device.Tensor {
			return view(b, device.Uint8, 999, []int{1000}, []int{-1})
		}, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			eachOrder(t, offload.Options{MinElements: tc.elements, MinBytes: tc.bytes}, func(s *stage) {
				x := tc.x(s.Tensor(s.Compute, "x", tc.storage))
				slot := s.forward(0)
				saved := s.push(slot, x)
				s.reach(fsm.Reloading, slot)
				if got := s.engine.Metrics().BytesOut > 0; got != tc.moves {
					s.t.Errorf("it moved: %v, want %v", got, tc.moves)
				}
				s.pop(slot, s.Compute, saved, x)
			})
		})
	}
}

func whole(base device.Tensor) device.Tensor { return base }

// float32s is the view of the first n elements of four bytes.
func float32s(n int) func(device.Tensor) device.Tensor {
	return func(base device.Tensor) device.Tensor { return view(base, device.Float32, 0, []int{n}, nil) }
}

// A2-05, W24: weights and index data never move, whatever view of them is saved.
// It is the storage that says what it is for. They stay their owner's.
func TestWeightsNeverMove(t *testing.T) {
	for _, class := range []device.Class{device.Weight, device.Index} {
		t.Run(class.String(), func(t *testing.T) {
			eachOrder(t, offload.Options{}, func(s *stage) {
				const rows, columns = 64, 256
				w := s.TensorOf(s.Compute, "W", class, rows*columns*4)
				views := []device.Tensor{
					view(w, device.Float32, 0, []int{rows, columns}, nil),
					view(w, device.Float32, 0, []int{columns, rows}, []int{1, columns}), // W^T
					view(w, device.Float32, 0, []int{rows / 2, columns}, nil),           // W[0:n]
					bytesOf(w, 100, 1000),
				}
				slot := s.forward(0)
				before := s.Sim.Stats()
				saved := s.push(slot, views...)
				s.reach(fsm.Reloading, slot)
				if got := s.Sim.Stats(); got != before {
					s.t.Errorf("the device was asked for something:\ngot  %v\nwant %v", got, before)
				}
				ts := s.pop(slot, s.Compute, saved, views...)
				if ts[0].Range().Buffer != w.Range().Buffer || w.Storage.Holders() != 1 {
					s.t.Errorf("it is at %v and has %d holders, want %v and its owner", ts[0].Range(), w.Storage.Holders(), w.Range())
				}
				s.must(s.pass.End())
				s.Check(s.Compute, w, "W")
				s.Drop(s.Compute, w)
			})
		})
	}
}

// A2-08, A2-09, A2-11, A2-13: absent tensors, host tensors, tensors without
// elements and tensors that are not numbers, among others: every Saved stands
// for what was pushed in its place.
func TestMixedList(t *testing.T) {
	eachOrder(t, offload.Options{}, func(s *stage) {
		host := s.hostTensor("host", 4096)
		// Nothing is allocated for no bytes, and no device operation may name it.
		empty := func(shape ...int) device.Tensor {
			b := device.NewStorage(fmt.Sprint("empty", shape), device.Activation, device.Buffer{}, 0, s.Compute)
			return device.Tensor{Storage: b, DType: device.Float64, Shape: shape}
		}
		x := s.Tensor(s.Compute, "x", 4096)
		float := view(x, device.Float32, 0, []int{32, 32}, nil)
		integer := view(s.Tensor(s.Compute, "n", 4096), device.Int64, 0, []int{512}, nil)
		boolean := view(s.Tensor(s.Compute, "b", 64), device.Bool, 0, []int{8, 8}, nil)
		list := []device.Tensor{
			float, {}, empty(0), integer, empty(0, 100), boolean, host, empty(5, 0, 3), float, {}, view(x, device.Int8, 4096, []int{0}, nil),
		}
		slot := s.forward(0)
		saved := s.push(slot, list...)
		if len(saved) != len(list) {
			s.t.Fatalf("%d tensors were saved as %d", len(list), len(saved))
		}
		s.reach(fsm.Reloading, slot)
		s.moved(3, 4096+4096+64)
		// In any order; the host tensor is compared here, since no kernel can.
		ts, err := slot.Pop(saved[6])
		s.must(err)
		if !reflect.DeepEqual(ts[0], host) || ts[0].Range().Buffer.Place != device.OnHost {
			s.t.Errorf("the host tensor came back as %v at %v", ts[0], ts[0].Range())
		}
		for _, i := range []int{5, 10, 0, 9, 2, 8, 1, 3, 7, 4} {
			s.pop(slot, s.Compute, saved[i:i+1], list[i])
		}
		s.must(s.pass.End())
		s.unpin(host)
	})
}

// A slot with nothing but tensors that have no elements asks the device for nothing.
func TestNothingButEmptyTensors(t *testing.T) {
	eachOrder(t, offload.Options{}, func(s *stage) {
		x := device.Tensor{Storage: device.NewStorage("empty", device.Activation, device.Buffer{}, 0, s.Compute), DType: device.Float32, Shape: []int{5, 0, 3}}
		slot := s.forward(0)
		before := s.Sim.Stats()
		saved := s.push(slot, x, x)
		s.reach(fsm.Reloading, slot)
		s.pop(slot, s.Compute, saved, x, x)
		s.must(slot.Reset())
		if got := s.Sim.Stats(); got != before {
			s.t.Errorf("the device was asked for something:\ngot  %v\nwant %v", got, before)
		}
	})
}

// L04: the caller's word counts: a tensor that is to stay stays, with its bytes
// and its flag, and is freed by the engine at the end.
func TestOptOut(t *testing.T) {
	eachOrder(t, offload.Options{}, func(s *stage) {
		x, y := s.Tensor(s.Compute, "x", 4096), s.Tensor(s.Compute, "y", 4096)
		x.Keep = true
		slot := s.forward(0)
		saved := s.push(slot, x, y)
		at := x.Range()
		s.reach(fsm.Offloaded, slot)
		s.moved(1, 4096)
		s.use("with y away", 4096)
		s.reach(fsm.Reloading, slot)
		if ts := s.pop(slot, s.Compute, saved, x, y); ts[0].Range() != at {
			s.t.Errorf("it is at %v, want %v", ts[0].Range(), at)
		}
		s.must(s.pass.End())
		s.use("after the pass", 0)
	})
}

// Not contiguous: packed where it is less than half of its storage, moved with
// its base where it is half or more, kept with the reason where the options say so.
func TestNotContiguous(t *testing.T) {
	for _, tc := range []struct {
		name    string
		keep    bool
		columns int // of 16
		moved   int64
		left    int64 // on the device when it is away
		record  string
	}{
		{"packed", false, 7, 64 * 7, stagingBuffer, "0.0 moved 448/448"},
		{"moved with its base", false, 8, 64 * 16, 0, "0.0 moved 1024/512"},
		{"kept", true, 7, 0, 1024, "0.0 kept 0/448: not contiguous"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			eachOrder(t, offload.Options{KeepStrided: tc.keep, Explain: true}, func(s *stage) {
				base := s.Tensor(s.Compute, "base", 1024)
				x := view(base, device.Uint8, 3, []int{64, tc.columns}, []int{16, 1})
				slot := s.forward(0)
				saved := s.push(slot, x)
				s.reach(fsm.Offloaded, slot)
				s.moved(min(tc.moved, 1), tc.moved)
				s.use("after the release", tc.left)
				s.reach(fsm.Reloading, slot)
				s.pop(slot, s.Compute, saved, x)
				s.must(s.pass.End())
				s.explained(tc.record)
			})
		})
	}
}
