package main

import (
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var filledReport = report{
	MicroBatches: 12,
	Accumulate:   13,
	Identical:    true,
	TestAccuracy: 0.9375,
	LimitBytes:   1,
	Resident:     residentReport{PeakDeviceBytes: 2},
	Limited:      limitedReport{Fits: false, Error: "layer 3: no"},
	Offload: offloadReport{PeakDeviceBytes: 3, MovedOutBytes: 4, MovedInBytes: 5, LayersOffloaded: 6,
		EventsRecorded: 7, WaitsIssued: 8, ShortCircuits: 9},
	Inference: inferenceReport{OffloadDeviceOps: 10},
	Findings:  11,
}

const filledText = `{
  "micro_batches": 12,
  "accumulate": 13,
  "identical": true,
  "test_accuracy": 0.9375,
  "limit_bytes": 1,
  "resident": {
    "peak_device_bytes": 2
  },
  "limited": {
    "fits": false,
    "error": "layer 3: no"
  },
  "offload": {
    "peak_device_bytes": 3,
    "moved_out_bytes": 4,
    "moved_in_bytes": 5,
    "layers_offloaded": 6,
    "events_recorded": 7,
    "waits_issued": 8,
    "short_circuits": 9
  },
  "inference": {
    "offload_device_ops": 10
  },
  "findings": 11
}
`

// checkFile compares the file, and the number of files around it.
func checkFile(t *testing.T, path, want string, files int) {
	t.Helper()
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Errorf("%s (-want +got)\n%s", path, diff)
	}
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil {
		t.Fatal(err)
	}
	if len(entries) != files {
		t.Errorf("there are %v, want %d files", entries, files)
	}
}

func TestReportWrite(t *testing.T) {
	t.Run("a new file", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "out.json")
		if err := filledReport.write(path); err != nil {
			t.Fatal(err)
		}
		checkFile(t, path, filledText, 1)
	})
	t.Run("a file that is there", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "out.json")
		if err := os.WriteFile(path, []byte("a longer text than the report is, so that a rest of it would show"), 0o600); err != nil {
			t.Fatal(err)
		}
		old, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer old.Close()
		if err := filledReport.write(path); err != nil {
			t.Fatal(err)
		}
		checkFile(t, path, filledText, 1)
		// A reader that has the old file open sees all of the old one.
		if text, err := io.ReadAll(old); err != nil || len(text) == 0 || text[0] != 'a' {
			t.Errorf("a reader of the old file got %q, %v", text, err)
		}
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("mode %v, %v, want that of before, %v", info.Mode(), err, fs.FileMode(0o600))
		}
	})
	t.Run("behind a link", func(t *testing.T) {
		dir := t.TempDir()
		target, link := filepath.Join(dir, "target.json"), filepath.Join(dir, "link.json")
		if err := os.WriteFile(target, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(target, link); err != nil {
			t.Fatal(err)
		}
		if err := filledReport.write(link); err != nil {
			t.Fatal(err)
		}
		checkFile(t, target, filledText, 2)
		if info, err := os.Lstat(link); err != nil || info.Mode().Type() != fs.ModeSymlink {
			t.Errorf("%v, %v, want a link", info.Mode(), err)
		}
	})
	t.Run("into a pipe", func(t *testing.T) {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join("/dev/fd", strconv.Itoa(int(w.Fd())))
		if _, err := os.Stat(path); err != nil {
			t.Skip("this system does not show open files as paths")
		}
		if err := filledReport.write(path); err != nil {
			t.Fatal(err)
		}
		w.Close()
		if text, err := io.ReadAll(r); err != nil || string(text) != filledText {
			t.Errorf("got %q, %v", text, err)
		}
	})
	t.Run("where nothing can be put, nothing is left", func(t *testing.T) {
		dir := t.TempDir()
		// A folder cannot be replaced by a file: the rename fails at the very end.
		path := filepath.Join(dir, "taken")
		if err := os.Mkdir(path, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := replace(path, []byte("{}"), 0o600); err == nil {
			t.Error("no error")
		}
		if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 {
			t.Errorf("left %v, %v, want the folder alone", entries, err)
		}
	})
}
