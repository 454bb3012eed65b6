// Package boot makes a running system out of a kernel and an initramfs whose /init is envd: it loads modules, mounts the root
// disk, switches to it, and brings the network up. It does the work of an init system without running any program of the image,
// so that images without a shell or /etc/passwd boot as well.
package boot

import (
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"aenv/envd/internal/guestos"
	"aenv/envd/internal/reaper"
)

// searchPath is PATH for envd and, unless the image says otherwise, for what it starts (Debian's default for root).
const searchPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// openFiles are the soft and hard limits of open files that every process inherits.
const (
	openFilesSoft = 65536
	openFilesHard = 1048576
)

// Init boots the guest. It must be called first of all, and only as PID 1. When something essential fails it prints one line on
// the console and powers the guest off; it returns an error only if that fails too.
func Init() error {
	start := time.Now()
	if err := initialise(start); err != nil {
		return Fail(err)
	}
	return nil
}

// Fail prints why the guest can't go on and powers it off. It returns err only if the power stays on.
func Fail(err error) error {
	console("%v", err)
	PowerOff()
	return err
}

func initialise(start time.Time) error {
	syscall.Umask(0o022)
	if err := mountKernelFilesystems(); err != nil {
		return err
	}
	args, err := readArguments()
	if err != nil {
		return err
	}
	write("/proc/sys/kernel/printk", "1 4 1 7") // the console is for what is fatal
	moduleErrors := loadModules()
	if err := mountRoot(args.root); err != nil {
		if moduleErrors != nil {
			return fmt.Errorf("%w (%v)", err, moduleErrors)
		}
		return err
	}
	if err := switchRoot(); err != nil {
		return err
	}
	if err := mountRuntime(); err != nil {
		return err
	}
	setLimits()
	if err := startNetwork(args); err != nil {
		return err
	}
	setHostname()
	superviseProcesses()
	console("ready after %d ms: %s on /, %s", time.Since(start).Milliseconds(), args.root, args.address)
	return nil
}

// console prints one line where the host can read it, on the kernel's console.
func console(format string, a ...any) {
	fmt.Fprintf(os.Stderr, "envd: boot: "+format+"\r\n", a...)
}

// setLimits sets the limits and kernel settings that agents run into. Each is a wish: none is worth a failed boot.
func setLimits() {
	os.Setenv("PATH", searchPath)
	syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: openFilesSoft, Max: openFilesHard})
	write("/proc/self/oom_score_adj", "-1000")
	write("/proc/sys/fs/inotify/max_user_watches", "524288") // watching a big source tree
	write("/proc/sys/fs/inotify/max_user_instances", "1024")
}

// setHostname gives the guest the image's host name until /init brings the sandbox's own.
func setHostname() {
	name := "sandbox"
	if content, err := os.ReadFile("/etc/hostname"); err == nil {
		name = firstWord(content, name)
	}
	if guestos.SetHostname(name) != nil {
		guestos.SetHostname("sandbox")
	}
}

// superviseProcesses starts the two duties of PID 1: reaping orphans, and ending in order when it is told to.
func superviseProcesses() {
	go reaper.Loop()
	syscall.Reboot(syscall.LINUX_REBOOT_CMD_CAD_OFF) // ctrl-alt-del becomes SIGINT
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGINT, syscall.SIGTERM)
	go func() {
		<-stop
		PowerOff()
	}()
}
