// Package filesystem serves the Connect service filesystem.Filesystem: looking at, changing and watching files.
package filesystem

import (
	"context"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"syscall"

	"aenv/envd/internal/connect"
	"aenv/envd/internal/dirs"
	"aenv/envd/internal/journal"
	"aenv/envd/internal/session"
	"aenv/envd/internal/users"
)

type pathRequest struct {
	Path string `json:"path"`
}

type listRequest struct {
	Path  string         `json:"path"`
	Depth connect.Uint32 `json:"depth"`
}

type moveRequest struct {
	Source      string `json:"source"`
	Destination string `json:"destination"`
}

type entryResponse struct {
	Entry *entryInfo `json:"entry"`
}

type listResponse struct {
	Entries []*entryInfo `json:"entries"`
}

type empty struct{}

type service struct {
	state    *session.State
	journal  *journal.Journal
	watchers registry
}

// Register serves the procedures of filesystem.Filesystem.
func Register(mux *http.ServeMux, state *session.State, j *journal.Journal) {
	s := &service{state: state, journal: j, watchers: registry{open: map[string]*poller{}}}
	const prefix = "/filesystem.Filesystem/"
	connect.Unary(mux, prefix+"Stat", s.stat)
	connect.Unary(mux, prefix+"ListDir", s.listDir)
	connect.Unary(mux, prefix+"MakeDir", s.makeDir)
	connect.Unary(mux, prefix+"Move", s.move)
	connect.Unary(mux, prefix+"Remove", s.remove)
	connect.ServerStream(mux, prefix+"WatchDir", s.watchDir)
	connect.Unary(mux, prefix+"CreateWatcher", s.createWatcher)
	connect.Unary(mux, prefix+"GetWatcherEvents", s.getWatcherEvents)
	connect.Unary(mux, prefix+"RemoveWatcher", s.removeWatcher)
}

func (s *service) stat(_ context.Context, r *connect.Request[pathRequest]) (*entryResponse, error) {
	user, path, err := s.resolve(r.Header, r.Msg.Path)
	if err != nil {
		return nil, err
	}
	s.journal.File(journal.Debug, "stat", path, user.Name)
	return respond(path)
}

// listDir lists a folder depth levels deep, each folder directly before its content, in the order of names.
func (s *service) listDir(ctx context.Context, r *connect.Request[listRequest]) (*listResponse, error) {
	user, path, err := s.resolve(r.Header, r.Msg.Path)
	if err != nil {
		return nil, err
	}
	if err := checkFolder(path); err != nil {
		return nil, err
	}
	s.journal.File(journal.Debug, "list", path, user.Name)
	response := &listResponse{Entries: []*entryInfo{}}
	err = list(ctx, newDescriber(), path, max(r.Msg.Depth, 1), &response.Entries)
	return response, fault(err)
}

func list(ctx context.Context, d *describer, folder string, depth connect.Uint32, out *[]*entryInfo) error {
	children, err := os.ReadDir(folder)
	if err != nil {
		return err
	}
	for _, child := range children {
		if err := ctx.Err(); err != nil {
			return err
		}
		path := filepath.Join(folder, child.Name())
		info, err := child.Info()
		if err != nil {
			continue // it is gone already
		}
		*out = append(*out, d.describe(path, info))
		if depth > 1 && child.IsDir() {
			if err := list(ctx, d, path, depth-1, out); err != nil && ctx.Err() != nil {
				return err // else the folder is gone, or can't be read; the rest can
			}
		}
	}
	return nil
}

func (s *service) makeDir(_ context.Context, r *connect.Request[pathRequest]) (*entryResponse, error) {
	user, path, err := s.resolve(r.Header, r.Msg.Path)
	if err != nil {
		return nil, err
	}
	made, err := dirs.MakeAll(path, user)
	if err != nil {
		return nil, fault(err)
	}
	if !made {
		return nil, connect.Errorf(connect.AlreadyExists, "directory '%s' already exists", path)
	}
	s.journal.File(journal.Info, "make", path, user.Name)
	return respond(path)
}

