// Package users knows the accounts of the guest. It reads /etc/passwd and /etc/group itself, at every call, because
// templates and users change them while envd runs, and a static binary has no NSS.
package users

import (
	"bufio"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Root is the name of the account that exists in every guest, even in an image without /etc/passwd.
const Root = "root"

var (
	passwdFile = "/etc/passwd"
	groupFile  = "/etc/group"
)

// User is one account.
type User struct {
	Name   string
	UID    uint32
	GID    uint32
	Home   string
	Groups []uint32 // supplementary groups, without GID
}

// UnknownUserError says that an account does not exist.
type UnknownUserError struct{ Name string }

func (e *UnknownUserError) Error() string { return "invalid username: '" + e.Name + "'" }

// Lookup returns the account of that name, with its supplementary groups. As in a Dockerfile it may be a user id instead, which
// needs no account, and a group's name or id may follow after a colon, which is then the only group. It fails with
// *UnknownUserError.
func Lookup(name string) (*User, error) {
	account, group, hasGroup := strings.Cut(name, ":")
	user := lookup(account)
	if user == nil {
		return nil, &UnknownUserError{Name: name}
	}
	if !hasGroup {
		user.Groups = supplementary(user)
		return user, nil
	}
	gid, ok := lookupGroup(group)
	if !ok {
		return nil, &UnknownUserError{Name: name}
	}
	user.GID = gid
	return user, nil
}

func lookup(name string) *User {
	if user := find(func(u *User) bool { return u.Name == name }); user != nil {
		return user
	}
	if name == Root {
		return &User{Name: Root, Home: "/root"}
	}
	uid, ok := parseID(name)
	if !ok {
		return nil
	}
	if user := find(func(u *User) bool { return u.UID == uid }); user != nil {
		return user
	}
	if uid == 0 {
		return &User{Name: Root, Home: "/root"}
	}
	return &User{Name: name, UID: uid, Home: "/"}
}

func lookupGroup(name string) (gid uint32, ok bool) {
	eachLine(groupFile, 3, func(field []string) bool {
		if field[0] == name {
			gid, ok = parseID(field[2])
		}
		return !ok
	})
	if !ok && name == Root {
		return 0, true
	}
	if !ok {
		return parseID(name)
	}
	return gid, true
}

// NameOf returns the name of a user id, or its number if no account has it.
func NameOf(uid uint32) string {
	if user := find(func(u *User) bool { return u.UID == uid }); user != nil {
		return user.Name
	}
	if uid == 0 {
		return Root
	}
	return strconv.FormatUint(uint64(uid), 10)
}

// GroupNameOf returns the name of a group id, or its number if no group has it.
func GroupNameOf(gid uint32) string {
	name := ""
	eachLine(groupFile, 3, func(field []string) bool {
		if id, ok := parseID(field[2]); ok && id == gid {
			name = field[0]
		}
		return name == ""
	})
	if name == "" && gid == 0 {
		return Root
	}
	if name == "" {
		return strconv.FormatUint(uint64(gid), 10)
	}
	return name
}

// FromHeader returns the user name in a request's Basic authorization, "" if it names none.
func FromHeader(h http.Header) string {
	name, _, _ := (&http.Request{Header: h}).BasicAuth()
	return name
}

// Resolve makes a path of a request absolute and clean: "~" and "~name" are home directories, a relative path starts
// in workdir, or in the user's home if workdir is "". It fails with *UnknownUserError for an unknown "~name".
func Resolve(path string, user *User, workdir string) (string, error) {
	if rest, ok := strings.CutPrefix(path, "~"); ok {
		name, rest, _ := strings.Cut(rest, "/")
		home := user.Home
		if name != "" {
			other, err := Lookup(name)
			if err != nil {
				return "", err
			}
			home = other.Home
		}
		return filepath.Join("/", home, rest), nil
	}
	if filepath.IsAbs(path) {
		return filepath.Clean(path), nil
	}
	if workdir == "" {
		return filepath.Join("/", user.Home, path), nil
	}
	base, err := Resolve(workdir, user, "")
	if err != nil {
		return "", err
	}
	return filepath.Join(base, path), nil
}

// find returns the first account of the passwd file that match accepts, nil if there is none.
func find(match func(*User) bool) *User {
	var found *User
	eachLine(passwdFile, 6, func(field []string) bool {
		uid, uidOK := parseID(field[2])
		gid, gidOK := parseID(field[3])
		user := &User{Name: field[0], UID: uid, GID: gid, Home: field[5]}
		if uidOK && gidOK && match(user) {
			if user.Home == "" {
				user.Home = "/"
			}
			found = user
		}
		return found == nil
	})
	return found
}

func supplementary(user *User) []uint32 {
	var groups []uint32
	eachLine(groupFile, 4, func(field []string) bool {
		gid, ok := parseID(field[2])
		if !ok || gid == user.GID {
			return true
		}
		for member := range strings.SplitSeq(field[3], ",") {
			if member == user.Name {
				groups = append(groups, gid)
				break
			}
		}
		return true
	})
	return groups
}

// eachLine calls fn with the fields of each line that has at least n of them, until fn returns false.
// A file that can't be read has no lines.
func eachLine(path string, n int, fn func(field []string) bool) {
	file, err := os.Open(path)
	if err != nil {
		return
	}
	defer func() { _ = file.Close() }()
	for lines := bufio.NewScanner(file); lines.Scan(); {
		field := strings.Split(lines.Text(), ":")
		if len(field) >= n && !strings.HasPrefix(field[0], "#") && !fn(field) {
			return
		}
	}
}

func parseID(text string) (uint32, bool) {
	id, err := strconv.ParseUint(text, 10, 32)
	return uint32(id), err == nil
}
