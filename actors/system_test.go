package actors

import (
	"errors"
	"fmt"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"offload/device"
	"offload/device/sim"
	"offload/fsm"
	"offload/internal/hostmem"
	"offload/messages"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// plant is a system on a simulated device.
type plant struct {
	t       *testing.T
	dev     *sim.Device
	system  *System
	ids     *device.IDs
	compute device.Stream
}

func newPlant(t *testing.T, d Dispatch, hooks Hooks) *plant {
	t.Helper()
	p := &plant{t: t, dev: sim.New(sim.Config{})}
	p.ids = device.NewIDs(p.dev)
	p.compute = p.ids.Stream()
	p.submit(device.Op{Kind: device.OpenStream, Stream: p.compute})
	var err error
	p.system, err = New(Config{Devices: []device.Device{p.dev}, Layers: 3, Dispatch: d,
		Limits: Limits{MinElements: 1}, Host: hostmem.Config{SlabBytes: 64 << 10}, Hooks: hooks})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func (p *plant) submit(ops ...device.Op) {
	p.t.Helper()
	if err := p.dev.Submit(&device.Batch{Ops: ops}); err != nil {
		p.t.Error(err)
	}
}

func (p *plant) tensor(name string) device.Tensor {
	p.t.Helper()
	x := device.Tensor{Storage: p.ids.NewStorage(name, device.Activation, 4096, p.compute), DType: device.Uint8, Shape: []int{4096}}
	p.submit(device.Op{Kind: device.Alloc, Stream: p.compute, Dst: x.Range()},
		device.Op{Kind: device.Access, Stream: p.compute, Kernel: &device.Kernel{Name: "write", Writes: []device.Range{x.Range()}}})
	return x
}

// request returns a request for the slot of the layer in pass 1.
func (p *plant) request(layer int, e fsm.Event) *messages.Request {
	r := new(messages.Request)
	r.Reset()
	r.Layer, r.Slot, r.Stream, r.Event = layer, messages.SlotID{Pass: 1}, p.compute, e
	return r
}

func (p *plant) open(layer int) error {
	r := p.request(layer, fsm.Reset)
	r.Verb = messages.Open
	p.system.Call(r)
	return r.Err
}

func (p *plant) fire(layer int, e fsm.Event, ts ...device.Tensor) *messages.Request {
	r := p.request(layer, e)
	if e == fsm.Pop {
		r.Indices = append(r.Indices, 0)
	}
	r.Tensors = append(r.Tensors, ts...)
	p.system.Call(r)
	return r
}

func (p *plant) shut(layer int) error {
	r := p.request(layer, fsm.Reset)
	r.Verb = messages.Close
	p.system.Call(r)
	return r.Err
}

func (p *plant) must(err error) {
	p.t.Helper()
	if err != nil {
		p.t.Fatal(err)
	}
}

// close stops the system. Nothing may be left, and nothing may have been found.
func (p *plant) close() {
	p.t.Helper()
	_, _, err := p.system.Stop()
	p.must(err)
	p.submit(device.Op{Kind: device.CloseStream, Stream: p.compute})
	p.must(p.dev.Close())
	for _, f := range p.dev.Findings() {
		p.t.Error(f)
	}
}

func eachDispatch(t *testing.T, f func(t *testing.T, d Dispatch)) {
	for _, d := range []Dispatch{Inline, Goroutines} {
		t.Run(d.String(), func(t *testing.T) { f(t, d) })
	}
}

func TestSlotsAreKnownByName(t *testing.T) {
	eachDispatch(t, func(t *testing.T, d Dispatch) {
		p := newPlant(t, d, Hooks{})
		defer p.close()
		if r := p.fire(1, fsm.StartOffload); !errors.Is(r.Err, ErrStale) {
			t.Errorf("a slot that is not open: got %v, want ErrStale", r.Err)
		}
		p.must(p.open(1))
		if err := p.open(1); err == nil {
			t.Error("a slot was opened twice")
		}
		p.must(p.shut(1))
		if r := p.fire(1, fsm.Pop); !errors.Is(r.Err, ErrStale) {
			t.Errorf("a slot that was closed: got %v, want ErrStale", r.Err)
		}
		p.must(p.open(1)) // it is another one now
		if r := p.fire(1, fsm.Pop); !errors.Is(r.Err, ErrStale) {
			t.Errorf("a tensor that was not saved: got %v, want ErrStale", r.Err)
		}
		p.must(p.shut(1))
	})
}

// A request of any kind is answered after the actors have stopped.
func TestAnsweredAfterStop(t *testing.T) {
	eachDispatch(t, func(t *testing.T, d Dispatch) {
		p := newPlant(t, d, Hooks{})
		p.close()
		for e := range fsm.Event(fsm.Events) {
			if r := p.fire(0, e); !errors.Is(r.Err, ErrStopped) {
				t.Errorf("%v: got %v, want ErrStopped", e, r.Err)
			}
		}
		if err := p.open(0); !errors.Is(err, ErrStopped) {
			t.Errorf("open: got %v, want ErrStopped", err)
		}
		if _, err := p.system.Stats(); !errors.Is(err, ErrStopped) {
			t.Errorf("stats: got %v, want ErrStopped", err)
		}
		if _, err := p.system.Flush(0, 1); !errors.Is(err, ErrStopped) {
			t.Errorf("flush: got %v, want ErrStopped", err)
		}
	})
}

// Requests that race with Stop are answered: by the actors, or with ErrStopped.
func TestAnsweredWhileStopping(t *testing.T) {
	eachDispatch(t, func(t *testing.T, d Dispatch) {
		for range 5 {
			p := newPlant(t, d, Hooks{})
			var ready, all sync.WaitGroup
			race := func(call func() error) {
				ready.Add(1)
				all.Go(func() {
					for n := 0; ; n++ {
						if n == 10 {
							ready.Done()
						}
						err := call()
						if errors.Is(err, ErrStopped) && n >= 10 {
							return
						}
						if err != nil {
							t.Errorf("got %v, want nil or ErrStopped", err)
						}
					}
				})
			}
			for layer := range 3 {
				p.must(p.open(layer))
				race(func() error { return p.fire(layer, fsm.Push).Err })
				race(func() error { _, err := p.system.Stats(); return err })
			}
			ready.Wait()
			p.close()
			all.Wait()
		}
	})
}

// A panic inside a layer actor, at any transition, comes back to the caller,
// fails the slot and stops nothing.
func TestLayerPanics(t *testing.T) {
	eachDispatch(t, func(t *testing.T, d Dispatch) {
		for _, bad := range []fsm.Event{fsm.Push, fsm.StartOffload, fsm.Release, fsm.Reload, fsm.Pop, fsm.Revive, fsm.Reset} {
			t.Run(bad.String(), func(t *testing.T) {
				var armed bool
				var told []*PanicError
				p := newPlant(t, d, Hooks{
					Transition: func(tr Transition) {
						if armed && tr.Event == bad && tr.Layer == 1 {
							panic(fmt.Sprintf("broken at %v", bad))
						}
					},
					Panic: func(err *PanicError) { told = append(told, err) },
				})
				defer p.close()
				p.must(p.open(0))
				p.must(p.open(1))
				p.must(p.fire(0, fsm.Push, p.tensor("other")).Err)
				x := p.tensor("x")
				way := map[fsm.Event][]fsm.Event{
					fsm.Release: {fsm.StartOffload}, fsm.Reload: {fsm.StartOffload, fsm.Release},
					fsm.Pop: {fsm.StartOffload, fsm.Release, fsm.Reload}, fsm.Revive: {fsm.StartOffload},
				}
				if bad != fsm.Push {
					p.must(p.fire(1, fsm.Push, x).Err)
				}
				for _, e := range way[bad] {
					p.must(p.fire(1, e).Err)
				}
				armed = true
				var r *messages.Request
				if bad == fsm.Push {
					r = p.fire(1, bad, x)
				} else {
					r = p.fire(1, bad)
				}
				armed = false
				var panicked *PanicError
				if !errors.As(r.Err, &panicked) || panicked.Actor != "layer 1" || len(panicked.Stack) == 0 {
					t.Errorf("got %v, want a panic of layer 1 with its stack", r.Err)
				}
				if r.State != fsm.Failed {
					t.Errorf("the slot is %v, want Failed", r.State)
				}
				if len(told) != 1 || told[0] != panicked {
					t.Errorf("the hook was told %v, want the same error once", told)
				}
				if r := p.fire(1, fsm.Pop); !errors.Is(r.Err, fsm.ErrOrder) {
					t.Errorf("a pop of the failed slot: got %v, want an OrderError", r.Err)
				}
				p.must(p.fire(0, fsm.StartOffload).Err) // others go on
				p.must(p.shut(0))
				p.must(p.shut(1))
			})
		}
	})
}

// A panic inside the device actor comes back as well. Its ledger cannot be
// trusted then, so that it counts as lost; nobody hangs.
func TestDeviceActorPanics(t *testing.T) {
	eachDispatch(t, func(t *testing.T, d Dispatch) {
		armed := false
		told := 0
		p := newPlant(t, d, Hooks{
			Batch: func(*device.Batch, error) {
				if armed {
					panic(errors.New("broken"))
				}
			},
			Panic: func(*PanicError) { told++ },
		})
		p.must(p.open(0))
		p.must(p.open(1))
		p.must(p.fire(0, fsm.Push, p.tensor("x")).Err)
		p.must(p.fire(1, fsm.Push, p.tensor("y")).Err)
		armed = true
		r := p.fire(0, fsm.StartOffload)
		armed = false
		var panicked *PanicError
		if !errors.As(r.Err, &panicked) || r.State != fsm.Failed {
			t.Errorf("got %v in state %v, want a panic and Failed", r.Err, r.State)
		}
		if told != 1 {
			t.Errorf("the hook was told %d times, want once", told)
		}
		if r := p.fire(1, fsm.StartOffload); !errors.As(r.Err, &panicked) || r.State != fsm.Failed {
			t.Errorf("another layer: got %v in state %v, want the same panic and Failed", r.Err, r.State)
		}
		p.must(p.shut(0))
		p.must(p.shut(1))
		if _, _, err := p.system.Stop(); !errors.As(err, &panicked) {
			t.Errorf("stop: got %v, want the panic", err)
		}
		p.must(p.dev.Close())
	})
}

// Many callers, each with a slot of its own on the same layers: requests are
// answered to the one who asked.
func TestManyCallers(t *testing.T) {
	eachDispatch(t, func(t *testing.T, d Dispatch) {
		const callers, rounds = 8, 50
		p := newPlant(t, d, Hooks{})
		defer p.close()
		var all sync.WaitGroup
		for caller := range callers {
			all.Go(func() {
				r := new(messages.Request)
				call := func(v messages.Verb, e fsm.Event, layer, occurrence int, ts ...device.Tensor) {
					r.Reset()
					r.Verb, r.Event, r.Layer, r.Stream = v, e, layer, p.compute
					r.Slot = messages.SlotID{Pass: uint64(caller + 1), Occurrence: occurrence}
					r.Tensors = append(r.Tensors, ts...)
					if e == fsm.Pop && v == messages.Fire {
						r.Indices = append(r.Indices, 0)
					}
					p.system.Call(r)
					if r.Err != nil {
						t.Errorf("caller %d, %v of layer %d: %v", caller, e, layer, r.Err)
					}
				}
				for n := range rounds {
					layer, x := n%3, p.tensor(fmt.Sprint(caller, n))
					call(messages.Open, fsm.Reset, layer, n)
					call(messages.Fire, fsm.Push, layer, n, x)
					for i, e := range []fsm.Event{fsm.StartOffload, fsm.Release, fsm.Reload} {
						call(messages.Fire, e, layer, n)
						if want := fsm.State(i + 1); r.State != want {
							t.Errorf("caller %d: the slot is %v, want %v", caller, r.State, want)
						}
					}
					call(messages.Fire, fsm.Pop, layer, n)
					if len(r.Tensors) != 1 || r.Tensors[0].Storage != x.Storage {
						t.Errorf("caller %d got another tensor: %v, want %v", caller, r.Tensors, x)
					}
					call(messages.Close, fsm.Reset, layer, n)
				}
			})
		}
		all.Wait()
		stats, err := p.system.Stats()
		p.must(err)
		if stats.CopiesOut != callers*rounds || stats.CopiesIn != callers*rounds || stats.GroupsOpen != 0 || stats.StoragesHeld != 0 {
			t.Errorf("got %+v", stats)
		}
	})
}

// What reaches an actor that was stopped by its supervision is answered too.
func TestDeadLettersAreAnswered(t *testing.T) {
	eachDispatch(t, func(t *testing.T, d Dispatch) {
		p := newPlant(t, d, Hooks{})
		p.close()
		layer, dev := p.system.layers[0].pid, p.system.devices[0].pid
		for name, send := range map[string]func(r *messages.Request){
			"request": func(r *messages.Request) { p.system.root.Send(layer, r) },
			"command": func(r *messages.Request) { p.system.root.Send(dev, r.Command()) },
			"answer":  func(r *messages.Request) { p.system.root.Send(layer, r.Answer()) },
		} {
			r := p.request(0, fsm.Push)
			send(r)
			r.Reply.Wait()
			if !errors.Is(r.Err, ErrStopped) {
				t.Errorf("%s: got %v, want ErrStopped", name, r.Err)
			}
		}
		var c messages.Control
		p.system.send(0, &c)
		if !errors.Is(c.Err, ErrStopped) {
			t.Errorf("control: got %v, want ErrStopped", c.Err)
		}
	})
}
