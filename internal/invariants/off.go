//go:build !invariants

// Package invariants says whether checks run that only a defect of this module
// can fail. They run with the build tag invariants, and panic.
//
// # Concurrency
//
// Enabled is a constant.
package invariants

// Enabled reports whether the checks run. Where it is false they compile away.
const Enabled = false
