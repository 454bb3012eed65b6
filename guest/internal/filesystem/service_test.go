package filesystem

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"aenv/envd/internal/metadata"
	"aenv/envd/internal/session"
)

type client struct {
	t   *testing.T
	url string
}

func newClient(t *testing.T) *client {
	t.Helper()
	mux := http.NewServeMux()
	Register(mux, session.New(), nil)
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	return &client{t: t, url: server.URL}
}

// call makes a unary call as root. It fills out on success, and returns the code of the error otherwise.
func (c *client) call(method string, in, out any) (code string) {
	c.t.Helper()
	body, err := json.Marshal(in)
	if err != nil {
		c.t.Fatal(err)
	}
	request, err := http.NewRequest("POST", c.url+"/filesystem.Filesystem/"+method, bytes.NewReader(body))
	if err != nil {
		c.t.Fatal(err)
	}
	request.Header.Set("Content-Type", "application/json")
	request.SetBasicAuth("root", "")
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		c.t.Fatal(err)
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	if err != nil {
		c.t.Fatal(err)
	}
	if response.StatusCode == 200 {
		if err := json.Unmarshal(answer, out); err != nil {
			c.t.Fatalf("%s: %v", answer, err)
		}
		return ""
	}
	var failure struct{ Code, Message string }
	if err := json.Unmarshal(answer, &failure); err != nil || failure.Message == "" {
		c.t.Fatalf("%s: %v", answer, err)
	}
	return failure.Code
}

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o640); err != nil {
		t.Fatal(err)
	}
}

func TestStatDescribesFilesAndLinks(t *testing.T) {
	c, folder := newClient(t), t.TempDir()
	file := filepath.Join(folder, "file")
	write(t, file, "12345")
	if err := os.Symlink("file", folder+"/link"); err != nil {
		t.Fatal(err)
	}
	os.Symlink("nowhere", folder+"/dangling")
	syscall.Mkfifo(folder+"/fifo", 0o600)
	tagged := metadata.Replace(file, map[string]string{"k": "v"}) == nil

	var r entryResponse
	if code := c.call("Stat", pathRequest{file}, &r); code != "" {
		t.Fatal(code)
	}
	e := r.Entry
	if e.Name != "file" || e.Type != typeFile || e.Path != file || e.Size != 5 || e.Mode != 0o640 || e.Permissions != "-rw-r-----" ||
		e.Owner != "root" || e.Group != "root" || e.IsSymlink || e.SymlinkTarget != nil || e.ModifiedTime.IsZero() {
		t.Errorf("%+v", e)
	}
	if tagged && e.Metadata["k"] != "v" {
		t.Errorf("metadata %v", e.Metadata)
	}
	r = entryResponse{}
	c.call("Stat", pathRequest{folder + "/link"}, &r)
	if e := r.Entry; e.Type != typeFile || !e.IsSymlink || e.SymlinkTarget == nil || *e.SymlinkTarget != file || e.Permissions[0] != 'L' {
		t.Errorf("link: %+v", e)
	}
	r = entryResponse{}
	c.call("Stat", pathRequest{folder + "/dangling"}, &r)
	if e := r.Entry; e.Type != typeUnspecified || e.SymlinkTarget == nil || *e.SymlinkTarget != "nowhere" {
		t.Errorf("dangling link: %+v", e)
	}
	r = entryResponse{}
	c.call("Stat", pathRequest{folder + "/fifo"}, &r)
	if e := r.Entry; e.Type != typeUnspecified {
		t.Errorf("fifo: %+v", e)
	}
	r = entryResponse{}
	c.call("Stat", pathRequest{folder}, &r)
	if e := r.Entry; e.Type != typeDirectory || e.Permissions[0] != 'd' {
		t.Errorf("folder: %+v", e)
	}
	for path, want := range map[string]string{folder + "/none": "not_found", file + "/below": "invalid_argument", "/" + strings.Repeat("x", 300): "invalid_argument", "~nobody-at-all/x": "unauthenticated"} {
		if code := c.call("Stat", pathRequest{path}, &r); code != want {
			t.Errorf("%.40s: %s, want %s", path, code, want)
		}
	}
}

