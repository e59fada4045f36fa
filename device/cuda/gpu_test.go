//go:build cuda

package cuda

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"gorgonia.org/cu"

	"offload/device"
	"offload/device/devicetest"
)

// open opens the first GPU.
func open(t testing.TB, o Options) *Device {
	t.Helper()
	d, err := Open(0, o)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// TestConformance gives the devices that a test opens to the GPUs in turn.
func TestConformance(t *testing.T) {
	gpus, err := Count()
	if err != nil {
		t.Fatal(err)
	}
	var opened atomic.Int32
	devicetest.Run(t, func(t *testing.T, o devicetest.Options) device.Device {
		d, err := Open(int(opened.Add(1)-1)%gpus, Options{MemoryLimit: o.MemoryLimit})
		if err != nil {
			t.Fatal(err)
		}
		return d
	})
}

func TestOpenRefuses(t *testing.T) {
	for _, ordinal := range []int{-1, 1000} {
		if d, err := Open(ordinal, Options{}); err == nil || !strings.Contains(err.Error(), "counted from 0") {
			t.Errorf("GPU %d: got %v and %v, want an error that says how many there are", ordinal, d, err)
		}
	}
	if d, err := Open(0, Options{MemoryLimit: -1}); err == nil {
		t.Errorf("got %v for a negative limit, want an error", d)
	}
}

// TestRates copies out, in, and both ways at once, compares all bytes, and logs
// how fast it went.
func TestRates(t *testing.T) {
	largest := int64(1 << 30)
	if testing.Short() {
		largest = 1 << 24
	}
	d := open(t, Options{})
	r := newRig(t, d)
	away, home := r.pinned(largest), r.pinned(largest)
	from := r.host(home)
	for i := range from {
		from[i] = byte(i*7 + i>>13)
	}
	out, in := r.stream(), r.stream()
	x, y := r.buffer(out, largest), r.buffer(in, largest)
	r.must(copyIn(out, x, home), join(out), join(in))
	for n := int64(64 << 10); n <= largest; n *= 4 {
		rounds := max(1, min(256, 1<<30/n))
		time := func(ops ...device.Op) float64 {
			var all []device.Op
			for range rounds {
				all = append(all, ops...)
			}
			start := time.Now()
			r.must(append(all, join(out), join(in))...)
			return float64(n*rounds) / time.Since(start).Seconds() / 1e9
		}
		a, b := copyOut(out, away.Sub(0, n), x.Sub(0, n)), copyIn(in, y.Sub(0, n), home.Sub(0, n))
		clear(r.host(away))
		time(a, b) // warm
		t.Logf("%10d bytes: out %5.1f GB/s, in %5.1f GB/s, both at once %5.1f GB/s each way", n, time(a), time(b), time(a, b))
		if !bytes.Equal(r.host(away)[:n], from[:n]) {
			t.Errorf("%d bytes out: they differ from those in device memory", n)
		}
		clear(r.host(away))
		r.must(copyOut(in, away.Sub(0, n), y.Sub(0, n)), join(in))
		if !bytes.Equal(r.host(away)[:n], from[:n]) {
			t.Errorf("%d bytes in: they differ from those in host memory", n)
		}
	}
	r.close()
}

func TestLaunchOnGPU(t *testing.T) {
	d := open(t, Options{})
	d.Register("fill", func(c *Call) error {
		w := c.Arg(0).Range
		return cu.MemsetD8Async(cu.DevicePtr(c.Write(w)), byte(c.Arg(1).Int), w.Bytes, fromHandle[cu.Stream](c.Stream()))
	})
	r := newRig(t, d)
	s := r.stream()
	x, h := r.buffer(s, 1000), r.pinned(1000)
	part := x.Sub(10, 500)
	r.must(
		launch(s, "fill", device.Arg{Range: x}, device.Arg{Int: 1}),
		launch(s, "fill", device.Arg{Range: part}, device.Arg{Int: 2}),
		copyOut(s, h, x), join(s))
	for i, got := range r.host(h) {
		want := byte(1)
		if 10 <= i && i < 510 {
			want = 2
		}
		if got != want {
			t.Fatalf("byte %d: got %d, want %d", i, got, want)
		}
	}
	r.close()
}

// TestAdoptedStreamOnGPU runs on a stream that the test made by other means.
func TestAdoptedStreamOnGPU(t *testing.T) {
	d := open(t, Options{})
	g := d.drv.(*gpu)
	handle, err := g.createStream()
	if err != nil {
		t.Fatal(err)
	}
	r := newRig(t, d)
	id, err := d.AdoptStream(handle)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := d.Handle(id); err != nil || got != handle {
		t.Errorf("got handle %#x, %v; want %#x", got, err, handle)
	}
	x, h, k := r.buffer(id, 1<<20), r.pinned(1<<20), r.pinned(1<<20)
	for i := range r.host(h) {
		r.host(h)[i] = byte(i)
	}
	r.must(copyIn(id, x, h), copyOut(id, k, x), join(id), free(id, x))
	if !bytes.Equal(r.host(k), r.host(h)) {
		t.Error("the bytes differ")
	}
	r.must(device.Op{Kind: device.CloseStream, Stream: id})
	if err := g.syncStream(handle); err != nil {
		t.Errorf("got %v after CloseStream, want the stream alive", err)
	}
	if err := g.destroyStream(handle); err != nil {
		t.Error(err)
	}
	r.close()
}

// TestContextIsPutBack submits on a thread that has another context.
func TestContextIsPutBack(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	dev, err := cu.GetDevice(0)
	if err != nil {
		t.Fatal(err)
	}
	mine, err := dev.MakeContext(cu.SchedAuto)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := mine.Destroy(); err != nil {
			t.Error(err)
		}
	}()
	d := open(t, Options{})
	d.Register("nothing", func(*Call) error {
		now, err := cu.CurrentContext()
		if err == nil && handleOf(now) != d.drv.(*gpu).context {
			err = errors.New("the launcher has another context")
		}
		return err
	})
	r := newRig(t, d)
	s := r.stream()
	x, h := r.buffer(s, 100), r.pinned(100)
	r.must(copyIn(s, x, h), launch(s, "nothing"), record(s, r.ids.Event()), join(s))
	r.close()
	if now, err := cu.CurrentContext(); err != nil || handleOf(now) != handleOf(mine) {
		t.Errorf("got context %#x, %v; want the caller's, %#x", handleOf(now), err, handleOf(mine))
	}
}

