package process

import (
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"aenv/envd/internal/connect"
	"aenv/envd/internal/session"
)

func TestOutputAndExitCode(t *testing.T) {
	f := newFixture(t)
	o := f.start(`echo out; echo err >&2; exit 3`, "").rest()
	if o.stdout != "out\n" || o.stderr != "err\n" || o.err != nil {
		t.Fatalf("%+v", o)
	}
	if o.end.ExitCode != 3 || !o.end.Exited || o.end.Status != "exit status 3" || *o.end.Error != "exit status 3" {
		t.Fatalf("%+v", o.end)
	}
	o = f.start(`true`, "").rest()
	if o.end.ExitCode != 0 || !o.end.Exited || o.end.Status != "exit status 0" || o.end.Error != nil {
		t.Fatalf("%+v", o.end)
	}
}

func TestLargeOutputIsComplete(t *testing.T) {
	o := newFixture(t).start(`head -c 3000000 /dev/zero; head -c 100000 /dev/zero >&2`, "").rest()
	if len(o.stdout) != 3000000 || len(o.stderr) != 100000 || o.end.ExitCode != 0 {
		t.Fatal(len(o.stdout), len(o.stderr), o.end)
	}
}

func TestEnvironmentAndWorkingDirectory(t *testing.T) {
	f := newFixture(t)
	f.session.Update(session.Change{Env: map[string]string{"E2B_SANDBOX": "true", "A": "session"}})
	dir := t.TempDir()
	s := f.open("Start", `{"process":{"cmd":"env","cwd":"`+dir+`","envs":{"A":"request","B":"2"}},"stdin":false}`).begin()
	lines := strings.Split(s.rest().stdout, "\n")
	for _, want := range []string{"A=request", "B=2", "E2B_SANDBOX=true", "HOME=/root", "USER=root", "LOGNAME=root", "PATH=" + defaultPath} {
		found := false
		for _, line := range lines {
			found = found || line == want
		}
		if !found {
			t.Errorf("no %s in %q", want, lines)
		}
	}
	s = f.open("Start", `{"process":{"cmd":"pwd","cwd":"`+dir+`"}}`).begin()
	if got := s.rest().stdout; got != dir+"\n" {
		t.Error(got)
	}
	f.session.Update(session.Change{Workdir: &dir})
	if got := f.open("Start", `{"process":{"cmd":"pwd"}}`).begin().rest().stdout; got != dir+"\n" {
		t.Error(got)
	}
	missing := filepath.Join(dir, "missing")
	f.session.Update(session.Change{Workdir: &missing})
	if got := f.open("Start", `{"process":{"cmd":"pwd"}}`).begin().rest().stdout; got != "/\n" {
		t.Error(got)
	}
}

func TestStartErrors(t *testing.T) {
	f := newFixture(t)
	for body, want := range map[string]connect.Error{
		`{"process":{"cmd":"/no/such"}}`:                  {Code: connect.InvalidArgument, Message: "no such file"},
		`{"process":{"cmd":"no-such"}}`:                   {Code: connect.InvalidArgument, Message: "executable file not found"},
		`{"process":{"cmd":"/etc"}}`:                      {Code: connect.InvalidArgument, Message: "permission denied"},
		`{"process":{"cmd":"true","cwd":"/no/such"}}`:     {Code: connect.InvalidArgument, Message: "cwd '/no/such' does not exist"},
		`{"process":{"cmd":"true","cwd":"/etc/passwd"}}`:  {Code: connect.InvalidArgument, Message: "not a directory"},
		`{"process":{"cmd":"true","cwd":"~nobody-here"}}`: {Code: connect.InvalidArgument, Message: "invalid username: 'nobody-here'"},
		`{"process":{"cmd":"true","envs":{"A=B":"1"}}}`:   {Code: connect.InvalidArgument, Message: "A=B"},
		`{"process":{"cmd":"true\u0000"}}`:                {Code: connect.InvalidArgument, Message: "t"},
		`{"process":{}}`:                                  {Code: connect.InvalidArgument, Message: "no command"},
		`{}`:                                              {Code: connect.InvalidArgument, Message: "no command"},
	} {
		msg := f.open("Start", body).next()
		if !msg.last || msg.Error == nil || msg.Error.Code != want.Code || !strings.Contains(msg.Error.Message, want.Message) {
			t.Errorf("%s: %+v", body, msg.Error)
		}
	}
	msg := f.open("Start", `{"process":{"cmd":"true"}}`, "Authorization", "Basic bm8tc3VjaDo=").next()
	if msg.Error == nil || msg.Error.Code != connect.Unauthenticated || msg.Error.Message != "invalid username: 'no-such'" {
		t.Error(msg.Error)
	}
	if n := len(f.manager.list()); n != 0 {
		t.Error(n, "processes")
	}
}

