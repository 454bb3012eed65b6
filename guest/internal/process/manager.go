// Package process serves process.Process: it starts processes in the guest, with pipes or a terminal, and lets clients
// follow, feed, signal and list them.
package process

import (
	"context"
	"slices"
	"sync"
	"time"

	"aenv/envd/internal/connect"
	"aenv/envd/internal/guestos"
	"aenv/envd/internal/journal"
	"aenv/envd/internal/reaper"
	"aenv/envd/internal/session"
)

// retention is how long the end of a process can still be asked for with Connect.
const retention = 30 * time.Second

// Manager owns every process that clients started.
type Manager struct {
	session *session.State
	journal *journal.Journal

	mu    sync.Mutex
	table map[int]*running

	startMu sync.Mutex // held during a start
	hold    *hold      // nil unless starts are held back
}

// hold is one time between Hold and Release.
type hold struct {
	released chan struct{}
	drop     bool // set before released is closed: starts that waited are void
}

// NewManager returns a manager without processes.
func NewManager(s *session.State, j *journal.Journal) *Manager {
	return &Manager{session: s, journal: j, table: map[int]*running{}}
}

// Hold keeps new processes from starting, and returns once no start is under way. A process that is started into a
// frozen cgroup never reaches its program, and the thread of envd that starts it waits with it.
func (m *Manager) Hold() {
	m.startMu.Lock()
	defer m.startMu.Unlock()
	if m.hold == nil {
		m.hold = &hold{released: make(chan struct{})}
	}
}

// Release ends Hold. With drop, starts that waited fail: after a restore their clients belong to another sandbox.
func (m *Manager) Release(drop bool) {
	m.startMu.Lock()
	defer m.startMu.Unlock()
	if m.hold != nil {
		m.hold.drop = drop
		close(m.hold.released)
		m.hold = nil
	}
}

// lockStart takes startMu, after waiting for Release if starts are held back.
func (m *Manager) lockStart(ctx context.Context) error {
	m.startMu.Lock()
	for m.hold != nil {
		hold := m.hold
		m.startMu.Unlock()
		select {
		case <-hold.released:
		case <-ctx.Done():
			return ctx.Err()
		}
		if hold.drop {
			return connect.Errorf(connect.Aborted, "the sandbox was restored from a snapshot before the process could start")
		}
		m.startMu.Lock()
	}
	return nil
}

type rehearsal struct{}

// Rehearse marks a request that starts a process while user processes are frozen: it isn't held back, and the process
// runs outside the frozen cgroup. It is envd's own and must have ended before the guest gets an identity.
func Rehearse(ctx context.Context) context.Context { return context.WithValue(ctx, rehearsal{}, true) }

func rehearsing(ctx context.Context) bool { return ctx.Value(rehearsal{}) != nil }

// start starts a process and subscribes its client. A deadline of ctx also ends the process, client or not.
func (m *Manager) start(ctx context.Context, userName string, req *startRequest) (*running, *subscriber, error) {
	cmd, user, err := newCommand(m.session, userName, req.Process)
	if err != nil {
		return nil, nil, err
	}
	if rehearsing(ctx) {
		m.startMu.Lock()
	} else if err := m.lockStart(ctx); err != nil {
		return nil, nil, err
	}
	defer m.startMu.Unlock()
	if fd, ok := guestos.UserCgroupFD(); ok && !rehearsing(ctx) {
		cmd.SysProcAttr.UseCgroupFD, cmd.SysProcAttr.CgroupFD = true, fd
	}
	p, f, err := prepare(cmd, user, req)
	if err != nil {
		return nil, nil, err
	}
	defer closeAll(f.child)
	if err := reaper.Start(cmd); err != nil {
		closeAll(f.parent)
		return nil, nil, startError(err)
	}
	p.pid = cmd.Process.Pid
	_ = guestos.ResetOOMScore(p.pid) // fails if the process is already gone
	s := p.subscribe()
	m.mu.Lock()
	m.table[p.pid] = p
	m.mu.Unlock()
	j := m.journal
	if rehearsing(ctx) {
		j = nil
	}
	noteStart(j, p, user.Name)
	go m.own(p, deadlineTimer(ctx, p), j)
	return p, s, nil
}

// deadlineTimer kills p at ctx's deadline; nil if there is none.
func deadlineTimer(ctx context.Context, p *running) *time.Timer {
	deadline, ok := ctx.Deadline()
	if !ok {
		return nil
	}
	return time.AfterFunc(time.Until(deadline), func() {
		p.timedOut.Store(true)
		_ = p.kill(context.Background())
	})
}

// own follows a process to its end and then forgets it.
func (m *Manager) own(p *running, deadline *time.Timer, j *journal.Journal) {
	p.run()
	noteEnd(j, p)
	if deadline != nil {
		deadline.Stop()
	}
	time.AfterFunc(retention, func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		if m.table[p.pid] == p { // the kernel may have given the PID to another process meanwhile
			delete(m.table, p.pid)
		}
	})
}

// find returns the selected process. It may have exited, if the selector accepts that.
func (m *Manager) find(s selector, alsoExited bool) (*running, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case s.PID != nil:
		if p := m.table[int(*s.PID)]; p != nil && (alsoExited || !p.hasExited()) {
			return p, nil
		}
		return nil, connect.Errorf(connect.NotFound, "process with pid %d not found", *s.PID)
	case s.Tag != nil:
		var found *running
		for _, p := range m.table {
			if p.tag == nil || *p.tag != *s.Tag {
				continue
			}
			if !p.hasExited() {
				return p, nil
			}
			if alsoExited {
				found = p
			}
		}
		if found != nil {
			return found, nil
		}
		return nil, connect.Errorf(connect.NotFound, "process with tag %s not found", *s.Tag)
	}
	return nil, connect.Errorf(connect.InvalidArgument, "the request selects no process")
}

// list describes the processes that run, by PID.
func (m *Manager) list() []info {
	m.mu.Lock()
	defer m.mu.Unlock()
	list := make([]info, 0, len(m.table))
	for _, p := range m.table {
		if !p.hasExited() {
			list = append(list, info{Config: p.config, PID: p.pid, Tag: p.tag})
		}
	}
	slices.SortFunc(list, func(a, b info) int { return a.PID - b.PID })
	return list
}
