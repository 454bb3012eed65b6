package archive

import (
	"archive/tar"
	"bytes"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// entry is one entry of an archive, and its content.
type entry struct {
	tar.Header
	content string
}

var then = time.Unix(1_500_000_000, 0)

// send posts an archive of these entries below dir, and returns the answer.
func send(t *testing.T, query, dir string, entries ...entry) *httptest.ResponseRecorder {
	t.Helper()
	var body bytes.Buffer
	archive := tar.NewWriter(&body)
	for _, e := range entries {
		e.Name = filepath.Join(dir, e.Name)
		if e.Typeflag == tar.TypeLink {
			e.Linkname = filepath.Join(dir, e.Linkname)
		}
		e.Size, e.ModTime = int64(len(e.content)), then
		if err := archive.WriteHeader(&e.Header); err != nil {
			t.Fatal(err)
		}
		if _, err := archive.Write([]byte(e.content)); err != nil {
			t.Fatal(err)
		}
	}
	if err := archive.Close(); err != nil {
		t.Fatal(err)
	}
	return post(query, body.Bytes())
}

func post(query string, body []byte) *httptest.ResponseRecorder {
	mux := http.NewServeMux()
	Register(mux)
	answer := httptest.NewRecorder()
	mux.ServeHTTP(answer, httptest.NewRequest(http.MethodPost, "/extract"+query, bytes.NewReader(body)))
	return answer
}

func file(name, content string, mode int64) entry {
	return entry{tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: mode}, content}
}

func folder(name string, mode int64) entry {
	return entry{tar.Header{Typeflag: tar.TypeDir, Name: name, Mode: mode}, ""}
}

func link(kind byte, name, target string) entry {
	return entry{tar.Header{Typeflag: kind, Name: name, Linkname: target}, ""}
}

func read(t *testing.T, path string) string {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

func TestEverythingIsUnpacked(t *testing.T) {
	dir := t.TempDir()
	answer := send(t, "", dir,
		folder("app", 0o2750),
		file("app/run", "#!", 0o4755),
		file("deep/er/file", "x", 0o640),
		link(tar.TypeSymlink, "app/link", "run"),
		link(tar.TypeLink, "app/hard", "app/run"),
	)
	if answer.Code != http.StatusNoContent {
		t.Fatal(answer.Code, answer.Body)
	}
	for name, mode := range map[string]os.FileMode{
		"app":          0o750 | os.ModeDir | os.ModeSetgid,
		"app/run":      0o755 | os.ModeSetuid,
		"app/hard":     0o755 | os.ModeSetuid,
		"deep/er":      0o755 | os.ModeDir,
		"deep/er/file": 0o640,
	} {
		info, err := os.Lstat(filepath.Join(dir, name))
		if err != nil || info.Mode() != mode {
			t.Error(name, info.Mode(), err)
		}
	}
	for _, name := range []string{"app", "app/run"} {
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil || !info.ModTime().Equal(then) {
			t.Error(name, info.ModTime(), err)
		}
	}
	if target, err := os.Readlink(filepath.Join(dir, "app/link")); err != nil || target != "run" {
		t.Error(target, err)
	}
}

func TestItMergesWithWhatIsThere(t *testing.T) {
	dir := t.TempDir()
	outside := filepath.Join(t.TempDir(), "outside")
	for path, content := range map[string]string{outside: "outside", filepath.Join(dir, "old"): "old"} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(dir, "app"), 0o700); err != nil {
		t.Fatal(err)
	}
	for link, target := range map[string]string{"link": outside, "there": "app"} {
		if err := os.Symlink(target, filepath.Join(dir, link)); err != nil {
			t.Fatal(err)
		}
	}
	answer := send(t, "", dir,
		folder("app", 0o755),
		folder("there", 0o755),
		file("there/new", "through the link", 0o644),
		file("link", "in its place", 0o644),
	)
	if answer.Code != http.StatusNoContent {
		t.Fatal(answer.Code, answer.Body)
	}
	if info, err := os.Stat(filepath.Join(dir, "app")); err != nil || info.Mode().Perm() != 0o700 {
		t.Error("a folder that was there has changed", info.Mode(), err)
	}
	if got := read(t, filepath.Join(dir, "app/new")); got != "through the link" {
		t.Error(got)
	}
	if read(t, outside) != "outside" || read(t, filepath.Join(dir, "link")) != "in its place" {
		t.Error("a link was written through")
	}
	if read(t, filepath.Join(dir, "old")) != "old" {
		t.Error("a file that isn't in the archive has changed")
	}
}

func TestOwnerAndMode(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root gives files away")
	}
	dir := t.TempDir()
	answer := send(t, "?owner=4242:4243&mode=0711", dir, file("new/file", "x", 0o600))
	if answer.Code != http.StatusNoContent {
		t.Fatal(answer.Code, answer.Body)
	}
	if info, err := os.Stat(filepath.Join(dir, "new/file")); err != nil || info.Mode().Perm() != 0o711 {
		t.Error(info.Mode(), err)
	}
}

func TestWhatItRefuses(t *testing.T) {
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "folder"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, answer := range map[string]*httptest.ResponseRecorder{
		"a folder":            send(t, "", dir, file("folder", "x", 0o644)),
		"neither a file":      send(t, "", dir, link(tar.TypeFifo, "pipe", "")),
		"not an octal mode":   send(t, "?mode=9", dir),
		"invalid username":    send(t, "?owner=nobody-has-this-name", dir),
		"reading the archive": post("", []byte(strings.Repeat("no archive ", 100))),
	} {
		if answer.Code != http.StatusBadRequest || !strings.Contains(answer.Body.String(), name) {
			t.Error(name, answer.Code, answer.Body)
		}
	}
}
