package nn

import (
	"encoding/binary"
	"fmt"

	"offload/device"
	"offload/nn/ops"
)

// Batch is the input of one run.
type Batch struct {
	Images []float32 // one after the other, Inputs elements each
	Labels []int32   // one for each image, in [0, Classes)
	// Whole is the number of images over which the gradients are averaged; zero
	// means those of this batch. A micro-batch gives the images of all
	// micro-batches of the step.
	Whole int
}

// Result is what a run, or several, made of their images.
type Result struct {
	Samples  int
	Loss     float64 // cross-entropy, mean over the samples
	Accuracy float64 // share of samples whose largest score is at the label
}

// String returns for example "2048 samples, loss 0.3121, accuracy 0.9102".
func (r Result) String() string {
	return fmt.Sprintf("%d samples, loss %.4f, accuracy %.4f", r.Samples, r.Loss, r.Accuracy)
}

// check reports what of b does not fit the network.
func (c Config) check(b Batch) error {
	n := len(b.Labels)
	switch {
	case n == 0:
		return fmt.Errorf("nn: the batch is empty; it must have 1 to %d images", c.Batch)
	case n > c.Batch:
		return fmt.Errorf("nn: the batch has %d images; Config.Batch allows %d", n, c.Batch)
	case len(b.Images) != n*c.Inputs:
		return fmt.Errorf("nn: the batch has %d labels and %d image elements; %d elements for each label make %d",
			n, len(b.Images), c.Inputs, n*c.Inputs)
	case b.Whole != 0 && b.Whole < n:
		return fmt.Errorf("nn: the whole is %d images, but this batch alone has %d", b.Whole, n)
	}
	for i, label := range b.Labels {
		if label < 0 || int(label) >= c.Classes {
			return fmt.Errorf("nn: image %d has label %d; labels are 0 to %d", i, label, c.Classes-1)
		}
	}
	return nil
}

// stage is the pinned memory of one run: images, labels, then the result of
// two floats, the sum of the losses and the number of hits.
type stage struct {
	host                   *ops.Host
	labels, result, length int64 // bytes
}

func (m *MLP) newStage() (*stage, error) {
	c := m.config
	s := &stage{labels: 4 * pad(int64(c.Batch)*int64(c.Inputs))}
	s.result = s.labels + 4*pad(int64(c.Batch))
	s.length = s.result + resultBytes
	var err error
	s.host, err = m.arena.Pin("batch", s.length)
	return s, err
}

const resultBytes = 8

// takeStage returns pinned memory that no copy uses.
func (m *MLP) takeStage() (*stage, error) {
	n := len(m.idle)
	if n == 0 {
		return m.newStage()
	}
	s := m.idle[n-1]
	m.idle = m.idle[:n-1]
	return s, nil
}

// upload queues filling images and labels with b.
func (s *stage) upload(b Batch, images, labels device.Tensor) {
	bytes := s.host.Bytes()
	for i, x := range b.Images {
		put(bytes, int64(i), x)
	}
	for i, label := range b.Labels {
		binary.NativeEndian.PutUint32(bytes[s.labels+4*int64(i):], uint32(label))
	}
	s.host.CopyIn(images, 0)
	s.host.CopyIn(labels, s.labels)
}

// read returns the result, which must have arrived.
func (s *stage) read() (loss, hits float32, err error) {
	b, err := s.host.Read(s.result, resultBytes)
	if err != nil {
		return 0, 0, err
	}
	return get(b, 0), get(b, 1), nil
}
