package reaper

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// prSetChildSubreaper is PR_SET_CHILD_SUBREAPER of prctl(2): orphans become children of this process, as of PID 1.
const prSetChildSubreaper = 36

// TestLoopReapsOrphansOnly starts many commands that leave orphans behind, and expects every exit status to reach its
// owner and no zombie to stay.
func TestLoopReapsOrphansOnly(t *testing.T) {
	if _, _, errno := syscall.RawSyscall(syscall.SYS_PRCTL, prSetChildSubreaper, 1, 0); errno != 0 {
		t.Skip("no subreaper:", errno)
	}
	go Loop()
	var commands sync.WaitGroup
	for i := range 40 {
		commands.Go(func() {
			cmd := exec.Command("sh", "-c", fmt.Sprintf("sleep 0.0%d & sleep 0.1 & (true) & exit %d", i%10, i))
			if err := Start(cmd); err != nil {
				t.Error(err)
				return
			}
			_ = Wait(cmd)
			if got := cmd.ProcessState.ExitCode(); got != i {
				t.Errorf("exit code %d instead of %d", got, i)
			}
		})
	}
	commands.Wait()
	deadline := time.Now().Add(10 * time.Second)
	for left := children(t); len(left) > 0; left = children(t) {
		if time.Now().After(deadline) {
			t.Fatal("children are left:", left)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func children(t *testing.T) []string {
	t.Helper()
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, path := range stats {
		stat, err := os.ReadFile(path)
		_, after, ok := strings.Cut(string(stat), ") ")
		if field := strings.Fields(after); err == nil && ok && field[1] == strconv.Itoa(os.Getpid()) {
			found = append(found, string(stat))
		}
	}
	return found
}

func TestStartTellsWhatFailed(t *testing.T) {
	if err := Start(exec.Command("/no/such/program")); err == nil {
		t.Fatal("no error")
	}
}
