package sim

import (
	"fmt"
	"strings"

	"offload/device"
)

// Stats counts what a device was asked to do since it was made, or since the
// last ResetStats. Operations that were refused are not counted. Stats values
// can be compared with ==.
type Stats struct {
	Batches     uint64
	Ops         [device.Kinds]uint64 // by device.Kind
	BytesOut    int64                // of CopyOut
	BytesIn     int64                // of CopyIn
	BytesWithin int64                // of CopyWithin
	BytesAlloc  int64                // of Alloc, rounded up to Align
	BytesPinned int64                // of Pin, rounded up to Align
	Findings    uint64               // all of them, those not kept in the list as well
}

// Count returns how many operations of kind k were enqueued.
func (s Stats) Count(k device.Kind) uint64 {
	if int(k) < len(s.Ops) {
		return s.Ops[k]
	}
	return 0
}

// Total returns how many operations were enqueued.
func (s Stats) Total() uint64 {
	var n uint64
	for _, k := range s.Ops {
		n += k
	}
	return n
}

// String lists the counts that are not zero on one line.
func (s Stats) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d batches, %d operations", s.Batches, s.Total())
	for k, n := range s.Ops {
		if n > 0 {
			fmt.Fprintf(&b, ", %d %v", n, device.Kind(k))
		}
	}
	for _, c := range []struct {
		name  string
		bytes int64
	}{{"out", s.BytesOut}, {"in", s.BytesIn}, {"within", s.BytesWithin}, {"allocated", s.BytesAlloc}, {"pinned", s.BytesPinned}} {
		if c.bytes > 0 {
			fmt.Fprintf(&b, ", %d bytes %s", c.bytes, c.name)
		}
	}
	fmt.Fprintf(&b, ", %d findings", s.Findings)
	return b.String()
}
