package mnist

import (
	"compress/gzip"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

const (
	// maxItems bounds the images or labels of one file. It is far above the
	// 60,000 of MNIST and keeps what a forged header can ask for below a GiB.
	maxItems = 1 << 20
	// maxExpansion is how many bytes one byte of a deflate stream can stand for
	// at most: a match of 258 bytes in two bits.
	maxExpansion = 1032
	// gzipTrailer is the length of the checksum and the size, modulo 2^32, that
	// end a gzip file.
	gzipTrailer = 8
)

// format is a kind of IDX file.
type format struct {
	what  string // one item, for messages
	magic uint32
	shape []int // of one item; nil for a single byte
}

var (
	imageFormat = format{what: "image", magic: 0x803, shape: []int{Rows, Cols}}
	labelFormat = format{what: "label", magic: 0x801}
)

// header is the number of bytes in front of the items.
func (f format) header() int { return 8 + 4*len(f.shape) }

// item is the number of bytes of an item.
func (f format) item() int {
	n := 1
	for _, d := range f.shape {
		n *= d
	}
	return n
}

// decode returns the items of the IDX file r of the given size in bytes, which
// may be compressed. Nothing is allocated for the items before the header has
// been found to agree with the size.
func (f format) decode(r io.ReaderAt, size int64) ([]byte, error) {
	file := io.NewSectionReader(r, 0, size)
	var start [2]byte
	if _, err := io.ReadFull(file, start[:]); err != nil {
		return nil, readError("start", err)
	}
	if _, err := file.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	if start != [2]byte{0x1f, 0x8b} {
		return f.read(file, func(want int64) error {
			if want != size {
				return fmt.Errorf("the header means %d bytes, the file has %d", want, size)
			}
			return nil
		})
	}
	unpacked, err := gzip.NewReader(file)
	if err != nil {
		return nil, readError("gzip header", err)
	}
	unpacked.Multistream(false) // a second stream would hide behind the size of the last
	return f.read(unpacked, func(want int64) error {
		if want/maxExpansion > size {
			return fmt.Errorf("the header means %d bytes, more than %d compressed bytes can hold", want, size)
		}
		var claim [4]byte
		if size < gzipTrailer {
			return errors.New("truncated within the gzip trailer")
		}
		if _, err := r.ReadAt(claim[:], size-int64(len(claim))); err != nil {
			return readError("gzip trailer", err)
		}
		if got := binary.LittleEndian.Uint32(claim[:]); got != uint32(want) {
			return fmt.Errorf("the header means %d bytes, the gzip trailer says %d (truncated or damaged)", want, got)
		}
		return nil
	})
}

// read reads header and items from r, which has to end after them. check is
// told how many bytes the header means before anything is allocated for them.
func (f format) read(r io.Reader, check func(want int64) error) ([]byte, error) {
	head := make([]byte, f.header())
	if _, err := io.ReadFull(r, head); err != nil {
		return nil, readError("header", err)
	}
	if magic := binary.BigEndian.Uint32(head); magic != f.magic {
		return nil, fmt.Errorf("magic number %#08x is not the %#08x of an IDX %s file", magic, f.magic, f.what)
	}
	n := int64(binary.BigEndian.Uint32(head[4:]))
	if n == 0 || n > maxItems {
		return nil, fmt.Errorf("the header says %d %ss; from 1 to %d can be read", n, f.what, maxItems)
	}
	for i, d := range f.shape {
		if got := binary.BigEndian.Uint32(head[8+4*i:]); got != uint32(d) {
			return nil, fmt.Errorf("dimension %d of the %ss is %d, not %d", i+1, f.what, got, d)
		}
	}
	bytes := n * int64(f.item())
	if err := check(int64(len(head)) + bytes); err != nil {
		return nil, err
	}
	items := make([]byte, bytes)
	if _, err := io.ReadFull(r, items); err != nil {
		return nil, readError(fmt.Sprintf("%d %ss", n, f.what), err)
	}
	// The end also makes gzip compare its checksum.
	switch n, err := r.Read(head[:1]); {
	case n > 0:
		return nil, errors.New("more bytes than the header means")
	case err != io.EOF:
		return nil, readError("end", err)
	}
	return items, nil
}

// readError says within what a file ended or could not be read.
func readError(within string, err error) error {
	if err == io.EOF || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("truncated within the %s", within)
	}
	return fmt.Errorf("reading the %s: %w", within, err)
}