// TestGPUIsFull asks for more than the GPU has, in the middle of a batch.
func TestGPUIsFull(t *testing.T) {
	d := open(t, Options{})
	r := newRig(t, d)
	s := r.stream()
	small, huge := r.ids.Buffer(device.OnDevice), device.Range{Buffer: r.ids.Buffer(device.OnDevice), Bytes: 1 << 40}
	x := device.Range{Buffer: small, Bytes: 4096}
	err := r.do(alloc(s, x), alloc(s, huge), free(s, x))
	var failed *device.Error
	if !errors.Is(err, device.ErrOutOfMemory) || !errors.As(err, &failed) || failed.Index != 1 {
		t.Fatalf("got %v, want out of memory at operation 1", err)
	}
	t.Log(err)
	if got := d.Usage(); got.InUse != 4096 || got.Peak != 4096 {
		t.Errorf("got usage %+v, want 4096 bytes in use and at the peak", got)
	}
	h := r.pinned(4096)
	r.must(copyIn(s, x, h), copyOut(s, h, x), join(s), free(s, x))
	err = r.do(device.Op{Kind: device.Pin, Dst: device.Range{Buffer: r.ids.Buffer(device.OnHost), Bytes: 1 << 46}})
	if !errors.Is(err, device.ErrOutOfMemory) {
		t.Errorf("64 TiB of pinned memory: got %v, want out of memory", err)
	}
	t.Log(err)
	r.must(join(s))
	r.close()
}

// crash is a kernel that writes to an address that nobody has.
const crash = `.version 7.0
.target sm_70
.address_size 64
.visible .entry crash()
{
	.reg .b64 %at;
	.reg .b32 %x;
	mov.b64 %at, 64;
	mov.b32 %x, 1;
	st.global.b32 [%at], %x;
	ret;
}
`

// TestLostOnGPU loses the context of the process, so it works in one of its own.
func TestLostOnGPU(t *testing.T) {
	if os.Getenv("OFFLOAD_CRASH") == "" {
		cmd := exec.Command(os.Args[0], "-test.run=^TestLostOnGPU$", "-test.v")
		cmd.Env = append(os.Environ(), "OFFLOAD_CRASH=1")
		if text, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%v\n%s", err, text)
		}
		return
	}
	d := open(t, Options{})
	d.Register("crash", func(c *Call) error {
		m, err := cu.LoadData(crash)
		if err != nil {
			return err
		}
		f, err := m.Function("crash")
		if err != nil {
			return err
		}
		return f.Launch(1, 1, 1, 1, 1, 1, 0, fromHandle[cu.Stream](c.Stream()), nil)
	})
	r := newRig(t, d)
	s := r.stream()
	x, h := r.buffer(s, 100), r.pinned(100)
	r.must(launch(s, "crash"))
	var failed *device.Error
	if err := r.do(join(s)); !errors.Is(err, device.ErrLost) || !errors.As(err, &failed) || failed.Op.Kind != device.SyncStream {
		t.Errorf("got %v, want the device lost at the synchronisation", err)
	} else {
		t.Log(err)
	}
	if err := r.do(copyIn(s, x, h)); !errors.Is(err, device.ErrLost) {
		t.Errorf("copy: got %v, want ErrLost", err)
	}
	if _, err := d.Lookup(x.Buffer); !errors.Is(err, device.ErrLost) {
		t.Errorf("Lookup: got %v, want ErrLost", err)
	}
	if err := d.Close(); !errors.Is(err, device.ErrLost) {
		t.Errorf("Close: got %v, want ErrLost", err)
	}
	if err := d.Close(); !errors.Is(err, device.ErrClosed) {
		t.Errorf("second Close: got %v, want ErrClosed", err)
	}
}

