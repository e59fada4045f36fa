package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestProgress(t *testing.T) {
	var w bytes.Buffer
	p := &progress{w: &w}
	p.begin("offloaded", 3)
	p.step("offloaded", 2.25)
	for _, want := range []string{"offloaded, loss 2.250", "(1/3"} {
		if !strings.Contains(w.String(), want) {
			t.Errorf("got %q, want %q in it", &w, want)
		}
	}
	p.end()
	if p.bar != nil {
		t.Error("the bar is still there after the end")
	}
}

// TestProgressIsForTerminals shows nothing where nobody looks.
func TestProgressIsForTerminals(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "stderr"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	p := newProgress(f)
	p.begin("resident", 2)
	p.step("resident", 1)
	p.step("resident", 1)
	p.end()
	if info, err := f.Stat(); err != nil || info.Size() != 0 {
		t.Errorf("%d bytes of progress in a file, %v", info.Size(), err)
	}
}
