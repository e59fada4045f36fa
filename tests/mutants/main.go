// Command mutants asks whether the tests are awake: it makes one deliberate
// fault after the other in the product and runs the tests, which have to fail.
//
//	go run ./tests/mutants [-run NAME] [-list FILE]
//
// The faults are kept in a list outside the code, as small edits of source
// files, and are compiled in with the go command's -overlay; the product
// carries no trace of them. A fault that does not compile, or whose place is
// not found exactly once, is a fault of the list and an error.
package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

// mutant is one fault.
type mutant struct {
	name  string
	why   string // what is wrong with it
	file  string
	old   string // occurs once in the file
	new   string
	tests []string // packages that should notice
}

func main() {
	list := flag.String("list", "tests/mutants/mutants.txt", "the `FILE` with the faults")
	run := flag.String("run", "", "only the faults whose name matches the `REGEXP`")
	flag.Parse()
	if err := check(*list, *run); err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		os.Exit(1)
	}
}

func check(list, run string) error {
	mutants, err := read(list)
	if err != nil {
		return err
	}
	only, err := regexp.Compile(run)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "mutants")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if err := awake(mutants, only); err != nil {
		return err
	}
	caught, tried := 0, 0
	for _, m := range mutants {
		if !only.MatchString(m.name) {
			continue
		}
		tried++
		start := time.Now()
		by, err := m.kill(dir)
		if err != nil {
			return fmt.Errorf("%s: %w", m.name, err)
		}
		if by == "" {
			fmt.Printf("SURVIVES  %-36s %s\n", m.name, m.why)
			continue
		}
		caught++
		fmt.Printf("caught    %-36s by %s (%.1f s)\n", m.name, by, time.Since(start).Seconds())
	}
	fmt.Printf("mutants caught %d of %d\n", caught, tried)
	if caught < tried {
		return fmt.Errorf("%d faults are noticed by no test", tried-caught)
	}
	return nil
}

// awake runs the tests without a fault: a test that fails anyway catches nothing.
func awake(mutants []mutant, only *regexp.Regexp) error {
	seen := make(map[string]bool)
	args := []string{"test", "-short", "-count=1"}
	for _, m := range mutants {
		for _, pkg := range m.tests {
			if only.MatchString(m.name) && !seen[pkg] {
				seen[pkg] = true
				args = append(args, pkg)
			}
		}
	}
	if out, err := exec.Command("go", args...).CombinedOutput(); err != nil {
		return fmt.Errorf("the tests fail without a fault:\n%s", out)
	}
	return nil
}

// kill runs the tests with the fault and returns the first test that fails;
// empty if none does.
func (m *mutant) kill(dir string) (by string, err error) {
	source, err := os.ReadFile(m.file)
	if err != nil {
		return "", err
	}
	if n := strings.Count(string(source), m.old); n != 1 {
		return "", fmt.Errorf("the old text occurs %d times in %s, want once", n, m.file)
	}
	changed := filepath.Join(dir, "mutant.go")
	if err := os.WriteFile(changed, []byte(strings.Replace(string(source), m.old, m.new, 1)), 0o644); err != nil {
		return "", err
	}
	absolute, err := filepath.Abs(m.file)
	if err != nil {
		return "", err
	}
	overlay, err := json.Marshal(map[string]map[string]string{"Replace": {absolute: changed}})
	if err != nil {
		return "", err
	}
	file := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(file, overlay, 0o644); err != nil {
		return "", err
	}
	for _, pkg := range m.tests {
		args := []string{"test", "-short", "-failfast", "-count=1", "-vet=off", "-timeout=90s", "-overlay", file, pkg}
		out, err := exec.Command("go", args...).CombinedOutput()
		if err == nil {
			continue
		}
		if bytes.Contains(out, []byte("[build failed]")) || bytes.Contains(out, []byte("[setup failed]")) {
			return "", fmt.Errorf("it does not compile:\n%s", out)
		}
		return failed(pkg, out), nil
	}
	return "", nil
}

var failLine = regexp.MustCompile(`(?m)^\s*--- FAIL: (\S+)`)

// failed returns the name of the innermost test that failed first, or what else
// ended the run.
func failed(pkg string, out []byte) string {
	name := "a panic or a timeout"
	if all := failLine.FindAllSubmatch(out, -1); len(all) > 0 {
		name = string(all[0][1])
		for _, m := range all {
			if next := string(m[1]); strings.HasPrefix(next, name+"/") {
				name = next
			}
		}
	}
	return pkg + " " + name
}

// read reads the list: blocks of "key: value" lines, of which old and new may
// continue on lines that begin with a tab.
func read(name string) ([]mutant, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var mutants []mutant
	var value *string
	lines := bufio.NewScanner(f)
	for n := 1; lines.Scan(); n++ {
		line := lines.Text()
		if value != nil && strings.HasPrefix(line, "\t") {
			*value += "\n" + line[1:]
			continue
		}
		value = nil
		if strings.TrimSpace(line) == "" || strings.HasPrefix(line, "#") {
			continue
		}
		key, text, ok := strings.Cut(line, ":")
		if !ok {
			return nil, fmt.Errorf("%s:%d: want \"key: value\", found %q", name, n, line)
		}
		text = strings.TrimPrefix(text, " ")
		if key == "mutant" {
			mutants = append(mutants, mutant{name: text, tests: []string{"./actors", ".", "./tests"}})
			continue
		}
		if len(mutants) == 0 {
			return nil, fmt.Errorf("%s:%d: a block begins with \"mutant: NAME\"", name, n)
		}
		m := &mutants[len(mutants)-1]
		switch key {
		case "why":
			m.why = text
		case "file":
			m.file = text
		case "old":
			m.old, value = text, &m.old
		case "new":
			m.new, value = text, &m.new
		case "tests":
			m.tests = strings.Fields(text)
		default:
			return nil, fmt.Errorf("%s:%d: unknown key %q", name, n, key)
		}
	}
	if err := lines.Err(); err != nil {
		return nil, err
	}
	if len(mutants) == 0 {
		return nil, errors.New(name + " has no mutants")
	}
	for _, m := range mutants {
		m.old = strings.TrimPrefix(m.old, "\n")
		if m.file == "" || m.old == "" || m.why == "" {
			return nil, fmt.Errorf("mutant %s needs why, file and old", m.name)
		}
	}
	return mutants, nil
}
