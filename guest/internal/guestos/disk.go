package guestos

import (
	"fmt"
	"os"
	"syscall"
)

// Requests of ioctl(2) on a mounted folder, from linux/fs.h.
const (
	fiFreeze = 0xC0045877
	fiThaw   = 0xC0045878
)

// FreezeDisk writes all that programs have written to the disks, and lets nothing change the root file system until ThawDisk.
// Its journal is then empty: whoever finds the disk like this needs no recovery. Writers wait meanwhile. It does nothing if the
// file system is frozen already.
func FreezeDisk() error {
	syscall.Sync() // the other file systems: one on a loop device ends up on the root disk, so they go first
	if err := rootIoctl(fiFreeze); err != nil && err != syscall.EBUSY {
		return fmt.Errorf("freeze the root file system: %w", err)
	}
	return nil
}

// ThawDisk lets the root file system change again. It does nothing if that isn't frozen.
func ThawDisk() error {
	if err := rootIoctl(fiThaw); err != nil && err != syscall.EINVAL {
		return fmt.Errorf("thaw the root file system: %w", err)
	}
	return nil
}

func rootIoctl(request uintptr) error {
	root, err := os.Open("/")
	if err != nil {
		return err
	}
	defer root.Close()
	if _, _, errno := syscall.Syscall(syscall.SYS_IOCTL, root.Fd(), request, 0); errno != 0 {
		return errno
	}
	return nil
}
