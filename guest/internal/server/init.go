package server

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"aenv/envd/internal/journal"
	"aenv/envd/internal/rest"
	"aenv/envd/internal/session"
)

const (
	maxInitSize = 1 << 20 // bytes of JSON
	minEntropy  = 32      // bytes: what makes the kernel's generator unpredictable again

	// clockSlack is how far the guest's clock may be ahead before it is set back. Within it the difference is
	// just the time that the request took, and a clock that goes back confuses programs.
	clockSlack = time.Second
)

// sandboxIDName is the environment variable that tells processes which sandbox they are in.
const sandboxIDName = "E2B_SANDBOX_ID"

// initRequest is the body of POST /init. Absent parts leave things as they are.
type initRequest struct {
	EnvVars        map[string]string `json:"envVars"`
	AccessToken    *string           `json:"accessToken"` // "" removes the token
	Timestamp      *timestamp        `json:"timestamp"`
	DefaultUser    *string           `json:"defaultUser"`
	DefaultWorkdir *string           `json:"defaultWorkdir"`
	Hostname       string            `json:"hostname"`
	SandboxID      string            `json:"sandboxId"`
	TemplateID     string            `json:"templateId"`
	Entropy        []byte            `json:"entropy"`
}

// timestamp is a point in time: RFC 3339 text, or nanoseconds since 1970 as a number.
type timestamp struct{ time.Time }

// UnmarshalJSON implements json.Unmarshaler.
func (t *timestamp) UnmarshalJSON(data []byte) error {
	text := strings.Trim(string(data), `"`)
	if ns, err := strconv.ParseInt(text, 10, 64); err == nil {
		t.Time = time.Unix(0, ns)
		return nil
	}
	parsed, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		return fmt.Errorf("timestamp %q is neither RFC 3339 nor nanoseconds", text)
	}
	t.Time = parsed
	return nil
}

// init gives the guest its identity. After a capture it also ends the freeze, as its last step: no user process runs
// before it has the right time and fresh randomness.
func (s *Server) init(w http.ResponseWriter, r *http.Request) {
	s.capture.Lock()
	defer s.capture.Unlock()
	if !s.captured && !s.session.Authorized(r.Header.Get(tokenHeader)) {
		rest.Error(w, http.StatusUnauthorized, rest.Unauthorized)
		return
	}
	req, err := readInit(w, r)
	if err != nil {
		rest.Error(w, http.StatusBadRequest, "%v", err)
		return
	}
	if err := s.apply(r, req); err != nil {
		rest.Error(w, http.StatusInternalServerError, "%v", err)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

func readInit(w http.ResponseWriter, r *http.Request) (*initRequest, error) {
	req := &initRequest{}
	if err := read(w, r, req); err != nil {
		return nil, err
	}
	return req, req.validate()
}

func read(w http.ResponseWriter, r *http.Request, into any) error {
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxInitSize)).Decode(into); err != nil {
		return fmt.Errorf("malformed body: %w", err)
	}
	return nil
}

func (r *initRequest) validate() error {
	if r.Entropy != nil && len(r.Entropy) < minEntropy {
		return fmt.Errorf("entropy must be at least %d bytes, not %d", minEntropy, len(r.Entropy))
	}
	for name, value := range r.EnvVars {
		if name == "" || strings.ContainsAny(name, "=\x00") || strings.Contains(value, "\x00") {
			return fmt.Errorf("not an environment variable: %q", name)
		}
	}
	return nil
}

// apply does what the request says, in the order that keeps two restores of one snapshot from being twins.
// The caller holds capture.
func (s *Server) apply(r *http.Request, req *initRequest) error {
	if s.captured {
		// Whoever was root in what was captured may have left it frozen, and the name is about to be written there.
		if err := s.guest.ThawDisk(); err != nil {
			return err
		}
		s.synced = false
	}
	if err := s.prepare(req); err != nil {
		return err
	}
	s.note(req)
	s.session.Update(req.change())
	if !s.captured {
		return nil
	}
	s.conns.dropOthers(r.Context())
	return s.thaw(true)
}

