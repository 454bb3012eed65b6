package filesystem

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

const patience = 10 * time.Second

// watched collects what a polled watcher reports, as "type name".
type watched struct {
	c      *client
	id     string
	events []string
	last   []event
}

func (c *client) watch(request watchRequest) *watched {
	c.t.Helper()
	var r watcherResponse
	if code := c.call("CreateWatcher", request, &r); code != "" {
		c.t.Fatal(code)
	}
	return &watched{c: c, id: r.WatcherID}
}

func (w *watched) poll() {
	w.c.t.Helper()
	var r eventsResponse
	if code := w.c.call("GetWatcherEvents", watcherRequest{w.id}, &r); code != "" {
		w.c.t.Fatal(code)
	}
	w.last = r.Events
	for _, e := range r.Events {
		w.events = append(w.events, label(e))
	}
}

// await polls until all wanted events came.
func (w *watched) await(want ...string) {
	w.c.t.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		w.poll()
		missing := slices.DeleteFunc(slices.Clone(want), func(e string) bool { return slices.Contains(w.events, e) })
		if len(missing) == 0 {
			return
		}
		if time.Now().After(deadline) {
			w.c.t.Fatalf("missing %v in %v", missing, w.events)
		}
	}
}

func label(e event) string { return strings.TrimPrefix(e.Type, "EVENT_TYPE_") + " " + e.Name }

func TestEventsAreThereWhenTheChangeIsDone(t *testing.T) {
	c, folder := newClient(t), t.TempDir()
	w := c.watch(watchRequest{Path: folder, IncludeEntry: true})
	w.poll()
	if len(w.events) != 0 {
		t.Fatalf("events before any change: %v", w.events)
	}
	file := filepath.Join(folder, "f")
	for _, step := range []struct {
		do   func() error
		want []string
	}{
		{func() error { return os.WriteFile(file, []byte("x"), 0o644) }, []string{"CREATE f", "WRITE f"}},
		{func() error { return os.Chown(file, 0, 0) }, []string{"CHMOD f"}},
		{func() error { return os.Rename(file, folder+"/g") }, []string{"RENAME f", "CREATE g"}},
		{func() error { return os.Remove(folder + "/g") }, []string{"REMOVE g"}},
	} {
		if err := step.do(); err != nil {
			t.Skip(err)
		}
		w.events = nil
		w.poll() // at once: everything that happened before must be in
		if !slices.Equal(w.events, step.want) {
			t.Errorf("events %v, want %v", w.events, step.want)
		}
		for _, e := range w.last {
			wantEntry := e.Type == eventWrite || e.Type == eventChmod || label(e) == "CREATE g"
			if wantEntry && (e.Entry == nil || e.Entry.Type != typeFile) {
				t.Errorf("%s has entry %+v", label(e), e.Entry)
			}
			if (e.Type == eventRemove || e.Type == eventRename) && e.Entry != nil {
				t.Errorf("%s has an entry", label(e))
			}
		}
	}
}

func TestARecursiveWatchFollowsNewFolders(t *testing.T) {
	c, folder := newClient(t), t.TempDir()
	os.Mkdir(folder+"/old", 0o755)
	w := c.watch(watchRequest{Path: folder, Recursive: true})
	write(t, folder+"/old/f", "x")
	w.await("CREATE old/f", "WRITE old/f")

	// All of it may be there before the first new folder is watched.
	os.MkdirAll(folder+"/a/b/c", 0o755)
	write(t, folder+"/a/b/c/deep", "x")
	w.await("CREATE a", "CREATE a/b", "CREATE a/b/c", "CREATE a/b/c/deep")
	write(t, folder+"/a/b/c/late", "x")
	w.await("CREATE a/b/c/late", "WRITE a/b/c/late")

	os.Rename(folder+"/a/b", folder+"/moved")
	w.await("RENAME a/b", "CREATE moved", "CREATE moved/c/deep")
	write(t, folder+"/moved/c/after", "x")
	w.await("CREATE moved/c/after")

	outside := t.TempDir() + "/gone"
	if err := os.Rename(folder+"/moved", outside); err != nil {
		t.Skip(err)
	}
	w.await("RENAME moved")
	w.events = nil
	write(t, outside+"/c/unseen", "x")
	write(t, folder+"/end", "x")
	w.await("CREATE end")
	for _, e := range w.events {
		if strings.Contains(e, "unseen") {
			t.Errorf("event of a folder that was moved away: %s", e)
		}
	}
}

func TestEveryCreationIsReportedExactlyOnce(t *testing.T) {
	c, folder := newClient(t), t.TempDir()
	w := c.watch(watchRequest{Path: folder, Recursive: true})
	var want []string
	for i := range 60 {
		path := filepath.Join(folder, fmt.Sprintf("d%d/x/y", i))
		if err := os.MkdirAll(path, 0o755); err != nil {
			t.Fatal(err)
		}
		for j := range 5 {
			write(t, fmt.Sprintf("%s/f%d", path, j), "")
			want = append(want, fmt.Sprintf("CREATE d%d/x/y/f%d", i, j))
		}
		want = append(want, fmt.Sprintf("CREATE d%d", i), fmt.Sprintf("CREATE d%d/x", i), fmt.Sprintf("CREATE d%d/x/y", i))
	}
	w.await(want...)
	slices.Sort(want)
	got := slices.DeleteFunc(w.events, func(e string) bool { return !strings.HasPrefix(e, "CREATE") })
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("%d creations, want %d", len(got), len(want))
	}
}

