// Package reaper lets envd be PID 1: it reaps the orphans that the kernel hands to it, and leaves the exit statuses
// of the processes that envd started itself to os/exec.
package reaper

import (
	"os"
	"os/exec"
	"os/signal"
	"sync"
	"syscall"
	"unsafe"
)

var (
	mu    sync.Mutex
	owned = map[int]struct{}{}

	// again wakes Loop when an owned process was reaped: it may have hidden orphans that wait behind it.
	again = make(chan struct{}, 1)
)

// Start starts cmd and keeps Loop from reaping it. Its caller must call Wait, soon and once.
func Start(cmd *exec.Cmd) error {
	mu.Lock()
	defer mu.Unlock()
	if err := cmd.Start(); err != nil {
		return err
	}
	owned[cmd.Process.Pid] = struct{}{}
	return nil
}

// Wait is cmd.Wait for a command that Start started.
func Wait(cmd *exec.Cmd) error {
	err := cmd.Wait()
	mu.Lock()
	delete(owned, cmd.Process.Pid)
	mu.Unlock()
	select {
	case again <- struct{}{}:
	default:
	}
	return err
}

// Loop reaps orphans for ever. Only PID 1 (or a child subreaper) needs it.
func Loop() {
	children := make(chan os.Signal, 1)
	signal.Notify(children, syscall.SIGCHLD)
	for {
		reapOrphans()
		select {
		case <-children:
		case <-again:
		}
	}
}

// reapOrphans reaps dead children up to the first that envd owns: the kernel shows only the first one to a caller
// that peeks. Wait wakes Loop again after it has taken that one away.
func reapOrphans() {
	for {
		mu.Lock()
		pid := peek()
		_, mine := owned[pid]
		if pid != 0 && !mine {
			_, _ = syscall.Wait4(pid, nil, syscall.WNOHANG, nil)
		}
		mu.Unlock()
		if pid == 0 || mine {
			return
		}
	}
}

// Constants of waitid(2), from linux/wait.h; package syscall does not have them.
const (
	waitAll     = 0
	waitNoHang  = 0x1
	waitExited  = 0x4
	waitNoReap  = 0x01000000
	sizeSiginfo = 128
	offsetPID   = 16 // si_pid on 64-bit Linux, where the union of siginfo_t is 8-byte aligned
)

// peek returns the PID of a dead child without reaping it, 0 if there is none.
func peek() int {
	var info [sizeSiginfo / 4]int32
	for {
		_, _, errno := syscall.Syscall6(syscall.SYS_WAITID, waitAll, 0, uintptr(unsafe.Pointer(&info)),
			waitExited|waitNoHang|waitNoReap, 0, 0)
		if errno == syscall.EINTR {
			continue
		}
		if errno != 0 {
			return 0
		}
		return int(info[offsetPID/4])
	}
}
