package server

import (
	"bytes"
	"context"
	"encoding/binary"
	"net/http"
	"strings"
	"syscall"
	"time"

	"aenv/envd/internal/journal"
	"aenv/envd/internal/process"
	"aenv/envd/internal/rest"
)

const (
	rehearsals       = 2 // of the first command: the second still finds caches that the first has not filled
	rehearsalTimeout = 20 * time.Second

	// firstCommand is what the SDKs send to run a command line, here one that does nothing.
	firstCommand = `{"process":{"cmd":"/bin/bash","args":["-l","-c","echo warm"]},"stdin":false}`
)

// reports are what the host asks of every guest soon after.
var reports = []string{"/logs?journal=&after=0", "/metrics"}

// warm rehearses what comes first when a client gets this VM: an /init and a command. It is for a VM that was restored
// ahead of demand, and takes the same body as /init, but leaves no trace except filled caches: those of the kernel, and
// under emulation the translated code. User processes stay frozen. An image without bash only rehearses /init.
func (s *Server) warm(w http.ResponseWriter, r *http.Request) {
	s.capture.Lock()
	defer s.capture.Unlock()
	if !s.captured && !s.session.Authorized(r.Header.Get(tokenHeader)) {
		rest.Error(w, http.StatusUnauthorized, rest.Unauthorized)
		return
	}
	if !s.captured {
		rest.Error(w, http.StatusConflict, "only a captured guest can be warmed")
		return
	}
	req, err := readInit(w, r)
	if err != nil {
		rest.Error(w, http.StatusBadRequest, "%v", err)
		return
	}
	s.conns.dropOthers(r.Context()) // /init finds none left to close
	ctx, cancel := context.WithTimeout(process.Rehearse(r.Context()), rehearsalTimeout)
	defer cancel()
	name := req.Hostname
	for i := range rehearsals {
		req.Hostname = strings.Repeat(string(rune('a'+i)), len(name)) // always another, of the length of the next
		if err := s.rehearseInit(r, req); err != nil {
			rest.Error(w, http.StatusInternalServerError, "%v", err)
			return
		}
		s.rehearseCommand(ctx)
		for _, path := range reports {
			s.rehearse(ctx, http.MethodGet, path, nil)
		}
	}
	syscall.Sync() // what the boot left to be written would be written by every copy
	if err := s.guest.Freeze(); err != nil {
		rest.Error(w, http.StatusInternalServerError, "freeze user processes: %v", err)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

// rehearseInit does what /init does, for a stand-in of this server: what clients see stays as it is, and nothing runs.
func (s *Server) rehearseInit(r *http.Request, req *initRequest) error {
	guest := s.guest
	guest.Thaw = guest.RehearseThaw
	guest.RunHooks = func(map[string]string, *journal.Journal) {}
	standIn := New(guest)
	standIn.captured = true
	return standIn.apply(r, req)
}

func (s *Server) rehearseCommand(ctx context.Context) {
	frame := binary.BigEndian.AppendUint32([]byte{0}, uint32(len(firstCommand)))
	s.rehearse(ctx, http.MethodPost, "/process.Process/Start", append(frame, firstCommand...))
}

func (s *Server) rehearse(ctx context.Context, method, path string, body []byte) {
	request, err := http.NewRequestWithContext(ctx, method, path, bytes.NewReader(body))
	if err != nil {
		return
	}
	request.Header.Set("Content-Type", "application/connect+json")
	s.mux.ServeHTTP(&discard{header: http.Header{}}, request)
}

// discard is a response that nobody reads.
type discard struct{ header http.Header }

func (d *discard) Header() http.Header            { return d.header }
func (d *discard) Write(data []byte) (int, error) { return len(data), nil }
func (d *discard) WriteHeader(int)                {}
func (d *discard) Flush()                         {}
