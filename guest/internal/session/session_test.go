package session

import (
	"errors"
	"testing"

	"aenv/envd/internal/users"
)

func ref[T any](value T) *T { return &value }

func TestUpdateChangesOnlyWhatIsThere(t *testing.T) {
	s := New()
	s.Update(Change{Env: map[string]string{"A": "1", "B": "2"}, Token: ref("secret"), User: ref("root"), Workdir: ref("/work")})
	s.Update(Change{Env: map[string]string{"B": "3"}})
	env := s.Env()
	if env["A"] != "1" || env["B"] != "3" || s.Token() != "secret" || s.DefaultUser() != "root" || s.DefaultWorkdir() != "/work" {
		t.Fatal(env, s.Token(), s.DefaultUser(), s.DefaultWorkdir())
	}
	env["A"] = "changed outside"
	if s.Env()["A"] != "1" {
		t.Error("Env returned the state's own map")
	}
}

func TestAuthorized(t *testing.T) {
	s := New()
	if !s.Authorized("") || !s.Authorized("anything") {
		t.Error("without a token everybody may pass")
	}
	s.Update(Change{Token: ref("secret")})
	for token, want := range map[string]bool{"secret": true, "": false, "secre": false, "secrets": false} {
		if s.Authorized(token) != want {
			t.Errorf("%q", token)
		}
	}
	s.Update(Change{Token: ref("")})
	if !s.Authorized("") {
		t.Error("the token was removed")
	}
}

func TestUser(t *testing.T) {
	s := New()
	s.Update(Change{User: ref("root")})
	if u, err := s.User(""); err != nil || u.UID != 0 {
		t.Error(u, err)
	}
	var unknown *users.UnknownUserError
	if _, err := s.User("no-such-user"); !errors.As(err, &unknown) {
		t.Error(err)
	}
}
