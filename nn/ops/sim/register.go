package sim

import (
	"encoding/binary"

	"offload/device/sim"
	"offload/nn/ops"
)

// Register makes the kernels of package ops known to d. It is called once for
// each device; a second call panics, as the device refuses a name twice.
func Register(d *sim.Device) {
	d.Register(ops.MatMulName, matMulKernel)
	d.Register(ops.SquaredReLUName, squaredReLUKernel)
	d.Register(ops.SquaredReLUGradName, squaredReLUGradKernel)
	d.Register(ops.AddScaledName, addScaledKernel)
	d.Register(ops.FillName, fillKernel)
	d.Register(ops.CrossEntropyName, crossEntropyKernel)
	d.Register(ops.SumSquaresName, sumSquaresKernel)
	d.Register(ops.SGDName, sgdKernel)
}

// The kernels take their arguments in the order that the constructors document.

func matMulKernel(c *sim.Call) error {
	p := product{
		a: read(c, 1), b: read(c, 2),
		m: number(c, 3), n: number(c, 4), k: number(c, 5),
		transposeA: number(c, 6) != 0, transposeB: number(c, 7) != 0, accumulate: number(c, 8) != 0,
	}
	if p.accumulate {
		p.c = update(c, 0)
	} else {
		p.c = write(c, 0)
	}
	p.run()
	return nil
}

func squaredReLUKernel(c *sim.Call) error {
	squaredReLU(write(c, 0), read(c, 1))
	return nil
}

func squaredReLUGradKernel(c *sim.Call) error {
	squaredReLUGrad(update(c, 0), read(c, 1))
	return nil
}

func addScaledKernel(c *sim.Call) error {
	addScaled(update(c, 0), read(c, 1), float32(c.Arg(2).Float))
	return nil
}

func fillKernel(c *sim.Call) error {
	fill(write(c, 0), float32(c.Arg(1).Float))
	return nil
}

func crossEntropyKernel(c *sim.Call) error {
	result, logits := write(c, 0), read(c, 2)
	var grad []float32
	if !c.Arg(1).Range.Buffer.IsZero() {
		grad = write(c, 1)
	}
	bytes := c.Read(c.Arg(3).Range)
	labels := make([]int32, number(c, 4))
	for i := range labels {
		labels[i] = int32(binary.NativeEndian.Uint32(bytes[i*4:]))
	}
	var err error
	result[0], result[1], err = crossEntropy(grad, logits, labels, number(c, 5), float32(c.Arg(6).Float))
	return err
}

func sumSquaresKernel(c *sim.Call) error {
	write(c, 0)[0] = sumSquares(read(c, 1))
	return nil
}

func sgdKernel(c *sim.Call) error {
	sgd(update(c, 0), read(c, 1), read(c, 2)[0], float32(c.Arg(3).Float), float32(c.Arg(4).Float))
	return nil
}

func read(c *sim.Call, arg int) []float32  { return c.ReadFloat32(c.Arg(arg).Range) }
func write(c *sim.Call, arg int) []float32 { return c.WriteFloat32(c.Arg(arg).Range) }

// update declares both accesses and returns the memory for writing.
func update(c *sim.Call, arg int) []float32 {
	r := c.Arg(arg).Range
	c.ReadFloat32(r)
	return c.WriteFloat32(r)
}

func number(c *sim.Call, arg int) int { return int(c.Arg(arg).Int) }
