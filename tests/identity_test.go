package tests

import (
	"errors"
	"fmt"
	"testing"

	"offload"
	"offload/device"
	"offload/device/sim"
	"offload/fsm"
	"offload/tests/rig"
)

// A2-02, L01, L08, W12: a storage is copied once, however it is saved. It comes
// back as one buffer, to all that is saved of it.
func TestOneCopyPerStorage(t *testing.T) {
	const n = 8 << 10
	for _, tc := range []struct {
		name   string
		layers [][]int // by layer: which of the tensors below are saved, in order
	}{
		{"three times in one layer", [][]int{{0, 0, 0}}},
		{"three times in one layer and once in the next", [][]int{{0, 0, 0}, {0}}},
		{"in every layer", [][]int{{0}, {0}, {0}, {0}}},
		{"a full-size view and its base", [][]int{{1, 0}}},
		{"the base and a full-size view, in two layers", [][]int{{0}, {1}}},
		{"as another type", [][]int{{0, 2}}},
		{"the base and its transpose", [][]int{{0, 3}}},
		{"q, k and v", [][]int{{4, 5, 6}}},
		{"a view, then the base, then another view", [][]int{{4}, {0}, {5}}},
		{"two halves in two layers", [][]int{{7}, {8}}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			eachOrder(t, offload.Options{}, func(s *stage) {
				base := s.Tensor(s.Compute, "base", n)
				alias := base // what is detached from a graph shares the storage
				tensors := []device.Tensor{
					base, view(alias, device.Uint8, 0, []int{64, 128}, nil), view(base, device.BFloat16, 0, []int{n / 2}, nil),
					view(base, device.Uint8, 0, []int{128, 64}, []int{1, 128}),
					view(base, device.Uint8, 0, []int{64, 48}, []int{128, 1}), view(base, device.Uint8, 48, []int{64, 40}, []int{128, 1}),
					view(base, device.Uint8, 88, []int{64, 40}, []int{128, 1}), bytesOf(base, 0, n/2), bytesOf(base, n/2, n/2),
				}
				var slots []*offload.Slot
				var saved [][]offload.Saved
				var pushed [][]device.Tensor
				distinct := make(map[offload.Saved]bool)
				for layer, list := range tc.layers {
					var ts []device.Tensor
					for _, i := range list {
						ts = append(ts, tensors[i])
					}
					slots = append(slots, s.forward(layer))
					v := s.push(slots[layer], ts...)
					saved, pushed = append(saved, v), append(pushed, ts)
					for _, x := range v {
						distinct[x] = true
					}
				}
				want := 0
				for _, list := range tc.layers {
					want += len(list)
				}
				if len(distinct) != want {
					s.t.Errorf("%d pushes gave %d different Saved", want, len(distinct))
				}
				s.reach(fsm.Offloaded, slots...)
				s.moved(1, n)
				s.use("with every layer away", 0)
				if got := s.engine.Metrics().HostInUse; got != n {
					s.t.Errorf("%d bytes of host memory are in use, want %d", got, n)
				}
				s.reach(fsm.Reloading, slots...)
				if m := s.engine.Metrics(); m.CopiesIn != 1 || m.BytesIn != n {
					s.t.Errorf("%d bytes came back by %d copies, want %d by 1", m.BytesIn, m.CopiesIn, n)
				}
				var at device.Buffer
				for layer := len(slots) - 1; layer >= 0; layer-- {
					for _, x := range s.pop(slots[layer], s.Compute, saved[layer], pushed[layer]...) {
						if b := x.Range().Buffer; !at.IsZero() && b != at {
							s.t.Errorf("one storage is in %v and in %v", at, b)
						}
						at = x.Range().Buffer
					}
					s.must(slots[layer].Reset())
				}
				s.use("when the last layer is done", 0)
			})
		})
	}
}