func TestLostEventsAreSaid(t *testing.T) {
	folder := t.TempDir()
	tr, err := watch(folder, false, false)
	if err != nil {
		t.Fatal(err)
	}
	defer tr.close()
	p := &poller{tree: tr}
	os.WriteFile(folder+"/f", nil, 0o644)
	os.WriteFile(folder+"/g", nil, 0o644)
	p.events = make([]event, maxQueued-1)
	events, err := p.take()
	if err != nil || len(events) != maxQueued {
		t.Fatalf("%d events, %v", len(events), err)
	}
	if _, err := p.take(); err != errLost {
		t.Errorf("error %v", err)
	}
	os.WriteFile(folder+"/h", nil, 0o644)
	if events, err := p.take(); err != nil || len(events) != 1 || events[0].Name != "h" {
		t.Errorf("afterwards %v, %v", events, err)
	}
}

func TestWatchersNeedAFolder(t *testing.T) {
	c, folder := newClient(t), t.TempDir()
	write(t, folder+"/file", "")
	var r watcherResponse
	if code := c.call("CreateWatcher", watchRequest{Path: folder + "/none"}, &r); code != "not_found" {
		t.Errorf("missing: %s", code)
	}
	if code := c.call("CreateWatcher", watchRequest{Path: folder + "/file"}, &r); code != "invalid_argument" {
		t.Errorf("file: %s", code)
	}
}

func TestARemovedWatcherIsUnknown(t *testing.T) {
	c := newClient(t)
	w := c.watch(watchRequest{Path: t.TempDir()})
	var nothing empty
	if code := c.call("RemoveWatcher", watcherRequest{w.id}, &nothing); code != "" {
		t.Fatal(code)
	}
	for _, method := range []string{"RemoveWatcher", "GetWatcherEvents"} {
		if code := c.call(method, watcherRequest{w.id}, &nothing); code != "not_found" {
			t.Errorf("%s: %s", method, code)
		}
	}
}

// stream opens WatchDir and returns a function that reads its next frame.
func (c *client) stream(ctx context.Context, body string, headers ...string) func() (flag byte, message map[string]json.RawMessage, err error) {
	c.t.Helper()
	frame := append([]byte{0}, binary.BigEndian.AppendUint32(nil, uint32(len(body)))...)
	request, err := http.NewRequestWithContext(ctx, "POST", c.url+"/filesystem.Filesystem/WatchDir", strings.NewReader(string(frame)+body))
	if err != nil {
		c.t.Fatal(err)
	}
	request.Header.Set("Content-Type", "application/connect+json")
	request.SetBasicAuth("root", "")
	for i := 0; i < len(headers); i += 2 {
		request.Header.Set(headers[i], headers[i+1])
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { response.Body.Close() })
	input := bufio.NewReader(response.Body)
	return func() (byte, map[string]json.RawMessage, error) {
		var header [5]byte
		if _, err := io.ReadFull(input, header[:]); err != nil {
			return 0, nil, err
		}
		data := make([]byte, binary.BigEndian.Uint32(header[1:]))
		if _, err := io.ReadFull(input, data); err != nil {
			return 0, nil, err
		}
		var message map[string]json.RawMessage
		return header[0], message, json.Unmarshal(data, &message)
	}
}

func TestWatchDirStreamsStartEventsAndKeepalives(t *testing.T) {
	c, folder := newClient(t), t.TempDir()
	before := inotifyDescriptors(t)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	next := c.stream(ctx, fmt.Sprintf(`{"path":%q,"recursive":true}`, folder), "Keepalive-Ping-Interval", "1")
	if _, m, err := next(); err != nil || string(m["start"]) != "{}" {
		t.Fatalf("%v %v", m, err)
	}
	write(t, folder+"/f", "x")
	for _, want := range []string{`{"name":"f","type":"EVENT_TYPE_CREATE"}`, `{"name":"f","type":"EVENT_TYPE_WRITE"}`} {
		if _, m, err := next(); err != nil || string(m["filesystem"]) != want {
			t.Errorf("%s %v, want %s", m["filesystem"], err, want)
		}
	}
	if _, m, err := next(); err != nil || string(m["keepalive"]) != "{}" {
		t.Errorf("%v %v", m, err)
	}
	cancel()
	for deadline := time.Now().Add(patience); inotifyDescriptors(t) > before; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the watch outlived its client")
		}
	}
}

func TestWatchDirEndsAtItsDeadlineAndWithErrors(t *testing.T) {
	c, folder := newClient(t), t.TempDir()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	next := c.stream(ctx, fmt.Sprintf(`{"path":%q}`, folder), "Connect-Timeout-Ms", "50")
	if _, m, err := next(); err != nil || string(m["start"]) != "{}" {
		t.Fatalf("%v %v", m, err)
	}
	if flag, m, err := next(); err != nil || flag != 2 || !strings.Contains(string(m["error"]), "deadline_exceeded") {
		t.Errorf("%d %s %v", flag, m["error"], err)
	}
	next = c.stream(ctx, fmt.Sprintf(`{"path":"%s/none"}`, folder))
	if flag, m, err := next(); err != nil || flag != 2 || !strings.Contains(string(m["error"]), "not_found") {
		t.Errorf("%d %s %v", flag, m["error"], err)
	}
}

// inotifyDescriptors counts the inotify descriptors of this process.
func inotifyDescriptors(t *testing.T) int {
	t.Helper()
	open, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Skip(err)
	}
	n := 0
	for _, fd := range open {
		if target, _ := os.Readlink("/proc/self/fd/" + fd.Name()); target == "anon_inode:inotify" {
			n++
		}
	}
	return n
}
