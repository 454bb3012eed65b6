package guestos

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"syscall"
	"unsafe"
)

// Request numbers of random(4), from <linux/random.h>.
const (
	rndAddEntropy = 0x40085203
	rndReseedCRNG = 0x5207
)

// maxEntropy bounds one call; the kernel's pool is far smaller (32 bytes since Linux 5.18).
const maxEntropy = 4096

// AddEntropy mixes seed into the kernel's random pool, credits every bit of it, and reseeds the generator at once, so that two
// guests restored from one memory image draw different numbers. It needs CAP_SYS_ADMIN.
func AddEntropy(seed []byte) error {
	if len(seed) == 0 || len(seed) > maxEntropy {
		return errors.New("entropy must hold 1 to 4096 bytes")
	}
	device, err := os.OpenFile("/dev/random", os.O_WRONLY|syscall.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("add entropy: %w", err)
	}
	defer device.Close()
	// struct rand_pool_info: entropy_count in bits, buf_size in bytes, then the bytes.
	info := make([]byte, 8+len(seed))
	binary.NativeEndian.PutUint32(info, uint32(len(seed)*8))
	binary.NativeEndian.PutUint32(info[4:], uint32(len(seed)))
	copy(info[8:], seed)
	if err := ioctl(device, rndAddEntropy, uintptr(unsafe.Pointer(&info[0]))); err != nil {
		return fmt.Errorf("add entropy: %w", err)
	}
	if err := ioctl(device, rndReseedCRNG, 0); err != nil {
		return fmt.Errorf("reseed the random generator: %w", err)
	}
	return nil
}

func ioctl(file *os.File, request, argument uintptr) error {
	if _, _, errno := syscall.Syscall(syscall.SYS_IOCTL, file.Fd(), request, argument); errno != 0 {
		return errno
	}
	return nil
}