// BenchmarkSubmit compares one batch of n operations with n batches of one.
func BenchmarkSubmit(b *testing.B) {
	d := open(b, Options{})
	r := newRig(b, d)
	s, t := r.stream(), r.stream()
	x, h := r.buffer(s, 4096), r.pinned(4096)
	y := device.Range{Buffer: r.ids.Buffer(device.OnDevice), Bytes: 1 << 20}
	r.must(alloc(s, y), free(s, y), join(s))
	for _, c := range []struct {
		name string
		add  func(ops []device.Op) []device.Op
	}{
		{"record and wait", func(ops []device.Op) []device.Op {
			e := r.ids.Event()
			r.ids.PutEvent(e)
			return append(ops, record(s, e), wait(t, e))
		}},
		{"alloc and free", func(ops []device.Op) []device.Op {
			y := device.Range{Buffer: r.ids.Buffer(device.OnDevice), Bytes: 1 << 20}
			r.ids.PutBuffer(y.Buffer)
			return append(ops, alloc(s, y), free(s, y))
		}},
		{"copy out", func(ops []device.Op) []device.Op { return append(ops, copyOut(s, h, x)) }},
	} {
		for _, n := range []int{1, 4, 16} {
			for _, together := range []bool{true, false} {
				how := "one batch"
				if !together {
					how = "batches of one"
				}
				b.Run(fmt.Sprintf("%s x%d/%s", c.name, n, how), func(b *testing.B) {
					b.ReportAllocs()
					batch := &device.Batch{Ops: make([]device.Op, 0, 64)}
					single := &device.Batch{Ops: make([]device.Op, 1)}
					for i := 0; b.Loop(); i++ {
						if i%(256/n) == 0 { // the queues stay short
							b.StopTimer()
							r.must(join(s), join(t))
							b.StartTimer()
						}
						batch.Ops = batch.Ops[:0]
						for range n {
							batch.Ops = c.add(batch.Ops)
						}
						if together {
							if err := d.Submit(batch); err != nil {
								b.Fatal(err)
							}
							continue
						}
						for _, op := range batch.Ops {
							single.Ops[0] = op
							if err := d.Submit(single); err != nil {
								b.Fatal(err)
							}
						}
					}
				})
			}
		}
	}
	r.must(join(s), join(t))
	r.close()
}

func TestPackOnGPU(t *testing.T) { testPack(t, open(t, Options{})) }

func TestAdoptOnGPU(t *testing.T) {
	d := open(t, Options{})
	var at cu.DevicePtr
	if err := d.Do(func() (err error) { at, err = cu.MemAlloc(1000); return err }); err != nil {
		t.Fatal(err)
	}
	testAdopt(t, d, external{uintptr(at), 1000}) // the memory goes with the context
}

// TestMarks measures a copy.
func TestMarks(t *testing.T) {
	d := open(t, Options{})
	r := newRig(t, d)
	s := r.stream()
	const n = 64 << 20
	x, h := r.buffer(s, n), r.pinned(n)
	var marks [2]*Mark
	for i := range marks {
		m, err := d.NewMark()
		if err != nil {
			t.Fatal(err)
		}
		marks[i] = m
	}
	if err := marks[0].Record(s); err != nil {
		t.Fatal(err)
	}
	r.must(copyIn(s, x, h))
	if err := marks[1].Record(s); err != nil {
		t.Fatal(err)
	}
	took, err := marks[1].Since(marks[0])
	if rate := n / took.Seconds(); err != nil || rate < 1e8 || rate > 1e13 {
		t.Errorf("got %v for %d bytes, %v; want something between 0.1 GB/s and 10 TB/s", took, n, err)
	}
	if err := CloseMarks(marks[:]...); err != nil {
		t.Error(err)
	}
	r.close()
}
