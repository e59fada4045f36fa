package main

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"testing"
)

var rewrite = flag.Bool("rewrite", false, "write the tables of docs/BENCH.md from the figures in testdata")

// TestDocs compares the tables in docs/BENCH.md with the figures they are made
// of. A table follows a comment that names its file.
func TestDocs(t *testing.T) {
	const name = "../../docs/BENCH.md"
	old, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	tables := 0
	table := regexp.MustCompile("(?s)<!-- testdata/(h200[a-z0-9-]*\\.json) -->\n```\n.*?```\n")
	current := table.ReplaceAllFunc(old, func(block []byte) []byte {
		tables++
		file := string(table.FindSubmatch(block)[1])
		data, err := os.ReadFile(filepath.Join("testdata", file))
		if err != nil {
			t.Fatal(err)
		}
		var r gpuReport
		if err := json.Unmarshal(data, &r); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		var b bytes.Buffer
		b.WriteString("<!-- testdata/" + file + " -->\n```\n")
		r.print(&b)
		b.WriteString("```\n")
		return b.Bytes()
	})
	if files, _ := filepath.Glob("testdata/h200*.json"); tables != len(files) {
		t.Errorf("%s has %d tables, and there are %d files of figures", name, tables, len(files))
	}
	if bytes.Equal(old, current) {
		return
	}
	if !*rewrite {
		t.Fatalf("%s is not what the figures say; see the difference with: go test ./cmd/bench -run Docs -rewrite", name)
	}
	if err := os.WriteFile(name, current, 0o644); err != nil {
		t.Fatal(err)
	}
}
