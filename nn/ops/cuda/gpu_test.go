//go:build cuda

package cuda

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"testing"

	"offload/device"
	"offload/device/cuda"
	"offload/nn/ops"
)

// A bench is the first GPU with its kernels, for one test.
type bench struct {
	t     *testing.T
	arena *ops.Arena
	scope *ops.Scope
	host  *ops.Host
	rng   *rand.Rand
}

const hostBytes = 64 << 20

func newBench(t *testing.T) *bench {
	d, err := cuda.Open(0, cuda.Options{})
	if err != nil {
		t.Fatal(err)
	}
	k, err := Register(d)
	if err != nil {
		t.Fatal(err)
	}
	ids := device.NewIDs(d)
	s := ids.Stream()
	if err := d.Submit(&device.Batch{Ops: []device.Op{{Kind: device.OpenStream, Stream: s}}}); err != nil {
		t.Fatal(err)
	}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	b := &bench{t: t, arena: ops.NewArena(d, s), rng: rand.New(rand.NewPCG(seed, 0))}
	b.scope = b.arena.Scope()
	if b.host, err = b.arena.Pin("test", hostBytes); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, close := range []func() error{b.arena.Close, k.Close, d.Close} {
			if err := close(); err != nil {
				t.Error(err)
			}
		}
	})
	return b
}

// flush runs what is queued.
func (b *bench) flush() {
	b.t.Helper()
	if err := b.arena.Flush(device.Origin{Action: "test"}); err != nil {
		b.t.Fatal(err)
	}
	if err := b.arena.Sync(); err != nil {
		b.t.Fatal(err)
	}
}

// upload makes a tensor of the values, rounded to the type, and returns what they
// have become.
func (b *bench) upload(t device.DType, values []float64, shape ...int) (device.Tensor, []float64) {
	b.t.Helper()
	x := b.scope.Alloc("x", device.Workspace, t, shape...)
	rounded := make([]float64, len(values))
	mem := b.host.Bytes()
	for i, v := range values {
		switch t {
		case device.Float32:
			binary.NativeEndian.PutUint32(mem[4*i:], math.Float32bits(float32(v)))
			rounded[i] = float64(float32(v))
		case device.BFloat16:
			h := toBFloat16(float32(v))
			binary.NativeEndian.PutUint16(mem[2*i:], h)
			rounded[i] = fromBFloat16(h)
		case device.Int32:
			binary.NativeEndian.PutUint32(mem[4*i:], uint32(int32(v)))
			rounded[i] = v
		case device.Int64:
			binary.NativeEndian.PutUint64(mem[8*i:], uint64(int64(v)))
			rounded[i] = v
		}
	}
	b.host.CopyIn(x, 0)
	b.flush()
	return x, rounded
}

func (b *bench) download(x device.Tensor) []float64 {
	b.t.Helper()
	b.host.CopyOut(0, x)
	b.flush()
	mem := b.host.Bytes()
	values := make([]float64, x.Elements())
	for i := range values {
		switch x.DType {
		case device.Float32:
			values[i] = float64(math.Float32frombits(binary.NativeEndian.Uint32(mem[4*i:])))
		case device.BFloat16:
			values[i] = fromBFloat16(binary.NativeEndian.Uint16(mem[2*i:]))
		case device.Int64:
			values[i] = float64(int64(binary.NativeEndian.Uint64(mem[8*i:])))
		}
	}
	return values
}

// normal returns n numbers of the normal distribution with the given deviation.
func (b *bench) normal(n int, deviation float64) []float64 {
	x := make([]float64, n)
	for i := range x {
		x[i] = b.rng.NormFloat64() * deviation
	}
	return x
}

// poison returns n NaNs: an element that is not written shows.
func poison(n int) []float64 {
	x := make([]float64, n)
	for i := range x {
		x[i] = math.NaN()
	}
	return x
}

func toBFloat16(x float32) uint16 {
	u := math.Float32bits(x)
	if x != x {
		return uint16(u>>16) | 1
	}
	return uint16((u + 0x7fff + u>>16&1) >> 16)
}

func fromBFloat16(h uint16) float64 { return float64(math.Float32frombits(uint32(h) << 16)) }

// unit is the relative distance of neighbours of a type.
func unit(t device.DType) float64 {
	if t == device.BFloat16 {
		return 1.0 / (1 << 7)
	}
	return 1.0 / (1 << 23)
}

// close fails the test if an element is off by more than relative times what it
// should be, plus absolute.
func (b *bench) close(name string, got, want []float64, relative, absolute float64) {
	b.t.Helper()
	for i, w := range want {
		if !(math.Abs(got[i]-w) <= relative*math.Abs(w)+absolute) {
			b.t.Errorf("%s: element %d of %d is %v, want %v", name, i, len(want), got[i], w)
			return
		}
	}
}

// near fails the test if the norm of the difference is more than limit times that
// of what it should be.
func (b *bench) near(name string, got, want []float64, limit float64) {
	b.t.Helper()
	var off, all float64
	for i, w := range want {
		off += (got[i] - w) * (got[i] - w)
		all += w * w
	}
	if e := math.Sqrt(off / all); !(e <= limit) {
		b.t.Errorf("%s: relative error %.2e, want at most %.0e", name, e, limit)
	}
}
