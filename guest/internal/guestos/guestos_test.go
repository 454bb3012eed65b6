package guestos

import (
	"bufio"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// cgroup2 finds where this host mounts cgroup v2.
func cgroup2(t *testing.T) string {
	t.Helper()
	mounts, err := os.Open("/proc/mounts")
	if err != nil {
		t.Skip(err)
	}
	defer mounts.Close()
	for lines := bufio.NewScanner(mounts); lines.Scan(); {
		if fields := strings.Fields(lines.Text()); len(fields) > 2 && fields[2] == "cgroup2" {
			return fields[1]
		}
	}
	t.Skip("this host mounts no cgroup v2")
	return ""
}

func testGroup(t *testing.T) *userGroup {
	t.Helper()
	folder, err := os.MkdirTemp(cgroup2(t), "envd-test-")
	if err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() {
		deadline := time.Now().Add(5 * time.Second) // killed processes are members until they are reaped
		for os.Remove(folder) != nil {
			if time.Now().After(deadline) {
				t.Errorf("%s is left behind", folder)
				return
			}
			time.Sleep(time.Millisecond)
		}
	})
	group := &userGroup{folder: folder}
	if err := group.open(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, file := range []*os.File{group.dir, group.freeze, group.events} {
			file.Close()
		}
	})
	return group
}

func TestFreezeStopsProcessesAndThawLetsThemGoOn(t *testing.T) {
	group := testGroup(t)
	command := exec.Command("sh", "-c", "while :; do echo tick; sleep 0.01; done")
	command.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(group.dir.Fd()), Setpgid: true}
	output, err := command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := command.Start(); err != nil {
		t.Skip(err)
	}
	defer func() {
		syscall.Kill(-command.Process.Pid, syscall.SIGKILL)
		command.Wait()
	}()
	lines := bufio.NewReader(output)
	if _, err := lines.ReadString('\n'); err != nil {
		t.Fatal(err)
	}

	if err := group.stop(); err != nil {
		t.Fatal(err)
	}
	if frozen, err := group.event("frozen 1"); err != nil || !frozen {
		t.Fatalf("frozen = %v, %v", frozen, err)
	}
	if err := group.stop(); err != nil {
		t.Fatalf("a second freeze: %v", err)
	}
	lines.Discard(lines.Buffered())
	if err := group.resume(); err != nil {
		t.Fatal(err)
	}
	for range 100 { // more than the pipe can have held unread at the freeze
		if _, err := lines.ReadString('\n'); err != nil {
			t.Fatal(err)
		}
	}
	if err := group.resume(); err != nil {
		t.Fatalf("thawing what runs: %v", err)
	}
}

func TestStoppingEndsPoliteProcessesAndKillsTheRest(t *testing.T) {
	for name, script := range map[string]string{"polite": "echo up; sleep 60 & wait", "stubborn": "trap '' TERM; echo up; sleep 60 & wait; wait"} {
		t.Run(name, func(t *testing.T) {
			group := testGroup(t)
			command := exec.Command("sh", "-c", script)
			command.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(group.dir.Fd()), Setpgid: true}
			output, err := command.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := command.Start(); err != nil {
				t.Skip(err)
			}
			defer syscall.Kill(-command.Process.Pid, syscall.SIGKILL)
			if _, err := bufio.NewReader(output).ReadString('\n'); err != nil {
				t.Fatal(err)
			}
			if err := group.stop(); err != nil { // frozen processes must end as well
				t.Fatal(err)
			}
			if err := group.end(200 * time.Millisecond); err != nil {
				t.Fatal(err)
			}
			command.Wait()
			signal := command.ProcessState.Sys().(syscall.WaitStatus).Signal()
			if want := map[string]syscall.Signal{"polite": syscall.SIGTERM, "stubborn": syscall.SIGKILL}[name]; signal != want {
				t.Errorf("ended by %v, want %v", signal, want)
			}
			for deadline := time.Now().Add(5 * time.Second); ; time.Sleep(time.Millisecond) {
				populated, err := group.event("populated 1")
				if err != nil || time.Now().After(deadline) {
					t.Fatalf("processes are left: %v", err)
				}
				if !populated {
					break
				}
			}
		})
	}
}

