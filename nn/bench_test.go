package nn

import (
	"fmt"
	"math/rand/v2"
	"testing"
)

// BenchmarkStep trains the demo's network.
func BenchmarkStep(b *testing.B) {
	for _, row := range []struct{ hidden, offloaded int }{{64, 0}, {128, 0}, {128, 4}} {
		b.Run(fmt.Sprintf("hidden %d, %d offloaded", row.hidden, row.offloaded), func(b *testing.B) {
			c := Config{Hidden: row.hidden}
			c.EnsureDefaults()
			w := open(b, setting{config: c, offloaded: row.offloaded, slab: 16 << 20})
			defer w.close()
			batch := c.random(rand.New(rand.NewPCG(1, 1)), c.Batch)
			for b.Loop() {
				w.step(batch)
			}
		})
	}
}
