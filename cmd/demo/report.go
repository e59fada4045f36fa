package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// report is what -json writes. Its keys are a promise to scripts.
type report struct {
	MicroBatches int             `json:"micro_batches"` // of a batch
	Accumulate   int             `json:"accumulate"`    // batches of a step
	Identical    bool            `json:"identical"`     // losses and final weights of the resident and the offloaded run, bit for bit
	TestAccuracy float64         `json:"test_accuracy"` // of the offloaded run's model, 0 to 1
	LimitBytes   int64           `json:"limit_bytes"`   // of device memory, in the limited and the offloaded run
	Resident     residentReport  `json:"resident"`
	Limited      limitedReport   `json:"limited"`
	Offload      offloadReport   `json:"offload"`
	Inference    inferenceReport `json:"inference"`
	Findings     int64           `json:"findings"` // of the simulated devices, all runs together
}

type residentReport struct {
	PeakDeviceBytes int64 `json:"peak_device_bytes"`
}

type limitedReport struct {
	Fits  bool   `json:"fits"`
	Error string `json:"error"` // why it does not fit; empty if it does
}

type offloadReport struct {
	PeakDeviceBytes int64 `json:"peak_device_bytes"`
	MovedOutBytes   int64 `json:"moved_out_bytes"`
	MovedInBytes    int64 `json:"moved_in_bytes"`
	LayersOffloaded int   `json:"layers_offloaded"`
	EventsRecorded  int64 `json:"events_recorded"`
	WaitsIssued     int64 `json:"waits_issued"`
	ShortCircuits   int64 `json:"short_circuits"`
}

type inferenceReport struct {
	OffloadDeviceOps int64 `json:"offload_device_ops"`
}

// write writes the report to path. A file that is there is replaced as a whole,
// so that nobody ever reads half a report; what is no regular file, such as a
// terminal or a pipe, is written to.
func (r report) write(path string) error {
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	text = append(text, '\n')
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return replace(path, text, 0o644)
	case err != nil:
		return err
	case !info.Mode().IsRegular():
		return writeTo(path, text)
	}
	// A link keeps pointing where it does.
	target, err := filepath.EvalSymlinks(path)
	if err != nil {
		return err
	}
	return replace(target, text, info.Mode().Perm())
}

// replace puts a new file in the place of path.
func replace(path string, text []byte, mode fs.FileMode) (err error) {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(f.Name()))
		}
	}()
	_, err = f.Write(text)
	err = errors.Join(err, f.Chmod(mode), f.Close())
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return os.Rename(f.Name(), path)
}

func writeTo(path string, text []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	return errors.Join(err, f.Close())
}