func (s *service) move(ctx context.Context, r *connect.Request[moveRequest]) (*entryResponse, error) {
	user, source, err := s.resolve(r.Header, r.Msg.Source)
	if err != nil {
		return nil, err
	}
	_, destination, err := s.resolve(r.Header, r.Msg.Destination)
	if err != nil {
		return nil, err
	}
	if _, err := os.Lstat(source); err != nil {
		return nil, fault(err)
	}
	if _, err := dirs.MakeAll(filepath.Dir(destination), user); err != nil {
		return nil, fault(err)
	}
	if err := moveTo(ctx, source, destination); err != nil {
		return nil, fault(err)
	}
	s.journal.File(journal.Info, "move", source, user.Name, "to", destination)
	return respond(destination)
}

func (s *service) remove(_ context.Context, r *connect.Request[pathRequest]) (*empty, error) {
	user, path, err := s.resolve(r.Header, r.Msg.Path)
	if err != nil {
		return nil, err
	}
	if path == "/" {
		return nil, connect.Errorf(connect.InvalidArgument, "the root directory can't be removed")
	}
	if err := os.RemoveAll(path); err != nil {
		return nil, fault(err)
	}
	s.journal.File(journal.Info, "remove", path, user.Name)
	return &empty{}, nil
}

// resolve returns the user a request acts for, and its path made absolute.
func (s *service) resolve(header http.Header, path string) (*users.User, string, error) {
	user, err := s.state.User(users.FromHeader(header))
	if err == nil {
		path, err = users.Resolve(path, user, s.state.DefaultWorkdir())
	}
	return user, path, fault(err)
}

func respond(path string) (*entryResponse, error) {
	entry, err := newDescriber().stat(path)
	if err != nil {
		return nil, fault(err)
	}
	return &entryResponse{Entry: entry}, nil
}

// checkFolder fails unless path, or what it links to, is a folder.
func checkFolder(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return fault(err)
	}
	if !info.IsDir() {
		return connect.Errorf(connect.InvalidArgument, "path '%s' is not a directory", path)
	}
	return nil
}

// faultCodes says which code an error of the file system has on the wire; any other is internal.
var faultCodes = []struct {
	err  error
	code connect.Code
}{
	{syscall.ENOTEMPTY, connect.FailedPrecondition}, // before ErrExist, which includes it
	{os.ErrNotExist, connect.NotFound},
	{os.ErrExist, connect.AlreadyExists},
	{os.ErrPermission, connect.PermissionDenied},
	{syscall.EROFS, connect.PermissionDenied},
	{syscall.ENOTDIR, connect.InvalidArgument},
	{syscall.EISDIR, connect.InvalidArgument},
	{syscall.EINVAL, connect.InvalidArgument},
	{syscall.ENAMETOOLONG, connect.InvalidArgument},
	{syscall.ELOOP, connect.InvalidArgument},
	{syscall.EXDEV, connect.FailedPrecondition},
	{syscall.EBUSY, connect.FailedPrecondition},
	{syscall.ENOSPC, connect.FailedPrecondition},
	{syscall.EDQUOT, connect.FailedPrecondition},
	{syscall.EMFILE, connect.ResourceExhausted},
}

// fault gives an error of the file system or of the accounts its code; a *connect.Error, a context's error and nil pass.
func fault(err error) error {
	var done *connect.Error
	if err == nil || errors.As(err, &done) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	var unknown *users.UnknownUserError
	if errors.As(err, &unknown) {
		return connect.Errorf(connect.Unauthenticated, "%s", unknown.Error())
	}
	var path *os.PathError
	if errors.Is(err, os.ErrNotExist) && errors.As(err, &path) {
		return connect.Errorf(connect.NotFound, "path '%s' does not exist", path.Path)
	}
	for _, known := range faultCodes {
		if errors.Is(err, known.err) {
			return connect.Errorf(known.code, "%s", err.Error())
		}
	}
	return connect.Errorf(connect.Internal, "%s", err.Error())
}
