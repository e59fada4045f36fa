package main

import (
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
)

// A summary is the runs of one plan together: medians over the runs of the
// medians over the steps.
type summary struct {
	gpuRow
	step, low, high, wall, host float64 // ms; low and high over the runs
	ratio                       float64 // to resident of the same run, median
	out, in                     float64 // GB/s
	outShare, inShare           float64 // of the ceiling of the same run
}

// summaries lists the plans in the order in which they were measured.
func (r *gpuReport) summaries() []summary {
	type plan struct {
		workload, mode string
		offloaded      int
	}
	rows := make(map[plan][]gpuRow)
	var order []plan
	resident := make(map[string]map[int]float64) // by workload and run: the plain way of the mode
	for _, row := range r.Rows {
		p := plan{row.Workload, row.Mode, row.Offloaded}
		if rows[p] == nil {
			order = append(order, p)
		}
		rows[p] = append(rows[p], row)
		if key := row.Workload + row.base(); row.plain() {
			if resident[key] == nil {
				resident[key] = make(map[int]float64)
			}
			resident[key][row.Run] = mid(row.StepMs)
		}
	}
	over := func(rows []gpuRow, f func(gpuRow) float64) []float64 {
		var list []float64
		for _, row := range rows {
			list = append(list, f(row))
		}
		return list
	}
	var all []summary
	for _, p := range order {
		of := rows[p]
		steps := over(of, func(row gpuRow) float64 { return mid(row.StepMs) })
		s := summary{gpuRow: of[0], step: mid(steps), low: slices.Min(steps), high: slices.Max(steps),
			wall:     mid(over(of, func(row gpuRow) float64 { return mid(row.WallMs) })),
			host:     mid(over(of, func(row gpuRow) float64 { return mid(row.HostMs) })),
			ratio:    mid(over(of, func(row gpuRow) float64 { return mid(row.StepMs) / resident[row.Workload+row.base()][row.Run] })),
			out:      mid(over(of, func(row gpuRow) float64 { return row.OutGBs })),
			in:       mid(over(of, func(row gpuRow) float64 { return row.InGBs })),
			outShare: mid(over(of, func(row gpuRow) float64 { return row.OutGBs / r.ceiling(row).OutGBs })),
			inShare:  mid(over(of, func(row gpuRow) float64 { return row.InGBs / r.ceiling(row).InGBs })),
		}
		for _, row := range of {
			s.PeakMiB = max(s.PeakMiB, row.PeakMiB)
			s.Differing = max(s.Differing, row.Differing)
		}
		all = append(all, s)
	}
	return all
}

// plain reports whether row is what others are compared with, base which those are.
func (row gpuRow) plain() bool {
	return row.Mode == modePlain || row.Mode == modeTrain && row.Offloaded == 0
}

func (row gpuRow) base() string {
	if row.Mode == modeTrain {
		return modeTrain
	}
	return modePlain
}

func (r *gpuReport) ceiling(row gpuRow) ceiling {
	i := slices.IndexFunc(r.Ceilings, func(c ceiling) bool { return c.Workload == row.Workload && c.Run == row.Run })
	return r.Ceilings[i]
}

// mid is the median of x, which stays as it is.
func mid(x []float64) float64 {
	x = slices.Sorted(slices.Values(x))
	return (x[(len(x)-1)/2] + x[len(x)/2]) / 2
}

// print writes the figures beside those of the best other engine.
func (r *gpuReport) print(w io.Writer) {
	fmt.Fprintf(w, "%s; %s; cuBLAS %d; %d runs, %d timed steps each, medians\n\n", r.GPU, r.Machine, r.CuBLAS, r.Runs, r.Timed)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "workload\tplan\tstep ms\truns\tx plain\tpeak MiB\tmoved MiB\thost ms\tout GB/s\tin GB/s\tdiffer\tbest other: ms\tx plain\tpeak MiB\thost ms")
	for _, s := range r.summaries() {
		other := baselines[s.Workload][s.Offloaded]
		plan := fmt.Sprintf("%d/%d", s.Offloaded, s.Layers)
		if s.Mode != modeTrain {
			other, plan = baseline{}, s.Mode
		}
		fmt.Fprintf(t, "%s\t%s\t%.2f\t%.2f..%.2f\t%.3f\t%.0f\t%.0f\t%.2f\t%s\t%s\t%d\t%s\t%s\t%s\t%s\n",
			s.Workload, plan, s.step, s.low, s.high, s.ratio, s.PeakMiB, s.OutMiB, s.host,
			share(s.out, s.outShare), share(s.in, s.inShare), s.Differing,
			known(other.stepMs), known(other.ratio), known(other.peakMiB), known(other.hostMs))
	}
	t.Flush()
	fmt.Fprintln(w)
	t = tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "copies alone\trun\tout GB/s\tin GB/s\tboth at once")
	for _, c := range r.Ceilings {
		fmt.Fprintf(t, "%s\t%d\t%.2f\t%.2f\t%.2f and %.2f\n", c.Workload, c.Run, c.OutGBs, c.InGBs, c.BothOut, c.BothIn)
	}
	t.Flush()
}

// share writes a rate and which part of the ceiling it is.
func share(rate, of float64) string {
	if rate == 0 {
		return "-"
	}
	return fmt.Sprintf("%.2f (%.3f)", rate, of)
}

func known(x float64) string {
	if x == 0 {
		return "-"
	}
	return fmt.Sprintf("%g", x)
}