// A2-02: what several layers share stays until the last of them is reset, in any order.
func TestFreedWithTheLastHolder(t *testing.T) {
	for _, order := range [][]int{{0, 1, 2}, {2, 1, 0}, {1, 2, 0}} {
		t.Run(fmt.Sprint(order), func(t *testing.T) {
			eachOrder(t, offload.Options{}, func(s *stage) {
				x := s.Tensor(s.Compute, "x", 4096)
				var slots []*offload.Slot
				var saved [][]offload.Saved
				for layer := range 3 {
					slots = append(slots, s.forward(layer))
					saved = append(saved, s.push(slots[layer], x, bytesOf(x, 100, 100)))
				}
				s.reach(fsm.Reloading, slots...)
				for i, layer := range order {
					s.pop(slots[layer], s.Compute, saved[layer], x, bytesOf(x, 100, 100))
					s.must(slots[layer].Reset())
					want := int64(4096)
					if i == len(order)-1 {
						want = 0
					}
					s.use(fmt.Sprintf("after %d of 3 resets", i+1), want)
				}
			})
		})
	}
}

// The identity of a storage has a generation. Memory and ids that are used again
// are another storage, whatever was saved of the first.
func TestMemoryUsedAgain(t *testing.T) {
	eachOrder(t, offload.Options{}, func(s *stage) {
		first := s.Tensor(s.Compute, "first", 4096)
		at := first.Range().Buffer
		s0, s1 := s.forward(0), s.forward(1)
		v0 := s.push(s0, first)
		s.reach(fsm.Offloaded, s0)
		second := s.Tensor(s.Compute, "second", 4096)
		if again := second.Range().Buffer; again.Index != at.Index || again.Gen == at.Gen {
			s.t.Fatalf("%v is not a later generation of %v", again, at)
		}
		v1 := s.push(s1, second)
		s.reach(fsm.Offloaded, s1)
		s.moved(2, 8192)
		s.reach(fsm.Reloading, s0, s1)
		s.pop(s0, s.Compute, v0, first)
		s.pop(s1, s.Compute, v1, second)
	})
}

// Two descriptions of one buffer would be two storages with one memory. That is
// refused, before the bytes have moved and after they have come back.
func TestTwoStoragesOnOneBuffer(t *testing.T) {
	eachOrder(t, offload.Options{}, func(s *stage) {
		x := s.Tensor(s.Compute, "x", 4096)
		slot := s.forward(0)
		saved := s.push(slot, x)
		for _, state := range []fsm.State{fsm.Resident, fsm.Reloading} {
			s.reach(state, slot)
			copied := x
			copied.Storage = device.NewStorage("a second description", device.Activation, x.Storage.Buffer(), 4096, s.Compute)
			if _, err := s.forward(1).Push(copied); !errors.Is(err, offload.ErrForeign) {
				s.t.Errorf("%v: got %v, want ErrForeign", state, err)
			}
		}
		s.pop(slot, s.Compute, saved, x)
	})
}

// W3, A2-08: a Saved names its slot; in another slot, or after the slot was
// reset, it is an error and never another tensor's bytes.
func TestSavedIsNoIndex(t *testing.T) {
	eachOrder(t, offload.Options{}, func(s *stage) {
		s0, s1 := s.forward(0), s.forward(1)
		x, y := s.Tensor(s.Compute, "x", 4096), s.Tensor(s.Compute, "y", 4096)
		v0, v1 := s.push(s0, x), s.push(s1, y)
		for _, tc := range []struct {
			slot *offload.Slot
			v    offload.Saved
			want error
		}{{s0, v1[0], offload.ErrForeign}, {s1, v0[0], offload.ErrForeign}, {s0, offload.Saved{}, offload.ErrForeign}} {
			if _, err := tc.slot.Pop(tc.v); !errors.Is(err, tc.want) {
				s.t.Errorf("pop of %v in layer %d: got %v, want %v", tc.v, tc.slot.Layer(), err, tc.want)
			}
		}
		s.must(s0.Reset())
		v2 := s.push(s0, s.Tensor(s.Compute, "z", 4096))
		if _, err := s0.Pop(v0...); !errors.Is(err, offload.ErrStale) {
			s.t.Errorf("after the reset: got %v, want ErrStale", err)
		}
		if v2[0] == v0[0] {
			s.t.Error("what is saved after a reset is what was saved before")
		}
	})
}

