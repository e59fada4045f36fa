package main

import (
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/rs/zerolog"
)

var defaults = config{
	device: "sim", layers: 6, width: 128, batch: 2048, microBatches: 1, order: forwardsFirst, accumulate: 1, steps: 100, offload: 6,
	seed: 1, log: logLevel(zerolog.WarnLevel),
}

func TestParse(t *testing.T) {
	file := filepath.Join(t.TempDir(), "out.json")
	for _, test := range []struct {
		name string
		args string
		want func(c *config)
	}{
		{"no flags give the defaults", "", func(*config) {}},
		{"offloading follows the number of blocks", "-layers 3", func(c *config) { c.layers, c.offload = 3, 3 }},
		{"offloading all but the running layer", "-layers 3 -offload 4", func(c *config) { c.layers, c.offload = 3, 4 }},
		{"binary sizes", "-device-memory 24MiB", func(c *config) { c.limit = 24 << 20 }},
		{"decimal sizes", "-device-memory=1.5MB", func(c *config) { c.limit = 1500000 }},
		{"plain bytes", "-device-memory 4096", func(c *config) { c.limit = 4096 }},
		{"micro-batches", "-micro-batches 4", func(c *config) { c.microBatches = 4 }},
		{"as many micro-batches as images", "-batch 3 -micro-batches 3", func(c *config) { c.batch, c.microBatches = 3, 3 }},
		{"an order", "-micro-batches 2 -order 1f1b", func(c *config) { c.microBatches, c.order = 2, alternating }},
		{"another order", "-order fbfb", func(c *config) { c.order = oneByOne }},
		{"batches that accumulate", "-accumulate 3", func(c *config) { c.accumulate = 3 }},
		{"everything else", "-device sim -width 64 -batch 100 -steps 7 -seed 42 -data some/where -log debug -quiet -json " + file,
			func(c *config) {
				c.width, c.batch, c.steps, c.seed = 64, 100, 7, 42
				c.data, c.json, c.quiet, c.log = "some/where", file, true, logLevel(zerolog.DebugLevel)
			}},
	} {
		t.Run(test.name, func(t *testing.T) {
			want := defaults
			test.want(&want)
			got, err := parse(strings.Fields(test.args))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, got, cmp.AllowUnexported(config{})); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

func TestParseRefuses(t *testing.T) {
	t.Chdir(t.TempDir())
	if err := os.Mkdir("folder", 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile("file", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name string
		args string
		want string
	}{
		{"an unknown flag", "-nope", "flag provided but not defined: -nope"},
		{"an argument", "train", `unexpected argument "train"`},
		{"an unknown device", "-device tpu", `-device "tpu": want sim or cuda`},
		{"no number", "-steps many", `invalid value "many" for flag -steps`},
		{"a missing value", "-steps", "flag needs an argument: -steps"},
		{"no blocks", "-layers 0", "-layers 0: want from 1 to 1024"},
		{"too many blocks", "-layers 1025", "-layers 1025: want from 1 to 1024"},
		{"no width", "-width 0", "-width 0: want from 1 to 16384"},
		{"a negative batch", "-batch -1", "-batch -1: want from 1 to 1048576"},
		{"no micro-batches", "-micro-batches 0", "-micro-batches 0: want from 1 to 1024"},
		{"micro-batches that do not divide the batch", "-micro-batches 3", "-micro-batches 3: want a divisor of -batch 2048"},
		{"more micro-batches than images", "-batch 4 -micro-batches 8", "-micro-batches 8: want a divisor of -batch 4"},
		{"too many micro-batches", "-micro-batches 2048", "-micro-batches 2048: want from 1 to 1024"},
		{"an unknown order", "-order bbff", `invalid value "bbff" for flag -order: want one of ffbb, 1f1b, fbfb`},
		{"nothing to accumulate", "-accumulate 0", "-accumulate 0: want from 1 to 1024"},
		{"a negative number to accumulate", "-accumulate -2", "-accumulate -2: want from 1 to 1024"},
		{"too much to accumulate", "-accumulate 1025", "-accumulate 1025: want from 1 to 1024"},
		{"no batch and micro-batches", "-batch 0 -micro-batches 2", "-batch 0: want from 1 to 1048576"},
		{"no steps", "-steps 0", "-steps 0: want from 1 to 1048576"},
		{"nothing to offload", "-offload 0", `invalid value "0" for flag -offload: want a number from 1 on`},
		{"less than nothing to offload", "-offload -1", "want a number from 1 on"},
		{"the running layer offloaded", "-offload 8", "-offload 8: want from 1 to 7"},
		{"a negative seed", "-seed -1", `invalid value "-1" for flag -seed`},
		{"a size in no unit", "-device-memory 24potatoes", `invalid value "24potatoes" for flag -device-memory: want a size such as 24MiB`},
		{"a negative size", "-device-memory -24MiB", "want a size such as 24MiB"},
		{"no memory at all", "-device-memory 0", "want a size from 1 byte to 4EiB"},
		{"more memory than can be counted", "-device-memory 15EiB", "want a size from 1 byte to 4EiB"},
		{"an unknown level", "-log loud", "want one of trace, debug, info, warn, error, disabled"},
		{"an empty level", "-log=", "want one of trace"},
		{"a report into no folder", "-json nowhere/out.json", "-json nowhere/out.json: there is no folder nowhere"},
		{"a report below a file", "-json file/out.json", "-json file/out.json: file is not a folder"},
		{"a report over a folder", "-json folder", "-json folder: it is a folder"},
		{"two faults", "-layers 0 -steps 0", "-layers 0: want from 1 to 1024; -steps 0: want from 1 to 1048576"},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, err := parse(strings.Fields(test.args))
			if err == nil || !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("got %v, want one line with %q", err, test.want)
			}
		})
	}
}

func TestParseHelp(t *testing.T) {
	if _, err := parse([]string{"-h"}); !errors.Is(err, flag.ErrHelp) {
		t.Errorf("got %v, want %v", err, flag.ErrHelp)
	}
	var text strings.Builder
	usage(&text)
	if strings.Contains(text.String(), "(default )") {
		t.Errorf("usage names an empty default:\n%s", &text)
	}
	for _, name := range []string{"device", "layers", "width", "batch", "micro-batches", "order", "accumulate", "steps", "offload", "device-memory", "seed", "data", "json", "log", "quiet"} {
		if !strings.Contains(text.String(), "\n  -"+name) {
			t.Errorf("usage does not tell of -%s:\n%s", name, &text)
		}
	}
}
