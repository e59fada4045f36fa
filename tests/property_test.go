package tests

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"offload"
	"offload/device"
	"offload/device/sim"
	"offload/schedule"
	"offload/tests/rig"
)

// A script is a program for an engine. Running it twice gives the same calls,
// whatever the scheduler of the device and the dispatch of the actors do.
type script struct {
	layers    int
	offloaded int // of a window plan; negative: a manual plan
	limit     int64
	sizes     []int64 // of the storages, by number
	retained  []bool  // the script goes on holding the storage
	calls     []call
}

// call is one call of the script. Its numbers are taken modulo what there is,
// so that every call can be made, legal or not.
type call struct {
	what    string
	pass    int
	layer   int
	run     int
	storage int
	stream  int
	count   int // of tensors pushed or popped
}

func (c call) String() string {
	return fmt.Sprintf("%s pass=%d layer=%d run=%d storage=%d stream=%d count=%d", c.what, c.pass, c.layer, c.run, c.storage, c.stream, c.count)
}

const (
	streams   = 3
	maxPasses = 2
)

func drawScript(t *rapid.T) script {
	s := script{
		layers: rapid.IntRange(1, 6).Draw(t, "layers"),
		limit:  512,
	}
	s.offloaded = rapid.IntRange(-s.layers, s.layers-1).Draw(t, "offloaded (negative: manual)")
	storages := rapid.IntRange(1, 12).Draw(t, "storages")
	for range storages {
		s.sizes = append(s.sizes, rapid.OneOf(rapid.Int64Range(1, 2*s.limit),
			rapid.SampledFrom([]int64{s.limit - 1, s.limit, s.limit + 1, 5000})).Draw(t, "bytes"))
		s.retained = append(s.retained, rapid.IntRange(0, 5).Draw(t, "retained") == 0)
	}
	what := []string{
		"forward", "forward", "forward", "push", "push", "push", "push", "backward", "backward", "backward", "pop", "pop", "pop",
		"start-offload", "release", "reload", "revive", "reset", "mark", "end", "abort",
	}
	if s.offloaded < 0 {
		what = append(what, "start-offload", "start-offload", "release", "release", "reload", "reload")
	}
	n := rapid.IntRange(5, 80).Draw(t, "calls")
	// A pass in order first, as far as the script goes; then anything.
	if rapid.Bool().Draw(t, "begins in order") {
		for i := range s.layers {
			s.calls = append(s.calls, call{what: "forward", layer: i}, call{what: "push", layer: i, storage: i, count: 1})
		}
		for i := s.layers - 1; i >= 0; i-- {
			s.calls = append(s.calls, call{what: "backward", layer: i}, call{what: "pop", layer: i, count: 2})
		}
	}
	for range n {
		s.calls = append(s.calls, call{
			what:    rapid.SampledFrom(what).Draw(t, "what"),
			pass:    rapid.IntRange(0, maxPasses-1).Draw(t, "pass"),
			layer:   rapid.IntRange(0, s.layers-1).Draw(t, "layer"),
			run:     rapid.IntRange(0, 1).Draw(t, "run"),
			storage: rapid.IntRange(0, storages-1).Draw(t, "storage"),
			stream:  rapid.IntRange(0, streams-1).Draw(t, "stream"),
			count:   rapid.IntRange(1, 3).Draw(t, "count"),
		})
	}
	return s
}

// player plays a script.
type player struct {
	t       rig.TB
	rig     *rig.Rig
	engine  *offload.Engine
	script  script
	streams [streams]device.Stream
	passes  [maxPasses]*played
	tensors []device.Tensor // by storage
	mine    []bool          // by storage: nobody took it over
	log     []string        // what every call gave, and the bytes that came back
}

// played is one pass of the script.
type played struct {
	*offload.Pass
	slots map[int][]*offload.Slot
	saved map[*offload.Slot][]savedStorage
}

type savedStorage struct {
	offload.Saved
	storage int
}

// play runs the script and returns what can be seen of it.
func play(t rig.TB, s script, seed uint64, d offload.Dispatch, opts offload.Options) []string {
	p := &player{t: t, rig: rig.New(t, sim.Config{Seed: seed}), script: s}
	p.streams[0] = p.rig.Compute
	for i := 1; i < streams; i++ {
		p.streams[i] = p.rig.Stream()
	}
	opts.Dispatch, opts.MinElements, opts.SlabBytes = d, s.limit, 16<<10
	opts.Layers = s.layers
	if s.offloaded >= 0 {
		plan, err := schedule.Window(s.layers, s.offloaded)
		if err != nil {
			t.Fatal(err)
		}
		opts.Plan = plan
	}
	p.engine = p.rig.Open(opts)
	p.tensors, p.mine = make([]device.Tensor, len(s.sizes)), make([]bool, len(s.sizes))
	for _, c := range s.calls {
		p.log = append(p.log, fmt.Sprintf("%v: %v", c, p.do(c)))
	}
	for _, pass := range p.passes {
		if pass != nil {
			p.note("end", pass.End())
		}
	}
	p.idle()
	p.giveBack()
	if err := p.engine.Close(); err != nil {
		t.Error(err)
	}
	if m := p.engine.Metrics(); m.EventsLive != 0 || m.HostHeld != 0 {
		t.Errorf("held after Close: %+v", m)
	}
	p.rig.Close()
	return p.log
}

