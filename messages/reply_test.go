package messages

import (
	"runtime"
	"testing"
)

// The answer may come before the wait, during it, or race with it; the slot is
// then ready for the next request.
func TestReply(t *testing.T) {
	var r Reply
	for round := range 10000 {
		r.Arm()
		answer := 0
		switch round % 3 {
		case 0:
			answer = round
			r.Done()
		case 1:
			go func() {
				answer = round
				r.Done()
			}()
		case 2:
			go func() {
				for range round % 7 {
					runtime.Gosched()
				}
				answer = round
				r.Done()
			}()
		}
		r.Wait()
		if answer != round {
			t.Fatalf("round %d: Wait returned before the answer was there", round)
		}
	}
}

// A request that is used again is empty, keeps its memory, and its views are
// views of it.
func TestRequestReset(t *testing.T) {
	var r Request
	r.Reset()
	r.Indices = append(r.Indices, 1, 2, 3)
	r.Command().Items = append(r.Command().Items, Item{Fate: Goes})
	r.Verb, r.Short, r.Unused, r.First = Close, true, 3, 4
	r.Command().Ticket, r.Command().Failed = 7, true
	before := &r.Indices[0]
	r.Reset()
	if r.Verb != Fire || r.Short || r.Unused != 0 || r.First != 0 || len(r.Indices) != 0 ||
		len(r.Command().Items) != 0 || r.Command().Ticket != 0 || r.Command().Failed {
		t.Errorf("a request that was reset: %+v", &r)
	}
	if r.Indices = append(r.Indices, 9); &r.Indices[0] != before {
		t.Error("the memory of the indices was given up")
	}
	if r.Command().Request != &r || r.Answer().Request != &r || r.Answer().Command() != r.Command() {
		t.Error("the views are of another request")
	}
}
