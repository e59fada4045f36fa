//go:build cuda

package cuda

import (
	"math"

	"offload/device"
	"offload/device/cuda"
	"offload/device/cuda/blas"
)

// The kernels take their arguments in the order that the constructors of
// package ops document.

const (
	block     = 256     // threads of a block
	oneBlock  = 1024    // threads of the kernels that have one block
	maxBlocks = 1 << 20 // threads take several elements from there on
	pack      = 16      // bytes that a thread takes at once
)

// grid returns the blocks for n threads.
func grid(n int64) int { return int(min(max((n+block-1)/block, 1), maxBlocks)) }

// over returns the blocks for r, moved by packs.
func over(r device.Range) int { return grid((r.Bytes + pack - 1) / pack) }

func integer(n int64) cuda.Param { return uint64(n) }
func float(x float64) cuda.Param { return uint64(math.Float32bits(float32(x))) }

func read(c *cuda.Call, arg int) cuda.Param  { return uint64(c.Read(c.Arg(arg).Range)) }
func write(c *cuda.Call, arg int) cuda.Param { return uint64(c.Write(c.Arg(arg).Range)) }

// count returns the elements of an argument.
func count(c *cuda.Call, arg int, size int64) cuda.Param {
	return integer(c.Arg(arg).Range.Bytes / size)
}

// twoOf is for kernels of a tensor to write and one to read.
func twoOf(size int64) launcher {
	return func(f cuda.Function) cuda.Launcher {
		return func(c *cuda.Call) error {
			return f.Launch(c.Stream(), over(c.Arg(0).Range), block, write(c, 0), read(c, 1), count(c, 0, size))
		}
	}
}

func cast(size int64) launcher {
	return func(f cuda.Function) cuda.Launcher {
		return func(c *cuda.Call) error {
			n := count(c, 1, size)
			return f.Launch(c.Stream(), grid(int64(n)), block, write(c, 0), read(c, 1), n)
		}
	}
}

func addScaled(f cuda.Function) cuda.Launcher {
	return func(c *cuda.Call) error {
		return f.Launch(c.Stream(), over(c.Arg(0).Range), block, write(c, 0), read(c, 1), count(c, 0, 4), float(c.Arg(2).Float))
	}
}

func fill(f cuda.Function) cuda.Launcher {
	return func(c *cuda.Call) error {
		return f.Launch(c.Stream(), over(c.Arg(0).Range), block, write(c, 0), count(c, 0, 4), float(c.Arg(1).Float))
	}
}

func zero(size int64) launcher {
	return func(f cuda.Function) cuda.Launcher {
		return func(c *cuda.Call) error {
			return f.Launch(c.Stream(), over(c.Arg(0).Range), block, write(c, 0), count(c, 0, size), float(0))
		}
	}
}

func noise(size int64) launcher {
	return func(f cuda.Function) cuda.Launcher {
		return func(c *cuda.Call) error {
			n := count(c, 0, size)
			return f.Launch(c.Stream(), grid(int64(n)), block, write(c, 0), n, integer(c.Arg(1).Int), float(c.Arg(2).Float))
		}
	}
}

func addBias(f cuda.Function) cuda.Launcher {
	return func(c *cuda.Call) error {
		m, n := c.Arg(2).Int, c.Arg(3).Int
		return f.Launch(c.Stream(), grid(m*n), block, write(c, 0), read(c, 1), integer(m), integer(n))
	}
}

// biasGrad gives 32 columns to a block.
func biasGrad(f cuda.Function) cuda.Launcher {
	return func(c *cuda.Call) error {
		m, n := c.Arg(2).Int, c.Arg(3).Int
		return f.Launch(c.Stream(), int(min((n+31)/32, maxBlocks)), block, write(c, 0), read(c, 1), integer(m), integer(n))
	}
}

func sumSquares(f cuda.Function) cuda.Launcher {
	return func(c *cuda.Call) error {
		return f.Launch(c.Stream(), 1, oneBlock, write(c, 0), read(c, 1), count(c, 1, 4))
	}
}

func sgd(f cuda.Function) cuda.Launcher {
	return func(c *cuda.Call) error {
		return f.Launch(c.Stream(), over(c.Arg(0).Range), block, write(c, 0), read(c, 1), read(c, 2), count(c, 0, 4),
			float(c.Arg(3).Float), float(c.Arg(4).Float))
	}
}

func crossEntropy(f cuda.Function) cuda.Launcher {
	return func(c *cuda.Call) error {
		grad := cuda.Param(0)
		if !c.Arg(1).Range.Buffer.IsZero() {
			grad = write(c, 1)
		}
		return f.Launch(c.Stream(), 1, oneBlock, write(c, 0), grad, read(c, 2), read(c, 3),
			integer(c.Arg(4).Int), integer(c.Arg(5).Int), float(c.Arg(6).Float))
	}
}

func differ(f cuda.Function) cuda.Launcher {
	return func(c *cuda.Call) error {
		words := count(c, 1, 4)
		return f.Launch(c.Stream(), grid(int64(words)/16), block, write(c, 0), read(c, 1), read(c, 2), words)
	}
}

// matMul is ops.MatMul.
func (k *Kernels) matMul(c *cuda.Call) error {
	number := func(i int) int { return int(c.Arg(i).Int) }
	to := c.Write(c.Arg(0).Range)
	return k.multiplier.Run(c.Stream(), blas.Product{Type: device.Float32, M: number(3), N: number(4), K: number(5),
		TransposeA: number(6) != 0, TransposeB: number(7) != 0, Add: number(8) != 0},
		blas.Operands{A: c.Read(c.Arg(1).Range), B: c.Read(c.Arg(2).Range), C: to, D: to})
}

// product is ops.AddProduct for elements of type t.
func (k *Kernels) product(t device.DType) cuda.Launcher {
	return func(c *cuda.Call) error {
		dst, x, y, add := c.Arg(0), c.Arg(1), c.Arg(2), c.Arg(3)
		p := blas.Product{Type: t, M: int(dst.Int), N: int(x.Int), K: int(y.Int),
			TransposeA: add.Int&1 != 0, TransposeB: add.Int&2 != 0, Add: add.Int&4 != 0}
		o := blas.Operands{A: c.Read(x.Range), B: c.Read(y.Range), D: c.Write(dst.Range)}
		o.C = o.D
		if p.Add {
			o.C = c.Read(add.Range)
		}
		return k.multiplier.Run(c.Stream(), p, o)
	}
}
