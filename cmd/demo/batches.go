package main

import (
	"math/rand/v2"

	"offload/internal/mnist"
	"offload/nn"
)

// batches draws training batches: the images in an order that is shuffled anew
// for every pass through the set, and depends on the seed alone.
type batches struct {
	set   *mnist.Set
	rng   *rand.Rand
	order []int
	next  int // position in order
	batch nn.Batch
}

// newBatches draws size images at a time.
func newBatches(set *mnist.Set, size int, seed uint64) *batches {
	b := &batches{set: set, rng: rand.New(rand.NewPCG(seed, 1))}
	b.order = b.rng.Perm(set.Len())
	b.batch = nn.Batch{Images: make([]float32, size*mnist.Pixels), Labels: make([]int32, size)}
	return b
}

// draw returns the next batch. It is valid until the following call.
func (b *batches) draw() nn.Batch {
	for i := range b.batch.Labels {
		if b.next == len(b.order) {
			b.rng.Shuffle(len(b.order), func(i, j int) { b.order[i], b.order[j] = b.order[j], b.order[i] })
			b.next = 0
		}
		image := b.order[b.next]
		b.next++
		scale(b.batch.Images[i*mnist.Pixels:], b.set.Image(image))
		b.batch.Labels[i] = int32(b.set.Labels[image])
	}
	return b.batch
}

// part returns micro-batch i of n of the same size.
func part(b nn.Batch, i, n int) nn.Batch {
	size := len(b.Labels) / n
	return nn.Batch{
		Images: b.Images[i*size*mnist.Pixels : (i+1)*size*mnist.Pixels],
		Labels: b.Labels[i*size : (i+1)*size],
	}
}

// all returns the whole set as one list of images and one of labels.
func all(set *mnist.Set) (images []float32, labels []int32) {
	images = make([]float32, len(set.Images))
	scale(images, set.Images)
	labels = make([]int32, set.Len())
	for i, label := range set.Labels {
		labels[i] = int32(label)
	}
	return images, labels
}

// The mean and the standard deviation of all pixels of the training set, as
// numbers from 0 to 1.
const (
	mean      = 0.1307
	deviation = 0.3081
)

// scale turns pixels into numbers with mean 0 and deviation 1.
func scale(dst []float32, pixels []byte) {
	for i, p := range pixels {
		dst[i] = (float32(p)/255 - mean) / deviation
	}
}
