package tests

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"sync"
	"testing"

	"github.com/cockroachdb/datadriven"

	"offload"
	"offload/device"
	"offload/device/sim"
	"offload/schedule"
	"offload/tests/rig"
)

//go:generate go test -run TestConversations -rewrite .

// TestConversations runs the scenarios of testdata: each command is followed by
// what the engine did about it, every transition and every operation. They are
// the same for every way in which actors can run.
//
// Commands, with their optional arguments in brackets:
//
//	open window layers=L offloaded=N   an engine [min=ELEMENTS] [min-bytes=BYTES] [budget=BYTES] [coalesce=BYTES]
//	                                   [keep-strided] [copy-at-push] [explain] [strict]
//	                                   and what [scanBudgets] lists
//	open manual layers=L
//	show all | transitions             what is printed from here on
//	begin train | inference            a pass, which is the current one from here on
//	pass N                             pass N is the current one
//	cancel                             the context of the current pass
//	forward L [push=(x, ...)]          the slot of a layer; and push [bytes=N] [class=C] [stream=side]
//	push L x ...                       new tensors of 4096 bytes, or those that are there [bytes=N] [class=C] [stream=side] [run=R]
//	backward L [pop=(x, ...)]
//	pop L x ...                        [stream=side] [run=R]
//	start-offload | release | reload | revive | reset | state L     [run=R]
//	end | abort | explain | metrics | findings | close
//
// and those about tensors, which [conversation.onTensor] lists.
func TestConversations(t *testing.T) {
	rig.EachDispatch(t, func(t *testing.T, d offload.Dispatch) {
		datadriven.Walk(t, "testdata/conversations", func(t *testing.T, path string) {
			c := newConversation(t, d)
			datadriven.RunTest(t, path, func(t *testing.T, td *datadriven.TestData) string {
				c.rig.T = t
				return c.run(t, td)
			})
			c.rig.T = t
			c.finish()
		})
	})
}

// conversationDevice is the identity of the device, which is cut out of the texts.
const conversationDevice device.ID = 9999

type conversation struct {
	rig      *rig.Rig
	dispatch offload.Dispatch
	side     device.Stream
	engine   *offload.Engine // the last one that was opened
	space    uint16          // the id space of the engine
	brief    bool            // operations are not shown
	passes   []*conversationPass
	pass     *conversationPass
	tensors  map[string]device.Tensor
	names    []string // pairs for the replacer: what is printed for ids

	mu  sync.Mutex
	log strings.Builder
}

type conversationPass struct {
	*offload.Pass
	cancel context.CancelFunc
	slots  map[int][]*offload.Slot
	saved  map[string]offload.Saved // by name, and by name and slot
}

func newConversation(t *testing.T, d offload.Dispatch) *conversation {
	c := &conversation{rig: rig.New(t, sim.Config{ID: conversationDevice}), dispatch: d, tensors: make(map[string]device.Tensor)}
	c.space = c.rig.IDs.Space()
	c.side = c.rig.Stream()
	c.name(c.rig.Compute, "compute")
	c.name(c.side, "side")
	return c
}

func (c *conversation) name(id fmt.Stringer, name string) {
	c.names = append(c.names, id.String(), name)
}

// finish ends what the scenario left open, and checks the device.
func (c *conversation) finish() {
	if c.engine != nil {
		c.closeEngine()
	}
	c.rig.Close()
}

func (c *conversation) run(t *testing.T, td *datadriven.TestData) string {
	if err := c.do(t, td); err != nil {
		fmt.Fprintf(&c.log, "error: %v\n", err)
	}
	text := c.log.String()
	c.log.Reset()
	if text == "" {
		text = "ok\n"
	}
	names := append(c.names, fmt.Sprintf("d%d/", conversationDevice), "")
	return strings.NewReplacer(names...).Replace(text)
}

func (c *conversation) printf(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	fmt.Fprintf(&c.log, format+"\n", args...)
}

