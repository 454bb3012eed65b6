package process

import (
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"syscall"

	"aenv/envd/internal/connect"
	"aenv/envd/internal/users"
)

// Register adds the procedures of process.Process to mux.
func (m *Manager) Register(mux *http.ServeMux) {
	const service = "/process.Process/"
	connect.ServerStream(mux, service+"Start", m.rpcStart)
	connect.ServerStream(mux, service+"Connect", m.rpcConnect)
	connect.ClientStream(mux, service+"StreamInput", m.rpcStreamInput)
	connect.Unary(mux, service+"List", m.rpcList)
	connect.Unary(mux, service+"SendInput", m.rpcSendInput)
	connect.Unary(mux, service+"CloseStdin", m.rpcCloseStdin)
	connect.Unary(mux, service+"Update", m.rpcUpdate)
	connect.Unary(mux, service+"SendSignal", m.rpcSendSignal)
}

func (m *Manager) rpcStart(ctx context.Context, req *connect.Request[startRequest], send func(*event) error) error {
	p, s, err := m.start(ctx, users.FromHeader(req.Header), req.Msg)
	if err != nil {
		return err
	}
	return p.follow(ctx, s, connect.KeepaliveInterval(req.Header), func(e *event) error {
		if e.end != nil && p.timedOut.Load() {
			return context.DeadlineExceeded
		}
		return send(e)
	})
}

func (m *Manager) rpcConnect(ctx context.Context, req *connect.Request[selected], send func(*event) error) error {
	p, err := m.find(req.Msg.Process, true)
	if err != nil {
		return err
	}
	return p.follow(ctx, p.subscribe(), connect.KeepaliveInterval(req.Header), send)
}

func (m *Manager) rpcList(context.Context, *connect.Request[empty]) (*listResponse, error) {
	return &listResponse{Processes: m.list()}, nil
}

func (m *Manager) rpcSendInput(ctx context.Context, req *connect.Request[sendInputRequest]) (*empty, error) {
	p, err := m.find(req.Msg.Process, false)
	if err != nil {
		return nil, err
	}
	return &empty{}, p.feed(ctx, req.Msg.Input)
}

func (m *Manager) rpcStreamInput(ctx context.Context, _ http.Header,
	recv func() (*streamInputRequest, error)) (*empty, error) {
	msg, err := recv()
	if err != nil {
		return nil, err
	}
	if msg.Start == nil {
		return nil, connect.Errorf(connect.InvalidArgument, "the first message must be a start event")
	}
	p, err := m.find(msg.Start.Process, false)
	if err != nil {
		return nil, err
	}
	for {
		msg, err := recv()
		if errors.Is(err, io.EOF) {
			return &empty{}, nil
		}
		if err == nil && msg.Data != nil { // everything else is a keepalive
			err = p.feed(ctx, msg.Data.Input)
		}
		if err != nil {
			return nil, err
		}
	}
}

// feed writes input that a client sent to the process, which must have the input that it is meant for.
func (p *running) feed(ctx context.Context, in input) error {
	var data []byte
	switch {
	case in.PTY != nil && p.terminal == nil:
		return connect.Errorf(connect.FailedPrecondition, "process %d has no terminal: send stdin", p.pid)
	case in.PTY != nil:
		data = *in.PTY
	case in.Stdin == nil:
		return connect.Errorf(connect.InvalidArgument, "the request has no input")
	case p.terminal != nil:
		return connect.Errorf(connect.FailedPrecondition, "process %d has a terminal: send pty", p.pid)
	case p.stdin == nil:
		return connect.Errorf(connect.FailedPrecondition, "process %d was started without stdin", p.pid)
	default:
		data = *in.Stdin
	}
	return p.write(ctx, data)
}

func (m *Manager) rpcCloseStdin(_ context.Context, req *connect.Request[selected]) (*empty, error) {
	p, err := m.find(req.Msg.Process, false)
	switch {
	case err != nil:
		return nil, err
	case p.terminal != nil:
		return nil, connect.Errorf(connect.FailedPrecondition, "process %d has a terminal: send it Ctrl-D (0x04)", p.pid)
	case p.stdin == nil:
		return nil, connect.Errorf(connect.FailedPrecondition, "process %d was started without stdin", p.pid)
	}
	if err := p.stdin.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
		return nil, err
	}
	return &empty{}, nil
}

func (m *Manager) rpcUpdate(_ context.Context, req *connect.Request[updateRequest]) (*empty, error) {
	p, err := m.find(req.Msg.Process, false)
	if err != nil {
		return nil, err
	}
	if req.Msg.PTY == nil {
		return &empty{}, nil
	}
	if p.terminal == nil {
		return nil, connect.Errorf(connect.FailedPrecondition, "process %d has no terminal", p.pid)
	}
	return &empty{}, resize(p.terminal, req.Msg.PTY.Size)
}

func (m *Manager) rpcSendSignal(ctx context.Context, req *connect.Request[sendSignalRequest]) (*empty, error) {
	p, err := m.find(req.Msg.Process, false)
	if err != nil {
		return nil, err
	}
	switch sig := syscall.Signal(req.Msg.Signal); sig {
	case 0:
		return nil, connect.Errorf(connect.InvalidArgument, "the request names no signal")
	case syscall.SIGKILL:
		err = p.kill(ctx)
	default:
		err = p.signal(sig)
	}
	if errors.Is(err, os.ErrProcessDone) {
		return nil, connect.Errorf(connect.NotFound, "process with pid %d not found", p.pid)
	}
	return &empty{}, err
}
