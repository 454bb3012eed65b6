// Package connect serves the Connect RPC protocol (https://connectrpc.com/docs/protocol) with its JSON codec, over
// HTTP/1.1 and without compression: what the E2B SDKs speak, and no more.
package connect

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"runtime/debug"
	"strconv"
	"strings"
	"time"
)

const (
	unaryType  = "application/json"
	streamType = "application/connect+json"

	// defaultKeepalive is the interval of keepalive messages when a client asks for none.
	defaultKeepalive = 90 * time.Second
)

// Request is the message of a call with the HTTP headers it came with.
type Request[T any] struct {
	Msg    *T
	Header http.Header
}

// Unary serves a procedure ("/package.Service/Method") of one request and one response.
func Unary[Req, Res any](mux *http.ServeMux, procedure string, fn func(context.Context, *Request[Req]) (*Res, error)) {
	mux.HandleFunc("POST "+procedure, func(w http.ResponseWriter, r *http.Request) {
		if !hasType(w, r, unaryType) {
			return
		}
		var res *Res
		err := guard(func() error {
			ctx, cancel, err := withTimeout(r)
			if err != nil {
				return err
			}
			defer cancel()
			msg, err := readUnary[Req](r)
			if err != nil {
				return err
			}
			res, err = fn(ctx, &Request[Req]{Msg: msg, Header: r.Header})
			return err
		})
		if err != nil {
			WriteError(w, err)
			return
		}
		body, err := appendMessage(nil, res)
		if err != nil {
			WriteError(w, err)
			return
		}
		w.Header().Set("Content-Type", unaryType)
		_, _ = w.Write(body)
	})
}

// ServerStream serves a procedure of one request and many responses. Each send is flushed; it fails once the client
// is gone. A slow client makes send block.
func ServerStream[Req, Res any](mux *http.ServeMux, procedure string,
	fn func(ctx context.Context, req *Request[Req], send func(*Res) error) error) {
	handleStream(mux, procedure, func(ctx context.Context, r *http.Request, out *writer) error {
		frame, err := readFrame(r.Body, MaxMessageSize)
		if err != nil {
			return noMessage(err)
		}
		// Reading on to the end of the body lets net/http watch the connection and cancel ctx when the client goes.
		if n, _ := io.ReadFull(r.Body, make([]byte, 1)); n > 0 {
			return Errorf(InvalidArgument, "the procedure takes one message, the request has more")
		}
		msg, err := decode[Req](frame)
		if err != nil {
			return err
		}
		return fn(ctx, &Request[Req]{Msg: msg, Header: r.Header}, func(res *Res) error { return out.send(0, res) })
	})
}

// ClientStream serves a procedure of many requests and one response. recv returns io.EOF after the last request.
func ClientStream[Req, Res any](mux *http.ServeMux, procedure string,
	fn func(ctx context.Context, header http.Header, recv func() (*Req, error)) (*Res, error)) {
	handleStream(mux, procedure, func(ctx context.Context, r *http.Request, out *writer) error {
		res, err := fn(ctx, r.Header, func() (*Req, error) {
			frame, err := readFrame(r.Body, MaxMessageSize)
			if err != nil {
				return nil, err
			}
			return decode[Req](frame)
		})
		if err != nil {
			return noMessage(err)
		}
		return out.send(0, res)
	})
}

// noMessage words the io.EOF of a stream that ended where a message was needed.
func noMessage(err error) error {
	if errors.Is(err, io.EOF) {
		return Errorf(InvalidArgument, "the request has no message")
	}
	return err
}

// KeepaliveInterval returns how often an idle stream must send a keepalive message to this client.
func KeepaliveInterval(h http.Header) time.Duration {
	seconds, err := strconv.ParseUint(h.Get("Keepalive-Ping-Interval"), 10, 31)
	if err != nil || seconds == 0 {
		return defaultKeepalive
	}
	return time.Duration(seconds) * time.Second
}

