package process

import (
	"context"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"aenv/envd/internal/connect"
)

func contextWithTimeout(d time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), d)
}

func (f *fixture) shell(header ...string) *stream {
	f.Helper()
	return f.open("Start", `{"process":{"cmd":"/bin/bash","args":["--norc","-i"],"envs":{"TERM":"xterm-256color","PS1":"$ "}},
		"pty":{"size":{"cols":80,"rows":24}}}`, header...).begin()
}

func TestTerminal(t *testing.T) {
	f := newFixture(t)
	s := f.shell()
	s.until("$ ")
	if code := s.input("pty", "stty size; tty; echo e''nd\n"); code != "" {
		t.Fatal(code)
	}
	seen := s.until("end\r\n")
	if !strings.Contains(seen, "24 80\r\n") || !strings.Contains(seen, "/dev/pts/") {
		t.Fatalf("%q", seen)
	}
	if code := f.call("Update", `{`+s.selector()+`,"pty":{"size":{"cols":100,"rows":30}}}`); code != "" {
		t.Fatal(code)
	}
	s.input("pty", "stty size\n")
	s.until("30 100\r\n")
	if code := s.input("stdin", "x"); code != connect.FailedPrecondition {
		t.Error(code)
	}
	if code := f.call("CloseStdin", `{`+s.selector()+`}`); code != connect.FailedPrecondition {
		t.Error(code)
	}
	s.input("pty", "exit 4\n")
	if o := s.rest(); o.end == nil || o.end.ExitCode != 4 {
		t.Fatalf("%+v", o)
	}
}

func TestTerminalBelongsToTheUser(t *testing.T) {
	s := newFixture(t).open("Start", `{"process":{"cmd":"sh","args":["-c","stat -c %U $(tty)"],"cwd":"/"},"pty":{"size":{"cols":80,"rows":24}}}`,
		"Authorization", "Basic bm9ib2R5Og==")
	if o := s.begin().rest(); o.pty != "nobody\r\n" {
		t.Fatalf("%+v", o)
	}
}

func TestTerminalInterrupt(t *testing.T) {
	s := newFixture(t).shell()
	s.until("$ ")
	s.input("pty", "sh -c 'echo g\"\"o; exec sleep 1000'\n") // the quotes tell the output from the echo of the input
	s.until("go\r\n")
	s.input("pty", "\x03")
	s.until("$ ")
	s.input("pty", "echo status $?\n")
	s.until("status 130")
}

func TestKillingAShellTakesItsForegroundJob(t *testing.T) {
	f := newFixture(t)
	s := f.shell()
	s.until("$ ")
	s.input("pty", "bash -c 'echo p\"\"id=$$=; trap \"\" HUP; sleep 1000; true'\n")
	_, after, _ := strings.Cut(s.until("=\r\n"), "pid=")
	digits, _, _ := strings.Cut(after, "=")
	job, err := strconv.Atoi(digits)
	if err != nil {
		t.Fatal(err)
	}
	if code := f.call("SendSignal", `{`+s.selector()+`,"signal":"SIGNAL_SIGKILL"}`); code != "" {
		t.Fatal(code)
	}
	if o := s.rest(); o.end == nil || o.end.Status != "signal: killed" {
		t.Fatalf("%+v", o)
	}
	f.eventually("the job is gone", func() bool { return gone(job) })
}

func TestTerminalOutputIsComplete(t *testing.T) {
	s := newFixture(t).open("Start", `{"process":{"cmd":"seq","args":["100000"]},"pty":{"size":{"cols":80,"rows":24}}}`).begin()
	o := s.rest()
	if !strings.HasSuffix(o.pty, "99999\r\n100000\r\n") || strings.Count(o.pty, "\n") != 100000 {
		t.Fatal(len(o.pty), strings.Count(o.pty, "\n"))
	}
}

func TestUpdateNeedsATerminal(t *testing.T) {
	f := newFixture(t)
	s := f.start("sleep 1000", "")
	if code := f.call("Update", `{`+s.selector()+`,"pty":{"size":{"cols":1,"rows":1}}}`); code != connect.FailedPrecondition {
		t.Error(code)
	}
	if code := f.call("Update", `{"process":{"pid":0},"pty":{"size":{"cols":1,"rows":1}}}`); code != connect.NotFound {
		t.Error(code)
	}
}

func TestStreamInput(t *testing.T) {
	f := newFixture(t)
	s := f.start(`cat`, `,"stdin":true`)
	r, w := io.Pipe()
	answer := make(chan string, 1)
	go func() {
		res, err := http.Post(f.url+"/process.Process/StreamInput", "application/connect+json", r)
		if err != nil {
			answer <- err.Error()
			return
		}
		defer res.Body.Close()
		body, _ := io.ReadAll(res.Body)
		answer <- string(body)
	}()
	write := func(body string) {
		w.Write(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(body))))
		io.WriteString(w, body)
	}
	write(`{"start":{` + s.selector() + `}}`)
	for i := range 3 {
		text := fmt.Sprintf("line %d\n", i)
		write(`{"data":{"input":{"stdin":"` + base64.StdEncoding.EncodeToString([]byte(text)) + `"}}}`)
		write(`{"keepalive":{}}`)
		s.until(text)
	}
	w.Close()
	if got := <-answer; got != "\x00\x00\x00\x00\x02{}\x02\x00\x00\x00\x02{}" {
		t.Fatalf("%q", got)
	}
	for body, code := range map[string]connect.Code{
		`{"start":{"process":{"pid":999999}}}`: connect.NotFound,
		`{"keepalive":{}}`:                     connect.InvalidArgument,
	} {
		msg := f.open("StreamInput", body).next()
		if msg.Error == nil || msg.Error.Code != code {
			t.Errorf("%s: %v", body, msg.Error)
		}
	}
}
