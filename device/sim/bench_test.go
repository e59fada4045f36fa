package sim

import (
	"testing"

	"offload/device"
)

// BenchmarkPass is one pass over 1,000 layers of 8 tensors of 4 KiB: written,
// copied out, freed, copied back, read, freed; with the checker on and off.
func BenchmarkPass(b *testing.B) {
	for _, off := range []bool{false, true} {
		name := "checked"
		if off {
			name = "unchecked"
		}
		b.Run(name, func(b *testing.B) {
			r := newRig(b, Config{NoChecker: off})
			touch := func(*Call) error { return nil }
			r.dev.Register("produce", touch)
			r.dev.Register("consume", touch)
			pass(r, 10)
			r.dev.ResetStats()
			b.ReportAllocs()
			for b.Loop() {
				pass(r, 1000)
			}
			b.ReportMetric(float64(r.dev.Stats().Total())/float64(b.N), "ops/pass")
			if got := r.dev.Findings(); len(got) > 0 {
				b.Fatalf("got findings %v, want none", got)
			}
		})
	}
}

func pass(r *rig, layers int) {
	const tensors, size = 8, 4096
	var batch device.Batch
	submit := func() {
		if err := r.dev.Submit(&batch); err != nil {
			r.t.Fatal(err)
		}
		batch.Reset(device.Origin{Action: "pass"})
	}
	add := func(ops ...device.Op) { batch.Ops = append(batch.Ops, ops...) }
	buffers := func() (l []device.Range) {
		for range tensors {
			x := device.Range{Buffer: r.ids.Buffer(device.OnDevice), Bytes: size}
			l = append(l, x)
			add(alloc(r.a, x))
		}
		return l
	}
	drop := func(l []device.Range) {
		for _, x := range l {
			add(free(r.a, x))
			r.ids.PutBuffer(x.Buffer)
		}
	}
	launch := func(name string, reads, writes []device.Range) {
		add(device.Op{Kind: device.Launch, Stream: r.a, Kernel: &device.Kernel{Name: name, Reads: reads, Writes: writes}})
	}
	after := func(s, of device.Stream) {
		e := r.ids.Event()
		add(record(of, e), wait(s, e))
		submit()
		r.ids.PutEvent(e)
	}
	hosts := make([]device.Range, layers)
	for i := range hosts {
		hosts[i] = device.Range{Buffer: r.ids.Buffer(device.OnHost), Bytes: tensors * size}
		add(pin(hosts[i]))
	}
	for i := range layers {
		l := buffers()
		launch("produce", nil, l)
		after(r.b, r.a)
		for k, x := range l {
			add(out(r.b, hosts[i].Sub(int64(k*size), size), x))
		}
		after(r.a, r.b)
		drop(l)
		submit()
	}
	for i := range layers {
		l := buffers()
		after(r.b, r.a)
		for k, x := range l {
			add(in(r.b, x, hosts[i].Sub(int64(k*size), size)))
		}
		after(r.a, r.b)
		launch("consume", l, nil)
		drop(l)
		submit()
	}
	add(join(r.a))
	for _, h := range hosts {
		add(unpin(h))
		r.ids.PutBuffer(h.Buffer)
	}
	submit()
}

// BenchmarkLargeBuffers is a step of 60 kernels on buffers of 1 MiB, each
// allocated and freed; the kernels do nothing, so that the rest is the device.
func BenchmarkLargeBuffers(b *testing.B) {
	r := newRig(b, Config{})
	r.dev.Register("produce", func(*Call) error { return nil })
	b.ReportAllocs()
	for b.Loop() {
		for range 60 {
			x := r.buffer(r.a, 1<<20)
			r.must(call(r.a, "produce", x, nil, []device.Range{x}), free(r.a, x))
			r.ids.PutBuffer(x.Buffer)
		}
		r.must(join(r.a))
	}
}
