// Package mnist finds and reads the MNIST handwritten digits: 60,000 training
// and 10,000 test images of 28 by 28 grey pixels, each with its digit.
//
// # Terms
//
// The data are four IDX files: images and labels of each of two sets. An IDX
// file starts with a magic number and one 32-bit big-endian count for each
// dimension; the bytes follow. A file may be gzip-compressed; its first bytes
// tell, not its name.
//
// # Damaged files
//
// A file is only a claim until it has been checked. The counts of its header
// are compared with its size before memory is allocated for its contents, a
// compressed file is never expanded further than its header says, and a label
// that is no digit, or labels and images that do not go together, are refused.
// Every error is one line that names the file, what was expected and what was
// found.
//
// # Concurrency
//
// The functions may be called from any number of goroutines. A [Set] does not
// change once it is loaded, as long as its user leaves its slices alone.
//
// # Ownership
//
// A [Set] belongs to the caller of [Load]. No file stays open.
//
// # Use
//
//	dir, err := mnist.Locate(ctx, "") // data/mnist, else the Go module cache
//	if err != nil {
//		return err
//	}
//	train, test, err := mnist.Load(dir)
package mnist
