package main

import (
	"errors"
	"time"

	"offload/device"
)

// measureCeiling copies what a layer of w saves, again and again, with nothing
// else on the device: out, in, and both at once.
func measureCeiling(g *gpu, w workload) (c ceiling, err error) {
	c = ceiling{Workload: w.name}
	sizes := w.saved()
	c.Bytes = sizes[:]
	largest, set := int64(0), int64(0)
	for _, n := range sizes {
		largest, set = max(largest, n), set+n
	}
	ids := device.NewIDs(g)
	do := func(ops ...device.Op) error {
		return g.Submit(&device.Batch{Origin: device.Origin{Action: "ceiling"}, Ops: ops})
	}
	var streams [2]device.Stream
	var onDevice, onHost [2]device.Range
	for i := range streams {
		streams[i] = ids.Stream()
		onDevice[i] = device.Range{Buffer: ids.Buffer(device.OnDevice), Bytes: largest}
		onHost[i] = device.Range{Buffer: ids.Buffer(device.OnHost), Bytes: largest}
		if err := do(device.Op{Kind: device.OpenStream, Stream: streams[i]},
			device.Op{Kind: device.Alloc, Stream: streams[i], Dst: onDevice[i]},
			device.Op{Kind: device.Pin, Dst: onHost[i]}); err != nil {
			return c, err
		}
	}
	defer func() {
		for i := range streams {
			err = errors.Join(err, do(device.Op{Kind: device.Free, Stream: streams[i], Dst: onDevice[i]},
				device.Op{Kind: device.SyncStream, Stream: streams[i]},
				device.Op{Kind: device.Unpin, Dst: onHost[i]}, device.Op{Kind: device.CloseStream, Stream: streams[i]}))
		}
	}()
	rounds := max(2, int(4<<30/set))
	rounds = min(rounds, 200)
	copies := func(i int) []device.Op {
		var list []device.Op
		for range rounds {
			for _, n := range sizes {
				op := device.Op{Kind: device.CopyOut, Stream: streams[i], Dst: onHost[i].Sub(0, n), Src: onDevice[i].Sub(0, n)}
				if i == 1 {
					op.Kind, op.Dst, op.Src = device.CopyIn, op.Src, op.Dst
				}
				list = append(list, op)
			}
		}
		return list
	}
	// rates runs the copies of the given directions at once, timed by themselves.
	rates := func(directions ...int) (gbs [2]float64, err error) {
		for _, i := range directions {
			if err := g.clock.mark(streams[i], markCopies+2*i); err != nil {
				return gbs, err
			}
			if err := do(copies(i)...); err != nil {
				return gbs, err
			}
			if err := g.clock.mark(streams[i], markCopies+2*i+1); err != nil {
				return gbs, err
			}
		}
		for _, i := range directions {
			if err := do(device.Op{Kind: device.SyncStream, Stream: streams[i]}); err != nil {
				return gbs, err
			}
			var took time.Duration
			if took, err = g.clock.between(markCopies+2*i, markCopies+2*i+1); err != nil {
				return gbs, err
			}
			gbs[i] = float64(set*int64(rounds)) / took.Seconds() / 1e9
		}
		return gbs, nil
	}
	if _, err := rates(0, 1); err != nil { // warm up
		return c, err
	}
	out, err := rates(0)
	if err != nil {
		return c, err
	}
	in, err := rates(1)
	if err != nil {
		return c, err
	}
	both, err := rates(0, 1)
	c.OutGBs, c.InGBs, c.BothOut, c.BothIn = out[0], in[1], both[0], both[1]
	return c, err
}
