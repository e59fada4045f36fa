package blas

import "testing"

func TestAlignment(t *testing.T) {
	for _, tc := range []struct {
		name string
		o    Operands
		want uint32
	}{
		{"all as the device allocates", Operands{256, 512, 1024, 1024}, 256},
		{"more does not count", Operands{1 << 20, 1 << 20, 1 << 20, 1 << 20}, 256},
		{"the worst one counts", Operands{256, 512 + 16, 1024, 2048 + 64}, 16},
		{"odd", Operands{257, 256, 256, 256}, 1},
	} {
		if got := tc.o.alignment(); got != tc.want {
			t.Errorf("%s: got %d, want %d", tc.name, got, tc.want)
		}
	}
}
