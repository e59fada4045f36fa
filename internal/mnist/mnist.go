package mnist

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

const (
	// Rows and Cols are the height and width of an image in pixels.
	Rows, Cols = 28, 28
	// Pixels is the number of bytes of an image.
	Pixels = Rows * Cols
	// Classes is the number of digits.
	Classes = 10
)

// Set is a list of images with their labels.
type Set struct {
	// Images holds one image after the other, each row by row, a byte a pixel:
	// 0 is the background, 255 the middle of a stroke.
	Images []byte
	// Labels holds the digit of each image, 0 to 9.
	Labels []byte
}

// Len returns the number of images.
func (s *Set) Len() int { return len(s.Labels) }

// Image returns the pixels of image i. They are part of s.
func (s *Set) Image(i int) []byte { return s.Images[i*Pixels : (i+1)*Pixels : (i+1)*Pixels] }

// names are the files of the training and the test set without ".gz".
var names = [2]struct{ images, labels string }{
	{"train-images-idx3-ubyte", "train-labels-idx1-ubyte"},
	{"t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"},
}

// Load reads the four files of MNIST from dir: train-images-idx3-ubyte,
// train-labels-idx1-ubyte, t10k-images-idx3-ubyte and t10k-labels-idx1-ubyte,
// each with or without ".gz"; the name without it wins. A missing file is an
// error that is fs.ErrNotExist.
func Load(dir string) (train, test *Set, err error) {
	var sets [2]*Set
	for i, name := range names {
		if sets[i], err = loadSet(dir, name.images, name.labels); err != nil {
			return nil, nil, err
		}
	}
	return sets[0], sets[1], nil
}

func loadSet(dir, images, labels string) (*Set, error) {
	// The labels come first: they are small, and their number says what to expect.
	l, labelFile, err := readFile(dir, labels, labelFormat)
	if err != nil {
		return nil, err
	}
	for i, digit := range l {
		if digit >= Classes {
			return nil, fmt.Errorf("%s: label %d is %d, not a digit from 0 to %d", labelFile, i, digit, Classes-1)
		}
	}
	p, imageFile, err := readFile(dir, images, imageFormat)
	if err != nil {
		return nil, err
	}
	if n := len(p) / Pixels; n != len(l) {
		return nil, fmt.Errorf("%s: %d images, but %s has %d labels", imageFile, n, labelFile, len(l))
	}
	return &Set{Images: p, Labels: l}, nil
}

// readFile reads the file of the given name, or else name.gz, and returns its
// items and its path. Errors carry the path.
func readFile(dir, name string, f format) (items []byte, path string, err error) {
	path, info, err := find(dir, name)
	if err != nil {
		return nil, path, err
	}
	// Opening anything else than a file, such as a pipe, might never return.
	if !info.Mode().IsRegular() {
		return nil, path, fmt.Errorf("%s: not a regular file (%v)", path, info.Mode().Type())
	}
	file, err := os.Open(path)
	if err != nil {
		return nil, path, err
	}
	defer file.Close()
	items, err = f.decode(file, info.Size())
	if err != nil {
		return nil, path, fmt.Errorf("%s: %w", path, err)
	}
	return items, path, nil
}

func find(dir, name string) (path string, info fs.FileInfo, err error) {
	path = filepath.Join(dir, name)
	for _, candidate := range []string{path, path + ".gz"} {
		info, err = os.Stat(candidate)
		if err == nil {
			return candidate, info, nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return candidate, nil, err
		}
	}
	return path, nil, fmt.Errorf("%s: neither it nor %s.gz is there: %w", path, filepath.Base(path), fs.ErrNotExist)
}
