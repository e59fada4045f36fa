// Package hostmem decides where in pinned host memory bytes go.
//
// Pinning is slow (about 0.4 s per GiB) and must not happen within a training
// step once it is warmed up. So memory is pinned in few large slabs that are
// kept, and blocks are cut out of them.
//
// # Terms
//
// A slab is one pinned buffer. A [Block] is what one [Pool.Take] hands out:
// one [device.Range] of a slab, or several when more was asked for than a slab
// holds. A fence is a value of the caller, usually a [device.Event], that says
// from when on bytes may be used again. A piece of free memory whose fence is
// not known to have passed is fenced; other free memory is free without
// condition. Every slab is at all times divided into these three kinds:
//
//	Held = InUse + Free + Fenced
//
// # Placement
//
// A block comes from the first slab, in the order in which they were pinned,
// that has enough adjacent free bytes, and there from the tightest place. Only
// rounding to pages is added. Adjacent free pieces serve as one, whether they
// are fenced or not; each keeps its own fence, and the taker gets the fences of
// exactly the pieces that it reuses.
//
// Where no slab can serve, one is pinned whose size suits the request: it can
// be cut into such blocks with a bounded rest. The budget holds at every
// instant: to make room, slabs that are wholly free without condition are
// unpinned first.
//
// Placement depends on the order of the calls and not on which fences have
// passed. Hence a sequence of Takes and Gives that ran once, that began and
// ended with no block in use and that unpinned nothing, runs again any number of
// times in the same places and without a pin: a training run with fixed shapes
// pins in its first step only, whatever the timing. The price is a wait for a
// fence where other free memory might have done without one.
//
// # Concurrency
//
// A [Pool] belongs to one goroutine or actor. It calls no device: it returns
// operations, and the caller submits them.
//
// # Ownership
//
// Whoever takes a block owns it until [Pool.Give] or [Pool.Return]. The place
// of a block never changes: a buffer that is to keep its address is a block
// that is not given back. The pool owns the ids of its slabs.
//
// # Use
//
//	p := hostmem.New[device.Event](hostmem.Config{Budget: 8 << 30}, ids)
//	b, ops, err := p.Take(n)
//	// submit ops, then wait for b.Fences() on the stream that writes first
//	// copy out to b.Ranges(), later copy in from them, record an event
//	p.Give(b, event)
//
// PageBytes has to be a multiple of the alignment of the device, [device.Info].
// [Limit] reads how much memory the process may have at all.
package hostmem
