// Package tests holds what is tested across packages: properties of the whole,
// conversations, faults, and the rules of the source itself.
package tests
