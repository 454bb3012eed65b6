package server

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// jailVariable names a folder to which the fuzzer confines itself: requests write and remove files, as root.
const jailVariable = "ENVD_FUZZ_JAIL"

// enterJail makes an own folder of the jail the root of this process: there are accounts in it, but nothing to run.
func enterJail(f *testing.F, jail string) {
	f.Helper()
	own, err := os.MkdirTemp(jail, "root-")
	if err == nil {
		err = os.CopyFS(own, os.DirFS(filepath.Join(jail, "content")))
	}
	if err == nil {
		err = syscall.Chroot(own)
	}
	if err == nil {
		err = os.Chdir("/")
	}
	if err != nil {
		f.Fatal(err)
	}
}

func isSet(name string) bool {
	value := flag.Lookup(name).Value.String()
	return value != "" && value != "false"
}

// FuzzServer sends one request to a fresh server. Whatever it is, the answer is whole and well formed, and nothing panics.
// scripts/fuzz runs it.
func FuzzServer(f *testing.F) {
	jail := os.Getenv(jailVariable)
	coordinates := isSet("test.fuzz") && !isSet("test.fuzzworker")
	switch {
	case jail == "" && isSet("test.fuzz"):
		f.Fatalf("without %s fuzzing would change this machine's files: use scripts/fuzz", jailVariable)
	case jail != "" && !coordinates:
		enterJail(f, jail)
	}
	if jail != "" {
		seeds = append(seeds, jailedSeeds...)
	}
	for _, seed := range seeds {
		f.Add(seed.method, seed.target, seed.header, []byte(seed.body))
	}
	f.Fuzz(func(t *testing.T, method, target, header string, body []byte) {
		text := fmt.Sprintf("%s %s HTTP/1.1\r\nHost: guest\r\n%s\r\nContent-Length: %d\r\n\r\n", method, target, header, len(body))
		request, err := http.ReadRequest(bufio.NewReader(strings.NewReader(text + string(body))))
		if err != nil {
			return // net/http refuses it before envd sees it
		}
		checkAnswer(t, New((&kernel{}).guest()), request)
	})
}

// checkAnswer serves a request and looks at what came of it.
func checkAnswer(t *testing.T, server *Server, request *http.Request) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond) // watches go on until then
	defer cancel()
	recorder := httptest.NewRecorder()
	if aborted(t, func() { server.ServeHTTP(recorder, request.WithContext(ctx)) }) {
		return
	}
	body := recorder.Body.Bytes()
	switch kind := recorder.Header().Get("Content-Type"); {
	case bytes.Contains(body, []byte("internal error")), bytes.Contains(body, []byte(`"panic: `)):
		t.Fatalf("%s %s panicked", request.Method, request.URL)
	case kind == "application/connect+json":
		checkFrames(t, body)
	case recorder.Code >= 400 && request.Method != http.MethodHead:
		var failure struct {
			Code    any    `json:"code"`
			Message string `json:"message"`
		}
		if err := json.Unmarshal(body, &failure); err != nil || failure.Code == nil || failure.Message == "" {
			t.Fatalf("%s %s: %d %q", request.Method, request.URL, recorder.Code, body)
		}
	}
	var watcher struct {
		ID string `json:"watcherId"`
	}
	if json.Unmarshal(body, &watcher) == nil && watcher.ID != "" {
		remove := httptest.NewRequest("POST", "/filesystem.Filesystem/RemoveWatcher", bytes.NewReader(body))
		remove.Header.Set("Content-Type", "application/json")
		server.ServeHTTP(httptest.NewRecorder(), remove)
	}
}

// aborted tells whether serve broke its connection on purpose.
func aborted(t *testing.T, serve func()) (yes bool) {
	t.Helper()
	defer func() {
		if p := recover(); p != nil {
			if err, ok := p.(error); !ok || !errors.Is(err, http.ErrAbortHandler) {
				t.Fatalf("panic: %v", p)
			}
			yes = true
		}
	}()
	serve()
	return false
}

// checkFrames checks that a stream is a row of whole frames of JSON, of which only the last one is the end.
func checkFrames(t *testing.T, body []byte) {
	t.Helper()
	for len(body) >= 5 {
		size := int(body[1])<<24 | int(body[2])<<16 | int(body[3])<<8 | int(body[4])
		if len(body) < 5+size || !json.Valid(body[5:5+size]) {
			break
		}
		isEnd := body[0] == 2
		body = body[5+size:]
		if isEnd != (len(body) == 0) {
			break
		}
		if isEnd {
			return
		}
	}
	t.Fatalf("the stream doesn't end with an end frame: %q", body)
}
