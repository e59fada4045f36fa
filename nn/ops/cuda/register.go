//go:build cuda

package cuda

import (
	_ "embed"
	"errors"
	"fmt"

	"offload/device"
	"offload/device/cuda"
	"offload/device/cuda/blas"
	"offload/nn/ops"
)

//go:embed kernels.ptx
var ptx []byte

// Kernels are the kernels of one device.
type Kernels struct {
	dev        *cuda.Device
	module     *cuda.Module
	multiplier *blas.Multiplier
}

// A launcher makes the launcher of a kernel from its function.
type launcher func(f cuda.Function) cuda.Launcher

// Register loads the kernels and makes them known to d. It is called once for
// each device; a second call panics, as the device refuses a name twice.
func Register(d *cuda.Device) (*Kernels, error) {
	m, err := blas.Open(d)
	if err != nil {
		return nil, err
	}
	k := &Kernels{dev: d, multiplier: m}
	launchers := make(map[string]cuda.Launcher)
	err = d.Do(func() error {
		if k.module, err = cuda.LoadModule(ptx); err != nil {
			return err
		}
		for name, entry := range entries() {
			f, err := k.module.Function(entry.function)
			if err != nil {
				return err
			}
			launchers[name] = entry.launcher(f)
		}
		return nil
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("nn/ops/cuda: %w", err), k.Close())
	}
	for name, l := range launchers {
		d.Register(name, l)
	}
	d.Register(ops.MatMulName, k.matMul)
	for _, t := range types {
		d.Register(ops.Typed(ops.ProductName, t), k.product(t))
	}
	return k, nil
}

// BLAS returns the version of cuBLAS, such as 130001.
func (k *Kernels) BLAS() int { return k.multiplier.Version() }

// Close gives the code and the workspaces back.
func (k *Kernels) Close() error {
	err := k.multiplier.Close()
	if k.module != nil {
		err = errors.Join(err, k.dev.Do(k.module.Unload))
	}
	return err
}

var types = []device.DType{device.Float32, device.BFloat16}

// An entry is a kernel in kernels.cu and how it is launched.
type entry struct {
	function string
	launcher launcher
}

// entries lists the kernels by name.
func entries() map[string]entry {
	list := map[string]entry{
		ops.SquaredReLUName:     {"squared_relu_float32", twoOf(4)},
		ops.SquaredReLUGradName: {"squared_relu_grad_float32", twoOf(4)},
		ops.AddScaledName:       {"add_scaled_float32", addScaled},
		ops.FillName:            {"fill_float32", fill},
		ops.CrossEntropyName:    {"cross_entropy", crossEntropy},
		ops.SumSquaresName:      {"sum_squares", sumSquares},
		ops.SGDName:             {"sgd", sgd},
		ops.DifferName:          {"differ", differ},

		ops.Typed(ops.CastName, device.Float32):  {"cast_float32_bfloat16", cast(4)},
		ops.Typed(ops.CastName, device.BFloat16): {"cast_bfloat16_float32", cast(2)},
	}
	for _, t := range types {
		size := t.Size()
		for name, e := range map[string]entry{
			ops.GELUName:     {"gelu", twoOf(size)},
			ops.GELUGradName: {"gelu_grad", twoOf(size)},
			ops.ZeroName:     {"fill", zero(size)},
			ops.NoiseName:    {"noise", noise(size)},
			ops.AddBiasName:  {"bias", addBias},
			ops.BiasGradName: {"bias_grad", biasGrad},
		} {
			list[ops.Typed(name, t)] = entry{e.function + "_" + t.String(), e.launcher}
		}
	}
	return list
}