func (c *conversation) do(t *testing.T, td *datadriven.TestData) error {
	if c.engine == nil && td.Cmd != "open" && td.Cmd != "show" {
		return errors.New("no engine is open")
	}
	switch td.Cmd {
	case "open":
		return c.open(t, td)
	case "show":
		c.brief = td.CmdArgs[0].Key == "transitions"
		return nil
	case "close":
		return c.closeEngine()
	case "metrics":
		c.metrics()
		return nil
	case "findings":
		c.rig.Sync()
		for _, f := range c.rig.Sim.Findings() {
			c.printf("%v", f)
		}
		c.printf("%d findings", len(c.rig.Sim.Findings()))
		return nil
	case "begin":
		return c.begin(td)
	case "pass":
		var n int
		td.ScanArgs(t, td.CmdArgs[0].Key) // it has no value
		if _, err := fmt.Sscan(td.CmdArgs[0].Key, &n); err != nil || n < 1 || n > len(c.passes) {
			return fmt.Errorf("no pass %q", td.CmdArgs[0].Key)
		}
		c.pass = c.passes[n-1]
		return nil
	}
	if ok, err := c.onTensor(t, td); ok {
		return err
	}
	if c.pass == nil {
		return errors.New("no pass was begun")
	}
	switch td.Cmd {
	case "explain":
		c.explain()
		return nil
	case "cancel":
		c.pass.cancel()
		return nil
	case "end":
		return c.pass.End()
	case "abort":
		return c.pass.Abort()
	}
	return c.onLayer(t, td)
}

func (c *conversation) open(t *testing.T, td *datadriven.TestData) error {
	var layers, offloaded int
	opts := offload.Options{Dispatch: c.dispatch, SlabBytes: 64 << 10, Listener: c.listener()}
	td.MaybeScanArgs(t, "layers", &layers)
	td.MaybeScanArgs(t, "offloaded", &offloaded)
	td.MaybeScanArgs(t, "min", &opts.MinElements)
	td.MaybeScanArgs(t, "min-bytes", &opts.MinBytes)
	td.MaybeScanArgs(t, "budget", &opts.HostBudget)
	scanMoves(t, td, &opts)
	scanBudgets(t, td, &opts)
	opts.Layers = layers
	if td.HasArg("window") {
		plan, err := schedule.Window(layers, offloaded)
		if err != nil {
			return err
		}
		opts.Plan = plan
	}
	if c.engine != nil {
		if err := c.closeEngine(); err != nil {
			return err
		}
	}
	// The engine opens the next id space, and in it a stream for each direction.
	c.space++
	c.name(device.Stream{Device: conversationDevice, Space: c.space, Index: 0}, "out")
	c.name(device.Stream{Device: conversationDevice, Space: c.space, Index: 1}, "in")
	c.passes, c.pass = nil, nil
	clear(c.tensors)
	var err error
	c.engine, err = offload.Open(c.rig.Gate, opts)
	return err
}

func (c *conversation) listener() *offload.EventListener {
	return &offload.EventListener{
		PassBegun:  func(i offload.PassInfo) { c.printf("begun: %v", i) },
		PassEnded:  func(i offload.PassInfo) { c.printf("ended: %v", i) },
		Transition: func(i offload.TransitionInfo) { c.printf("%v", i) },
		Batch: func(i offload.BatchInfo) {
			if !c.brief {
				c.printf("%v", i)
			}
		},
		Panic: func(err *offload.PanicError) { c.printf("panic: %v", err) },
	}
}

func (c *conversation) closeEngine() error {
	err := c.engine.Close()
	for _, p := range c.passes {
		p.cancel()
	}
	return err
}

// metrics prints what is not zero.
func (c *conversation) metrics() {
	v := reflect.ValueOf(c.engine.Metrics())
	for i := range v.NumField() {
		if !v.Field(i).IsZero() {
			c.printf("%s %v", v.Type().Field(i).Name, v.Field(i))
		}
	}
}

