package main

import (
	"math"
	"slices"
	"testing"

	"offload/internal/mnist"
)

// numbered returns n images; the first two pixels of each tell its number.
func numbered(n int) *mnist.Set {
	s := &mnist.Set{Images: make([]byte, n*mnist.Pixels), Labels: make([]byte, n)}
	for i := range n {
		image := s.Image(i)
		image[0], image[1] = byte(i), byte(i>>8)
		s.Labels[i] = byte(i % mnist.Classes)
	}
	return s
}

// pixel undoes scale.
func pixel(x float32) int { return int(math.Round((float64(x)*deviation + mean) * 255)) }

// drawn returns the numbers of the images of the next n batches, and checks the labels.
func drawn(t *testing.T, b *batches, n int) (list []int) {
	t.Helper()
	for range n {
		batch := b.draw()
		for i, label := range batch.Labels {
			pixels := batch.Images[i*mnist.Pixels:]
			number := pixel(pixels[0]) + pixel(pixels[1])<<8
			if int(label) != number%mnist.Classes {
				t.Fatalf("image %d has label %d, want %d", number, label, number%mnist.Classes)
			}
			list = append(list, number)
		}
	}
	return list
}

func TestBatches(t *testing.T) {
	const images, size, perPass = 600, 40, 15
	set := numbered(images)
	first := drawn(t, newBatches(set, size, 1), 2*perPass)
	every := make([]int, images)
	for i := range every {
		every[i] = i
	}
	for pass := range 2 {
		got := slices.Sorted(slices.Values(first[pass*images : (pass+1)*images]))
		if !slices.Equal(got, every) {
			t.Errorf("pass %d does not show every image once", pass)
		}
	}
	if slices.Equal(first[:images], first[images:]) {
		t.Error("the second pass has the order of the first")
	}
	if again := drawn(t, newBatches(set, size, 1), 2*perPass); !slices.Equal(again, first) {
		t.Error("the same seed gives other batches")
	}
	if other := drawn(t, newBatches(set, size, 2), 2*perPass); slices.Equal(other, first) {
		t.Error("another seed gives the same batches")
	}
}

// TestBatchesAcrossPasses draws batches that do not divide the set.
func TestBatchesAcrossPasses(t *testing.T) {
	const images = 600
	got := drawn(t, newBatches(numbered(images), 250, 1), 12) // 5 passes
	seen := make([]int, images)
	for _, number := range got {
		seen[number]++
	}
	if slices.Min(seen) != 5 || slices.Max(seen) != 5 {
		t.Errorf("images were drawn %d to %d times in 5 passes", slices.Min(seen), slices.Max(seen))
	}
}

func TestAll(t *testing.T) {
	set := numbered(300)
	set.Image(7)[3] = 255
	images, labels := all(set)
	if len(images) != 300*mnist.Pixels || len(labels) != 300 {
		t.Fatalf("got %d pixels and %d labels", len(images), len(labels))
	}
	bright, dark := pixel(images[7*mnist.Pixels+3]), pixel(images[7*mnist.Pixels+4])
	if bright != 255 || dark != 0 || labels[299] != 9 {
		t.Errorf("got pixels %d and %d, label %d, want 255, 0 and 9", bright, dark, labels[299])
	}
}

// TestScale checks that the digits themselves have mean 0 and deviation 1.
func TestScale(t *testing.T) {
	if testing.Short() {
		t.Skip("reads all digits")
	}
	dir, err := mnist.Locate(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	training, _, err := mnist.Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	images, _ := all(training)
	var sum, squares float64
	for _, x := range images {
		sum += float64(x)
		squares += float64(x) * float64(x)
	}
	n := float64(len(images))
	if m, v := sum/n, squares/n; math.Abs(m) > 0.001 || math.Abs(v-1) > 0.001 {
		t.Errorf("mean %v and mean square %v, want 0 and 1", m, v)
	}
}
