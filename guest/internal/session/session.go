// Package session holds what the host tells envd about the sandbox it runs in. POST /init sets it, everything else reads it.
package session

import (
	"crypto/subtle"
	"maps"
	"sync"

	"aenv/envd/internal/users"
)

// standardUser is the user of a request that names none, where the image has such a user; elsewhere it is root.
const standardUser = "user"

// State is the sandbox's identity and defaults. Its methods may be called from any goroutine.
type State struct {
	mu      sync.RWMutex
	env     map[string]string
	token   string
	user    string
	workdir string
}

// Change says what Update sets. Absent (nil) parts stay as they are; Env is merged into what is there.
type Change struct {
	Env     map[string]string
	Token   *string
	User    *string
	Workdir *string
}

// New returns the state of a guest that has not been told anything yet.
func New() *State {
	return &State{env: map[string]string{}}
}

// Update applies a change as a whole.
func (s *State) Update(c Change) {
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.Copy(s.env, c.Env)
	if c.Token != nil {
		s.token = *c.Token
	}
	if c.User != nil {
		s.user = *c.User
	}
	if c.Workdir != nil {
		s.workdir = *c.Workdir
	}
}

// Env returns a copy of the environment variables every process gets.
func (s *State) Env() map[string]string {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return maps.Clone(s.env)
}

// Token returns the access token, "" if requests need none.
func (s *State) Token() string {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.token
}

// Authorized tells whether a request that carries this token may pass. It takes the same time for every wrong token.
func (s *State) Authorized(token string) bool {
	want := s.Token()
	return want == "" || subtle.ConstantTimeCompare([]byte(token), []byte(want)) == 1
}

// DefaultUser returns the name of the user that acts when a request names none.
func (s *State) DefaultUser() string {
	s.mu.RLock()
	name := s.user
	s.mu.RUnlock()
	if name != "" {
		return name
	}
	if _, err := users.Lookup(standardUser); err != nil {
		return users.Root
	}
	return standardUser
}

// DefaultWorkdir returns the working directory of the template, "" if it has none (then it is the user's home).
func (s *State) DefaultWorkdir() string {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.workdir
}

// User returns the account that acts for a request: the named one, or the default one if name is "".
// It fails with *users.UnknownUserError.
func (s *State) User(name string) (*users.User, error) {
	if name == "" {
		name = s.DefaultUser()
	}
	return users.Lookup(name)
}