func TestRunsAsTheRequestedUser(t *testing.T) {
	f := newFixture(t)
	s := f.open("Start", `{"process":{"cmd":"sh","args":["-c","id -un; echo $HOME $USER"],"cwd":"/"}}`, "Authorization", "Basic bm9ib2R5Og==")
	o := s.begin().rest()
	if !strings.HasPrefix(o.stdout, "nobody\n") || !strings.HasSuffix(o.stdout, " nobody\n") {
		t.Fatalf("%+v", o)
	}
}

func TestStdin(t *testing.T) {
	f := newFixture(t)
	s := f.start(`cat; echo done`, `,"stdin":true`)
	if code := s.input("stdin", "hello\n"); code != "" {
		t.Fatal(code)
	}
	s.until("hello\n")
	if code := f.call("CloseStdin", `{`+s.selector()+`}`); code != "" {
		t.Fatal(code)
	}
	if o := s.rest(); o.stdout != "done\n" {
		t.Fatalf("%+v", o)
	}
	if code := s.input("stdin", "x"); code != connect.NotFound {
		t.Error(code)
	}
	s = f.start(`cat; sleep 100`, `,"stdin":false`)
	if code := s.input("stdin", "x"); code != connect.FailedPrecondition {
		t.Error(code)
	}
	if code := s.input("pty", "x"); code != connect.FailedPrecondition {
		t.Error(code)
	}
	if code := f.call("CloseStdin", `{`+s.selector()+`}`); code != connect.FailedPrecondition {
		t.Error(code)
	}
	s = f.start(`exec <&-; echo closed; sleep 100`, ``)
	s.until("closed")
	if code := s.input("stdin", "x"); code != connect.FailedPrecondition {
		t.Error(code)
	}
}

func TestPipesOfTheProcessBlock(t *testing.T) {
	s := newFixture(t).start(`for i in 0 1 2; do grep flags /proc/self/fdinfo/$i; done`, `,"stdin":true`)
	for _, line := range strings.Split(strings.TrimSpace(s.rest().stdout), "\n") {
		flags, err := strconv.ParseInt(strings.TrimSpace(strings.TrimPrefix(line, "flags:")), 8, 64)
		if err != nil || flags&syscall.O_NONBLOCK != 0 {
			t.Error(line, err)
		}
	}
}

func TestBlockedInputEndsAtItsDeadline(t *testing.T) {
	f := newFixture(t)
	s := f.start(`sleep 100`, `,"stdin":true`)
	p, err := f.manager.find(selector{PID: ref(connect.Uint32(s.pid))}, false)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := contextWithTimeout(50 * time.Millisecond)
	defer cancel()
	if err := p.write(ctx, make([]byte, 1<<20)); err == nil || ctx.Err() == nil {
		t.Fatal(err)
	}
	if code := f.call("CloseStdin", `{`+s.selector()+`}`); code != "" {
		t.Fatal(code)
	}
}

