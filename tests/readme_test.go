package tests

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestReadmeExample holds the example of README.md to the one that runs.
func TestReadmeExample(t *testing.T) {
	source, readme := read(t, "example_test.go"), read(t, "README.md")
	_, example, found := strings.Cut(source, "func Example() {\n")
	if !found {
		t.Fatal("example_test.go has no func Example")
	}
	example, _, _ = strings.Cut(example, "\n}\n")
	code, comment, found := strings.Cut(example, "\n\t// Output:\n")
	if !found {
		t.Fatal("the example says nothing of its output")
	}
	output := strings.ReplaceAll(comment, "\t// ", "")
	for _, block := range []string{
		"```go\nfunc Example() {\n" + code + "\n}\n```\n",
		"```text\n" + output + "\n```\n",
	} {
		if !strings.Contains(readme, block) {
			t.Errorf("README.md differs from example_test.go: copy this block to it\n%s", block)
		}
	}
}

// link is a link of a page to a file of the module.
var link = regexp.MustCompile(`\]\(([^)#:]+)(?:#[^)]*)?\)`)

// TestLinks follows the links from pages to files.
func TestLinks(t *testing.T) {
	pages, err := filepath.Glob("../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	pages = append(pages, "../README.md", "../CHANGELOG.md")
	followed := 0
	for _, page := range pages {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range link.FindAllSubmatch(text, -1) {
			followed++
			if _, err := os.Stat(filepath.Join(filepath.Dir(page), string(m[1]))); err != nil {
				t.Errorf("%s has a link to %s: %v", filepath.Base(page), m[1], err)
			}
		}
	}
	if followed == 0 {
		t.Error("no page has a link to a file; is the pattern for links still right?")
	}
}

// read returns the text of a file of the module's root.
func read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// block is a piece of a page that shows what a conversation shows.
var block = regexp.MustCompile("(?s)```text\n(.*?)```\n")

// TestDesignConversations holds the operations in docs/DESIGN.md to those that
// the conversations have.
func TestDesignConversations(t *testing.T) {
	files, err := filepath.Glob("testdata/conversations/*.txt")
	if err != nil {
		t.Fatal(err)
	}
	var conversations strings.Builder
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		conversations.Write(text)
	}
	blocks := block.FindAllStringSubmatch(read(t, "docs/DESIGN.md"), -1)
	if len(blocks) == 0 {
		t.Fatal("docs/DESIGN.md shows no conversation; is the pattern for blocks still right?")
	}
	for _, b := range blocks {
		if !strings.Contains(conversations.String(), "\n"+b[1]) {
			t.Errorf("docs/DESIGN.md shows what no conversation has:\n%s", b[1])
		}
	}
}

// TestDesignNames looks in docs/DESIGN.md for every package of the product and
// every library. Packages that only serve the tests say themselves what for.
func TestDesignNames(t *testing.T) {
	design := read(t, "docs/DESIGN.md")
	for _, p := range list(t, "") {
		name, ours := local(p.ImportPath)
		if name == "." {
			name = module
		}
		if ours && !below(name, "tests") && !strings.Contains(design, "`"+name+"`") {
			t.Errorf("docs/DESIGN.md does not say what package `%s` is for", name)
		}
	}
	for _, h := range homes {
		if h.path != "C" && !strings.Contains(design, "`"+h.path+"`") {
			t.Errorf("docs/DESIGN.md does not say why there is a dependency on `%s`", h.path)
		}
	}
}
