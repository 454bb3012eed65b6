package boot

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"unsafe"
)

// moduleFolder holds the kernel modules in the initramfs, with a file "order" that names one a line.
const moduleFolder = "/modules"

// finitModule is the number of finit_module(2), which package syscall lacks.
var finitModule = map[string]uintptr{"amd64": 313, "arm64": 273}[runtime.GOARCH]

// loadModules loads the initramfs's modules in order. Failures are collected, not fatal: a kernel may have them built in, and
// what is really missing shows when the root disk doesn't appear.
func loadModules() error {
	order, err := os.ReadFile(filepath.Join(moduleFolder, "order"))
	if err != nil {
		return nil
	}
	var failures error
	for _, name := range strings.Fields(string(order)) {
		if err := loadModule(filepath.Join(moduleFolder, filepath.Base(name))); err != nil {
			failures = errors.Join(failures, fmt.Errorf("module %s: %w", name, err))
		}
	}
	return failures
}

func loadModule(path string) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	var noParameters byte
	_, _, errno := syscall.Syscall(finitModule, file.Fd(), uintptr(unsafe.Pointer(&noParameters)), 0)
	if errno != 0 && errno != syscall.EEXIST {
		return errno
	}
	return nil
}