// WriteError answers a unary call with err.
func WriteError(w http.ResponseWriter, err error) {
	e := asError(err)
	body, _ := json.Marshal(e)
	w.Header().Set("Content-Type", unaryType)
	w.WriteHeader(e.Code.HTTPStatus())
	_, _ = w.Write(body)
}

// writer sends the frames of a response, reusing one buffer.
type writer struct {
	w       http.ResponseWriter
	control *http.ResponseController
	buf     []byte
}

func (o *writer) send(flags byte, msg any) error {
	frame, err := appendFrame(o.buf[:0], flags, msg)
	if err != nil {
		return err
	}
	o.buf = frame
	if _, err := o.w.Write(frame); err != nil {
		return Errorf(Canceled, "writing the response: %s", err.Error())
	}
	return o.control.Flush()
}

type endOfStream struct {
	Error *Error `json:"error,omitempty"`
}

// handleStream serves a streaming procedure: status 200 always, and an end frame with the outcome of fn.
func handleStream(mux *http.ServeMux, procedure string, fn func(context.Context, *http.Request, *writer) error) {
	mux.HandleFunc("POST "+procedure, func(w http.ResponseWriter, r *http.Request) {
		if !hasType(w, r, streamType) {
			return
		}
		w.Header().Set("Content-Type", streamType)
		out := &writer{w: w, control: http.NewResponseController(w)}
		err := guard(func() error {
			ctx, cancel, err := withTimeout(r)
			if err != nil {
				return err
			}
			defer cancel()
			if e := r.Header.Get("Connect-Content-Encoding"); e != "" && e != "identity" {
				return Errorf(Unimplemented, "unknown compression %q: send identity", e)
			}
			return fn(ctx, r, out)
		})
		var end endOfStream
		if err != nil {
			end.Error = asError(err)
		}
		_ = out.send(flagEnd, &end)
	})
}

// hasType checks the request's Content-Type, and answers 415 if it is another one.
func hasType(w http.ResponseWriter, r *http.Request, want string) bool {
	got, _, _ := strings.Cut(r.Header.Get("Content-Type"), ";")
	if strings.EqualFold(strings.TrimSpace(got), want) {
		return true
	}
	body, _ := json.Marshal(Errorf(Unknown, "unsupported content type %q: send %s", got, want))
	w.Header().Set("Accept-Post", want)
	w.Header().Set("Content-Type", unaryType)
	w.WriteHeader(http.StatusUnsupportedMediaType)
	_, _ = w.Write(body)
	return false
}

// readUnary reads the request's whole body as one message.
func readUnary[T any](r *http.Request) (*T, error) {
	if e := r.Header.Get("Content-Encoding"); e != "" && e != "identity" {
		return nil, Errorf(Unimplemented, "unknown compression %q: send identity", e)
	}
	data, err := io.ReadAll(io.LimitReader(r.Body, MaxMessageSize+1))
	if err != nil {
		return nil, readError(err)
	}
	if len(data) > MaxMessageSize {
		return nil, tooLarge(MaxMessageSize)
	}
	return decode[T](data)
}

// withTimeout derives the call's context from the header Connect-Timeout-Ms. Absent or 0 means no deadline.
func withTimeout(r *http.Request) (context.Context, context.CancelFunc, error) {
	text := r.Header.Get("Connect-Timeout-Ms")
	if text == "" {
		return r.Context(), func() {}, nil
	}
	ms, err := strconv.ParseUint(text, 10, 64)
	if err != nil || len(text) > 10 {
		return nil, nil, Errorf(InvalidArgument, "Connect-Timeout-Ms must be at most ten digits, not %q", text)
	}
	if ms == 0 {
		return r.Context(), func() {}, nil
	}
	ctx, cancel := context.WithTimeout(r.Context(), time.Duration(ms)*time.Millisecond)
	return ctx, cancel, nil
}

// guard runs fn and turns a panic into an error, so that the client gets a whole response.
func guard(fn func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			if p == http.ErrAbortHandler {
				panic(p)
			}
			log.Printf("envd: panic in a procedure: %v\n%s", p, debug.Stack())
			err = Errorf(Internal, "%s", fmt.Sprint("panic: ", p))
		}
	}()
	return fn()
}
