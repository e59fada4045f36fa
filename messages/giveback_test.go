package messages

import (
	"slices"
	"testing"

	"offload/device"
)

// Owners are told in order and once, also behind one whose function panics.
func TestGiveBacksRun(t *testing.T) {
	var told []uint32
	var list GiveBacks
	for i := range uint32(5) {
		list = append(list, GiveBack{device.Stream{Index: i}, func(s device.Stream) {
			told = append(told, s.Index)
			if s.Index%2 == 1 {
				panic(s.Index)
			}
		}})
	}
	func() {
		defer func() {
			if v := recover(); v == nil {
				t.Error("the panic was lost")
			}
		}()
		list.Run()
	}()
	if want := []uint32{0, 1, 2, 3, 4}; !slices.Equal(told, want) {
		t.Errorf("told %v, want %v", told, want)
	}
}