func TestWithoutCgroupTheErrorSaysSo(t *testing.T) {
	group := &userGroup{folder: filepath.Join(t.TempDir(), "none")}
	if err := group.stop(); !errors.Is(err, ErrNoCgroup) {
		t.Errorf("stop: %v", err)
	}
	if err := group.resume(); !errors.Is(err, ErrNoCgroup) {
		t.Errorf("resume: %v", err)
	}
}

func TestAwaitEndsAtItsLimit(t *testing.T) {
	group := testGroup(t)
	if _, err := group.event("frozen 1"); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	if err := group.await(20 * time.Millisecond); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(start); took < 15*time.Millisecond || took > 5*time.Second {
		t.Errorf("took %v", took)
	}
}

func TestAddEntropy(t *testing.T) {
	if err := AddEntropy(nil); err == nil {
		t.Error("empty entropy was accepted")
	}
	if err := AddEntropy(make([]byte, maxEntropy+1)); err == nil {
		t.Error("too much entropy was accepted")
	}
	err := AddEntropy([]byte("0123456789abcdef0123456789abcdef"))
	if err != nil && !errors.Is(err, syscall.EPERM) && !errors.Is(err, os.ErrPermission) {
		t.Error(err)
	}
}

func TestSetClockRefusesNonsense(t *testing.T) {
	if err := SetClock(time.Unix(0, -1e18)); !errors.Is(err, syscall.EINVAL) && !errors.Is(err, syscall.EPERM) {
		t.Errorf("error %v", err)
	}
}

func TestHostnameIsChecked(t *testing.T) {
	for _, name := range []string{"", "two words", "new\nline", strings.Repeat("x", 65), "ü"} {
		if checkHostname(name) == nil {
			t.Errorf("%q was accepted", name)
		}
	}
	for _, name := range []string{"a", "sandbox-1.local", strings.Repeat("x", 64)} {
		if err := checkHostname(name); err != nil {
			t.Errorf("%q: %v", name, err)
		}
	}
}

func TestHostsNameTheHostOnce(t *testing.T) {
	for _, c := range []struct{ old, want string }{
		{"", "127.0.0.1\tlocalhost\n127.0.1.1\tbox\n"},
		{"127.0.0.1 localhost", "127.0.0.1 localhost\n127.0.1.1\tbox\n"},
		{"127.0.1.1 old\n::1 x\n127.0.1.1 older\n", "127.0.1.1\tbox\n::1 x\n"},
	} {
		got := string(hostsFor([]byte(c.old), "box"))
		if got != c.want {
			t.Errorf("%q: got %q, want %q", c.old, got, c.want)
		}
		if again := string(hostsFor([]byte(got), "box")); again != got {
			t.Errorf("%q changed again to %q", got, again)
		}
	}
}

func TestRewriteLeavesAgreeingFilesAndLinksAlone(t *testing.T) {
	folder := t.TempDir()
	file := filepath.Join(folder, "hostname")
	if err := os.WriteFile(file, []byte("box\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	stat := func() *syscall.Stat_t {
		info, err := os.Stat(file)
		if err != nil {
			t.Fatal(err)
		}
		return info.Sys().(*syscall.Stat_t)
	}
	past := time.Unix(1, 0)
	if err := os.Chtimes(file, past, past); err != nil {
		t.Fatal(err)
	}
	before := stat()
	rewrite(file, func([]byte) []byte { return []byte("box\n") })
	if stat().Mtim != before.Mtim {
		t.Error("the file was written although nothing changed")
	}
	for _, wanted := range []string{"another\n", "b\n"} {
		rewrite(file, func([]byte) []byte { return []byte(wanted) })
		if content, _ := os.ReadFile(file); string(content) != wanted {
			t.Errorf("content %q instead of %q", content, wanted)
		}
	}
	if stat().Ino != before.Ino {
		t.Error("it is another file now, with blocks of its own")
	}
	link := filepath.Join(folder, "link")
	if err := os.Symlink(file, link); err != nil {
		t.Fatal(err)
	}
	rewrite(link, func([]byte) []byte { return []byte("through\n") })
	if content, _ := os.ReadFile(file); string(content) != "b\n" {
		t.Errorf("written through a link: %q", content)
	}
	rewrite(filepath.Join(folder, "absent", "x"), func([]byte) []byte { return []byte("x") })
}