// L26, W38: what changes between its push and its copy is not copied: by the
// owner's word, or by a kernel that declares the write on a watched device.
func TestChangedBeforeItsCopy(t *testing.T) {
	for _, tc := range []struct {
		name   string
		change func(s *stage, watched *device.Watched, x device.Tensor)
		want   error
	}{
		{"by Touch", func(s *stage, _ *device.Watched, x device.Tensor) { x.Storage.Touch() }, offload.ErrChanged},
		{"by a kernel", func(s *stage, w *device.Watched, x device.Tensor) {
			s.must(w.Submit(&device.Batch{Ops: []device.Op{{Kind: device.Access, Stream: s.Compute,
				Kernel: &device.Kernel{Name: "write", Writes: []device.Range{x.Range().Sub(4000, 1)}}}}}))
		}, offload.ErrChanged},
		{"a kernel that reads it", func(s *stage, w *device.Watched, x device.Tensor) {
			s.must(w.Submit(&device.Batch{Ops: []device.Op{{Kind: device.Access, Stream: s.Compute,
				Kernel: &device.Kernel{Name: "read", Reads: []device.Range{x.Range()}}}}}))
		}, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			rig.EachDispatch(t, func(t *testing.T, d offload.Dispatch) {
				r := rig.New(t, sim.Config{})
				watched := device.Watch(r.Gate)
				e, err := offload.Open(watched, offload.Options{Layers: 2, MinElements: 1, SlabBytes: 64 << 10, Dispatch: d})
				if err != nil {
					t.Fatal(err)
				}
				s := &stage{Rig: r, t: t, engine: e}
				s.begin()
				defer s.close()
				x, y := s.Tensor(s.Compute, "x", 4096), s.Tensor(s.Compute, "y", 4096)
				slot := s.forward(0)
				saved := s.push(slot, y, x)
				tc.change(s, watched, x)
				before := s.Sim.Stats()
				if err := slot.StartOffload(); !errors.Is(err, tc.want) {
					t.Fatalf("got %v, want %v", err, tc.want)
				}
				if tc.want != nil {
					if got := s.Sim.Stats(); got != before {
						t.Errorf("the device was asked for something:\ngot  %v\nwant %v", got, before)
					}
					s.pop(slot, s.Compute, saved[:1], y)
					return
				}
				// Coming back is a write as well, and no change.
				s.reach(fsm.Reloading, slot)
				s.pop(slot, s.Compute, saved, y, x)
				s.push(s.forward(1), x)
			})
		})
	}
}

// A1-01: a view of what came back is read after the layer that asked for it has
// ended. In the first form the next layer has saved the view; in the second it
// saves it now, while it recomputes.
func TestViewOutlivesItsLayer(t *testing.T) {
	eachOrder(t, offload.Options{}, func(s *stage) {
		x := s.Tensor(s.Compute, "x", 4<<10)
		v := bytesOf(x, 1<<10, 2<<10)
		s2, s3 := s.forward(2), s.forward(3)
		saved2, saved3 := s.push(s2, v), s.push(s3, x)
		s.reach(fsm.Offloaded, s2, s3)
		s.reach(fsm.Reloading, s3)
		s.pop(s3, s.Compute, saved3, x)
		s.must(s2.Reload())
		s.must(s3.Reset())
		poison := s.Tensor(s.Compute, "poison", 4<<10) // takes the memory, if it is free
		s.pop(s2, s.Compute, saved2, v)
		s.must(s.pass.End())
		s.Drop(s.Compute, poison)
		s.use("after the pass", 0)
	})
}