func TestListDirWalksInOrderToItsDepth(t *testing.T) {
	c, folder := newClient(t), t.TempDir()
	os.MkdirAll(folder+"/b/c/d", 0o755)
	write(t, folder+"/a", "")
	write(t, folder+"/b/z", "")
	write(t, folder+"/e", "")
	os.Symlink(folder+"/b", folder+"/to-b")
	for depth, want := range map[int][]string{
		0: {"a", "b", "e", "to-b"},
		1: {"a", "b", "e", "to-b"},
		2: {"a", "b", "b/c", "b/z", "e", "to-b"},
		9: {"a", "b", "b/c", "b/c/d", "b/z", "e", "to-b"},
	} {
		var r listResponse
		if code := c.call("ListDir", map[string]any{"path": folder, "depth": depth}, &r); code != "" {
			t.Fatal(code)
		}
		var got []string
		for _, e := range r.Entries {
			got = append(got, strings.TrimPrefix(e.Path, folder+"/"))
		}
		if !slices.Equal(got, want) {
			t.Errorf("depth %d: %v, want %v", depth, got, want)
		}
	}
	var r listResponse
	c.call("ListDir", map[string]any{"path": folder + "/to-b"}, &r)
	if len(r.Entries) != 2 || r.Entries[0].Path != folder+"/to-b/c" {
		t.Errorf("through a link: %+v", r.Entries)
	}
	r = listResponse{}
	if code := c.call("ListDir", map[string]any{"path": folder + "/b/c/d"}, &r); code != "" || r.Entries == nil || len(r.Entries) != 0 {
		t.Errorf("empty folder: %s %v", code, r.Entries)
	}
	if code := c.call("ListDir", map[string]any{"path": folder + "/a"}, &r); code != "invalid_argument" {
		t.Errorf("file: %s", code)
	}
	if code := c.call("ListDir", map[string]any{"path": folder + "/none"}, &r); code != "not_found" {
		t.Errorf("missing: %s", code)
	}
}

func TestMakeDir(t *testing.T) {
	c, folder := newClient(t), t.TempDir()
	write(t, folder+"/file", "")
	var r entryResponse
	if code := c.call("MakeDir", pathRequest{folder + "/a/b"}, &r); code != "" || r.Entry.Path != folder+"/a/b" || r.Entry.Type != typeDirectory {
		t.Errorf("%s %+v", code, r.Entry)
	}
	for path, want := range map[string]string{"/a/b": "already_exists", "/a": "already_exists", "/file": "invalid_argument", "/file/x": "invalid_argument"} {
		if code := c.call("MakeDir", pathRequest{folder + path}, &r); code != want {
			t.Errorf("%s: %s, want %s", path, code, want)
		}
	}
}

func TestMove(t *testing.T) {
	c, folder := newClient(t), t.TempDir()
	write(t, folder+"/a", "content")
	write(t, folder+"/old", "old")
	os.MkdirAll(folder+"/full/x", 0o755)
	os.Mkdir(folder+"/dir", 0o755)
	var r entryResponse
	if code := c.call("Move", moveRequest{folder + "/a", folder + "/new/parent/b"}, &r); code != "" || r.Entry.Name != "b" {
		t.Fatalf("%s %+v", code, r.Entry)
	}
	if code := c.call("Move", moveRequest{folder + "/new/parent/b", folder + "/old"}, &r); code != "" {
		t.Errorf("onto a file: %s", code)
	}
	if content, _ := os.ReadFile(folder + "/old"); string(content) != "content" {
		t.Errorf("content %q", content)
	}
	if code := c.call("Move", moveRequest{folder + "/none", folder + "/x"}, &r); code != "not_found" {
		t.Errorf("missing: %s", code)
	}
	if code := c.call("Move", moveRequest{folder + "/dir", folder + "/full"}, &r); code == "" || code == "internal" {
		t.Errorf("onto a full folder: %q", code)
	}
	if code := c.call("Move", moveRequest{folder + "/dir", folder + "/dir/inside"}, &r); code != "invalid_argument" {
		t.Errorf("into itself: %s", code)
	}
}

func TestRemove(t *testing.T) {
	c, folder := newClient(t), t.TempDir()
	os.MkdirAll(folder+"/a/b", 0o755)
	write(t, folder+"/a/b/f", "")
	var r empty
	for range 2 { // the second time it is missing, which is no error
		if code := c.call("Remove", pathRequest{folder + "/a"}, &r); code != "" {
			t.Error(code)
		}
	}
	if _, err := os.Lstat(folder + "/a"); err == nil {
		t.Error("it is still there")
	}
	if code := c.call("Remove", pathRequest{"/"}, &r); code != "invalid_argument" {
		t.Errorf("root: %s", code)
	}
}
