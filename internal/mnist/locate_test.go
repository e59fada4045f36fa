package mnist

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// answers is a go command that gives each subcommand one answer.
type answers struct {
	list, download string
	listErr        error
	downloadErr    error
	asked          []string
}

func (a *answers) run(_ context.Context, args ...string) ([]byte, error) {
	a.asked = append(a.asked, args[0])
	if args[0] == "list" {
		return []byte(a.list), a.listErr
	}
	return []byte(a.download), a.downloadErr
}

func TestLocate(t *testing.T) {
	module := t.TempDir()
	data := filepath.Join(module, "data")
	if err := os.Mkdir(data, 0o700); err != nil {
		t.Fatal(err)
	}
	failed := errors.New("exit status 1")
	for _, test := range []struct {
		name  string
		dir   string
		local bool // data/mnist is there
		goes  answers
		want  string
		asked []string
	}{
		{"the folder that was given wins", module, true, answers{}, module, nil},
		{"then data/mnist", "", true, answers{list: module}, "data/mnist", nil},
		{"then the module that go.mod names", "", false, answers{list: module + "\n"}, data, []string{"list"}},
		{"a module that is not cached is fetched", "", false, answers{list: "\n", download: `{"Dir":"` + module + `"}`}, data, []string{"list", "mod"}},
		{"so is it outside of any module", "", false, answers{listErr: failed, download: `{"Dir":"` + module + `"}`}, data, []string{"list", "mod"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Chdir(t.TempDir())
			if test.local {
				if err := os.MkdirAll(Dir, 0o700); err != nil {
					t.Fatal(err)
				}
			}
			got, err := locate(t.Context(), test.dir, test.goes.run)
			if err != nil || got != test.want {
				t.Errorf("got %q, %v, want %q", got, err, test.want)
			}
			if !slices.Equal(test.goes.asked, test.asked) {
				t.Errorf("the go command was asked for %v, want %v", test.goes.asked, test.asked)
			}
		})
	}
}

func TestLocateRefuses(t *testing.T) {
	t.Chdir(t.TempDir())
	if err := os.WriteFile("file", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	failed := errors.New("exit status 1")
	offline := answers{listErr: failed, downloadErr: failed, download: `{"Error":"dial tcp: no route\nto host"}`}
	for _, test := range []struct {
		name string
		dir  string
		goes answers
		want string
	}{
		{"a folder that is not there", "nowhere", answers{list: "."}, "nowhere"},
		{"a file where a folder should be", "file", answers{list: "."}, "file: not a folder"},
		{"no network", "", offline, "there is no folder data/mnist, and the module cache gave none (go mod download: dial tcp: no route)"},
		{"no go command", "", answers{listErr: failed, downloadErr: errors.New("executable file not found")}, "executable file not found"},
		{"an answer without a folder", "", answers{listErr: failed, download: "{}"}, "named no folder"},
		{"a module without data", "", answers{list: "."}, "data: no such file"},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, err := locate(t.Context(), test.dir, test.goes.run)
			if err == nil || !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("got %v, want one line with %q", err, test.want)
			}
		})
	}
	if _, err := Locate(t.Context(), "nowhere"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("got %v, want an error that is %v", err, fs.ErrNotExist)
	}
}