// prepare gives the kernel its time, randomness and name.
func (s *Server) prepare(req *initRequest) error {
	if req.Timestamp != nil {
		if ahead := time.Since(req.Timestamp.Time); ahead < 0 || ahead > clockSlack {
			if err := s.guest.SetClock(req.Timestamp.Time); err != nil {
				return fmt.Errorf("set the clock: %w", err)
			}
		}
	}
	if req.Entropy != nil {
		if err := s.guest.AddEntropy(req.Entropy); err != nil {
			return fmt.Errorf("add entropy: %w", err)
		}
	}
	if req.Hostname != "" {
		if err := s.guest.SetHostname(req.Hostname); err != nil {
			return fmt.Errorf("set the hostname: %w", err)
		}
	}
	return nil
}

// note writes the new identity into the journal. What a guest did under another identity belongs to the sandbox that it was
// copied from, and goes.
func (s *Server) note(req *initRequest) {
	if s.captured && req.SandboxID != s.session.Env()[sandboxIDName] {
		s.journal.Forget()
	}
	s.journal.Add(journal.Info, logger, "the sandbox has its identity",
		journal.Fields{"event": "init", "sandbox": req.SandboxID, "template": req.TemplateID})
}

func (r *initRequest) change() session.Change {
	env := map[string]string{"E2B_SANDBOX": "true"}
	for name, value := range r.EnvVars {
		env[name] = value
	}
	if r.SandboxID != "" {
		env[sandboxIDName] = r.SandboxID
	}
	if r.TemplateID != "" {
		env["E2B_TEMPLATE_ID"] = r.TemplateID
	}
	return session.Change{Env: env, Token: r.AccessToken, User: r.DefaultUser, Workdir: r.DefaultWorkdir}
}

// freeze stops every user process, for a capture. It does nothing if they are stopped already.
func (s *Server) freeze(w http.ResponseWriter, _ *http.Request) {
	s.capture.Lock()
	defer s.capture.Unlock()
	if err := s.hold(); err != nil {
		rest.Error(w, http.StatusInternalServerError, "%v", err)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

// sync does what freeze does and then puts everything that was written on the disk, which stays as it is until unfreeze: for a
// capture of the disk alone.
func (s *Server) sync(w http.ResponseWriter, _ *http.Request) {
	s.capture.Lock()
	defer s.capture.Unlock()
	if err := s.hold(); err != nil {
		rest.Error(w, http.StatusInternalServerError, "%v", err)
		return
	}
	if err := s.guest.FreezeDisk(); err != nil {
		rest.Error(w, http.StatusInternalServerError, "%v", err)
		return
	}
	s.synced = true
	w.WriteHeader(http.StatusNoContent)
}

// hold stops every user process, if they aren't stopped already. The caller holds capture.
func (s *Server) hold() error {
	if s.captured {
		return nil
	}
	s.processes.Hold()
	if err := s.guest.Freeze(); err != nil {
		s.processes.Release(false)
		return fmt.Errorf("freeze user processes: %w", err)
	}
	s.captured = true
	return nil
}

// unfreeze lets user processes run on in the VM that was captured. If there is a body, it tells what time it is: the guest's
// clock, which stood still with the VM, is put forward first.
func (s *Server) unfreeze(w http.ResponseWriter, r *http.Request) {
	s.capture.Lock()
	defer s.capture.Unlock()
	if r.ContentLength != 0 {
		var req struct {
			Timestamp timestamp `json:"timestamp"`
		}
		if err := read(w, r, &req); err != nil {
			rest.Error(w, http.StatusBadRequest, "%v", err)
			return
		}
		if err := s.catchUp(req.Timestamp.Time); err != nil {
			rest.Error(w, http.StatusInternalServerError, "%v", err)
			return
		}
	}
	if s.captured {
		if err := s.thaw(false); err != nil {
			rest.Error(w, http.StatusInternalServerError, "%v", err)
			return
		}
	}
	w.WriteHeader(http.StatusNoContent)
}

// catchUp puts the clock forward. It is never put back, as a request that was long on its way would do.
func (s *Server) catchUp(now time.Time) error {
	if time.Until(now) <= 0 {
		return nil
	}
	return s.guest.SetClock(now)
}

// thaw ends the freeze. restored says that this VM is not the one that was captured. The caller holds capture.
func (s *Server) thaw(restored bool) error {
	if s.synced {
		if err := s.guest.ThawDisk(); err != nil {
			return err
		}
		s.synced = false
	}
	if restored {
		s.guest.RunHooks(s.session.Env(), s.journal)
	}
	if err := s.guest.Thaw(); err != nil {
		return errors.Join(errors.New("thaw user processes"), err)
	}
	s.captured = false
	s.processes.Release(restored)
	return nil
}
