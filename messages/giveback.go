package messages

import "offload/device"

// GiveBack says that memory of the caller is his again, for work that is ordered
// after the present point of Stream.
type GiveBack struct {
	Stream device.Stream
	Tell   func(device.Stream) // tells the owner; once, and outside every actor and lock
}

// GiveBacks are in the order in which the memory was given back.
type GiveBacks []GiveBack

// Run tells the owners in order. If one of the functions panics, the others are
// called all the same, and the panic goes on.
func (l GiveBacks) Run() {
	next := 0
	defer func() {
		if next < len(l) {
			l[next:].Run()
		}
	}()
	for next < len(l) {
		b := l[next]
		next++
		b.Tell(b.Stream)
	}
}
