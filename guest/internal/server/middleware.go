package server

import (
	"io"
	"log"
	"net/http"
	"runtime/debug"

	"aenv/envd/internal/rest"
	"aenv/envd/internal/version"
)

const tokenHeader = "X-Access-Token"

// ServeHTTP does for every request what doesn't depend on its route: CORS, the access token, and what a panic answers.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("Origin") != "" && allowOrigin(w, r) {
		return
	}
	if r.URL.Path == "/health" && (r.Method == http.MethodGet || r.Method == http.MethodHead) {
		w.Header().Set("X-Envd-Version", version.Version)
		w.Header().Set("Cache-Control", "no-store")
		w.WriteHeader(http.StatusNoContent)
		return
	}
	if !exempt(r) && !s.session.Authorized(r.Header.Get(tokenHeader)) {
		rest.Error(w, http.StatusUnauthorized, rest.Unauthorized)
		return
	}
	if r.RequestURI == "*" { // the mux would answer without a body
		rest.Error(w, http.StatusBadRequest, "no route: %s *", r.Method)
		return
	}
	tracked := &response{ResponseWriter: w}
	defer func() {
		if p := recover(); p != nil {
			answerPanic(tracked, r, p)
		}
	}()
	s.mux.ServeHTTP(tracked, r)
}

// exempt tells whether a route checks its caller itself: /files also takes a signature, and a captured guest, whose token
// the server need not know, takes /init, which sets it, and /warm.
func exempt(r *http.Request) bool {
	switch r.URL.Path {
	case "/files":
		return r.Method == http.MethodGet || r.Method == http.MethodHead || r.Method == http.MethodPost
	case "/init", "/warm":
		return r.Method == http.MethodPost
	}
	return false
}

// allowOrigin lets web pages of any origin use envd (the token protects it, no cookies are used). It answers a preflight
// request and then returns true.
func allowOrigin(w http.ResponseWriter, r *http.Request) bool {
	h := w.Header()
	h.Set("Access-Control-Allow-Origin", "*")
	h.Set("Access-Control-Expose-Headers", "*")
	if r.Method != http.MethodOptions || r.Header.Get("Access-Control-Request-Method") == "" {
		return false
	}
	h.Set("Access-Control-Allow-Methods", "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS")
	// "*" would not cover Authorization, so the answer names what was asked for.
	h.Set("Access-Control-Allow-Headers", r.Header.Get("Access-Control-Request-Headers"))
	h.Set("Access-Control-Max-Age", "7200")
	h.Add("Vary", "Access-Control-Request-Headers")
	w.WriteHeader(http.StatusNoContent)
	return true
}

// answerPanic answers 500, or breaks the connection if a response has already begun.
func answerPanic(w *response, r *http.Request, p any) {
	if p != http.ErrAbortHandler {
		log.Printf("envd: panic in %s %s: %v\n%s", r.Method, r.URL.Path, p, debug.Stack())
	}
	if w.begun || p == http.ErrAbortHandler {
		panic(http.ErrAbortHandler)
	}
	rest.Error(w, http.StatusInternalServerError, "internal error")
}

// response remembers whether anything was written. It keeps the fast paths of the writer it wraps.
type response struct {
	http.ResponseWriter
	begun bool
}

func (w *response) WriteHeader(status int) {
	w.begun = true
	w.ResponseWriter.WriteHeader(status)
}

func (w *response) Write(data []byte) (int, error) {
	w.begun = true
	return w.ResponseWriter.Write(data)
}

// ReadFrom implements io.ReaderFrom, so that files can be sent by the kernel.
func (w *response) ReadFrom(r io.Reader) (int64, error) {
	w.begun = true
	return io.Copy(w.ResponseWriter, r)
}

// Unwrap lets http.ResponseController reach the wrapped writer.
func (w *response) Unwrap() http.ResponseWriter { return w.ResponseWriter }
