package mnist

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"io"
	"runtime"
	"strings"
	"testing"
)

// idx builds an IDX file of n items with the given header dimensions.
func idx(magic uint32, dims []uint32, items []byte) []byte {
	file := binary.BigEndian.AppendUint32(nil, magic)
	for _, d := range dims {
		file = binary.BigEndian.AppendUint32(file, d)
	}
	return append(file, items...)
}

func labelFile(labels ...byte) []byte {
	return idx(0x801, []uint32{uint32(len(labels))}, labels)
}

func imageFile(n int) []byte {
	items := make([]byte, n*Pixels)
	for i := range items {
		items[i] = byte(i * 7)
	}
	return idx(0x803, []uint32{uint32(n), Rows, Cols}, items)
}

func zip(t testing.TB, plain []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	if _, err := w.Write(plain); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func flip(file []byte, at int) []byte {
	file = bytes.Clone(file)
	file[(at+len(file))%len(file)] ^= 0x40
	return file
}

// withSize sets the size in the trailer of a gzip file.
func withSize(file []byte, size uint32) []byte {
	return binary.LittleEndian.AppendUint32(file[:len(file)-4:len(file)-4], size)
}

func TestDecode(t *testing.T) {
	for _, f := range []struct {
		name   string
		format format
		plain  []byte
	}{
		{"labels", labelFormat, labelFile(3, 1, 4, 1, 5, 9)},
		{"images", imageFormat, imageFile(3)},
	} {
		want := f.plain[f.format.header():]
		for name, file := range map[string][]byte{"raw": f.plain, "gzip": zip(t, f.plain)} {
			t.Run(f.name+" "+name, func(t *testing.T) {
				got, err := f.format.decode(bytes.NewReader(file), int64(len(file)))
				if err != nil {
					t.Fatal(err)
				}
				if !bytes.Equal(got, want) {
					t.Errorf("got %d bytes that differ from the %d written", len(got), len(want))
				}
			})
		}
	}
}

func TestDecodeRefuses(t *testing.T) {
	labels := labelFile(3, 1, 4, 1, 5, 9)
	images := imageFile(2)
	huge := idx(0x803, []uint32{maxItems, Rows, Cols}, nil)
	for _, test := range []struct {
		name   string
		format format
		file   []byte
		want   string
	}{
		{"an empty file", labelFormat, nil, "truncated within the start"},
		{"half a header", labelFormat, labels[:6], "truncated within the header"},
		{"half an image header", imageFormat, images[:15], "truncated within the header"},
		{"images where labels belong", labelFormat, images, "magic number 0x00000803 is not the 0x00000801 of an IDX label file"},
		{"labels where images belong", imageFormat, append(labels, 0, 0), "magic number 0x00000801"},
		{"text", labelFormat, []byte("<!DOCTYPE html><html>"), "magic number 0x3c21444f"},
		{"no labels", labelFormat, labelFile(), "0 labels; from 1 to 1048576 can be read"},
		{"too many images", imageFormat, idx(0x803, []uint32{maxItems + 1, Rows, Cols}, nil), "1048577 images"},
		{"images of another height", imageFormat, idx(0x803, []uint32{1, 32, 28}, make([]byte, 32*28)), "dimension 1 of the images is 32, not 28"},
		{"images of another width", imageFormat, idx(0x803, []uint32{1, 28, 1 << 31}, nil), "dimension 2 of the images is 2147483648, not 28"},
		{"one label less than the header says", labelFormat, labels[:len(labels)-1], "the header means 14 bytes, the file has 13"},
		{"one label more than the header says", labelFormat, append(labels, 0), "the header means 14 bytes, the file has 15"},
		{"a header that asks for 800 MB", imageFormat, huge, "the header means 822083600 bytes, the file has 16"},
		{"the start of a gzip file", labelFormat, zip(t, labels)[:2], "truncated within the gzip header"},
		{"a gzip file without its trailer", labelFormat, zip(t, labels)[:len(zip(t, labels))-8], "gzip trailer says"},
		{"a gzip file cut in the middle", imageFormat, zip(t, images)[:40], "gzip trailer says"},
		{"a gzip file that holds less than header and trailer say", imageFormat,
			withSize(zip(t, images[:len(images)-1]), uint32(len(images))), "reading the 2 images: gzip: invalid checksum"},
		{"a gzip file that holds more than header and trailer say", imageFormat,
			withSize(zip(t, append(images, 0)), uint32(len(images))), "more bytes than the header means"},
		{"a gzip file with a wrong checksum", labelFormat, flip(zip(t, labels), -8), "checksum"},
		{"a gzip file of two streams", labelFormat, append(zip(t, labels[:9]), zip(t, labels)...), "truncated within the 6 labels"},
		{"a small gzip file that asks for 800 MB", imageFormat, withSize(zip(t, huge), 822083600), "more than 35 compressed bytes can hold"},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, err := test.format.decode(bytes.NewReader(test.file), int64(len(test.file)))
			if err == nil {
				t.Fatalf("%d bytes and no error, want an error with %q", len(got), test.want)
			}
			if text := err.Error(); !strings.Contains(text, test.want) || strings.Contains(text, "\n") {
				t.Errorf("got %q, want one line with %q", text, test.want)
			}
		})
	}
}

