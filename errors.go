package offload

import (
	"errors"

	"offload/actors"
	"offload/fsm"
)

var (
	// ErrClosed is returned by every call on an engine after Close.
	ErrClosed = errors.New("engine closed")
	// ErrStale is returned for a pass that has ended, for a slot that was reset,
	// and for what was saved in it.
	ErrStale = actors.ErrStale
	// ErrForeign is returned for what belongs to another slot, engine or device.
	ErrForeign = actors.ErrForeign
	// ErrChanged is returned when a tensor was changed between its push and its
	// copy. Nothing has been copied.
	ErrChanged = actors.ErrChanged
	// ErrMoved is returned by Push for a storage whose bytes are not on the device.
	ErrMoved = actors.ErrMoved
	// ErrOrder is what every [*OrderError] is to errors.Is.
	ErrOrder = fsm.ErrOrder
	// ErrPlanned is returned by the calls of a manual plan when the engine
	// follows another one.
	ErrPlanned = errors.New("the plan decides")
	// ErrInference is returned for a backward of an inference pass.
	ErrInference = errors.New("inference pass")
	// ErrLayer is returned for a layer that the plan does not have, or that has
	// no forward to run the backward of.
	ErrLayer = errors.New("no such layer")
	// ErrSecondBackward is returned for a second backward over one forward: what
	// was saved is given back when the next backward begins.
	ErrSecondBackward = errors.New("second backward")
	// ErrNothingMoved is returned by End with Options.Strict when offloads were
	// started in the pass and nothing was moved.
	ErrNothingMoved = errors.New("nothing was moved")
	// ErrBudget is what every [*BudgetError] is to errors.Is.
	ErrBudget = actors.ErrBudget
	// ErrShape is returned by StartOffload with Options.RetainHost for a tensor
	// that no retained buffer can take. Nothing has been enqueued.
	ErrShape = actors.ErrShape
	// ErrReentrant is returned to a listener that calls the engine.
	ErrReentrant = errors.New("called from within a listener")
)

// OrderError is returned for a call that is not legal in the state of the slot.
type OrderError = fsm.OrderError

// BudgetError is returned when memory that is needed would exceed a budget.
type BudgetError = actors.BudgetError

// PanicError is returned when an actor panicked; the slot has failed.
type PanicError = actors.PanicError
