package main

// A workload is a stack of layers y = x + GELU(x W1) W2, with W1 [d 4d] and W2
// [4d d], bfloat16 with float32 sums. A layer saves x, the input of GELU and its
// output.
type workload struct {
	name      string
	layers    int
	width     int   // d
	tokens    int   // rows of x
	offloaded []int // how many layers, one plan each; the first is 0
	forward   bool  // measure forwards without backward, too
}

var workloads = []workload{
	{"W1", 16, 4096, 8192, []int{0, 4, 8, 14}, true},
	{"W1b", 16, 4096, 16384, []int{0, 4, 8, 14}, false},
	{"W2", 32, 1024, 2048, []int{0, 8, 16, 30}, false},
	{"W3", 64, 128, 64, []int{0, 16, 32, 62}, false},
}

const expansion = 4 // of the width inside a layer

// saved returns the bytes of the tensors that a layer saves.
func (w workload) saved() [3]int64 {
	x := int64(w.tokens) * int64(w.width) * 2
	return [3]int64{x, expansion * x, expansion * x}
}

// A baseline is what other engines reach on an H200 with the same workload and
// the same number of layers offloaded: TransformerEngine's offload engine, or
// plain PyTorch for none. Zero: not known.
type baseline struct {
	stepMs, ratio, peakMiB, movedMiB, hostMs float64
}

var baselines = map[string]map[int]baseline{
	"W1": {
		0: {166.5, 1, 9600, 0, 4.9}, 4: {166.0, 1, 7424, 2304, 8.2},
		8: {195.8, 1.18, 5248, 4608, 12.5}, 14: {321.9, 1.93, 1792, 8064, 14.6},
	},
	"W1b": {
		0: {330.8, 1, 19072, 0, 0}, 4: {331.0, 1, 14720, 0, 0}, 8: {391.6, 1.18, 10496, 0, 0}, 14: {641.7, 1.94, 3584, 0, 0},
	},
	"W2": {
		0: {7.45, 1, 1176, 0, 6.6}, 8: {16.2, 2.17, 896, 288, 16.2}, 16: {24.3, 3.26, 616, 576, 24.4}, 30: {42.8, 5.74, 112, 1080, 38.8},
	},
	"W3": {
		0: {13.2, 1, 9, 0, 0}, 16: {14.7, 1.12, 0, 0, 0}, 32: {14.2, 1.08, 0, 0, 0}, 62: {17.4, 1.32, 0, 0, 0},
	},
}
