package device

import "sync"

// Watched is a device that counts the writes of every device buffer, as the
// operations submitted through it declare them. An engine opened with it
// notices a tensor that a kernel has changed between its push and its copy,
// without a call of [Storage.Touch]. Submit the whole program's work
// through it, and wrap it in nothing else: the engine has to see that it counts.
type Watched struct {
	Device

	mu     sync.Mutex
	writes map[Buffer]uint64
}

// Watch returns d with its writes counted. Writing to a buffer of which nothing
// is known counts from zero; freeing it forgets it.
func Watch(d Device) *Watched {
	return &Watched{Device: d, writes: make(map[Buffer]uint64)}
}

// Submit implements Device. Operations that are not enqueued may be counted;
// that can report a change that did not happen, and never miss one.
func (w *Watched) Submit(b *Batch) error {
	w.mu.Lock()
	for i := range b.Ops {
		switch op := &b.Ops[i]; op.Kind {
		case CopyIn, CopyWithin:
			w.writes[op.Dst.Buffer]++
		case Launch, Access:
			if op.Kernel == nil {
				continue // the device refuses it
			}
			for _, r := range op.Kernel.Writes {
				w.writes[r.Buffer]++
			}
		case Free, Disown:
			delete(w.writes, op.Dst.Buffer)
		}
	}
	w.mu.Unlock()
	return w.Device.Submit(b)
}

// Writes returns how often b was written since it was allocated.
func (w *Watched) Writes(b Buffer) uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.writes[b]
}
