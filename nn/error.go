package nn

import "fmt"

// Error says in which layer a pass of a model failed.
type Error struct {
	Layer int
	Name  string // of the layer, such as "block 3"
	Phase string // "forward" or "backward"
	Err   error
}

// Error names the layer and the phase.
func (e *Error) Error() string {
	return fmt.Sprintf("layer %d (%s), %s: %v", e.Layer, e.Name, e.Phase, e.Err)
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }
