package cuda

import "unsafe"

// address returns where pinned memory starts.
func address(mem []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(mem))) }
