package main

import (
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/dustin/go-humanize"
)

// row is one row of the closing table, as the value that each run has in it.
type row struct {
	name  string
	value func(o *outcome) string
}

var rows = []row{
	{"run", func(o *outcome) string { return o.name }},
	{"device memory limit", func(o *outcome) string {
		if o.limit == 0 {
			return "none"
		}
		return sizeText(o.limit)
	}},
	{"steps", func(o *outcome) string {
		if o.shortage != nil {
			return fmt.Sprintf("out of memory in step %d", len(o.losses)+1)
		}
		return fmt.Sprint(len(o.losses))
	}},
	{"loss of the last step", func(o *outcome) string { return trained(o, "%.4f", o.last.Loss) }},
	{"accuracy of the last step", func(o *outcome) string { return trained(o, "%.4f", o.last.Accuracy) }},
	{"peak device memory", func(o *outcome) string { return sizeText(o.peak) }},
	{"layers offloaded", func(o *outcome) string { return fmt.Sprint(len(o.moved)) }},
	{"moved out", func(o *outcome) string { return sizeText(o.metrics.BytesOut) }},
	{"moved in", func(o *outcome) string { return sizeText(o.metrics.BytesIn) }},
	{"events recorded", func(o *outcome) string { return fmt.Sprint(o.metrics.EventsRecorded) }},
	{"waits issued", func(o *outcome) string { return fmt.Sprint(o.metrics.WaitsIssued) }},
	{"short-circuits", func(o *outcome) string { return fmt.Sprint(o.metrics.ShortCircuits) }},
}

// trained formats the value of a run that did at least one step.
func trained(o *outcome, format string, value float64) string {
	if len(o.losses) == 0 {
		return "-"
	}
	return fmt.Sprintf(format, value)
}

// step describes what a training step is made of.
func (c config) step() string {
	text := humanize.Comma(int64(c.batch)) + " images"
	if c.accumulate > 1 {
		text = fmt.Sprintf("%d batches of %s", c.accumulate, text)
	}
	if c.microBatches > 1 {
		text += fmt.Sprintf(" in %d micro-batches, order %s", c.microBatches, c.order)
	}
	return text
}

// table writes the results for people.
func (r *results) table(w io.Writer) {
	runs := []*outcome{r.resident, r.limited, r.offloaded}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, row := range rows {
		fmt.Fprint(t, row.name)
		for _, o := range runs {
			fmt.Fprintf(t, "\t%s", row.value(o))
		}
		fmt.Fprintln(t)
	}
	t.Flush()
	fmt.Fprintln(w)
	fmt.Fprintf(w, "training step:       %s\n", r.config.step())
	if err := r.limited.shortage; err != nil {
		fmt.Fprintf(w, "limited run:         %v\n", err)
	} else {
		fmt.Fprintf(w, "limited run:         fits; give -device-memory less than %s to see it fail\n", sizeText(r.resident.peak))
	}
	same := "identical bit for bit"
	if !r.identical {
		same = "DIFFERENT"
	}
	n, _ := r.findings()
	fmt.Fprintf(w, "losses and weights:  resident and offloaded run are %s\n", same)
	fmt.Fprintf(w, "test set:            accuracy %.4f on %s images; offloading asked the device for %d operations\n",
		r.test.Accuracy, humanize.Comma(int64(r.test.Samples)), r.inferenceOps)
	fmt.Fprintf(w, "findings:            %d\n", n)
}
