package filesystem

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"net/http"
	"os"
	"sync"
	"time"

	"aenv/envd/internal/connect"
	"aenv/envd/internal/journal"
)

// Bounds of polled watchers: a client that forgets them must not fill the guest's memory.
const (
	maxWatchers = 512
	maxQueued   = 16384 // events of one watcher, as many as the kernel queues
)

type watchRequest struct {
	Path         string `json:"path"`
	Recursive    bool   `json:"recursive"`
	IncludeEntry bool   `json:"includeEntry"`
}

type watcherRequest struct {
	WatcherID string `json:"watcherId"`
}

type watcherResponse struct {
	WatcherID string `json:"watcherId"`
}

type eventsResponse struct {
	Events []event `json:"events"`
}

type watchResponse struct {
	Start      *empty `json:"start,omitempty"`
	Filesystem *event `json:"filesystem,omitempty"`
	Keepalive  *empty `json:"keepalive,omitempty"`
}

// open starts watching the folder of a request.
func (s *service) open(header http.Header, r *watchRequest) (*tree, error) {
	user, path, err := s.resolve(header, r.Path)
	if err != nil {
		return nil, err
	}
	if err := checkFolder(path); err != nil {
		return nil, err
	}
	t, err := watch(path, r.Recursive, r.IncludeEntry)
	if err != nil {
		return nil, fault(err)
	}
	s.journal.File(journal.Debug, "watch", path, user.Name)
	return t, nil
}

// watchDir streams events until the client goes. A client that reads slowly holds up the reading of the kernel's queue, and hears
// of it as an error when that overflows.
func (s *service) watchDir(ctx context.Context, r *connect.Request[watchRequest], send func(*watchResponse) error) error {
	t, err := s.open(r.Header, r.Msg)
	if err != nil {
		return err
	}
	defer t.close()
	defer context.AfterFunc(ctx, t.close)()
	if err := send(&watchResponse{Start: &empty{}}); err != nil {
		return err
	}
	keepalive := connect.KeepaliveInterval(r.Header)
	for {
		if err := t.file.SetReadDeadline(time.Now().Add(keepalive)); err != nil && ctx.Err() == nil {
			return err
		}
		var events []event
		var readErr error
		err := t.conn.Read(func(fd uintptr) bool {
			var n int
			n, events, readErr = t.read(fd)
			return n > 0 || readErr != nil
		})
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if errors.Is(err, os.ErrDeadlineExceeded) {
			if err := send(&watchResponse{Keepalive: &empty{}}); err != nil {
				return err
			}
			continue
		}
		for i := range events {
			if err := send(&watchResponse{Filesystem: &events[i]}); err != nil {
				return err
			}
		}
		if err := errors.Join(err, readErr); err != nil {
			return fault(err)
		}
	}
}

// poller keeps the events of a watcher until its client asks for them.
type poller struct {
	mu     sync.Mutex
	tree   *tree
	events []event
	err    error // told to the client once, after the events before it
}

// run collects events as they come, so that new folders are watched at once. It ends when the tree is closed.
func (p *poller) run() {
	_ = p.tree.conn.Read(func(fd uintptr) bool {
		p.collect(fd)
		return false
	})
}

// collect moves what waits in the kernel's queue into events.
func (p *poller) collect(fd uintptr) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		n, events, err := p.tree.read(fd)
		if room := maxQueued - len(p.events); len(events) > room {
			events, err = events[:room], errLost
		}
		p.events = append(p.events, events...)
		if err != nil && p.err == nil {
			p.err = err
		}
		if n == 0 {
			return
		}
	}
}

// take returns everything that happened until now, and forgets it.
func (p *poller) take() ([]event, error) {
	if err := p.tree.conn.Control(p.collect); err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	events := p.events
	p.events = nil
	if len(events) == 0 && p.err != nil {
		err := p.err
		p.err = nil
		return nil, err
	}
	if events == nil {
		events = []event{}
	}
	return events, nil
}

// registry owns the polled watchers.
type registry struct {
	mu   sync.Mutex
	open map[string]*poller
}

func (g *registry) get(id string) (*poller, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if p, ok := g.open[id]; ok {
		return p, nil
	}
	return nil, connect.Errorf(connect.NotFound, "watcher with id %s not found", id)
}

func (s *service) createWatcher(_ context.Context, r *connect.Request[watchRequest]) (*watcherResponse, error) {
	t, err := s.open(r.Header, r.Msg)
	if err != nil {
		return nil, err
	}
	var random [8]byte
	_, _ = rand.Read(random[:]) // it never fails
	id := hex.EncodeToString(random[:])
	p := &poller{tree: t}
	s.watchers.mu.Lock()
	full := len(s.watchers.open) >= maxWatchers
	if !full {
		s.watchers.open[id] = p
	}
	s.watchers.mu.Unlock()
	if full {
		t.close()
		return nil, connect.Errorf(connect.ResourceExhausted, "there are %d watchers already: remove some", maxWatchers)
	}
	go p.run()
	return &watcherResponse{WatcherID: id}, nil
}

func (s *service) getWatcherEvents(_ context.Context, r *connect.Request[watcherRequest]) (*eventsResponse, error) {
	p, err := s.watchers.get(r.Msg.WatcherID)
	if err != nil {
		return nil, err
	}
	events, err := p.take()
	if err != nil {
		return nil, fault(err)
	}
	return &eventsResponse{Events: events}, nil
}

func (s *service) removeWatcher(_ context.Context, r *connect.Request[watcherRequest]) (*empty, error) {
	p, err := s.watchers.get(r.Msg.WatcherID)
	if err != nil {
		return nil, err
	}
	s.watchers.mu.Lock()
	delete(s.watchers.open, r.Msg.WatcherID)
	s.watchers.mu.Unlock()
	p.tree.close()
	return &empty{}, nil
}
