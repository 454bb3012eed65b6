package files

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"net/textproto"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"aenv/envd/internal/metadata"
	"aenv/envd/internal/session"
	"aenv/envd/internal/users"
)

const octets = "application/octet-stream"

type client struct {
	t     *testing.T
	url   string
	state *session.State
}

func newClient(t *testing.T) *client {
	t.Helper()
	mux := http.NewServeMux()
	state := session.New()
	Register(mux, state, nil)
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	return &client{t: t, url: server.URL, state: state}
}

// do sends a request with headers given as "Name: value", and returns the answer with its whole body.
func (c *client) do(method, path string, body io.Reader, headers ...string) (*http.Response, string) {
	c.t.Helper()
	request, err := http.NewRequest(method, c.url+path, body)
	if err != nil {
		c.t.Fatal(err)
	}
	request.Header.Set("Accept-Encoding", "gzip, deflate") // as most clients
	for _, header := range headers {
		name, value, _ := strings.Cut(header, ": ")
		request.Header.Set(name, value)
	}
	response, err := http.DefaultTransport.RoundTrip(request)
	if err != nil {
		c.t.Fatal(err)
	}
	defer response.Body.Close()
	content, err := io.ReadAll(response.Body)
	if err != nil {
		c.t.Fatal(err)
	}
	return response, string(content)
}

func (c *client) put(path, content string, headers ...string) (int, string) {
	c.t.Helper()
	response, body := c.do("POST", at(path), strings.NewReader(content), append([]string{"Content-Type: " + octets}, headers...)...)
	return response.StatusCode, body
}

func at(path string) string { return "/files?path=" + url.QueryEscape(path) }