func (p *player) note(what string, err error) { p.log = append(p.log, fmt.Sprint(what, ": ", err)) }

// idle checks that between passes the engine holds nothing.
func (p *player) idle() {
	if m := p.engine.Metrics(); m.PassesOpen != 0 || m.StoragesHeld != 0 || m.SlotsHeld != 0 || m.HostInUse != 0 || m.Failures != 0 {
		p.t.Errorf("held after the passes: %+v", m)
	}
}

// giveBack frees what nobody took over, and what the script retained.
func (p *player) giveBack() {
	for _, s := range p.streams[1:] {
		p.rig.Order(s, p.streams[0])
	}
	for i, x := range p.tensors {
		if x.IsNil() {
			continue
		}
		if p.mine[i] {
			if x.Storage.Retained() {
				p.rig.Drop(p.streams[0], x)
			}
			p.rig.Drop(p.streams[0], x)
		} else if x.Storage.Retained() {
			p.rig.Check(p.streams[0], x, fmt.Sprint(i))
			p.rig.Drop(p.streams[0], x)
		}
	}
}

// storage returns a tensor. It is made when it is needed first, and anew when it
// was given back. It is complete on all streams, and the one that it was
// allocated on is still reading it.
func (p *player) storage(i int) device.Tensor {
	x := p.tensors[i]
	if !x.IsNil() && x.Storage.Holders() > 0 {
		return x
	}
	home := p.streams[i%streams]
	x = p.rig.Tensor(home, fmt.Sprint(i), p.script.sizes[i])
	if p.script.retained[i] {
		p.rig.Keep(x)
	}
	for _, s := range p.streams {
		if s != home {
			p.rig.Order(home, s)
		}
	}
	p.rig.Check(home, x, fmt.Sprint(i))
	p.tensors[i], p.mine[i] = x, true
	return x
}

func (p *player) do(c call) error {
	pass := p.passes[c.pass]
	if pass == nil {
		started, err := p.engine.Begin(context.Background(), offload.Train, p.streams[c.pass%streams])
		if err != nil {
			return err
		}
		pass = &played{started, make(map[int][]*offload.Slot), make(map[*offload.Slot][]savedStorage)}
		p.passes[c.pass] = pass
	}
	switch c.what {
	case "forward":
		s, err := pass.Forward(c.layer)
		if err == nil {
			pass.slots[c.layer] = append(pass.slots[c.layer], s)
		}
		return err
	case "backward":
		_, err := pass.Backward(c.layer)
		return err
	case "mark":
		return pass.MarkReady(p.streams[c.stream], p.storage(c.storage))
	case "end", "abort":
		end := pass.End
		if c.what == "abort" {
			end = pass.Abort
		}
		p.passes[c.pass] = nil
		return end()
	}
	runs := pass.slots[c.layer]
	if len(runs) == 0 {
		return errors.New("no slot")
	}
	slot := runs[c.run%len(runs)]
	switch c.what {
	case "push":
		return p.push(pass, slot, c)
	case "pop":
		return p.pop(pass, slot, c)
	case "start-offload":
		return slot.StartOffload()
	case "release":
		return slot.Release()
	case "reload":
		return slot.Reload()
	case "revive":
		return slot.Revive()
	}
	return slot.Reset()
}

func (p *player) push(pass *played, slot *offload.Slot, c call) error {
	var ts []device.Tensor
	var which []int
	for i := range c.count {
		n := (c.storage + i) % len(p.script.sizes)
		ts, which = append(ts, p.storage(n)), append(which, n)
	}
	saved, err := slot.On(p.streams[c.stream]).Push(ts...)
	for i, v := range saved {
		pass.saved[slot] = append(pass.saved[slot], savedStorage{v, which[i]})
		p.mine[which[i]] = false
	}
	return err
}

// pop takes back some of what was saved in the slot, and has it checked.
func (p *player) pop(pass *played, slot *offload.Slot, c call) error {
	var saved []offload.Saved
	var which []int
	for i, v := range pass.saved[slot] {
		if i < c.count {
			saved, which = append(saved, v.Saved), append(which, v.storage)
		}
	}
	s := p.streams[c.stream]
	ts, err := slot.On(s).Pop(saved...)
	for i, x := range ts {
		p.rig.Check(s, x, fmt.Sprint(which[i]))
	}
	return err
}

// Whatever is called in whatever order: what is popped is what was pushed,
// nothing is used before or after its time, nothing is left when the passes
// are over, and neither the device's scheduler nor the dispatch changes any
// answer.
func TestAnyScript(t *testing.T) {
	for _, tc := range []struct {
		name string
		opts offload.Options
	}{
		{"plain", offload.Options{}},
		{"copies at push", offload.Options{CopyAtPush: true}},
		{"small ones together", offload.Options{CoalesceBytes: 64}},
		{"little host memory", offload.Options{HostBudget: 16 << 10}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			rapid.Check(t, func(rt *rapid.T) {
				s := drawScript(rt)
				seed := rapid.Uint64().Draw(rt, "seed")
				want := play(rt, s, seed, offload.Inline, tc.opts)
				for i, d := range []offload.Dispatch{offload.Inline, offload.Goroutines} {
					if got := play(rt, s, seed+uint64(i)+1, d, tc.opts); !slices.Equal(got, want) {
						rt.Fatalf("%v, seed %d:\ngot  %q\nwant %q", d, seed+uint64(i)+1, got, want)
					}
				}
			})
		})
	}
}
