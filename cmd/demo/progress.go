package main

import (
	"fmt"
	"io"
	"os"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"
)

// progress shows how far a run is. The zero value shows nothing.
type progress struct {
	w   io.Writer // nil: show nothing
	bar *progressbar.ProgressBar
}

// newProgress shows progress on w if it is a terminal.
func newProgress(w io.Writer) *progress {
	if f, ok := w.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		return &progress{w: w}
	}
	return &progress{}
}

// begin starts the bar of a run.
func (p *progress) begin(name string, steps int) {
	if p.w == nil {
		return
	}
	p.bar = progressbar.NewOptions(steps,
		progressbar.OptionSetWriter(p.w),
		progressbar.OptionSetDescription(name),
		progressbar.OptionShowCount(),
		progressbar.OptionSetWidth(30),
		progressbar.OptionSetPredictTime(true),
		progressbar.OptionClearOnFinish())
}

// step says that one more step of the run is done, with which loss.
func (p *progress) step(name string, loss float64) {
	if p.bar != nil {
		p.bar.Describe(fmt.Sprintf("%s, loss %.3f", name, loss))
		_ = p.bar.Add(1) // what cannot be shown is no reason to stop
	}
}

// end takes the bar away, also of a run that stopped before its last step.
func (p *progress) end() {
	if p.bar != nil {
		_ = p.bar.Clear()
		p.bar = nil
	}
}
