package guestos

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"unsafe"
)

// Requests of ioctl(2) on a mounted folder, from linux/fs.h.
const (
	fiFreeze = 0xC0045877
	fiThaw   = 0xC0045878

	ext4ResizeFS = 0x40086610 // to a number of blocks, from fs/ext4/ext4.h
)

// sectorSize is what the kernel counts disks in, whatever theirs is.
const sectorSize = 512

// FreezeDisk writes all that programs have written to the disks, and lets nothing change the root file system until ThawDisk.
// Its journal is then empty: whoever finds the disk like this needs no recovery. Writers wait meanwhile. It does nothing if the
// file system is frozen already.
func FreezeDisk() error {
	syscall.Sync() // the other file systems: one on a loop device ends up on the root disk, so they go first
	if err := rootIoctl(fiFreeze, nil); err != nil && err != syscall.EBUSY {
		return fmt.Errorf("freeze the root file system: %w", err)
	}
	return nil
}

// ThawDisk lets the root file system change again. It does nothing if that isn't frozen.
func ThawDisk() error {
	if err := rootIoctl(fiThaw, nil); err != nil && err != syscall.EINVAL {
		return fmt.Errorf("thaw the root file system: %w", err)
	}
	return nil
}

// GrowDisk makes the root file system as large as its disk. Only ext4 can; it may be in use meanwhile.
func GrowDisk() error {
	var disk syscall.Stat_t
	var system syscall.Statfs_t
	if err := errors.Join(syscall.Stat("/", &disk), syscall.Statfs("/", &system)); err != nil {
		return err
	}
	size, err := os.ReadFile(fmt.Sprintf("/sys/dev/block/%d:%d/size", disk.Dev>>8&0xfff, disk.Dev&0xff))
	if err != nil {
		return err
	}
	sectors, err := strconv.ParseUint(strings.TrimSpace(string(size)), 10, 64)
	if err != nil {
		return err
	}
	blocks := sectors * sectorSize / uint64(system.Bsize)
	if err := rootIoctl(ext4ResizeFS, unsafe.Pointer(&blocks)); err != nil {
		return fmt.Errorf("grow the root file system: %w", err)
	}
	return nil
}

func rootIoctl(request uintptr, argument unsafe.Pointer) error {
	root, err := os.Open("/")
	if err != nil {
		return err
	}
	defer root.Close()
	if _, _, errno := syscall.Syscall(syscall.SYS_IOCTL, root.Fd(), request, uintptr(argument)); errno != 0 {
		return errno
	}
	return nil
}
