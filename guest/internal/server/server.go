// Package server is envd's HTTP server: one port with the REST routes, the Connect services and their protection.
package server

import (
	"context"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"aenv/envd/internal/archive"
	"aenv/envd/internal/connect"
	"aenv/envd/internal/files"
	"aenv/envd/internal/filesystem"
	"aenv/envd/internal/guestos"
	"aenv/envd/internal/hooks"
	"aenv/envd/internal/journal"
	"aenv/envd/internal/metrics"
	"aenv/envd/internal/process"
	"aenv/envd/internal/rest"
	"aenv/envd/internal/session"
)

// DefaultPort is the port at which E2B clients expect envd in the guest.
const DefaultPort = 49983

const (
	// headerTimeout bounds how long a request's header may take: it keeps half-open connections from piling up.
	headerTimeout = 10 * time.Second

	// TCP asks a silent peer whether it is still there, so that connections of a vanished host end.
	keepAliveIdle, keepAliveInterval, keepAliveCount = 60 * time.Second, 10 * time.Second, 3
)

// logger is what the server's own entries in the journal are filed under.
const logger = "envd"

// Guest is what the server does to the guest's kernel.
type Guest struct {
	SetClock     func(time.Time) error
	AddEntropy   func([]byte) error
	SetHostname  func(string) error
	Freeze       func() error
	Thaw         func() error
	RehearseThaw func() error
	FreezeDisk   func() error
	ThawDisk     func() error
	GrowDisk     func() error
	RunHooks     func(env map[string]string, j *journal.Journal)
}

// RealGuest acts on the kernel envd runs on.
func RealGuest() Guest {
	return Guest{guestos.SetClock, guestos.AddEntropy, guestos.SetHostname, guestos.Freeze, guestos.Thaw, guestos.RehearseThaw,
		guestos.FreezeDisk, guestos.ThawDisk, guestos.GrowDisk, hooks.Run}
}

// Server holds the state behind the routes.
type Server struct {
	guest     Guest
	session   *session.State
	journal   *journal.Journal
	processes *process.Manager
	mux       *http.ServeMux
	conns     connections

	capture  sync.Mutex // serialises /init, /freeze, /sync and /unfreeze
	captured bool       // user processes are frozen so that the VM can be captured
	synced   bool       // so is the disk, which is to be captured alone
}

// New returns a server with all routes.
func New(guest Guest) *Server {
	state := session.New()
	j := journal.New()
	s := &Server{guest: guest, session: state, journal: j, processes: process.NewManager(state, j), mux: http.NewServeMux()}
	s.mux.HandleFunc("POST /init", s.init)
	s.mux.HandleFunc("POST /freeze", s.freeze)
	s.mux.HandleFunc("POST /sync", s.sync)
	s.mux.HandleFunc("POST /unfreeze", s.unfreeze)
	s.mux.HandleFunc("POST /warm", s.warm)
	s.mux.HandleFunc("POST /grow", s.grow)
	s.mux.HandleFunc("GET /envs", s.envs)
	s.mux.HandleFunc("/", notFound)
	s.processes.Register(s.mux)
	archive.Register(s.mux)
	files.Register(s.mux, state, j)
	filesystem.Register(s.mux, state, j)
	metrics.Register(s.mux)
	j.Register(s.mux)
	return s
}

// Run serves on a port of all addresses until it fails.
func Run(port int) error {
	config := net.ListenConfig{KeepAliveConfig: net.KeepAliveConfig{
		Enable: true, Idle: keepAliveIdle, Interval: keepAliveInterval, Count: keepAliveCount,
	}}
	listener, err := config.Listen(context.Background(), "tcp", ":"+strconv.Itoa(port))
	if err != nil {
		return err
	}
	s := New(RealGuest())
	go func() {
		if err := s.journal.FollowKernel(); err != nil {
			s.journal.Add(journal.Warn, logger, "the kernel's log can't be read: "+err.Error(), nil)
		}
	}()
	return s.Serve(listener)
}

// Serve serves on listener, and closes it when it returns.
func (s *Server) Serve(listener net.Listener) error {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	server := &http.Server{
		Handler:           s,
		Protocols:         protocols,
		ReadHeaderTimeout: headerTimeout,
		ConnState:         s.conns.track,
		ConnContext:       s.conns.remember,
	}
	return server.Serve(listener)
}

// grow gives the root file system all of a disk that is larger than it was.
func (s *Server) grow(w http.ResponseWriter, _ *http.Request) {
	if err := s.guest.GrowDisk(); err != nil {
		rest.Error(w, http.StatusInternalServerError, "%v", err)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

func (s *Server) envs(w http.ResponseWriter, _ *http.Request) {
	rest.JSON(w, http.StatusOK, s.session.Env())
}

func notFound(w http.ResponseWriter, r *http.Request) {
	if strings.HasPrefix(r.Header.Get("Content-Type"), "application/connect+") || r.Header.Get("Connect-Protocol-Version") != "" {
		connect.WriteError(w, connect.Errorf(connect.Unimplemented, "no such procedure: %s", r.URL.Path))
		return
	}
	rest.Error(w, http.StatusNotFound, "no such route: %s %s", r.Method, r.URL.Path)
}
