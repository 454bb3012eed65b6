package process

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"aenv/envd/internal/connect"
	"aenv/envd/internal/session"
)

// patience is how long a test waits for what should happen at once.
const patience = 30 * time.Second

// fixture is a served Manager.
type fixture struct {
	*testing.T
	manager *Manager
	session *session.State
	url     string
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	state := session.New()
	root := "root"
	state.Update(session.Change{User: &root})
	f := &fixture{T: t, manager: NewManager(state, nil), session: state}
	mux := http.NewServeMux()
	f.manager.Register(mux)
	server := httptest.NewServer(mux)
	f.url = server.URL
	t.Cleanup(func() {
		for _, p := range f.manager.list() {
			running, err := f.manager.find(selector{PID: (*connect.Uint32)(ref(uint32(p.PID)))}, false)
			if err == nil {
				_ = running.kill(context.Background())
			}
		}
		server.CloseClientConnections()
		server.Close()
	})
	return f
}

func ref[T any](value T) *T { return &value }

// message is one frame of a response stream.
type message struct {
	Event struct {
		Start     *struct{ PID int }
		Data      *struct{ Stdout, Stderr, PTY []byte }
		End       *ending
		Keepalive *struct{}
	}
	Error *connect.Error
	last  bool
}

// stream is an open response stream.
type stream struct {
	f      *fixture
	body   io.ReadCloser
	cancel context.CancelFunc
	pid    int
}

// open calls a server-streaming procedure, with header fields as name, value, ….
func (f *fixture) open(procedure, body string, header ...string) *stream {
	f.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	f.Cleanup(cancel)
	frame := binary.BigEndian.AppendUint32([]byte{0}, uint32(len(body)))
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, f.url+"/process.Process/"+procedure,
		bytes.NewReader(append(frame, body...)))
	if err != nil {
		f.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/connect+json")
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		f.Fatal(err)
	}
	if res.StatusCode != 200 {
		f.Fatal(res.Status)
	}
	return &stream{f: f, body: res.Body, cancel: cancel}
}

// start starts a shell command and reads the start event.
func (f *fixture) start(command, rest string, header ...string) *stream {
	f.Helper()
	text, _ := json.Marshal(command)
	s := f.open("Start", `{"process":{"cmd":"/bin/bash","args":["-c",`+string(text)+`]}`+rest+`}`, header...)
	return s.begin()
}

func (s *stream) begin() *stream {
	s.f.Helper()
	first := s.next()
	if first.Event.Start == nil {
		s.f.Fatalf("the first message is no start: %+v %v", first.Event, first.Error)
	}
	s.pid = first.Event.Start.PID
	return s
}

func (s *stream) next() message {
	s.f.Helper()
	var header [5]byte
	var msg message
	if _, err := io.ReadFull(s.body, header[:]); err != nil {
		s.f.Fatal(err)
	}
	body := make([]byte, binary.BigEndian.Uint32(header[1:]))
	if _, err := io.ReadFull(s.body, body); err != nil {
		s.f.Fatal(err)
	}
	if err := json.Unmarshal(body, &msg); err != nil {
		s.f.Fatal(err, string(body))
	}
	msg.last = header[0] == 2
	return msg
}

// outcome is everything a stream told.
type outcome struct {
	stdout, stderr, pty string
	keepalives          int
	end                 *ending
	err                 *connect.Error
}

// rest reads the stream to its end.
func (s *stream) rest() outcome {
	s.f.Helper()
	var o outcome
	for {
		msg := s.next()
		if msg.last {
			o.err = msg.Error
			s.body.Close()
			return o
		}
		if o.end != nil {
			s.f.Fatal("an event after the end event")
		}
		if data := msg.Event.Data; data != nil {
			o.stdout += string(data.Stdout)
			o.stderr += string(data.Stderr)
			o.pty += string(data.PTY)
			if len(data.Stdout) > pipeChunk || len(data.Stderr) > pipeChunk || len(data.PTY) > terminalChunk {
				s.f.Error("too large a chunk")
			}
		}
		if msg.Event.Keepalive != nil {
			o.keepalives++
		}
		o.end = msg.Event.End
	}
}

// until reads output until it contains text.
func (s *stream) until(text string) string {
	s.f.Helper()
	seen := ""
	defer func() {
		if s.f.Failed() {
			s.f.Logf("waiting for %q, read %q", text, seen)
		}
	}()
	for !strings.Contains(seen, text) {
		msg := s.next()
		if msg.last || msg.Event.End != nil {
			s.f.Fatalf("the stream ended before %q: %q %+v", text, seen, msg)
		}
		if msg.Event.Data != nil {
			seen += string(msg.Event.Data.Stdout) + string(msg.Event.Data.Stderr) + string(msg.Event.Data.PTY)
		}
	}
	return seen
}

// call calls a unary procedure and returns its error code, "" for success.
func (f *fixture) call(procedure, body string) connect.Code {
	f.Helper()
	res, err := http.Post(f.url+"/process.Process/"+procedure, "application/json", strings.NewReader(body))
	if err != nil {
		f.Fatal(err)
	}
	defer res.Body.Close()
	var e connect.Error
	if err := json.NewDecoder(res.Body).Decode(&e); err != nil {
		f.Fatal(err)
	}
	if (res.StatusCode == 200) != (e.Code == "") {
		f.Fatalf("status %d with code %q", res.StatusCode, e.Code)
	}
	return e.Code
}

func (s *stream) selector() string { return `"process":{"pid":` + strconv.Itoa(s.pid) + `}` }

// input sends input of a kind ("stdin" or "pty").
func (s *stream) input(kind, text string) connect.Code {
	s.f.Helper()
	return s.f.call("SendInput", `{`+s.selector()+`,"input":{"`+kind+`":"`+base64.StdEncoding.EncodeToString([]byte(text))+`"}}`)
}

// eventually polls a condition.
func (f *fixture) eventually(what string, condition func() bool) {
	f.Helper()
	for deadline := time.Now().Add(patience); !condition(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			f.Fatal("never: " + what)
		}
	}
}
