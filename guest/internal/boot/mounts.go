package boot

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"aenv/envd/internal/guestos"
)

// newRoot is where the initramfs mounts the root disk before it becomes /.
const newRoot = "/newroot"

// rootDeadline bounds the wait for the root disk, in an emulated guest too.
const rootDeadline = 10 * time.Second

const pollInterval = 5 * time.Millisecond

// kernelFilesystems are needed to find the root disk, and move to it.
var kernelFilesystems = []mountPoint{
	{"devtmpfs", "/dev", "devtmpfs", syscall.MS_NOSUID, "mode=755", 0o755},
	{"proc", "/proc", "proc", syscall.MS_NOSUID | syscall.MS_NODEV | syscall.MS_NOEXEC, "", 0o555},
	{"sysfs", "/sys", "sysfs", syscall.MS_NOSUID | syscall.MS_NODEV | syscall.MS_NOEXEC, "", 0o555},
}

// runtimeFilesystems complete the system once the root disk is /. Group 5 is tty in every distribution.
var runtimeFilesystems = []mountPoint{
	{"devpts", "/dev/pts", "devpts", syscall.MS_NOSUID | syscall.MS_NOEXEC, "ptmxmode=666,mode=620,gid=5", 0o755},
	{"tmpfs", "/dev/shm", "tmpfs", syscall.MS_NOSUID | syscall.MS_NODEV, "mode=1777", 0o1777},
	{"tmpfs", "/run", "tmpfs", syscall.MS_NOSUID | syscall.MS_NODEV, "mode=755", 0o755},
	{"cgroup2", guestos.CgroupRoot, "cgroup2", syscall.MS_NOSUID | syscall.MS_NODEV | syscall.MS_NOEXEC, "", 0o755},
}

type mountPoint struct {
	source, target, kind string
	flags                uintptr
	options              string
	mode                 uint32 // of the folder, if it must be made
}

func (m mountPoint) mount() error {
	makeFolder(m.target, m.mode)
	if err := syscall.Mount(m.source, m.target, m.kind, m.flags, m.options); err != nil && err != syscall.EBUSY {
		return fmt.Errorf("mount %s on %s: %w", m.kind, m.target, err)
	}
	return nil
}

func mountKernelFilesystems() error {
	for _, m := range kernelFilesystems {
		if err := m.mount(); err != nil {
			return err
		}
	}
	return nil
}

// msLazytime is MS_LAZYTIME of <linux/mount.h>.
const msLazytime = 1 << 25

// mountRoot waits for the device and mounts it read-write. The disk is an overlay over a sparse file, where what is written costs
// space in every sandbox: the zeroes of inode tables (noinit_itable), and times of files alone (lazytime: they are written with
// something else, or by a sync). no_prefetch_block_bitmaps: else each restored guest would begin with reading them.
func mountRoot(device string) error {
	makeFolder(newRoot, 0o755)
	for deadline := time.Now().Add(rootDeadline); ; time.Sleep(pollInterval) {
		if _, err := os.Stat(device); err == nil {
			break
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("root disk %s did not appear within %v", device, rootDeadline)
		}
	}
	if err := syscall.Mount(device, newRoot, "ext4", syscall.MS_NOATIME|msLazytime, "noinit_itable,no_prefetch_block_bitmaps"); err != nil {
		return fmt.Errorf("mount root disk %s (ext4): %w", device, err)
	}
	return nil
}

// switchRoot makes the mounted disk the root of everything and frees the initramfs. envd runs on from its open executable.
func switchRoot() error {
	for _, m := range kernelFilesystems {
		target := filepath.Join(newRoot, m.target)
		makeFolder(target, m.mode)
		if err := syscall.Mount(m.target, target, "", syscall.MS_MOVE, ""); err != nil {
			return fmt.Errorf("move %s to the root disk: %w", m.target, err)
		}
	}
	os.RemoveAll(moduleFolder)
	os.Remove("/init")
	if err := os.Chdir(newRoot); err != nil {
		return err
	}
	if err := syscall.Mount(".", "/", "", syscall.MS_MOVE, ""); err != nil {
		return fmt.Errorf("make the root disk /: %w", err)
	}
	if err := syscall.Chroot("."); err != nil {
		return fmt.Errorf("change the root: %w", err)
	}
	return os.Chdir("/")
}

// mountRuntime mounts what programs expect beside the root disk, and makes the usual folders and links that are missing.
func mountRuntime() error {
	for _, m := range runtimeFilesystems {
		if err := m.mount(); err != nil {
			return err
		}
	}
	if err := guestos.CreateCgroups(); err != nil {
		return fmt.Errorf("make the cgroups of user processes and hooks: %w", err)
	}
	for target, name := range map[string]string{
		"/proc/self/fd": "/dev/fd", "/proc/self/fd/0": "/dev/stdin", "/proc/self/fd/1": "/dev/stdout", "/proc/self/fd/2": "/dev/stderr",
	} {
		if err := os.Symlink(target, name); err != nil && !errors.Is(err, os.ErrExist) {
			return err
		}
	}
	makeFolder("/run/lock", 0o1777)
	makeFolder("/tmp", 0o1777)
	makeFolder("/root", 0o700)
	makeFolder("/etc", 0o755)
	return nil
}

// makeFolder makes a folder with exactly this mode if nothing is there. What goes wrong shows when the folder is used.
func makeFolder(path string, mode uint32) {
	if syscall.Mkdir(path, mode) == nil && mode&0o1000 != 0 {
		syscall.Chmod(path, mode)
	}
}

// write sets a file of /proc or /sys, if this kernel has it.
func write(path, value string) {
	if file, err := os.OpenFile(path, os.O_WRONLY, 0); err == nil {
		file.WriteString(value)
		file.Close()
	}
}
