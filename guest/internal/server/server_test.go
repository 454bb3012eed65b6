package server

import (
	"errors"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"aenv/envd/internal/journal"
	"aenv/envd/internal/version"
)

// kernel is a Guest that records what was done to it.
type kernel struct {
	mu    sync.Mutex
	calls []string
	fail  string // the call that fails
	clock time.Time
}

func (k *kernel) record(call string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.calls = append(k.calls, call)
	if call == k.fail {
		return errors.New("not today")
	}
	return nil
}

func (k *kernel) guest() Guest {
	return Guest{
		SetClock:     func(now time.Time) error { k.clock = now; return k.record("clock") },
		AddEntropy:   func(data []byte) error { return k.record("entropy") },
		SetHostname:  func(name string) error { return k.record("hostname " + name) },
		Freeze:       func() error { return k.record("freeze") },
		Thaw:         func() error { return k.record("thaw") },
		RehearseThaw: func() error { return k.record("rehearse thaw") },
		FreezeDisk:   func() error { return k.record("freeze disk") },
		ThawDisk:     func() error { return k.record("thaw disk") },
		GrowDisk:     func() error { return k.record("grow disk") },
		RunHooks:     func(env map[string]string, _ *journal.Journal) { _ = k.record("hooks for " + env["E2B_SANDBOX_ID"]) },
	}
}

type fixture struct {
	*testing.T
	kernel *kernel
	server *Server
	url    string
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	f := &fixture{T: t, kernel: &kernel{}}
	f.server = New(f.kernel.guest())
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	go f.server.Serve(listener)
	f.url = "http://" + listener.Addr().String()
	return f
}

// do makes a request on a connection of its own; header is name, value, ….
func (f *fixture) do(method, path, body string, header ...string) (*http.Response, string) {
	f.Helper()
	req, err := http.NewRequest(method, f.url+path, strings.NewReader(body))
	if err != nil {
		f.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 10 * time.Second}
	res, err := client.Do(req)
	if err != nil {
		f.Fatal(err)
	}
	defer res.Body.Close()
	data, err := io.ReadAll(res.Body)
	if err != nil {
		f.Fatal(err)
	}
	return res, string(data)
}

func (f *fixture) expect(status int, method, path, body string, header ...string) string {
	f.Helper()
	res, got := f.do(method, path, body, header...)
	if res.StatusCode != status {
		f.Fatalf("%s %s: %s %s", method, path, res.Status, got)
	}
	return got
}

func TestHealth(t *testing.T) {
	f := newFixture(t)
	f.expect(204, "POST", "/init", `{"accessToken":"secret"}`)
	for _, method := range []string{"GET", "HEAD"} {
		res, body := f.do(method, "/health", "")
		if res.StatusCode != 204 || body != "" || res.Header.Get("X-Envd-Version") != version.Version {
			t.Error(res.Status, res.Header)
		}
	}
}

func TestAccessToken(t *testing.T) {
	f := newFixture(t)
	f.expect(200, "GET", "/envs", "")
	f.expect(204, "POST", "/init", `{"accessToken":"secret"}`)
	const want = `{"code":401,"message":"unauthorized access, please provide a valid access token or method signing if supported"}`
	for _, route := range []string{"GET /envs", "GET /metrics", "GET /logs", "POST /freeze", "POST /sync", "POST /unfreeze", "POST /process.Process/List",
		"POST /filesystem.Filesystem/Stat", "GET /nowhere", "POST /health", "POST /files/compose", "DELETE /files", "GET /init", "GET //files"} {
		method, path, _ := strings.Cut(route, " ")
		for _, token := range []string{"", "wrong"} {
			res, body := f.do(method, path, "{}", "X-Access-Token", token, "Content-Type", "application/json")
			if res.StatusCode != 401 || body != want || res.Header.Get("Content-Type") != "application/json" {
				t.Errorf("%s: %s %s", route, res.Status, body)
			}
		}
	}
	f.expect(200, "GET", "/envs", "", "X-Access-Token", "secret")
	f.expect(200, "POST", "/process.Process/List", "{}", "X-Access-Token", "secret", "Content-Type", "application/json")
	if body := f.expect(401, "GET", "/files?path=/etc/hostname", ""); !strings.Contains(body, "signature") {
		t.Error(body)
	}
	if body := f.expect(401, "POST", "/init", `{"accessToken":"other"}`); body != want {
		t.Error(body)
	}
	f.expect(204, "POST", "/init", `{"accessToken":"other"}`, "X-Access-Token", "secret")
	f.expect(200, "GET", "/envs", "", "X-Access-Token", "other")
}

