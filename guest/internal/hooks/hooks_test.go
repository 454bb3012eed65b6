package hooks

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"aenv/envd/internal/journal"
)

// long is more than any of these hooks takes, on a busy machine too.
const long = time.Minute

func write(t *testing.T, folder, name, script string, mode os.FileMode) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(folder, name), []byte("#!/bin/sh\n"+script+"\n"), mode); err != nil {
		t.Fatal(err)
	}
}

// told is the journal as the host gets it.
func told(j *journal.Journal) string {
	mux, recorder := http.NewServeMux(), httptest.NewRecorder()
	j.Register(mux)
	mux.ServeHTTP(recorder, httptest.NewRequest("GET", "/logs", nil))
	return recorder.Body.String()
}

func TestHooksRunInOrderAndKnowTheSandbox(t *testing.T) {
	folder, out := t.TempDir(), filepath.Join(t.TempDir(), "out")
	write(t, folder, "20-second", "echo second $PATH >> "+out, 0o755)
	write(t, folder, "10-first", "echo first $E2B_SANDBOX_ID $(pwd) $HOME >> "+out, 0o755)
	write(t, folder, "30-not-executable", "echo third >> "+out, 0o644)
	if err := os.Mkdir(filepath.Join(folder, "40-folder"), 0o755); err != nil {
		t.Fatal(err)
	}
	j := journal.New()
	run(folder, map[string]string{"E2B_SANDBOX_ID": "i1", "PATH": "/bin:/usr/bin"}, j, long)
	got, err := os.ReadFile(out)
	if want := "first i1 / /root\nsecond /bin:/usr/bin\n"; err != nil || string(got) != want {
		t.Errorf("%q, want %q (%v)", got, want, err)
	}
	if log := told(j); strings.Count(log, " ran") != 2 || strings.Contains(log, "failed") {
		t.Error(log)
	}
}

func TestAHookThatFailsKeepsNoOtherFromRunning(t *testing.T) {
	folder, out := t.TempDir(), filepath.Join(t.TempDir(), "out")
	write(t, folder, "1", "exit 7", 0o755)
	write(t, folder, "3", "touch "+out, 0o755)
	if err := os.WriteFile(filepath.Join(folder, "2"), []byte("no program"), 0o755); err != nil {
		t.Fatal(err)
	}
	j := journal.New()
	run(folder, nil, j, long)
	if _, err := os.Stat(out); err != nil {
		t.Error(err)
	}
	if log := told(j); strings.Count(log, "failed") != 2 || !strings.Contains(log, "exit status 7") {
		t.Error(log)
	}
}

func TestHooksAreBoundedInTime(t *testing.T) {
	folder, out := t.TempDir(), filepath.Join(t.TempDir(), "out")
	write(t, folder, "1", "sleep 60 & sleep 60", 0o755)
	write(t, folder, "2", "touch "+out, 0o755)
	j := journal.New()
	start := time.Now()
	run(folder, nil, j, 100*time.Millisecond)
	if took := time.Since(start); took > 30*time.Second {
		t.Errorf("took %v", took)
	}
	if _, err := os.Stat(out); err == nil {
		t.Error("the second hook ran although there was no time left")
	}
	if log := told(j); !strings.Contains(log, "not done in time") || !strings.Contains(log, "no time left") {
		t.Error(log)
	}
}

func TestWithoutAFolderNothingHappens(t *testing.T) {
	j := journal.New()
	run(filepath.Join(t.TempDir(), "none"), nil, j, long)
	if log := told(j); strings.Contains(log, "hook") {
		t.Error(log)
	}
}