func read(t *testing.T, path string) string {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

func TestUploadMakesParentsAndAnswersTheEntry(t *testing.T) {
	c, folder := newClient(t), t.TempDir()
	path := filepath.Join(folder, "a", "b", "file.txt")
	status, body := c.put(path, "hello")
	want := fmt.Sprintf(`[{"name":"file.txt","path":%q,"type":"file"}]`, path)
	if status != 200 || body != want {
		t.Fatalf("%d %s, want %s", status, body, want)
	}
	if got := read(t, path); got != "hello" {
		t.Errorf("content %q", got)
	}
	if info, _ := os.Stat(path); info.Mode().Perm() != 0o644 {
		t.Errorf("mode %v", info.Mode())
	}
	if status, _ := c.put(path, "x"); status != 200 || read(t, path) != "x" {
		t.Errorf("overwriting: %d, content %q", status, read(t, path))
	}
}

func TestUploadBelongsToTheUser(t *testing.T) {
	nobody, err := users.Lookup("nobody")
	if err != nil || os.Getuid() != 0 {
		t.Skip("needs root and an account nobody")
	}
	c, folder := newClient(t), t.TempDir()
	path := filepath.Join(folder, "new", "f")
	response, body := c.do("POST", at(path)+"&username=nobody", strings.NewReader("x"), "Content-Type: "+octets)
	if response.StatusCode != 200 {
		t.Fatal(body)
	}
	for _, p := range []string{path, filepath.Dir(path)} {
		info, err := os.Stat(p)
		if err != nil {
			t.Fatal(err)
		}
		if stat := info.Sys().(*syscall.Stat_t); stat.Uid != nobody.UID || stat.Gid != nobody.GID {
			t.Errorf("%s belongs to %d:%d", p, stat.Uid, stat.Gid)
		}
	}
	if response, body := c.do("GET", at(path)+"&username=no-such-user", nil); response.StatusCode != 401 {
		t.Errorf("unknown user: %d %s", response.StatusCode, body)
	}
}

func multipartBody(t *testing.T, parts ...[2]string) (io.Reader, string) {
	t.Helper()
	var body bytes.Buffer
	form := multipart.NewWriter(&body)
	for _, part := range parts {
		header := textproto.MIMEHeader{"Content-Disposition": {fmt.Sprintf(`form-data; name="file"; filename="%s"`, part[0])}}
		w, err := form.CreatePart(header)
		if err != nil {
			t.Fatal(err)
		}
		io.WriteString(w, part[1])
	}
	form.Close()
	// Hiding the buffer's type makes net/http send the body in chunks.
	return struct{ io.Reader }{&body}, "Content-Type: " + form.FormDataContentType()
}

func TestMultipartWritesEveryPartToItsWholeName(t *testing.T) {
	c, folder := newClient(t), t.TempDir()
	names := []string{folder + "/z", folder + "/deep/er/a", folder + "/ünï cödé.txt", folder + "/empty"}
	body, kind := multipartBody(t, [2]string{names[0], "1"}, [2]string{names[1], "2"}, [2]string{names[2], "3"}, [2]string{names[3], ""})
	response, answer := c.do("POST", "/files", body, kind)
	if response.StatusCode != 200 {
		t.Fatal(answer)
	}
	last := -1
	for i, name := range names {
		if got := read(t, name); got != []string{"1", "2", "3", ""}[i] {
			t.Errorf("%s: %q", name, got)
		}
		if position := strings.Index(answer, `"path":"`+name); position <= last {
			t.Errorf("the answer isn't in the order of the request: %s", answer)
		} else {
			last = position
		}
	}
}

func TestMultipartPathOfTheQueryWins(t *testing.T) {
	c, folder := newClient(t), t.TempDir()
	body, kind := multipartBody(t, [2]string{"ignored", "data"})
	if response, answer := c.do("POST", at(folder+"/f"), body, kind); response.StatusCode != 200 || read(t, folder+"/f") != "data" {
		t.Error(answer)
	}
	body, kind = multipartBody(t, [2]string{"a", "1"}, [2]string{"b", "2"})
	if response, answer := c.do("POST", at(folder+"/g"), body, kind); response.StatusCode != 400 {
		t.Errorf("two parts for one path: %d %s", response.StatusCode, answer)
	}
}

func TestGzipBodiesAreInflated(t *testing.T) {
	c, folder := newClient(t), t.TempDir()
	var packed bytes.Buffer
	w := gzip.NewWriter(&packed)
	io.WriteString(w, strings.Repeat("content ", 100_000))
	w.Close()
	if status, body := c.put(folder+"/f", packed.String(), "Content-Encoding: gzip"); status != 200 {
		t.Fatal(body)
	}
	if got := read(t, folder+"/f"); got != strings.Repeat("content ", 100_000) {
		t.Errorf("%d bytes", len(got))
	}
	if status, body := c.put(folder+"/g", "plain", "Content-Encoding: gzip"); status != 400 {
		t.Errorf("not gzip: %d %s", status, body)
	}
	if status, body := c.put(folder+"/g", packed.String()[:packed.Len()/2], "Content-Encoding: gzip"); status != 400 {
		t.Errorf("cut off: %d %s", status, body)
	}
	if _, err := os.Lstat(folder + "/g"); err == nil {
		t.Error("a failed upload left a new file behind")
	}
}

func TestMetadataIsReplacedByEveryUpload(t *testing.T) {
	c, folder := newClient(t), t.TempDir()
	path := folder + "/f"
	status, body := c.put(path, "x", "X-Metadata-Source: unit test", "X-Metadata-N: 1")
	if status == 500 && strings.Contains(body, "not supported") {
		t.Skip("the temporary folder's file system keeps no attributes")
	}
	if status != 200 || !strings.Contains(body, `"metadata":{"n":"1","source":"unit test"}`) {
		t.Fatal(body)
	}
	if got := metadata.Read(path); got["source"] != "unit test" || len(got) != 2 {
		t.Errorf("stored %v", got)
	}
	c.put(path, "x", "X-Metadata-N: 2")
	if got := metadata.Read(path); got["n"] != "2" || len(got) != 1 {
		t.Errorf("after the second upload %v", got)
	}
	c.put(path, "x")
	if got := metadata.Read(path); got != nil {
		t.Errorf("after the third upload %v", got)
	}
	for _, header := range []string{"X-Metadata-K: tab\there", "X-Metadata-K: " + strings.Repeat("x", 4097), "X-Metadata-" + strings.Repeat("k", 247) + ": v"} {
		if status, body := c.put(path, "x", header); status != 400 {
			t.Errorf("%.40s: %d %s", header, status, body)
		}
	}
}

func TestDownload(t *testing.T) {
	c, folder := newClient(t), t.TempDir()
	os.WriteFile(folder+"/data", []byte("0123456789"), 0o644)
	os.WriteFile(folder+"/empty", nil, 0o644)

	response, body := c.do("GET", at(folder+"/data"), nil)
	if response.StatusCode != 200 || body != "0123456789" {
		t.Fatalf("%d %q", response.StatusCode, body)
	}
	for name, want := range map[string]string{"Content-Disposition": "inline; filename=data", "Vary": "Accept-Encoding", "Content-Length": "10"} {
		if got := response.Header.Get(name); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	modified := response.Header.Get("Last-Modified")
	if response, body := c.do("GET", at(folder+"/data"), nil, "Range: bytes=2-4"); response.StatusCode != 206 || body != "234" {
		t.Errorf("range: %d %q", response.StatusCode, body)
	}
	if response, _ := c.do("GET", at(folder+"/data"), nil, "If-Modified-Since: "+modified); response.StatusCode != 304 {
		t.Errorf("conditional: %d", response.StatusCode)
	}
	if response, body := c.do("GET", at(folder+"/empty"), nil); response.Header.Get("Content-Length") != "0" || body != "" {
		t.Errorf("empty: length %q, body %q", response.Header.Get("Content-Length"), body)
	}
	if response, _ := c.do("GET", at(folder+"/data"), nil, "Accept-Encoding: br, identity;q=0"); response.StatusCode != 406 {
		t.Errorf("nothing left: %d", response.StatusCode)
	}
	if response, body := c.do("GET", at("/proc/version"), nil); !strings.HasPrefix(body, "Linux") || response.ContentLength != int64(len(body)) {
		t.Errorf("/proc/version: %d %q", response.ContentLength, body)
	}
}

func TestWhatIsNoRegularFileIsRefusedAtOnce(t *testing.T) {
	c, folder := newClient(t), t.TempDir()
	if err := syscall.Mkfifo(folder+"/fifo", 0o644); err != nil {
		t.Fatal(err)
	}
	os.WriteFile(folder+"/file", nil, 0o644)
	os.Symlink("loop", folder+"/loop")
	for _, path := range []string{folder, folder + "/fifo", "/dev/null", folder + "/file/below", folder + "/loop", folder + "/" + strings.Repeat("n", 300), "/\x00"} {
		if response, body := c.do("GET", at(path), nil); response.StatusCode != 400 {
			t.Errorf("GET %.40q: %d %s", path, response.StatusCode, body)
		}
		if status, body := c.put(path, "x"); status != 400 || !strings.HasPrefix(body, `{"code":400,"message":"`) {
			t.Errorf("POST %.40q: %d %s", path, status, body)
		}
	}
	path := folder + "/none"
	want := `{"code":404,"message":"path '` + path + `' does not exist"}`
	if response, body := c.do("GET", at(path), nil); response.StatusCode != 404 || body != want {
		t.Errorf("%d %s", response.StatusCode, body)
	}
	if status, body := c.put("", "x"); status != 400 {
		t.Errorf("no path: %d %s", status, body)
	}
	if response, body := c.do("POST", at(path), strings.NewReader("x"), "Content-Type: text/plain"); response.StatusCode != 400 {
		t.Errorf("other content type: %d %s", response.StatusCode, body)
	}
}

func TestAFullDiskIsSaid(t *testing.T) {
	c, folder := newClient(t), t.TempDir()
	if err := syscall.Mount("tmpfs", folder, "tmpfs", 0, "size=1m"); err != nil {
		t.Skip(err)
	}
	defer syscall.Unmount(folder, 0)
	content := strings.Repeat("x", 2<<20)
	want := `{"code":507,"message":"not enough disk space available"}`
	if status, body := c.put(folder+"/known", content); status != 507 || body != want {
		t.Errorf("known length: %d %s", status, body)
	}
	body, kind := multipartBody(t, [2]string{folder + "/streamed", content})
	if response, body := c.do("POST", "/files", body, kind); response.StatusCode != 507 || body != want {
		t.Errorf("streamed: %d %s", response.StatusCode, body)
	}
	if left, _ := os.ReadDir(folder); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestComposeJoinsFilesAndRemovesThem(t *testing.T) {
	c, folder := newClient(t), t.TempDir()
	os.WriteFile(folder+"/1", []byte("one "), 0o644)
	os.WriteFile(folder+"/2", []byte("two"), 0o644)
	body := fmt.Sprintf(`{"source_paths":["%[1]s/1","%[1]s/2"],"destination":"%[1]s/out/all"}`, folder)
	response, answer := c.do("POST", "/files/compose", strings.NewReader(body))
	if response.StatusCode != 200 || read(t, folder+"/out/all") != "one two" {
		t.Fatal(answer)
	}
	if left, _ := os.ReadDir(folder); len(left) != 1 {
		t.Errorf("left: %v", left)
	}
	if response, answer := c.do("POST", "/files/compose", strings.NewReader(body)); response.StatusCode != 404 {
		t.Errorf("missing source: %d %s", response.StatusCode, answer)
	}
}

func TestDispositionAsClientsWriteIt(t *testing.T) {
	for header, want := range map[string][2]string{
		`form-data; name="file"; filename="a/b c"`:        {"file", "a/b c"},
		`form-data; name="file"; filename="日本"`:           {"file", "日本"},
		`form-data; name="file"; filename="escaped\\"`:    {"file", `escaped\`},
		`form-data; name="file"; filename="from node\"`:   {"file", `from node\`},
		`form-data; name="other"`:                         {"other", ""},
		`form-data; name="file"; filename="%22quotes%22"`: {"file", "%22quotes%22"},
	} {
		name, filename, err := disposition(header)
		if err != nil || name != want[0] || filename != want[1] {
			t.Errorf("%s: %q %q %v", header, name, filename, err)
		}
	}
	if _, _, err := disposition(`form-data; name="file"; filename="x`); err == nil {
		t.Error("an open quote passed")
	}
}
