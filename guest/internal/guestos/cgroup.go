package guestos

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
	"unsafe"
)

// CgroupRoot is where the cgroup v2 hierarchy is mounted in the guest.
const CgroupRoot = "/sys/fs/cgroup"

// ErrNoCgroup says that user processes have no cgroup of their own, so they can't be frozen (a kernel without cgroup v2, or
// envd running outside a guest).
var ErrNoCgroup = errors.New("no cgroup for user processes: freezing is not available")

// freezeDeadline bounds how long Freeze waits for the kernel. A process in uninterruptible sleep can delay it.
const freezeDeadline = time.Second

// userGroup is a cgroup of processes that aren't envd's own. Its files stay open: a freeze is then two system calls.
type userGroup struct {
	folder string
	mu     sync.Mutex
	dir    *os.File
	freeze *os.File // cgroup.freeze
	events *os.File // cgroup.events
}

var (
	user  = userGroup{folder: filepath.Join(CgroupRoot, "user")}
	hooks = userGroup{folder: filepath.Join(CgroupRoot, "hooks")}
)

// CreateCgroups makes the cgroups of the user's processes and of hooks; boot calls it once cgroup v2 is mounted.
func CreateCgroups() error {
	return errors.Join(user.create(), hooks.create())
}

func (g *userGroup) create() error {
	if err := os.Mkdir(g.folder, 0o755); err != nil && !os.IsExist(err) {
		return err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.open()
}

// UserCgroupFD returns a descriptor of the user cgroup's folder for SysProcAttr.CgroupFD. It stays owned by this package; ok is
// false where there is none.
func UserCgroupFD() (fd int, ok bool) { return user.descriptor() }

// HooksCgroupFD is the same for the cgroup of hooks, which run while the user's processes stand still.
func HooksCgroupFD() (fd int, ok bool) { return hooks.descriptor() }

// EndHooks kills what is left in the cgroup of hooks.
func EndHooks() error { return hooks.end(0) }

func (g *userGroup) descriptor() (fd int, ok bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.open() != nil {
		return -1, false
	}
	return int(g.dir.Fd()), true
}

// Freeze stops every user process and returns once the kernel says that all stand still. It fails, with everything running
// again, if that takes longer than a second.
func Freeze() error { return user.stop() }

// Thaw lets the user processes run on. It doesn't wait for them, and does nothing if they aren't frozen.
func Thaw() error { return user.resume() }

// RehearseThaw goes through a freeze and a thaw of the empty cgroup of hooks, so that the kernel's part of a real one is quick.
func RehearseThaw() error { return errors.Join(hooks.stop(), hooks.resume()) }

// StopUser asks every user process to end, waits at most grace for it, and kills what is left (Linux 5.14).
func StopUser(grace time.Duration) error { return user.end(grace) }

// open opens the group's files, once. The caller holds mu.
func (g *userGroup) open() error {
	if g.dir != nil {
		return nil
	}
	freeze, err := os.OpenFile(filepath.Join(g.folder, "cgroup.freeze"), os.O_WRONLY, 0)
	if err != nil {
		return ErrNoCgroup
	}
	events, err := os.Open(filepath.Join(g.folder, "cgroup.events"))
	if err != nil {
		freeze.Close()
		return ErrNoCgroup
	}
	dir, err := os.Open(g.folder)
	if err != nil {
		freeze.Close()
		events.Close()
		return ErrNoCgroup
	}
	g.dir, g.freeze, g.events = dir, freeze, events
	return nil
}

func (g *userGroup) stop() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if err := g.open(); err != nil {
		return err
	}
	if err := g.set("1"); err != nil {
		return err
	}
	deadline := time.Now().Add(freezeDeadline)
	for {
		frozen, err := g.event("frozen 1")
		if err == nil && frozen {
			return nil
		}
		left := time.Until(deadline)
		if err == nil && left > 0 {
			err = g.await(left)
		} else if err == nil {
			err = fmt.Errorf("user processes did not freeze within %v", freezeDeadline)
		}
		if err != nil {
			return errors.Join(err, g.set("0"))
		}
	}
}

func (g *userGroup) resume() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if err := g.open(); err != nil {
		return err
	}
	return g.set("0")
}

func (g *userGroup) end(grace time.Duration) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if err := g.open(); err != nil {
		return err
	}
	if err := g.set("0"); err != nil {
		return err
	}
	pids, err := os.ReadFile(filepath.Join(g.folder, "cgroup.procs"))
	if err != nil {
		return fmt.Errorf("read cgroup.procs: %w", err)
	}
	for _, word := range strings.Fields(string(pids)) {
		if pid, err := strconv.Atoi(word); err == nil && pid > 1 {
			syscall.Kill(pid, syscall.SIGTERM)
		}
	}
	deadline := time.Now().Add(grace)
	for {
		populated, err := g.event("populated 1")
		if left := time.Until(deadline); err == nil && populated && left > 0 {
			err = g.await(left)
		} else if !populated || err != nil {
			return err
		} else {
			return os.WriteFile(filepath.Join(g.folder, "cgroup.kill"), []byte("1"), 0)
		}
		if err != nil {
			return err
		}
	}
}

func (g *userGroup) set(state string) error {
	if _, err := g.freeze.WriteAt([]byte(state), 0); err != nil {
		return fmt.Errorf("write cgroup.freeze: %w", err)
	}
	return nil
}

// event says whether the line is in cgroup.events now.
func (g *userGroup) event(line string) (bool, error) {
	var buffer [128]byte
	n, err := g.events.ReadAt(buffer[:], 0)
	if n == 0 && err != nil {
		return false, fmt.Errorf("read cgroup.events: %w", err)
	}
	return bytes.Contains(buffer[:n], []byte(line)), nil
}

// pollPriority is POLLPRI of poll(2): kernfs raises it when cgroup.events changed since it was last read.
const pollPriority = 0x2

// await blocks until cgroup.events changes or the time is over.
func (g *userGroup) await(limit time.Duration) error {
	fds := struct {
		fd      int32
		events  int16
		revents int16
	}{fd: int32(g.events.Fd()), events: pollPriority}
	ts := syscall.NsecToTimespec(int64(limit))
	_, _, errno := syscall.Syscall6(syscall.SYS_PPOLL, uintptr(unsafe.Pointer(&fds)), 1, uintptr(unsafe.Pointer(&ts)), 0, 0, 0)
	if errno != 0 && errno != syscall.EINTR {
		return fmt.Errorf("wait for the freezer: %w", errno)
	}
	return nil
}

// ResetOOMScore makes a started process as killable by the kernel's out-of-memory killer as any other: it inherits envd's
// exemption (boot.Init sets it). It does nothing unless envd is PID 1.
func ResetOOMScore(pid int) error {
	if os.Getpid() != 1 {
		return nil
	}
	return os.WriteFile("/proc/"+strconv.Itoa(pid)+"/oom_score_adj", []byte("0"), 0)
}
