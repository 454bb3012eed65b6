package server

import (
	"context"
	"net"
	"net/http"
	"sync"
)

// connections knows the server's open connections.
type connections struct {
	mu   sync.Mutex
	open map[net.Conn]struct{}
}

type connKey struct{}

// remember is http.Server.ConnContext: a handler can tell which connection its request came on.
func (c *connections) remember(ctx context.Context, conn net.Conn) context.Context {
	return context.WithValue(ctx, connKey{}, conn)
}

// track is http.Server.ConnState.
func (c *connections) track(conn net.Conn, state http.ConnState) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch state {
	case http.StateNew:
		if c.open == nil {
			c.open = map[net.Conn]struct{}{}
		}
		c.open[conn] = struct{}{}
	case http.StateClosed, http.StateHijacked:
		delete(c.open, conn)
	}
}

// dropOthers closes every connection but the one of ctx. After a restore they lead nowhere: their peers belong to the VM
// that was captured, and a process whose output nobody takes would wait for TCP to give up.
func (c *connections) dropOthers(ctx context.Context) {
	mine, _ := ctx.Value(connKey{}).(net.Conn)
	c.mu.Lock()
	defer c.mu.Unlock()
	for conn := range c.open {
		if conn == mine {
			continue
		}
		if tcp, ok := conn.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0) // discard what was not sent
		}
		_ = conn.Close()
	}
}