func TestInitTellsProcessesWhereTheyAre(t *testing.T) {
	f := newFixture(t)
	f.expect(204, "POST", "/init", `{"envVars":{"A":"1"},"sandboxId":"i1","templateId":"base","defaultUser":"root","defaultWorkdir":"/tmp","new":{}}`)
	if body := f.expect(200, "GET", "/envs", ""); body != `{"A":"1","E2B_SANDBOX":"true","E2B_SANDBOX_ID":"i1","E2B_TEMPLATE_ID":"base"}` {
		t.Error(body)
	}
	if f.server.session.DefaultUser() != "root" || f.server.session.DefaultWorkdir() != "/tmp" {
		t.Error(f.server.session.DefaultUser())
	}
}

func TestInitAfterACaptureKeepsTheOrder(t *testing.T) {
	f := newFixture(t)
	f.expect(204, "POST", "/init", `{"accessToken":"old"}`)
	f.expect(204, "POST", "/freeze", "", "X-Access-Token", "old")
	f.expect(204, "POST", "/freeze", "", "X-Access-Token", "old")
	f.expect(204, "POST", "/init", `{"timestamp":"2050-01-02T03:04:05.000000006Z","sandboxId":"i1","hostname":"i1","accessToken":"new",
		"entropy":"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="}`)
	if want := []string{"freeze", "thaw disk", "clock", "entropy", "hostname i1", "hooks for i1", "thaw"}; !slices.Equal(f.kernel.calls, want) {
		t.Fatal(f.kernel.calls)
	}
	if !f.kernel.clock.Equal(time.Date(2050, 1, 2, 3, 4, 5, 6, time.UTC)) {
		t.Error(f.kernel.clock)
	}
	f.expect(401, "POST", "/init", `{}`)
	f.expect(200, "GET", "/envs", "", "X-Access-Token", "new")
}

func TestInitSetsTheClockOnlyWhenItIsWrong(t *testing.T) {
	f := newFixture(t)
	ns := func(d time.Duration) string { return time.Now().Add(d).UTC().Format(time.RFC3339Nano) }
	f.expect(204, "POST", "/init", `{"timestamp":"`+ns(-500*time.Millisecond)+`"}`) // the request was slow
	if len(f.kernel.calls) != 0 {
		t.Error(f.kernel.calls)
	}
	f.expect(204, "POST", "/init", `{"timestamp":"`+ns(-time.Hour)+`"}`)
	f.expect(204, "POST", "/init", `{"timestamp":4102444800000000000}`)
	if len(f.kernel.calls) != 2 || f.kernel.clock.Unix() != 4102444800 {
		t.Error(f.kernel.calls, f.kernel.clock)
	}
}

func TestUnfreezePutsTheClockForwardFirst(t *testing.T) {
	f := newFixture(t)
	ns := func(d time.Duration) string { return strconv.FormatInt(time.Now().Add(d).UnixNano(), 10) }
	f.expect(204, "POST", "/freeze", "")
	f.expect(204, "POST", "/unfreeze", `{"timestamp":`+ns(time.Hour)+`}`)
	f.expect(204, "POST", "/unfreeze", `{"timestamp":`+ns(time.Hour)+`}`) // it runs already
	if want := []string{"freeze", "clock", "thaw", "clock"}; !slices.Equal(f.kernel.calls, want) {
		t.Fatal(f.kernel.calls)
	}
	f.kernel.calls = nil
	f.expect(204, "POST", "/freeze", "")
	f.expect(400, "POST", "/unfreeze", `{"timestamp":"yesterday"}`)
	f.expect(204, "POST", "/unfreeze", `{"timestamp":`+ns(-time.Hour)+`}`) // a request that was long on its way
	if want := []string{"freeze", "thaw"}; !slices.Equal(f.kernel.calls, want) {
		t.Error(f.kernel.calls)
	}
}

func TestInitRefusesNonsenseAsAWhole(t *testing.T) {
	f := newFixture(t)
	for _, body := range []string{`{`, ``, `[]`, `{"timestamp":"yesterday"}`, `{"entropy":"AAAA"}`, `{"envVars":{"A=B":"1"}}`,
		`{"timestamp":4102444800000000000,"entropy":"AAAA"}`, `{"hostname":"` + strings.Repeat("x", maxInitSize) + `"}`} {
		f.expect(400, "POST", "/init", body)
	}
	if len(f.kernel.calls) != 0 || len(f.server.session.Env()) != 0 {
		t.Error(f.kernel.calls)
	}
}

func TestFailedInitLeavesProcessesFrozen(t *testing.T) {
	f := newFixture(t)
	f.expect(204, "POST", "/freeze", "")
	f.kernel.fail = "hostname h"
	if body := f.expect(500, "POST", "/init", `{"hostname":"h"}`); !strings.Contains(body, "hostname: not today") {
		t.Error(body)
	}
	if slices.Contains(f.kernel.calls, "thaw") {
		t.Error(f.kernel.calls)
	}
	f.expect(204, "POST", "/init", `{"hostname":"i"}`)
	if f.kernel.calls[len(f.kernel.calls)-1] != "thaw" {
		t.Error(f.kernel.calls)
	}
}

