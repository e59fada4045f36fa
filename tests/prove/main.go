// Command prove looks for missing order for as long as it is given: random
// lives of slots on the simulated device under random orders of its work, every
// legal order of small programs, and every operation of a program failing once.
//
//	go run ./tests/prove [-seeds N] [-first N] [-faults=false]
//
// Each seed is a program of its own and replays with -first SEED -seeds 1. The
// last lines say how much was looked at and what was found; the exit status is
// 1 if anything was.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"time"
)

// tally is what was done and found.
type tally struct {
	lifecycles int
	passes     int
	orders     int
	faults     int
	findings   int
}

func main() {
	seeds := flag.Int("seeds", 10000, "random lifecycles")
	first := flag.Uint64("first", 1, "the first seed")
	faults := flag.Bool("faults", true, "explore orders and inject faults, too")
	flag.Parse()
	var t tally
	start := time.Now()
	err := prove(&t, *first, *seeds, *faults)
	fmt.Printf("seeds run        %d, from %d, with %d passes\n", t.lifecycles, *first, t.passes)
	fmt.Printf("orders explored  %d\n", t.orders)
	fmt.Printf("faults injected  %d\n", t.faults)
	fmt.Printf("time             %.0f s\n", time.Since(start).Seconds())
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		t.findings = max(t.findings, 1)
	}
	fmt.Printf("findings %d\n", t.findings)
	if t.findings > 0 {
		os.Exit(1)
	}
}

func prove(t *tally, first uint64, seeds int, faults bool) error {
	var errs []error
	for i := range seeds {
		seed := first + uint64(i)
		if err := lifecycle(t, seed); err != nil {
			t.findings++
			errs = append(errs, fmt.Errorf("seed %d (replay with -first %d -seeds 1): %w", seed, seed, err))
			if len(errs) == 10 {
				break
			}
		}
	}
	if faults {
		errs = append(errs, explore(t), inject(t))
	}
	return errors.Join(errs...)
}
