package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"offload/internal/mnist"
)

// digits writes MNIST files with the given contents by name, and returns their folder.
func digits(t *testing.T, files map[string][]byte) string {
	t.Helper()
	dir := t.TempDir()
	for name, content := range files {
		write(t, filepath.Join(dir, name), content)
	}
	return dir
}

// madeUp returns the files of made-up images, which can be told apart by a
// bright row.
func madeUp(training, test int) map[string][]byte {
	files := make(map[string][]byte)
	rng := rand.New(rand.NewPCG(9, 9))
	for _, set := range []struct {
		name string
		n    int
	}{{"train", training}, {"t10k", test}} {
		count := binary.BigEndian.AppendUint32(nil, uint32(set.n))
		images := append([]byte{0, 0, 8, 3}, count...)
		images = append(images, 0, 0, 0, mnist.Rows, 0, 0, 0, mnist.Cols)
		labels := append([]byte{0, 0, 8, 1}, count...)
		for range set.n {
			label := rng.IntN(mnist.Classes)
			labels = append(labels, byte(label))
			for i := range mnist.Pixels {
				pixel := byte(rng.IntN(64))
				if i/mnist.Cols == 2*label+4 {
					pixel += 128
				}
				images = append(images, pixel)
			}
		}
		files[set.name+"-images-idx3-ubyte"] = images
		files[set.name+"-labels-idx1-ubyte"] = labels
	}
	return files
}

func write(t *testing.T, path string, content []byte) {
	t.Helper()
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
}

// invocation is what a run of the program left.
type invocation struct {
	status         int
	stdout, stderr string
	report         *report // nil if there is no file
}

// invoke runs the program with -json and the given flags.
func invoke(t *testing.T, newMachine machines, flags ...string) invocation {
	t.Helper()
	return invokeWith(t, t.Context(), newMachine, flags...)
}

func invokeWith(t *testing.T, ctx context.Context, newMachine machines, flags ...string) invocation {
	t.Helper()
	path := filepath.Join(t.TempDir(), "out.json")
	var stdout, stderr bytes.Buffer
	status := runOn(ctx, append([]string{"-json", path}, flags...), &stdout, &stderr, newMachine)
	i := invocation{status: status, stdout: stdout.String(), stderr: stderr.String()}
	text, err := os.ReadFile(path)
	if os.IsNotExist(err) {
		return i
	}
	if err != nil {
		t.Fatal(err)
	}
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	i.report = new(report)
	if err := decoder.Decode(i.report); err != nil {
		t.Fatalf("%v in\n%s", err, text)
	}
	return i
}

// failed wants an exit status, one line on stderr with the given text, and
// nothing else written.
func (i invocation) failed(t *testing.T, status int, want string) {
	t.Helper()
	if i.status != status {
		t.Errorf("exit status %d, want %d", i.status, status)
	}
	if line, rest, _ := strings.Cut(i.stderr, "\n"); !strings.HasPrefix(line, "demo: ") || !strings.Contains(line, want) || rest != "" {
		t.Errorf("stderr %q, want one line with %q", i.stderr, want)
	}
	if i.stdout != "" || i.report != nil {
		t.Errorf("written: %q, %+v; want nothing", i.stdout, i.report)
	}
}

// TestMistakes gives bad flags and bad data.
func TestMistakes(t *testing.T) {
	few := madeUp(20, 10)
	good := digits(t, few)
	lacking := digits(t, few)
	if err := os.Remove(filepath.Join(lacking, "t10k-labels-idx1-ubyte")); err != nil {
		t.Fatal(err)
	}
	damaged := digits(t, few)
	if err := os.Truncate(filepath.Join(damaged, "train-images-idx3-ubyte"), 1000); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name  string
		flags []string
		want  string
	}{
		{"a bad flag", []string{"-steps", "-3"}, "-steps -3: want from 1 to 1048576"},
		{"a folder that is not there", []string{"-data", filepath.Join(good, "nowhere")}, "nowhere: no such file"},
		{"a missing file", []string{"-data", lacking}, "t10k-labels-idx1-ubyte: neither it nor"},
		{"a damaged file", []string{"-data", damaged}, "train-images-idx3-ubyte: the header means 15696 bytes, the file has 1000"},
		{"a batch of more images than there are", []string{"-data", good, "-batch", "21"}, "-batch 21 is more than the 20 training images in "},
	} {
		t.Run(test.name, func(t *testing.T) {
			none := func(config, string, int64) (machine, error) {
				t.Error("a device was made")
				return machine{}, os.ErrInvalid
			}
			invoke(t, none, test.flags...).failed(t, exitUsage, test.want)
		})
	}
}

func TestHelp(t *testing.T) {
	var stdout, stderr bytes.Buffer
	if status := run(t.Context(), []string{"-help"}, &stdout, &stderr); status != exitOK {
		t.Errorf("exit status %d, want %d", status, exitOK)
	}
	if !strings.Contains(stdout.String(), "Usage: demo") || stderr.Len() > 0 {
		t.Errorf("stdout %q, stderr %q, want the usage on stdout", &stdout, &stderr)
	}
}
