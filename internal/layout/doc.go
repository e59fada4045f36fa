// Package layout computes which bytes of a storage a tensor touches, and how
// they are best moved.
//
// # Terms
//
// A [Span] is bytes that lie one after the other, given by where they begin and
// end within the storage. A set of spans is sorted, and its spans neither touch
// nor overlap. A comb is spans of equal length at equal distances, such as a
// column of a matrix; [Combs] finds them, so that a kernel can gather many
// spans at once.
//
// # Concurrency
//
// All functions are pure.
//
// # Ownership
//
// Results that are appended to dst share its memory; inputs are not changed.
package layout