func TestKillTakesTheWholeGroup(t *testing.T) {
	f := newFixture(t)
	s := f.start(`sleep 1000 & echo $!; wait`, "")
	child, err := strconv.Atoi(strings.TrimSpace(s.until("\n")))
	if err != nil {
		t.Fatal(err)
	}
	if code := f.call("SendSignal", `{`+s.selector()+`,"signal":"SIGNAL_SIGKILL"}`); code != "" {
		t.Fatal(code)
	}
	if err := syscall.Kill(s.pid, 0); err != syscall.ESRCH {
		t.Error("the process is still there after the answer:", err)
	}
	o := s.rest()
	if o.end.ExitCode != -1 || o.end.Exited || o.end.Status != "signal: killed" || *o.end.Error != "signal: killed" {
		t.Errorf("%+v", o.end)
	}
	f.eventually("the child is gone", func() bool { return gone(child) })
	if code := f.call("SendSignal", `{`+s.selector()+`,"signal":"SIGNAL_SIGKILL"}`); code != connect.NotFound {
		t.Error(code)
	}
	// A child that the shell has forked and not yet turned into sleep would swallow the signal: short sleeps, then.
	s = f.start(`trap 'exit 7' TERM; echo ready; while :; do sleep 0.05; done`, "")
	s.until("ready")
	if code := f.call("SendSignal", `{`+s.selector()+`,"signal":15}`); code != "" {
		t.Error(code)
	}
	if o := s.rest(); o.end.ExitCode != 7 {
		t.Errorf("%+v", o.end)
	}
	if code := f.call("SendSignal", `{`+s.selector()+`,"signal":"SIGNAL_SIGHUP"}`); code != connect.InvalidArgument {
		t.Error(code)
	}
}

// gone tells whether a process has ended; the test machine may not reap orphans, so a zombie counts.
func gone(pid int) bool {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	return err != nil || strings.Contains(string(stat), ") Z ")
}

func TestDeadlineKillsAndTells(t *testing.T) {
	f := newFixture(t)
	s := f.start(`sleep 1000 & echo $!; wait`, "", "Connect-Timeout-Ms", "200")
	child, _ := strconv.Atoi(strings.TrimSpace(s.until("\n")))
	o := s.rest()
	if o.end != nil || o.err == nil || o.err.Code != connect.DeadlineExceeded {
		t.Fatalf("%+v", o)
	}
	f.eventually("all are gone", func() bool { return gone(s.pid) && gone(child) })
}

func TestDeadlineKillsWithoutAClient(t *testing.T) {
	f := newFixture(t)
	s := f.start(`sleep 1000`, "", "Connect-Timeout-Ms", "300")
	s.cancel()
	f.eventually("the process is gone", func() bool { return gone(s.pid) })
}

func TestSurvivesDisconnectAndCanBeFollowedAgain(t *testing.T) {
	f := newFixture(t)
	s := f.start(`echo one; read x; echo $x; exit 5`, `,"tag":"mine","stdin":true`)
	s.until("one")
	s.cancel()
	for _, selector := range []string{s.selector(), `"process":{"tag":"mine"}`} {
		again := f.open("Connect", `{`+selector+`}`).begin()
		if again.pid != s.pid {
			t.Fatal(again.pid)
		}
		defer again.body.Close()
	}
	last := f.open("Connect", `{`+s.selector()+`}`).begin()
	if code := s.input("stdin", "two\n"); code != "" {
		t.Fatal(code)
	}
	if o := last.rest(); o.stdout != "two\n" || o.end.ExitCode != 5 {
		t.Fatalf("%+v", o)
	}
	late := f.open("Connect", `{`+s.selector()+`}`).begin()
	if o := late.rest(); o.stdout != "" || o.end.ExitCode != 5 {
		t.Fatalf("%+v", o)
	}
	msg := f.open("Connect", `{"process":{"pid":999999}}`).next()
	if msg.Error == nil || msg.Error.Code != connect.NotFound || msg.Error.Message != "process with pid 999999 not found" {
		t.Error(msg.Error)
	}
	if msg := f.open("Connect", `{}`).next(); msg.Error == nil || msg.Error.Code != connect.InvalidArgument {
		t.Error(msg.Error)
	}
}

func TestOutputWithoutAClientIsDiscarded(t *testing.T) {
	f := newFixture(t)
	file := filepath.Join(t.TempDir(), "done")
	s := f.start(`echo started; read x; head -c 10000000 /dev/zero; touch `+file, `,"stdin":true`)
	s.until("started")
	s.cancel()
	p, err := f.manager.find(selector{PID: ref(connect.Uint32(s.pid))}, false)
	if err != nil {
		t.Fatal(err)
	}
	f.eventually("the client is gone", func() bool { p.mu.Lock(); defer p.mu.Unlock(); return len(p.subscribers) == 0 })
	s.input("stdin", "go\n")
	f.eventually("the process went on", func() bool { _, err := os.Stat(file); return err == nil })
}