// TestDecodeStopsExpanding gives the header of a few labels in front of 16 MiB
// of zeros, and counts what is allocated on the way to the refusal.
func TestDecodeStopsExpanding(t *testing.T) {
	head := labelFile(3, 1, 4)
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	if _, err := io.Copy(w, io.MultiReader(bytes.NewReader(head), io.LimitReader(zeros{}, 16<<20))); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	bomb := withSize(b.Bytes(), uint32(len(head)))
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err := labelFormat.decode(bytes.NewReader(bomb), int64(len(bomb)))
	runtime.ReadMemStats(&after)
	if err == nil || !strings.Contains(err.Error(), "more bytes than the header means") {
		t.Errorf("got %v, want an error that says there are more bytes than the header means", err)
	}
	// A gzip reader itself takes about 45 KB.
	if got := after.TotalAlloc - before.TotalAlloc; got > 1<<20 {
		t.Errorf("%d bytes allocated for a header that means %d", got, len(head))
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// FuzzDecode checks that no input panics, and that what is accepted is exactly
// what its header says.
func FuzzDecode(f *testing.F) {
	for _, file := range [][]byte{nil, labelFile(1, 2, 3), imageFile(1), zip(f, labelFile(1, 2, 3)), zip(f, imageFile(2))} {
		f.Add(file)
		f.Add(flip(file2(file), 5))
		f.Add(file[:len(file)/2])
	}
	f.Fuzz(func(t *testing.T, file []byte) {
		for _, format := range []format{labelFormat, imageFormat} {
			items, err := format.decode(bytes.NewReader(file), int64(len(file)))
			if err != nil {
				continue
			}
			plain := file
			if len(file) >= 2 && file[0] == 0x1f && file[1] == 0x8b {
				z, err := gzip.NewReader(bytes.NewReader(file))
				if err != nil {
					t.Fatalf("accepted, but %v", err)
				}
				z.Multistream(false)
				if plain, err = io.ReadAll(z); err != nil {
					t.Fatalf("accepted, but %v", err)
				}
			}
			dims := []uint32{binary.BigEndian.Uint32(plain[4:])}
			if format.magic == imageFormat.magic {
				dims = append(dims, Rows, Cols)
			}
			if !bytes.Equal(plain, idx(format.magic, dims, items)) {
				t.Fatalf("%d bytes accepted as %d of items", len(plain), len(items))
			}
		}
	})
}

// file2 returns file, or a byte where there is none to flip.
func file2(file []byte) []byte {
	if len(file) == 0 {
		return []byte{0}
	}
	return file
}
