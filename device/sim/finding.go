package sim

import (
	"fmt"
	"strings"

	"offload/device"
)

// Rule names a rule of the checker; the package comment states them all.
type Rule uint8

const (
	// ReadAfterWrite is HB1: a read that is not ordered after the write of its bytes.
	ReadAfterWrite Rule = iota + 1
	// WriteAfterRead is HB2: a write that is not ordered after a read of the old bytes.
	WriteAfterRead
	// WriteAfterWrite is HB3: a write that is not ordered after the write of the old bytes.
	WriteAfterWrite
	// UseBeforeAlloc is HB4: a use that is not ordered after the allocation.
	UseBeforeAlloc
	// FreeInFlight is HB5: a free or disown that is not ordered after a use, or after the allocation.
	FreeInFlight
	// UseAfterFree is HB6: an operation that names a buffer that was given back.
	UseAfterFree
	// DoubleFree is HB7: a free, disown or unpin of a buffer that was given back.
	DoubleFree
	// UninitialisedRead is HB8: a read of bytes that nothing has written.
	UninitialisedRead
	// UnrecordedEvent is HB9: a wait for an event that is not recorded, or no longer.
	UnrecordedEvent
	// RecordedTwice is HB10: a second record in a generation, or one in an old generation.
	RecordedTwice
	// UnpinInFlight is HB11: an unpin while the host has not seen the end of a use.
	UnpinInFlight
	// HostUnsynchronised is HB12: a host access while the host has not seen the end of a use.
	HostUnsynchronised
	// OutOfBounds is HB13: a range that is not within its buffer.
	OutOfBounds
	// UndeclaredAccess is HB14: a kernel function that touches what its launch does not declare.
	UndeclaredAccess
	// UnknownKernel is HB15: a launch of a kernel that is not registered.
	UnknownKernel
	// ForeignDevice is HB16: an id of another device.
	ForeignDevice
	// Leak is HB17: a buffer, a stream or an event that was not given back.
	Leak
	// AdoptedTwice is HB18: memory that is adopted while part of it is.
	AdoptedTwice

	rules = int(AdoptedTwice) + 1
)

// ruleText says for each rule its name, what the second operation does to the
// subject, and what the first one has to do with it.
var ruleText = [rules]struct{ name, verb, relation string }{
	ReadAfterWrite:     {"read after write", "reads", "which may still be written by"},
	WriteAfterRead:     {"write after read", "writes", "which may still be read by"},
	WriteAfterWrite:    {"write after write", "writes", "which may still be written by"},
	UseBeforeAlloc:     {"use before alloc", "uses", "which may not yet be allocated by"},
	FreeInFlight:       {"free in flight", "gives back", "which may still be in use by"},
	UseAfterFree:       {"use after free", "uses", "which was given back by"},
	DoubleFree:         {"double free", "gives back", "which was given back by"},
	UninitialisedRead:  {"uninitialised read", "reads", "which nothing has written since"},
	UnrecordedEvent:    {"unrecorded event", "waits for", "whose index was used again by"},
	RecordedTwice:      {"recorded twice", "records", "which was recorded by"},
	UnpinInFlight:      {"unpin in flight", "unpins", "which may still be in use by"},
	HostUnsynchronised: {"host access before synchronisation", "touches", "which may still be in use by"},
	OutOfBounds:        {"out of bounds", "touches", "of the buffer made by"},
	UndeclaredAccess:   {"undeclared access", "touches", ""},
	UnknownKernel:      {"unknown kernel", "launches", ""},
	ForeignDevice:      {"foreign device", "names", ""},
	Leak:               {"leak", "", ""},
	AdoptedTwice:       {"adopted twice", "adopts", "part of which was adopted by"},
}

// String returns the number and the name of the rule, such as "HB1 (read after write)".
func (r Rule) String() string {
	if r == 0 || int(r) >= rules {
		return fmt.Sprintf("rule(%d)", r)
	}
	return fmt.Sprintf("HB%d (%s)", r, ruleText[r].name)
}

