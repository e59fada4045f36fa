package cuda

import (
	"errors"
	"fmt"

	"offload/device"
)

// DriverError is what the driver answered to a call that failed.
type DriverError struct {
	Call string // such as "cuMemcpyDtoHAsync"
	Code int    // CUresult
	Name string // such as "CUDA_ERROR_ILLEGAL_ADDRESS"; empty if the driver has none
}

// Error names the call and the answer.
func (e *DriverError) Error() string {
	if e.Name == "" {
		return fmt.Sprintf("%s: CUDA error %d", e.Call, e.Code)
	}
	return fmt.Sprintf("%s: %s (%d)", e.Call, e.Name, e.Code)
}

// Is reports whether e stands for one of the errors of package device.
func (e *DriverError) Is(target error) bool {
	switch target {
	case device.ErrOutOfMemory:
		return e.Code == outOfMemory
	case device.ErrLost:
		return e.fatal()
	}
	return false
}

const outOfMemory = 2

// fatal reports whether the context is of no use after this answer. The others
// concern the call alone.
func (e *DriverError) fatal() bool {
	switch e.Code {
	case 3, 4, // not initialised, or shut down
		46,  // device unavailable
		201, // invalid context
		214, // memory error that could not be corrected
		220, // likewise on NVLink
		226, // error contained to this process
		700, // illegal address
		702, // launch timeout
		708, // primary context gone
		709, // context destroyed
		710, // assertion in a kernel
		714, // hardware stack
		715, // illegal instruction
		716, // misaligned address
		717, // invalid address space
		718, // invalid program counter
		719, // launch failed
		721, // tensor memory
		999: // unknown
		return true
	}
	return false
}

// answered turns an answer of the driver into the error of an operation, and
// notes that the device is lost if it is.
func (d *Device) answered(err error) error {
	if err == nil {
		return nil
	}
	var answer *DriverError
	if !errors.As(err, &answer) || !answer.fatal() {
		return err
	}
	d.lost = fmt.Errorf("%w: %w; it may be the failure of work that was enqueued before", device.ErrLost, err)
	return d.lost
}
