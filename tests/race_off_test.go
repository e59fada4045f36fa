//go:build !race

package tests

// racing says that the race detector watches.
const racing = false