// Site is an operation as a finding names it. The zero Site stands for none.
type Site struct {
	Seq    uint64 // position among all operations submitted to the device, from 1
	Origin device.Origin
	Index  int // position within the batch
	Kind   device.Kind
	Stream device.Stream // zero for operations of the host
	Kernel string
}

// IsZero reports whether s stands for no operation.
func (s Site) IsZero() bool { return s.Seq == 0 }

// String returns for example
// "#42 copy-out on d1/s1.1 (operation 1 of layer 3 start-offload (pass 7))".
func (s Site) String() string {
	if s.IsZero() {
		return "no operation"
	}
	var b strings.Builder
	fmt.Fprintf(&b, "#%d %v", s.Seq, s.Kind)
	if s.Kernel != "" {
		fmt.Fprintf(&b, " %q", s.Kernel)
	}
	if !s.Stream.IsZero() {
		fmt.Fprintf(&b, " on %v", s.Stream)
	}
	fmt.Fprintf(&b, " (operation %d of %v)", s.Index, s.Origin)
	return b.String()
}

// Finding is one breach of a rule.
type Finding struct {
	Rule    Rule
	First   Site   // the earlier operation; zero where the rule knows none
	Second  Site   // the operation that broke the rule; zero for a leak
	Subject string // the bytes, buffer, event, stream or kernel concerned
	Missing string // what would make it right
	Count   int    // how often it was found, with other ids and in other passes
}

// String describes the finding in one paragraph.
func (f Finding) String() string {
	var b strings.Builder
	t := ruleText[min(int(f.Rule), rules-1)]
	fmt.Fprintf(&b, "%v: ", f.Rule)
	if f.Second.IsZero() {
		fmt.Fprintf(&b, "%s was made by %v and not given back", f.Subject, f.First)
	} else {
		fmt.Fprintf(&b, "%v %s %s", f.Second, t.verb, f.Subject)
		if !f.First.IsZero() {
			fmt.Fprintf(&b, ", %s %v", t.relation, f.First)
		}
	}
	fmt.Fprintf(&b, ". Missing: %s.", f.Missing)
	if f.Count > 1 {
		fmt.Fprintf(&b, " Found %d times.", f.Count)
	}
	return b.String()
}

// maxFindings bounds how many different findings are kept; a program that is
// wrong in more ways needs no longer list.
const maxFindings = 256

// findings collects what was found. Findings that differ in pass and ids only
// are kept once, with a count.
type findings struct {
	list  []Finding
	index map[findingKey]int
	total uint64
}

type findingKey struct {
	rule          Rule
	first, second siteKey
	leaked        string // for leaks, which have no second operation: what leaked
}

type siteKey struct {
	action                   string
	layer, occurrence, index int
	kind                     device.Kind
	stream                   device.Stream
	kernel                   string
}

func (s Site) key() siteKey {
	return siteKey{s.Origin.Action, s.Origin.Layer, s.Origin.Occurrence, s.Index, s.Kind, s.Stream, s.Kernel}
}

// add keeps f and reports whether it is a new one.
func (l *findings) add(f Finding) bool {
	l.total++
	k := findingKey{rule: f.Rule, first: f.First.key(), second: f.Second.key()}
	if f.Rule == Leak {
		k.leaked = f.Subject
	}
	if i, ok := l.index[k]; ok {
		l.list[i].Count++
		return false
	}
	if len(l.list) == maxFindings {
		return false
	}
	if l.index == nil {
		l.index = make(map[findingKey]int)
	}
	l.index[k] = len(l.list)
	f.Count = 1
	l.list = append(l.list, f)
	return true
}

// edge says what would order second after first.
func edge(first, second Site) string {
	if second.Stream.IsZero() {
		return fmt.Sprintf("the host must synchronise with an event recorded on stream %v after #%d, or with the stream",
			first.Stream, first.Seq)
	}
	return fmt.Sprintf("stream %v must wait for an event recorded on stream %v after #%d, before #%d",
		second.Stream, first.Stream, first.Seq, second.Seq)
}
