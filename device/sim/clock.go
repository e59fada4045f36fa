package sim

// hostLane is the lane of the host; streams have lanes from 1.
const hostLane = 0

// A clock is a vector clock: for every lane, the time up to which its
// operations are known to have happened. Lanes beyond its length are at zero.
type clock []uint64

func (c clock) at(lane int) uint64 {
	if lane < len(c) {
		return c[lane]
	}
	return 0
}

// covers reports whether the operation at time t of the lane happened before
// whatever has clock c.
func (c clock) covers(lane int, t uint64) bool { return c.at(lane) >= t }

// join makes c cover all that o covers.
func (c *clock) join(o clock) {
	c.grow(len(o))
	for i, t := range o {
		(*c)[i] = max((*c)[i], t)
	}
}

// tick advances one lane and returns its new time.
func (c *clock) tick(lane int) uint64 {
	c.grow(lane + 1)
	(*c)[lane]++
	return (*c)[lane]
}

func (c *clock) grow(n int) {
	for len(*c) < n {
		*c = append(*c, 0)
	}
}
