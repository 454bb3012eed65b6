package boot

import (
	"syscall"
	"time"

	"aenv/envd/internal/guestos"
)

// userGrace is how long user processes have between SIGTERM and SIGKILL.
const userGrace = 500 * time.Millisecond

// remountDeadline bounds the wait until killed processes have let go of the disk.
const remountDeadline = time.Second

// PowerOff ends every process, brings the disk into a clean state, and switches the guest off. It returns only if the kernel
// refuses.
func PowerOff() {
	guestos.StopUser(userGrace)
	syscall.Kill(-1, syscall.SIGKILL) // what left the user cgroup
	syscall.Sync()
	deadline := time.Now().Add(remountDeadline)
	for syscall.Mount("", "/", "", syscall.MS_REMOUNT|syscall.MS_RDONLY, "") == syscall.EBUSY && time.Now().Before(deadline) {
		time.Sleep(pollInterval)
	}
	syscall.Reboot(syscall.LINUX_REBOOT_CMD_POWER_OFF)
}
