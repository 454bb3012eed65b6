// Package guestos holds what envd asks of the guest's kernel around a capture and a restore: the clock, fresh entropy, the
// host name, and freezing the user's processes. Outside a guest (tests on a host) every function fails with a clear error.
package guestos

import (
	"fmt"
	"syscall"
	"time"
	"unsafe"
)

// clockRealtime is CLOCK_REALTIME of clock_settime(2).
const clockRealtime = 0

// SetClock sets the system's wall clock. It needs CAP_SYS_TIME.
func SetClock(now time.Time) error {
	ts := syscall.NsecToTimespec(now.UnixNano())
	_, _, errno := syscall.Syscall(syscall.SYS_CLOCK_SETTIME, clockRealtime, uintptr(unsafe.Pointer(&ts)), 0)
	if errno != 0 {
		return fmt.Errorf("set the clock: %w", errno)
	}
	return nil
}
