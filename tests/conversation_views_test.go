package tests

import (
	"errors"
	"fmt"
	"strconv"
	"testing"

	"github.com/cockroachdb/datadriven"

	"offload"
	"offload/device"
)

// onTensor does the commands about tensors that are not about a layer:
//
//	tensor x                a new tensor [bytes=N] [class=C] [stream=side]
//	view v of=x shape=(N, ...)   [strides=(N, ...)] [offset=N] [dtype=T] [keep]
//	mark x ...              MarkReady in the current pass [stream=side]
//	kernel x ...            a kernel that reads them [stream=side]
//	touch x
//	retain | drop x         [by=NAME]
//
// It reports whether the command is one of them.
func (c *conversation) onTensor(t *testing.T, td *datadriven.TestData) (bool, error) {
	switch td.Cmd {
	case "tensor":
		c.newTensor(t, td, td.CmdArgs[0].Key)
		return true, nil
	case "view":
		return true, c.newView(t, td)
	case "mark", "kernel", "touch", "retain", "drop":
	default:
		return false, nil
	}
	var ts []device.Tensor
	for _, a := range td.CmdArgs {
		if len(a.Vals) > 0 {
			continue
		}
		x, ok := c.tensors[a.Key]
		if !ok {
			return true, fmt.Errorf("no tensor %s", a.Key)
		}
		ts = append(ts, x)
	}
	switch td.Cmd {
	case "mark":
		if c.pass == nil {
			return true, errors.New("no pass was begun")
		}
		return true, c.pass.MarkReady(c.stream(td), ts...)
	case "kernel":
		for _, x := range ts {
			c.rig.CheckView(c.stream(td), x, x.Storage.Name())
		}
	case "touch":
		ts[0].Storage.Touch()
	case "retain":
		if a, ok := td.Arg("by"); ok {
			ts[0].Storage.Retain(a.Vals[0])
		} else {
			c.rig.Keep(ts[0])
		}
	case "drop":
		if a, ok := td.Arg("by"); !ok {
			c.rig.Drop(c.rig.Compute, ts[0])
		} else if last := ts[0].Storage.Drop(a.Vals[0]); last && !ts[0].Storage.Buffer().IsZero() {
			c.rig.Free(c.rig.Compute, ts[0])
		}
	}
	return true, nil
}

func (c *conversation) newTensor(t *testing.T, td *datadriven.TestData, name string) device.Tensor {
	n, class := int64(4096), device.Activation
	td.MaybeScanArgs(t, "bytes", &n)
	if a, ok := td.Arg("class"); ok {
		for class.String() != a.Vals[0] {
			class++
		}
	}
	x := c.rig.TensorOf(c.stream(td), name, class, n)
	c.tensors[name] = x
	c.name(x.Storage.Buffer(), name)
	return x
}

func (c *conversation) newView(t *testing.T, td *datadriven.TestData) error {
	of, ok := td.Arg("of")
	base, known := c.tensors[of.SingleVal(t)]
	if !ok || !known {
		return fmt.Errorf("want of=TENSOR, one that there is")
	}
	v := device.Tensor{Storage: base.Storage, DType: device.Uint8, Keep: td.HasArg("keep")}
	if a, ok := td.Arg("dtype"); ok {
		for v.DType = device.Invalid; v.DType.String() != a.Vals[0]; v.DType++ {
		}
	}
	td.MaybeScanArgs(t, "offset", &v.Offset)
	for _, list := range []struct {
		name string
		to   *[]int
	}{{"shape", &v.Shape}, {"strides", &v.Strides}} {
		a, ok := td.Arg(list.name)
		if !ok {
			continue
		}
		*list.to = []int{}
		for _, s := range a.Vals {
			n, err := strconv.Atoi(s)
			if err != nil {
				return err
			}
			*list.to = append(*list.to, n)
		}
	}
	c.tensors[td.CmdArgs[0].Key] = v
	return v.Check()
}

// explain prints the records of the current pass.
func (c *conversation) explain() {
	for _, r := range c.pass.Explain() {
		c.printf("%v", r)
	}
}

// scanMoves scans the options of open that say what moves and how.
func scanMoves(t *testing.T, td *datadriven.TestData, o *offload.Options) {
	td.MaybeScanArgs(t, "coalesce", &o.CoalesceBytes)
	o.KeepStrided, o.CopyAtPush = td.HasArg("keep-strided"), td.HasArg("copy-at-push")
	o.Explain, o.Strict = td.HasArg("explain"), td.HasArg("strict")
}
