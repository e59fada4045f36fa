package fsm_test

import (
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"strings"
	"testing"

	"offload/fsm"
)

var update = flag.Bool("update", false, "write docs/states.md instead of comparing with it")

const pagePath = "../docs/states.md"

// TestStatesPage keeps docs/states.md equal to what the table and the comments
// in state.go say.
func TestStatesPage(t *testing.T) {
	want := page(t)
	if *update {
		if err := os.WriteFile(pagePath, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	got, err := os.ReadFile(pagePath)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != want {
		t.Errorf("docs/states.md is out of date: run go generate ./fsm\ngot\n%s\nwant\n%s", got, want)
	}
}

// page is docs/states.md: diagram and table from the package, sentences from
// its source.
func page(t *testing.T) string {
	sentences := constantDocs(t, "state.go")
	var text strings.Builder
	p := func(format string, args ...any) { fmt.Fprintf(&text, format, args...) }

	p("# The life of a group\n\n")
	p("<!-- Written by go generate ./fsm from fsm/table.go and fsm/state.go. Do not edit. -->\n\n")
	p("A group is the tensors of one run of one layer that move together. It is in one\n")
	p("state at a time, and these are all the ways from one state to another:\n\n")
	p("```mermaid\n%s```\n\n", fsm.Diagram())

	p("## States\n\n")
	for s := range fsm.State(fsm.States) {
		p("- %s\n", sentence(t, sentences, s.String()))
	}
	p("\n## Events\n\n")
	for e := range fsm.Event(fsm.Events) {
		p("- `%v`: %s\n", e, sentence(t, sentences, identifier(e)))
	}

	next := map[fsm.Event]map[fsm.State]fsm.State{}
	for _, tr := range fsm.Transitions() {
		if next[tr.Event] == nil {
			next[tr.Event] = map[fsm.State]fsm.State{}
		}
		next[tr.Event][tr.From] = tr.To
	}
	p("\n## Every event in every state\n\n")
	p("A dash is a refusal: the caller gets an `*fsm.OrderError`, and nothing changes.\n\n| event |")
	for s := range fsm.State(fsm.States) {
		p(" %v |", s)
	}
	p("\n|%s\n", strings.Repeat("---|", fsm.States+1))
	for e := range fsm.Event(fsm.Events) {
		p("| `%v` |", e)
		for s := range fsm.State(fsm.States) {
			if to, ok := next[e][s]; ok {
				p(" %v |", to)
			} else {
				p(" - |")
			}
		}
		p("\n")
	}
	return text.String()
}

// identifier is the name of the constant of e: StartOffload for start-offload.
func identifier(e fsm.Event) string {
	var name strings.Builder
	for _, word := range strings.Split(e.String(), "-") {
		name.WriteString(strings.ToUpper(word[:1]) + word[1:])
	}
	return name.String()
}

// sentence returns the comment of the constant name, which must begin with that
// name and end with a full stop.
func sentence(t *testing.T, sentences map[string]string, name string) string {
	t.Helper()
	text := sentences[name]
	if !strings.HasPrefix(text, name+" ") || !strings.HasSuffix(text, ".") {
		t.Errorf("the comment of %s is %q, want a sentence that begins with %s", name, text, name)
	}
	return text
}

// constantDocs returns the comment of each constant in a source file, as one line.
func constantDocs(t *testing.T, file string) map[string]string {
	t.Helper()
	parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	docs := map[string]string{}
	for _, decl := range parsed.Decls {
		group, ok := decl.(*ast.GenDecl)
		if !ok || group.Tok != token.CONST {
			continue
		}
		for _, spec := range group.Specs {
			if value := spec.(*ast.ValueSpec); value.Doc != nil {
				docs[value.Names[0].Name] = strings.Join(strings.Fields(value.Doc.Text()), " ")
			}
		}
	}
	return docs
}
