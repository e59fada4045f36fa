//go:build !cuda

package cuda

import (
	"errors"
	"strings"
	"testing"
)

func TestOpenWithoutTag(t *testing.T) {
	d, err := Open(0, Options{})
	if d != nil || !errors.Is(err, errors.ErrUnsupported) || !strings.Contains(err.Error(), "-tags cuda") {
		t.Errorf("got %v, %v; want an error that wraps errors.ErrUnsupported and names the tag", d, err)
	}
	if d, err := Open(0, Options{MemoryLimit: -1}); d != nil || err == nil || errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("got %v, %v; want the options refused first", d, err)
	}
	if n, err := Count(); n != 0 || err != nil {
		t.Errorf("got %d GPUs, %v; want none", n, err)
	}
}
