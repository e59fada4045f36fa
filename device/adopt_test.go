package device_test

import (
	"testing"

	"offload/device"
	"offload/device/null"
)

type block struct{ address, bytes uintptr }

func (b block) Uintptr() uintptr { return b.address }
func (b block) MemSize() uintptr { return b.bytes }

// A storage of adopted memory is disowned and not freed, tells its owner once,
// and is one like any other when its bytes have come back elsewhere.
func TestAdoptStorage(t *testing.T) {
	ids := device.NewIDs(null.New())
	s := ids.Stream()
	var told []device.Stream
	x, adopt := ids.AdoptStorage("x", device.Activation, block{4096, 512}, s, func(s device.Stream) { told = append(told, s) })
	whole := device.Range{Buffer: x.Buffer(), Bytes: 512}
	if want := (device.Op{Kind: device.Adopt, Dst: whole, Address: 4096}); adopt != want {
		t.Errorf("got %+v, want %+v", adopt, want)
	}
	if x.Bytes() != 512 || x.Home() != s || !x.Adopted() {
		t.Errorf("%d bytes, home %v, adopted: %v; want 512, %v, true", x.Bytes(), x.Home(), x.Adopted(), s)
	}
	if got, want := x.FreeOn(s), (device.Op{Kind: device.Disown, Stream: s, Dst: whole}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	giveBack := x.Freed()
	if len(told) != 0 {
		t.Error("the owner was told by Freed")
	}
	giveBack(s)
	if len(told) != 1 || told[0] != s {
		t.Errorf("the owner was told of %v, want %v", told, s)
	}
	if _, buffers := ids.Out(); buffers != 0 || x.Adopted() || !x.Buffer().IsZero() {
		t.Errorf("%d ids are out, adopted: %v, buffer %v; want none", buffers, x.Adopted(), x.Buffer())
	}
	x.Move(ids.Buffer(device.OnDevice), ids, s)
	if op := x.FreeOn(s); op.Kind != device.Free {
		t.Errorf("memory of the device: got %v, want a free", op)
	}
	if x.Freed() != nil {
		t.Error("memory of the device has an owner who is told")
	}
}

// Writes to adopted memory are counted while it is adopted.
func TestWatchAdopted(t *testing.T) {
	w := device.Watch(null.New())
	ids := device.NewIDs(w)
	s := ids.Stream()
	x, adopt := ids.AdoptStorage("x", device.Activation, block{4096, 512}, s, nil)
	b := x.Buffer()
	write := device.Op{Kind: device.Launch, Stream: s, Kernel: &device.Kernel{Name: "write", Writes: []device.Range{{Buffer: b, Bytes: 8}}}}
	for _, step := range []struct {
		op   device.Op
		want uint64
	}{{adopt, 0}, {write, 1}, {write, 2}, {x.FreeOn(s), 0}} {
		if err := w.Submit(&device.Batch{Ops: []device.Op{step.op}}); err != nil {
			t.Fatal(err)
		}
		if got := w.Writes(b); got != step.want {
			t.Errorf("after %v: %d writes, want %d", step.op.Kind, got, step.want)
		}
	}
}

// Without a function the storage is adopted all the same.
func TestAdoptStorageTellsNobody(t *testing.T) {
	ids := device.NewIDs(null.New())
	x, _ := ids.AdoptStorage("x", device.Activation, block{4096, 512}, ids.Stream(), nil)
	if !x.Adopted() || x.FreeOn(x.Home()).Kind != device.Disown {
		t.Error("it would be freed")
	}
	x.Freed()(x.Home())
}
