package server

import (
	"bytes"
	"context"
	"encoding/binary"
	"net/http"
	"syscall"
	"time"

	"aenv/envd/internal/process"
	"aenv/envd/internal/rest"
)

const (
	rehearsals       = 2 // of the first command: the second still finds caches that the first has not filled
	rehearsalTimeout = 20 * time.Second

	// firstCommand is what the SDKs send to run a command line, here one that does nothing.
	firstCommand = `{"process":{"cmd":"/bin/bash","args":["-l","-c","echo warm"]},"stdin":false}`
)

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
	if err := s.prepare(req); err != nil {
		rest.Error(w, http.StatusInternalServerError, "%v", err)
		return
	}
	ctx, cancel := context.WithTimeout(process.Rehearse(r.Context()), rehearsalTimeout)
	defer cancel()
	for range rehearsals {
		s.rehearseCommand(ctx)
	}
	syscall.Sync() // what the boot left to be written would be written by every copy
	if err := s.guest.Freeze(); err != nil {
		rest.Error(w, http.StatusInternalServerError, "freeze user processes: %v", err)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

func (s *Server) rehearseCommand(ctx context.Context) {
	frame := binary.BigEndian.AppendUint32([]byte{0}, uint32(len(firstCommand)))
	frame = append(frame, firstCommand...)
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "/process.Process/Start", bytes.NewReader(frame))
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