func TestViewSavedWhileRecomputing(t *testing.T) {
	eachOrder(t, offload.Options{}, func(s *stage) {
		x := s.Tensor(s.Compute, "x", 4<<10)
		v := bytesOf(x, 1<<10, 2<<10)
		s2, s3 := s.forward(2), s.forward(3)
		saved3 := s.push(s3, x)
		s.reach(fsm.Reloading, s3)
		back := s.pop(s3, s.Compute, saved3, x)
		recomputed := view(back[0], device.Uint8, v.Offset, v.Shape, nil)
		saved2 := s.push(s2, recomputed)
		s.must(s3.Reset())
		s.use("while the recomputed layer has a view", 4<<10)
		s.pop(s2, s.Compute, saved2, recomputed)
		s.must(s2.Reset())
		s.use("when it is done", 0)
	})
}

// L18: a second pop on the same stream asks the device for nothing; one on
// another stream waits there, once; and the memory is given back after all of
// them, on whatever stream they were.
func TestConsumersOnSeveralStreams(t *testing.T) {
	eachOrder(t, offload.Options{}, func(s *stage) {
		side, third := s.Stream(), s.Stream()
		x := s.Tensor(s.Compute, "x", 4096)
		slot := s.forward(0)
		saved := s.push(slot, x)
		s.reach(fsm.Reloading, slot)
		at := s.pop(slot, s.Compute, saved, x)[0].Range()
		seen := map[device.Stream]bool{s.Compute: true}
		for _, stream := range []device.Stream{s.Compute, side, side, third, s.Compute, third} {
			before := s.Sim.Stats()
			ts, err := slot.On(stream).Pop(saved...)
			s.must(err)
			if ts[0].Range() != at {
				s.t.Errorf("it is at %v now and was at %v", ts[0].Range(), at)
			}
			want := uint64(1)
			if seen[stream] {
				want = 0
			}
			seen[stream] = true
			if got := s.Sim.Stats().Count(device.Wait) - before.Count(device.Wait); got != want {
				s.t.Errorf("a pop on %v issued %d waits, want %d", stream, got, want)
			}
			s.CheckView(stream, ts[0], "x")
		}
		s.must(slot.Reset())
		freed := 0
		for _, op := range s.last("reset") {
			if op.Kind == device.Wait && op.Reason == device.AfterConsumer {
				freed++
			}
		}
		if freed != 2 {
			s.t.Errorf("the memory is given back after %d other streams, want 2", freed)
		}
	})
}

// L27, W29: memory that was allocated in the order of a side stream is given back
// after that stream, too, which may still be using it for what nobody knows.
func TestAllocatedOnASideStream(t *testing.T) {
	eachOrder(t, offload.Options{}, func(s *stage) {
		side := s.Stream()
		x := s.Tensor(side, "x", 4096)
		s.Order(side, s.Compute)
		slot := s.forward(0)
		saved := s.push(slot, x)
		s.must(slot.StartOffload())
		s.Check(side, x, "x") // no pop, no push: only the home of the memory says so
		s.must(slot.Release())
		found := false
		for _, op := range s.last("release") {
			found = found || op.Kind == device.Wait && op.Reason == device.AfterAllocStream
		}
		if !found {
			s.t.Errorf("the release does not wait for the stream that allocated: %v", s.last("release"))
		}
		s.comeBack(slot, saved, x)
	})
}