func (c *conversation) begin(td *datadriven.TestData) error {
	kind := offload.Train
	if td.HasArg("inference") {
		kind = offload.Inference
	}
	ctx, cancel := context.WithCancel(context.Background())
	p, err := c.engine.Begin(ctx, kind, c.rig.Compute)
	if err != nil {
		cancel()
		return err
	}
	c.pass = &conversationPass{Pass: p, cancel: cancel, slots: make(map[int][]*offload.Slot), saved: make(map[string]offload.Saved)}
	c.passes = append(c.passes, c.pass)
	return nil
}

// onLayer does the commands that begin with a layer.
func (c *conversation) onLayer(t *testing.T, td *datadriven.TestData) error {
	var layer int
	if _, err := fmt.Sscan(td.CmdArgs[0].Key, &layer); err != nil {
		return fmt.Errorf("want a layer: %w", err)
	}
	switch td.Cmd {
	case "forward":
		s, err := c.pass.Forward(layer)
		if err != nil {
			return err
		}
		c.pass.slots[layer] = append(c.pass.slots[layer], s)
		if names, ok := td.Arg("push"); ok {
			return c.push(t, td, s, names.Vals)
		}
		return nil
	case "backward":
		s, err := c.pass.Backward(layer)
		if err != nil {
			return err
		}
		if names, ok := td.Arg("pop"); ok {
			return c.pop(t, td, s, names.Vals)
		}
		return nil
	}
	run := len(c.pass.slots[layer]) - 1
	td.MaybeScanArgs(t, "run", &run)
	if run < 0 || run >= len(c.pass.slots[layer]) {
		return fmt.Errorf("layer %d has no slot %d", layer, run)
	}
	s := c.pass.slots[layer][run]
	var names []string
	for _, a := range td.CmdArgs[1:] {
		if len(a.Vals) == 0 {
			names = append(names, a.Key)
		}
	}
	switch td.Cmd {
	case "push":
		return c.push(t, td, s, names)
	case "pop":
		return c.pop(t, td, s, names)
	case "start-offload":
		return s.StartOffload()
	case "release":
		return s.Release()
	case "reload":
		return s.Reload()
	case "revive":
		return s.Revive()
	case "reset":
		return s.Reset()
	case "state":
		c.printf("%v", s.State())
		return nil
	}
	return fmt.Errorf("no command %q", td.Cmd)
}

func (c *conversation) stream(td *datadriven.TestData) device.Stream {
	if a, ok := td.Arg("stream"); ok && a.Vals[0] == "side" {
		return c.side
	}
	return c.rig.Compute
}

func (c *conversation) push(t *testing.T, td *datadriven.TestData, s *offload.Slot, names []string) error {
	var ts []device.Tensor
	for _, name := range names {
		if _, ok := c.tensors[name]; !ok && name != "nil" {
			c.newTensor(t, td, name)
		}
		ts = append(ts, c.tensors[name])
	}
	saved, err := s.On(c.stream(td)).Push(ts...)
	for i, v := range saved {
		c.pass.saved[names[i]], c.pass.saved[in(s, names[i])] = v, v
	}
	return err
}

// pop takes tensors back and enqueues a check of their bytes.
func (c *conversation) pop(t *testing.T, td *datadriven.TestData, s *offload.Slot, names []string) error {
	var saved []offload.Saved
	for _, name := range names {
		v, here := c.pass.saved[in(s, name)]
		if !here {
			v = c.pass.saved[name] // the engine will say that it was saved elsewhere
		}
		saved = append(saved, v)
	}
	stream := c.stream(td)
	ts, err := s.On(stream).Pop(saved...)
	for i, x := range ts {
		if x.IsNil() {
			c.printf("%s is absent", names[i])
			continue
		}
		if x.Storage.Name() == names[i] {
			c.printf("%s is %v", names[i], x.Range())
		} else {
			c.printf("%s is %v in %v", names[i], x, x.Storage.Buffer())
		}
		c.rig.CheckView(stream, x, x.Storage.Name())
	}
	return err
}

// in returns the key of what was saved under a name in one slot.
func in(s *offload.Slot, name string) string {
	return fmt.Sprintf("%s in %d#%d", name, s.Layer(), s.Occurrence())
}
