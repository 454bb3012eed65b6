package process

import (
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"aenv/envd/internal/connect"
	"aenv/envd/internal/reaper"
)

// killWait bounds how long a SIGKILL waits until the process is really gone.
const killWait = time.Second

// running is a process that envd started, from its start until its end is forgotten.
type running struct {
	config *config
	tag    *string
	cmd    *exec.Cmd
	pid    int

	outputs  []output
	terminal *os.File      // the PTY's master, nil without a PTY
	stdin    *os.File      // where input is written: a pipe, or terminal; nil without either
	writing  chan struct{} // holds a token while somebody writes to stdin

	mu          sync.Mutex
	subscribers []*subscriber // replaced, never changed in place

	timedOut atomic.Bool   // killed at its deadline
	exited   chan struct{} // closed at the exit; then exitTime is set
	exitTime time.Time
	done     chan struct{} // closed when all output was read; then end is set
	end      *ending
}

// subscriber is one client that follows a process.
type subscriber struct {
	events chan *event
	gone   chan struct{} // closed when the client is gone
}

// hasExited tells whether the process itself is gone; its output may still be read.
func (p *running) hasExited() bool {
	select {
	case <-p.exited:
		return true
	default:
		return false
	}
}

func (p *running) subscribe() *subscriber {
	s := &subscriber{events: make(chan *event, 1), gone: make(chan struct{})}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.subscribers = append(p.subscribers[:len(p.subscribers):len(p.subscribers)], s)
	return s
}

func (p *running) unsubscribe(s *subscriber) {
	close(s.gone)
	p.mu.Lock()
	defer p.mu.Unlock()
	rest := make([]*subscriber, 0, len(p.subscribers))
	for _, other := range p.subscribers {
		if other != s {
			rest = append(rest, other)
		}
	}
	p.subscribers = rest
}

// run follows a started process to its end.
func (p *running) run() {
	var readers sync.WaitGroup
	for _, out := range p.outputs {
		readers.Go(func() { p.read(out) })
	}
	err := reaper.Wait(p.cmd)
	p.exitTime = time.Now()
	close(p.exited)
	for _, out := range p.outputs {
		_ = out.file.SetReadDeadline(p.exitTime.Add(drainIdle)) // for a read that is under way
	}
	readers.Wait()
	for _, out := range p.outputs {
		_ = out.file.Close()
	}
	if p.stdin != nil {
		_ = p.stdin.Close()
	}
	p.end = newEnding(p.cmd.ProcessState, err)
	close(p.done)
}

func newEnding(state *os.ProcessState, err error) *ending {
	if state == nil {
		text := err.Error()
		return &ending{ExitCode: -1, Status: text, Error: &text}
	}
	end := &ending{ExitCode: state.ExitCode(), Exited: state.Exited(), Status: state.String()}
	if err != nil {
		text := err.Error()
		end.Error = &text
	}
	return end
}

// follow sends the process's events to a client until the process ends or the client goes.
func (p *running) follow(ctx context.Context, s *subscriber, keepalive time.Duration, send func(*event) error) error {
	stop := context.AfterFunc(ctx, func() { p.unsubscribe(s) }) // also while send blocks
	defer func() {
		if stop() {
			p.unsubscribe(s)
		}
	}()
	if err := send(&event{start: p.pid}); err != nil {
		return err
	}
	idle := time.NewTimer(keepalive)
	defer idle.Stop()
	for {
		var err error
		select {
		case e := <-s.events:
			err = send(e)
		case <-idle.C:
			err = send(&event{keepalive: true})
		case <-ctx.Done():
			return ctx.Err()
		case <-p.done:
			return p.finish(ctx, s, send)
		}
		if err != nil {
			return err
		}
		idle.Reset(keepalive)
	}
}

// finish sends what is left once all output was published, and the end.
func (p *running) finish(ctx context.Context, s *subscriber, send func(*event) error) error {
	for {
		select {
		case e := <-s.events:
			if err := send(e); err != nil {
				return err
			}
			continue
		default:
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		return send(&event{end: p.end})
	}
}

// signal sends a signal to the process's whole group, and to the group that has its terminal.
func (p *running) signal(sig syscall.Signal) error {
	if p.hasExited() {
		return os.ErrProcessDone
	}
	if p.terminal != nil {
		if group := foreground(p.terminal); group > 1 && group != p.pid {
			_ = syscall.Kill(-group, sig)
		}
	}
	err := syscall.Kill(-p.pid, sig)
	if errors.Is(err, syscall.ESRCH) {
		return os.ErrProcessDone
	}
	return err
}

// kill sends SIGKILL and waits until the process is gone, so that nobody sees it afterwards.
func (p *running) kill(ctx context.Context) error {
	if err := p.signal(syscall.SIGKILL); err != nil {
		return err
	}
	limit := time.NewTimer(killWait)
	defer limit.Stop()
	select {
	case <-p.exited:
	case <-limit.C:
	case <-ctx.Done():
	}
	return nil
}

// write writes input to the process; it blocks while the process doesn't read, until ctx ends.
func (p *running) write(ctx context.Context, data []byte) error {
	select {
	case p.writing <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-p.writing }()
	_ = p.stdin.SetWriteDeadline(time.Time{})
	interrupted := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		_ = p.stdin.SetWriteDeadline(time.Unix(1, 0))
		close(interrupted)
	})
	_, err := p.stdin.Write(data)
	if !stop() {
		<-interrupted // else it could hit the next write
	}
	switch {
	case err == nil:
		return nil
	case errors.Is(err, os.ErrDeadlineExceeded) && ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(err, os.ErrClosed), errors.Is(err, syscall.EPIPE), errors.Is(err, syscall.EIO), errors.Is(err, io.EOF):
		return connect.Errorf(connect.FailedPrecondition, "the input of process %d is closed", p.pid)
	}
	return connect.Errorf(connect.Internal, "write to process %d: %s", p.pid, err.Error())
}
