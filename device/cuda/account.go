package cuda

import (
	"fmt"

	"offload/device"
)

// Align is the number of bytes that the size of every buffer is rounded up to,
// and that its start is a multiple of.
const Align = 256

// align rounds n up to a multiple of Align.
func align(n int64) int64 { return (n + Align - 1) / Align * Align }

// An account counts memory in the order of submission.
type account struct {
	limit int64 // zero: none
	inUse int64
	peak  int64
}

// take counts n bytes more, or refuses them.
func (a *account) take(n int64) error {
	if a.limit > 0 && n > a.limit-a.inUse {
		return fmt.Errorf("%w: %d bytes asked for, %d in use, limit %d", device.ErrOutOfMemory, n, a.inUse, a.limit)
	}
	a.add(n)
	return nil
}

// add counts n bytes more that cannot be refused any more.
func (a *account) add(n int64) {
	a.inUse += n
	a.peak = max(a.peak, a.inUse)
}

// give counts n bytes less.
func (a *account) give(n int64) { a.inUse -= n }

func (a *account) usage() device.Usage {
	return device.Usage{InUse: a.inUse, Peak: a.peak, Limit: a.limit}
}
