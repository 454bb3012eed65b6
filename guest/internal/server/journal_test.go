package server

import (
	"encoding/json"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

type entry struct {
	Level, Logger, Message string
	Fields                 map[string]string
}

// journal returns the entries that aren't the kernel's.
func (f *fixture) journal() (entries []entry) {
	f.Helper()
	var answer struct{ Entries []entry }
	if err := json.Unmarshal([]byte(f.expect(200, "GET", "/logs", "")), &answer); err != nil {
		f.Fatal(err)
	}
	return slices.DeleteFunc(answer.Entries, func(e entry) bool { return e.Logger == "kernel" })
}

// await returns the first entry with this event, once it is there.
func (f *fixture) await(event string) entry {
	f.Helper()
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		for _, e := range f.journal() {
			if e.Fields["event"] == event {
				return e
			}
		}
	}
	f.Fatalf("no %q in %+v", event, f.journal())
	return entry{}
}

func (f *fixture) run(command string) {
	f.Helper()
	message := `{"process":{"cmd":"/bin/sh","args":["-c","` + command + `"]},"stdin":false}`
	frame := "\x00\x00\x00\x00" + string(rune(len(message))) + message
	f.expect(200, "POST", "/process.Process/Start", frame, "Content-Type", "application/connect+json", "Authorization", "Basic cm9vdDo=")
}

func TestTheJournalTellsOfProcesses(t *testing.T) {
	f := newFixture(t)
	f.run("echo secret-output; exit 3")
	start, end := f.await("start"), f.await("end")
	if start.Message != "process "+start.Fields["pid"]+" started by root: /bin/sh -c echo secret-output; exit 3" || start.Level != "info" ||
		start.Logger != "process" || start.Fields["user"] != "root" || start.Fields["command"] != "/bin/sh -c echo secret-output; exit 3" {
		t.Errorf("%+v", start)
	}
	if end.Fields["exit_code"] != "3" || end.Fields["pid"] != start.Fields["pid"] || !strings.HasSuffix(end.Message, "exit status 3") {
		t.Errorf("%+v", end)
	}
	if len(f.journal()) != 2 {
		t.Error("what a process prints belongs to its client alone:", f.journal())
	}
}

func TestTheJournalTellsOfFiles(t *testing.T) {
	f := newFixture(t)
	folder := t.TempDir()
	file := filepath.Join(folder, "made", "file")
	query := "?username=root&path=" + file
	json := []string{"Content-Type", "application/json", "Authorization", "Basic cm9vdDo="}
	f.expect(200, "POST", "/files"+query, "content", "Content-Type", "application/octet-stream")
	f.expect(200, "GET", "/files"+query, "")
	f.expect(404, "GET", "/files"+query+"-not", "")
	for _, call := range []string{"MakeDir dir", "Stat dir", "ListDir dir", "Remove dir"} {
		procedure, name, _ := strings.Cut(call, " ")
		f.expect(200, "POST", "/filesystem.Filesystem/"+procedure, `{"path":"`+filepath.Join(folder, name)+`"}`, json...)
	}
	f.expect(200, "POST", "/filesystem.Filesystem/Move", `{"source":"`+file+`","destination":"`+folder+`/b"}`, json...)
	got := []string{}
	for _, e := range f.journal() {
		if e.Logger != "files" || e.Fields["user"] != "root" {
			t.Errorf("%+v", e)
		}
		got = append(got, e.Level+" "+e.Message)
	}
	want := []string{"info write " + file, "debug read " + file, "info make " + folder + "/dir", "debug stat " + folder + "/dir",
		"debug list " + folder + "/dir", "info remove " + folder + "/dir", "info move " + file + " to " + folder + "/b"}
	if !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
}

func TestACopyOfAnotherSandboxStartsWithAnEmptyJournal(t *testing.T) {
	f := newFixture(t)
	f.expect(204, "POST", "/init", `{"sandboxId":"i1"}`)
	f.run("true")
	f.await("end")
	f.expect(204, "POST", "/freeze", "")
	f.expect(204, "POST", "/init", `{"sandboxId":"i1"}`)
	if f.await("start"); len(f.journal()) != 4 {
		t.Error("a resumed sandbox keeps its own:", f.journal())
	}
	f.expect(204, "POST", "/freeze", "")
	f.expect(204, "POST", "/init", `{"sandboxId":"i2","templateId":"t"}`)
	if got := f.journal(); len(got) != 1 || got[0].Fields["event"] != "init" || got[0].Fields["sandbox"] != "i2" || got[0].Fields["template"] != "t" {
		t.Error(got)
	}
}

func TestACaptureOfAnotherSandboxCanBeRehearsedWithoutItsToken(t *testing.T) {
	f := newFixture(t)
	f.expect(204, "POST", "/init", `{"accessToken":"secret"}`)
	f.expect(401, "POST", "/warm", `{}`)
	f.expect(409, "POST", "/warm", `{}`, "X-Access-Token", "secret")
	f.expect(204, "POST", "/freeze", "", "X-Access-Token", "secret")
	f.expect(204, "POST", "/warm", `{"sandboxId":"warm"}`)
	f.expect(204, "POST", "/init", `{"accessToken":"secret"}`)
}

func TestARehearsalLeavesNoTraceInTheJournal(t *testing.T) {
	f := newFixture(t)
	f.expect(204, "POST", "/freeze", "")
	f.expect(204, "POST", "/warm", `{"sandboxId":"warm"}`)
	if got := f.journal(); len(got) != 0 {
		t.Error(got)
	}
}

func TestARehearsalGivesNoIdentityAndLetsNothingRun(t *testing.T) {
	f := newFixture(t)
	f.expect(204, "POST", "/init", `{"sandboxId":"i1"}`)
	f.expect(204, "POST", "/freeze", "")
	before := len(f.kernel.calls)
	f.expect(204, "POST", "/warm", `{"sandboxId":"warm","accessToken":"warm","hostname":"four"}`)
	want := []string{"thaw disk", "hostname aaaa", "rehearse thaw", "thaw disk", "hostname bbbb", "rehearse thaw", "freeze"}
	if got := f.kernel.calls[before:]; !slices.Equal(got, want) {
		t.Error(got)
	}
	if got := f.expect(200, "GET", "/envs", ""); !strings.Contains(got, `"i1"`) || strings.Contains(got, "warm") {
		t.Error(got)
	}
}

func TestAFailedRehearsalIsTold(t *testing.T) {
	f := newFixture(t)
	f.expect(204, "POST", "/freeze", "")
	f.kernel.fail = "rehearse thaw"
	if body := f.expect(500, "POST", "/warm", `{}`); !strings.Contains(body, "not today") {
		t.Error(body)
	}
}
