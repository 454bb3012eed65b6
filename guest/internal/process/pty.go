package process

import (
	"fmt"
	"os"
	"strconv"
	"syscall"
	"unsafe"
)

// windowSize is struct winsize of ioctl_tty(2).
type windowSize struct {
	rows, cols, xPixels, yPixels uint16
}

// openPTY makes a pseudo terminal that belongs to uid. The process gets slave, envd keeps master.
func openPTY(uid uint32, size *terminalSize) (master, slave *os.File, err error) {
	master, err = openDevice("/dev/ptmx", syscall.O_NONBLOCK)
	if err != nil {
		return nil, nil, err
	}
	defer func() {
		if err != nil {
			_ = master.Close()
		}
	}()
	var unlocked, number int32
	if err = ioctl(master, syscall.TIOCSPTLCK, unsafe.Pointer(&unlocked)); err != nil {
		return nil, nil, fmt.Errorf("unlock the terminal: %w", err)
	}
	if err = ioctl(master, syscall.TIOCGPTN, unsafe.Pointer(&number)); err != nil {
		return nil, nil, fmt.Errorf("number of the terminal: %w", err)
	}
	if err = resize(master, size); err != nil {
		return nil, nil, err
	}
	slave, err = openDevice("/dev/pts/"+strconv.Itoa(int(number)), 0)
	if err != nil {
		return nil, nil, err
	}
	if err = slave.Chown(int(uid), -1); err != nil {
		_ = slave.Close()
		return nil, nil, err
	}
	return master, slave, nil
}

func openDevice(path string, flags int) (*os.File, error) {
	fd, err := syscall.Open(path, syscall.O_RDWR|syscall.O_NOCTTY|syscall.O_CLOEXEC|flags, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	return os.NewFile(uintptr(fd), path), nil
}

// resize sets the size of a terminal; nil leaves it as it is.
func resize(master *os.File, size *terminalSize) error {
	if size == nil {
		return nil
	}
	const largest = 1<<16 - 1
	ws := windowSize{rows: uint16(min(size.Rows, largest)), cols: uint16(min(size.Cols, largest))}
	if err := ioctl(master, syscall.TIOCSWINSZ, unsafe.Pointer(&ws)); err != nil {
		return fmt.Errorf("resize the terminal: %w", err)
	}
	return nil
}

// foreground returns the process group that has the terminal, 0 if there is none.
func foreground(master *os.File) int {
	var group int32
	if ioctl(master, syscall.TIOCGPGRP, unsafe.Pointer(&group)) != nil {
		return 0
	}
	return int(group)
}

// ioctl calls ioctl(2) without taking the file out of the poller, as File.Fd may.
func ioctl(file *os.File, request uintptr, arg unsafe.Pointer) error {
	raw, err := file.SyscallConn()
	if err != nil {
		return err
	}
	var errno syscall.Errno
	err = raw.Control(func(fd uintptr) {
		_, _, errno = syscall.Syscall(syscall.SYS_IOCTL, fd, request, uintptr(arg))
	})
	if err == nil && errno != 0 {
		err = errno
	}
	return err
}