// L28, A1-14, W23: two devices in one engine, their passes side by side: what
// left one of them comes back to it, by its own streams.
func TestTwoDevicesAtOnce(t *testing.T) {
	for seed := range uint64(seeds) {
		rig.EachDispatch(t, func(t *testing.T, d offload.Dispatch) {
			rigs := []*rig.Rig{rig.New(t, sim.Config{Seed: seed}), rig.New(t, sim.Config{Seed: seed + 1})}
			e, err := offload.OpenAll([]device.Device{rigs[0].Gate, rigs[1].Gate},
				offload.Options{Layers: 2, MinElements: 1, SlabBytes: 64 << 10, Dispatch: d})
			if err != nil {
				t.Fatal(err)
			}
			var stages []*stage
			for _, r := range rigs {
				s := &stage{Rig: r, t: t, engine: e}
				s.begin()
				stages = append(stages, s)
			}
			var slots []*offload.Slot
			var saved [][]offload.Saved
			var tensors []device.Tensor
			for i, s := range stages {
				x := s.Tensor(s.Compute, "x", 4096) // of one name, size and buffer id on both
				slots, tensors = append(slots, s.forward(0)), append(tensors, x)
				saved = append(saved, s.push(slots[i], x))
			}
			if _, err := slots[0].Push(tensors[1]); !errors.Is(err, offload.ErrForeign) {
				t.Errorf("a tensor of the other device: got %v, want ErrForeign", err)
			}
			if _, err := slots[0].On(stages[1].Compute).Pop(saved[0]...); !errors.Is(err, offload.ErrForeign) {
				t.Errorf("a stream of the other device: got %v, want ErrForeign", err)
			}
			for _, step := range []func(*offload.Slot) error{(*offload.Slot).StartOffload, (*offload.Slot).Release, (*offload.Slot).Reload} {
				for _, i := range []int{1, 0} {
					stages[i].must(step(slots[i]))
				}
			}
			for i, s := range stages {
				back := s.pop(slots[i], s.Compute, saved[i], tensors[i])
				if got := back[0].Range().Buffer.Device; got != s.IDs.Device() {
					t.Errorf("it came back to device %d, want %d", got, s.IDs.Device())
				}
				if got := s.Sim.Stats(); got.BytesOut != 4096 || got.BytesIn != 4096 {
					t.Errorf("device %d: %v", i, got)
				}
				s.must(s.pass.End())
			}
			if err := e.Close(); err != nil {
				t.Error(err)
			}
			for _, r := range rigs {
				r.Close()
			}
		})
	}
}

// W26: with CopyAtPush the copies begin when a tensor is pushed, so that the last
// layer, behind which no other forward comes, can leave as early as any.
func TestCopyAtPush(t *testing.T) {
	eachOrder(t, offload.Options{Layers: 2, CopyAtPush: true, Explain: true}, func(s *stage) {
		x, y := s.Tensor(s.Compute, "x", 4096), s.Tensor(s.Compute, "y", 4096)
		s0 := s.forward(0)
		v0 := s.push(s0, x)
		s.moved(1, 4096)
		last := s.forward(1)
		v1 := s.push(last, y, x)
		s.moved(2, 8192)
		before := s.Sim.Stats()
		s.reach(fsm.Offloading, s0, last)
		if got := s.Sim.Stats(); got != before {
			s.t.Errorf("starting the offload did something:\ngot  %v\nwant %v", got, before)
		}
		s.reach(fsm.Offloaded, s0, last)
		s.use("with both layers away", 0)
		if got := s.engine.Metrics().Offloads; got != 2 {
			s.t.Errorf("%d slots were offloaded, want 2", got)
		}
		s.reach(fsm.Reloading, last, s0)
		s.pop(last, s.Compute, v1, y, x)
		s.pop(s0, s.Compute, v0, x)
		s.must(s.pass.End())
		s.explained("1.0 moved 4096/4096", "1.1 moved 0/4096: with another tensor of the same storage", "0.0 moved 4096/4096")
	})
}

// A slot that is given up before its offload starts has copies under way all the same.
func TestCopyAtPushGivenUp(t *testing.T) {
	eachOrder(t, offload.Options{CopyAtPush: true, Explain: true}, func(s *stage) {
		x := s.Tensor(s.Compute, "x", 4096)
		slot := s.forward(0)
		saved := s.push(slot, x)
		s.pop(slot, s.Compute, saved, x)
		s.must(s.pass.End())
		s.use("after the pass", 0)
		s.explained("0.0 kept 4096/4096: its offload was given up")
	})
}