func TestFailedFreezeChangesNothing(t *testing.T) {
	f := newFixture(t)
	f.kernel.fail = "freeze"
	f.expect(500, "POST", "/freeze", "")
	f.expect(204, "POST", "/init", `{"accessToken":"t"}`)
	f.expect(401, "POST", "/init", `{}`)
	f.expect(204, "POST", "/unfreeze", "", "X-Access-Token", "t")
	if slices.Contains(f.kernel.calls, "thaw") {
		t.Error(f.kernel.calls)
	}
}

func TestSyncStopsProcessesBeforeTheDisk(t *testing.T) {
	f := newFixture(t)
	f.expect(204, "POST", "/freeze", "")
	f.expect(204, "POST", "/sync", "")
	f.expect(204, "POST", "/unfreeze", "")
	f.expect(204, "POST", "/sync", "")
	f.expect(204, "POST", "/unfreeze", "")
	f.expect(204, "POST", "/unfreeze", "")
	once := []string{"freeze", "freeze disk", "thaw disk", "thaw"}
	if want := append(once, once...); !slices.Equal(f.kernel.calls, want) {
		t.Error(f.kernel.calls)
	}
}

func TestFailedSyncIsNoSync(t *testing.T) {
	f := newFixture(t)
	f.kernel.fail = "freeze disk"
	if body := f.expect(500, "POST", "/sync", ""); !strings.Contains(body, "not today") {
		t.Error(body)
	}
	f.expect(204, "POST", "/unfreeze", "")
	if want := []string{"freeze", "freeze disk", "thaw"}; !slices.Equal(f.kernel.calls, want) {
		t.Error(f.kernel.calls)
	}
}

func TestConnectionsEndAtARestoreOnly(t *testing.T) {
	f := newFixture(t)
	dial := func() net.Conn {
		conn, err := net.Dial("tcp", strings.TrimPrefix(f.url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		return conn
	}
	ask := func(conn net.Conn) error {
		_ = conn.SetDeadline(time.Now().Add(5 * time.Second))
		if _, err := io.WriteString(conn, "GET /health HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
			return err
		}
		_, err := conn.Read(make([]byte, 4096))
		return err
	}
	old := dial()
	f.expect(204, "POST", "/freeze", "")
	f.expect(204, "POST", "/unfreeze", "")
	if err := ask(old); err != nil {
		t.Fatal("the parent's connections must go on:", err)
	}
	f.expect(204, "POST", "/freeze", "")
	f.expect(204, "POST", "/init", `{}`)
	if err := ask(old); err == nil {
		t.Error("a connection from before the restore still works")
	}
	if err := ask(dial()); err != nil {
		t.Error(err)
	}
}

func TestCORS(t *testing.T) {
	f := newFixture(t)
	f.expect(204, "POST", "/init", `{"accessToken":"t"}`)
	res, _ := f.do("OPTIONS", "/process.Process/Start", "", "Origin", "http://a.b", "Access-Control-Request-Method", "POST",
		"Access-Control-Request-Headers", "authorization,x-access-token")
	if res.StatusCode != 204 || res.Header.Get("Access-Control-Allow-Origin") != "*" ||
		res.Header.Get("Access-Control-Allow-Headers") != "authorization,x-access-token" ||
		!strings.Contains(res.Header.Get("Access-Control-Allow-Methods"), "POST") {
		t.Error(res.Status, res.Header)
	}
	for _, path := range []string{"/health", "/envs"} {
		res, _ := f.do("GET", path, "", "Origin", "http://a.b")
		if res.Header.Get("Access-Control-Allow-Origin") != "*" || res.Header.Get("Access-Control-Expose-Headers") != "*" {
			t.Error(path, res.Header)
		}
	}
}

func TestUnknownRoutes(t *testing.T) {
	f := newFixture(t)
	if body := f.expect(404, "GET", "/nowhere", ""); body != `{"code":404,"message":"no such route: GET /nowhere"}` {
		t.Error(body)
	}
	body := f.expect(501, "POST", "/process.Process/GetResult", "{}", "Connect-Protocol-Version", "1", "Content-Type", "application/json")
	if body != `{"code":"unimplemented","message":"no such procedure: /process.Process/GetResult"}` {
		t.Error(body)
	}
}

func TestPanicAnswers500(t *testing.T) {
	f := newFixture(t)
	f.server.mux.HandleFunc("GET /panic", func(http.ResponseWriter, *http.Request) { panic("a bug") })
	if body := f.expect(500, "GET", "/panic", ""); body != `{"code":500,"message":"internal error"}` {
		t.Error(body)
	}
}