func TestSlowClientHoldsTheProcessAndLosesNothing(t *testing.T) {
	f := newFixture(t)
	const total = 24 << 20
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	s := f.start(`head -c `+strconv.Itoa(total)+` /dev/zero`, "")
	f.eventually("the process waits for its reader", func() bool {
		wchan, _ := os.ReadFile("/proc/" + strconv.Itoa(s.pid) + "/wchan")
		stat, _ := os.ReadFile("/proc/" + strconv.Itoa(s.pid) + "/stat")
		return strings.Contains(string(wchan), "pipe") || strings.Contains(string(stat), ") S ")
	})
	runtime.ReadMemStats(&after)
	if after.HeapAlloc > before.HeapAlloc+(8<<20) {
		t.Error("memory grew by", after.HeapAlloc-before.HeapAlloc)
	}
	received := 0
	for {
		msg := s.next()
		if msg.Event.Data != nil {
			received += len(msg.Event.Data.Stdout)
		}
		if msg.last {
			break
		}
	}
	if received != total {
		t.Fatal(received)
	}
}

func TestBackgroundChildDoesNotDelayTheEnd(t *testing.T) {
	f := newFixture(t)
	start := time.Now()
	s := f.start(`sleep 1000 & echo $!`, "")
	o := s.rest()
	if o.end == nil || o.end.ExitCode != 0 || time.Since(start) > patience {
		t.Fatalf("%+v", o)
	}
	child, err := strconv.Atoi(strings.TrimSpace(o.stdout))
	if err != nil || gone(child) {
		t.Fatal("the background child should live:", err)
	}
	_ = syscall.Kill(child, syscall.SIGKILL)
	defer func(before time.Duration) { drainIdle = before }(drainIdle)
	drainIdle = 5 * time.Second
	o = f.start(`(for i in 1 2 3 4 5; do sleep 0.05; echo $i; done) & exit 0`, "").rest()
	if o.stdout != "1\n2\n3\n4\n5\n" {
		t.Errorf("output right after the exit is lost: %q", o.stdout)
	}
}

func TestEndlessBackgroundOutputEnds(t *testing.T) {
	f := newFixture(t)
	o := f.start(`yes & echo $! >&2`, "").rest()
	child, err := strconv.Atoi(strings.TrimSpace(o.stderr))
	if err != nil {
		t.Fatal(err)
	}
	_ = syscall.Kill(child, syscall.SIGKILL)
	if o.end == nil || o.end.ExitCode != 0 {
		t.Fatalf("%+v", o.end)
	}
}

func TestKeepalive(t *testing.T) {
	f := newFixture(t)
	o := f.start(`sleep 1.5`, "", "Keepalive-Ping-Interval", "1").rest()
	if o.keepalives != 1 || o.end == nil {
		t.Fatalf("%+v", o)
	}
}

func TestHoldKeepsProcessesFromStarting(t *testing.T) {
	f := newFixture(t)
	for _, drop := range []bool{false, true} {
		f.manager.Hold()
		f.manager.Hold() // holding twice is the same
		result := make(chan message, 1)
		go func() { result <- f.open("Start", `{"process":{"cmd":"true"}}`).next() }()
		select {
		case msg := <-result:
			t.Fatalf("started while held: %+v", msg)
		case <-time.After(100 * time.Millisecond):
		}
		f.manager.Release(drop)
		f.manager.Release(false)
		msg := <-result
		if dropped := msg.Error != nil && msg.Error.Code == connect.Aborted; dropped != drop {
			t.Errorf("drop %v: %+v", drop, msg)
		}
	}
}

func TestList(t *testing.T) {
	f := newFixture(t)
	s := f.start(`sleep 1000`, `,"tag":"sleeper"`)
	list := f.manager.list()
	if len(list) != 1 || list[0].PID != s.pid || *list[0].Tag != "sleeper" || list[0].Config.Cmd != "/bin/bash" || list[0].Config.Args[1] != "sleep 1000" {
		t.Fatalf("%+v", list)
	}
	if code := f.call("List", `{}`); code != "" {
		t.Fatal(code)
	}
}
