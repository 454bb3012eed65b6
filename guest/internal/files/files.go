// Package files serves whole files over plain HTTP: GET and POST /files, and POST /files/compose.
package files

import (
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"syscall"

	"aenv/envd/internal/journal"
	"aenv/envd/internal/rest"
	"aenv/envd/internal/session"
	"aenv/envd/internal/users"
)

// drainLimit is how much of a refused upload is still read, in bytes: a client that is busy sending doesn't see an answer that
// comes with a closed connection.
const drainLimit = 64 << 20

// Entry describes a file that was written.
type Entry struct {
	Name     string            `json:"name"`
	Path     string            `json:"path"`
	Type     string            `json:"type"`
	Metadata map[string]string `json:"metadata,omitempty"`
}

type service struct {
	state   *session.State
	journal *journal.Journal
}

// Register serves the routes below /files. They check their own authorization, which may be a signature in the query.
func Register(mux *http.ServeMux, state *session.State, j *journal.Journal) {
	s := &service{state: state, journal: j}
	mux.HandleFunc("GET /files", s.handle(s.download))
	mux.HandleFunc("POST /files", s.handle(s.upload))
	mux.HandleFunc("POST /files/compose", s.handle(s.compose))
}

// failure is an error with the status its client gets.
type failure struct {
	status  int
	message string
}

func (f *failure) Error() string { return f.message }

func badRequest(message string) error { return &failure{http.StatusBadRequest, message} }

// handle turns what a handler returns into an answer. A handler that has begun to answer returns nil.
func (s *service) handle(fn func(http.ResponseWriter, *http.Request) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		err := fn(w, r)
		if err == nil {
			return
		}
		_, _ = io.CopyN(io.Discard, r.Body, drainLimit)
		status, message := describe(err)
		rest.Error(w, status, "%s", message)
	}
}

// describe words an error of the file system for the client.
func describe(err error) (status int, message string) {
	var f *failure
	var unknown *users.UnknownUserError
	var path *os.PathError
	switch {
	case errors.As(err, &f):
		return f.status, f.message
	case errors.As(err, &unknown):
		return http.StatusUnauthorized, unknown.Error()
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return http.StatusInsufficientStorage, "not enough disk space available"
	case errors.Is(err, os.ErrNotExist) && errors.As(err, &path):
		return http.StatusNotFound, "path '" + path.Path + "' does not exist"
	}
	for _, bad := range []error{syscall.ENOTDIR, syscall.EISDIR, syscall.ENAMETOOLONG, syscall.ELOOP, syscall.EINVAL, syscall.ENXIO} {
		if errors.Is(err, bad) {
			return http.StatusBadRequest, err.Error()
		}
	}
	return http.StatusInternalServerError, err.Error()
}

// resolve returns the user a request acts for, and makes its path absolute.
func (s *service) resolve(path, username string) (*users.User, string, error) {
	user, err := s.state.User(username)
	if err != nil {
		return nil, "", err
	}
	absolute, err := users.Resolve(path, user, s.state.DefaultWorkdir())
	return user, absolute, err
}

// requestUser is the user name of a request: the query's, else that of the Basic authorization.
func requestUser(r *http.Request) string {
	if name := r.URL.Query().Get("username"); name != "" {
		return name
	}
	return users.FromHeader(r.Header)
}

// openRegular opens a regular file. It never waits for a pipe or a device, and says what else it met.
func openRegular(path string, flags int) (*os.File, os.FileInfo, error) {
	file, err := os.OpenFile(path, flags|syscall.O_NONBLOCK, 0o666)
	if errors.Is(err, syscall.EISDIR) {
		return nil, nil, badRequest("path '" + path + "' is a directory")
	}
	if errors.Is(err, syscall.ENXIO) { // a pipe without a reader, a socket, a device without a driver
		return nil, nil, badRequest("path '" + path + "' is not a regular file")
	}
	if err != nil {
		return nil, nil, err
	}
	info, err := file.Stat()
	switch {
	case err != nil:
	case info.IsDir():
		err = badRequest("path '" + path + "' is a directory")
	case !info.Mode().IsRegular():
		err = badRequest("path '" + path + "' is not a regular file")
	default:
		return file, info, nil
	}
	_ = file.Close()
	return nil, nil, err
}

func entryOf(path string, pairs map[string]string) Entry {
	return Entry{Name: filepath.Base(path), Path: path, Type: "file", Metadata: pairs}
}
