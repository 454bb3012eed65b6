package users

import (
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// accounts makes the package read these files instead of the machine's; "" means that there is no such file.
func accounts(t *testing.T, passwd, group string) {
	t.Helper()
	dir := t.TempDir()
	oldPasswd, oldGroup := passwdFile, groupFile
	passwdFile, groupFile = filepath.Join(dir, "passwd"), filepath.Join(dir, "group")
	t.Cleanup(func() { passwdFile, groupFile = oldPasswd, oldGroup })
	for path, text := range map[string]string{passwdFile: passwd, groupFile: group} {
		if text == "" {
			continue
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

const (
	passwdText = `root:x:0:0:root:/root:/bin/bash
# a comment:x:7:7::/:/
broken:line
odd:x:minus:1::/odd:/bin/sh
user:x:1000:1001:A User,,,:/home/user:/bin/bash
homeless:x:1002:1002:::
`
	groupText = `root:x:0:
sudo:x:27:other,user
user:x:1001:user
docker:x:999:user
bad:x:no:user
`
)

func TestLookup(t *testing.T) {
	accounts(t, passwdText, groupText)
	u, err := Lookup("user")
	if err != nil || u.UID != 1000 || u.GID != 1001 || u.Home != "/home/user" || !slices.Equal(u.Groups, []uint32{27, 999}) {
		t.Fatalf("%+v %v", u, err)
	}
	if u, err := Lookup("homeless"); err != nil || u.Home != "/" {
		t.Error(u, err)
	}
	for _, name := range []string{"", "odd", "broken", "nobody", "# a comment"} {
		var unknown *UnknownUserError
		if u, err := Lookup(name); !errors.As(err, &unknown) {
			t.Errorf("%q: %+v %v", name, u, err)
		}
	}
}

func TestLookupAsInADockerfile(t *testing.T) {
	accounts(t, passwdText, groupText)
	for name, want := range map[string]User{
		"1000":        {Name: "user", UID: 1000, GID: 1001, Home: "/home/user"},
		"user:docker": {Name: "user", UID: 1000, GID: 999, Home: "/home/user"},
		"user:4242":   {Name: "user", UID: 1000, GID: 4242, Home: "/home/user"},
		"4242":        {Name: "4242", UID: 4242, Home: "/"},
		"4242:root":   {Name: "4242", UID: 4242, Home: "/"},
		"0:0":         {Name: "root", Home: "/root"},
	} {
		u, err := Lookup(name)
		if err != nil || u.Name != want.Name || u.UID != want.UID || u.GID != want.GID || u.Home != want.Home {
			t.Errorf("%s: %+v %v", name, u, err)
		}
	}
	for _, name := range []string{"user:nogroup", "user:", "nouser:root", ":root", "-1", "4294967296"} {
		if u, err := Lookup(name); err == nil {
			t.Errorf("%q: %+v", name, u)
		}
	}
}

func TestNames(t *testing.T) {
	accounts(t, passwdText, groupText)
	for uid, want := range map[uint32]string{0: "root", 1000: "user", 4242: "4242"} {
		if got := NameOf(uid); got != want {
			t.Error(uid, got)
		}
	}
	for gid, want := range map[uint32]string{0: "root", 27: "sudo", 4242: "4242"} {
		if got := GroupNameOf(gid); got != want {
			t.Error(gid, got)
		}
	}
}

func TestImageWithoutAccounts(t *testing.T) {
	accounts(t, "", "")
	u, err := Lookup(Root)
	if err != nil || u.UID != 0 || u.GID != 0 || u.Home != "/root" || len(u.Groups) != 0 {
		t.Fatalf("%+v %v", u, err)
	}
	if NameOf(0) != "root" || GroupNameOf(0) != "root" || NameOf(5) != "5" || GroupNameOf(5) != "5" {
		t.Error(NameOf(0), GroupNameOf(0))
	}
}

func TestFromHeader(t *testing.T) {
	for text, want := range map[string]string{"Basic dXNlcjo=": "user", "Basic !": "", "Bearer dXNlcjo=": "", "": ""} {
		if got := FromHeader(http.Header{"Authorization": {text}}); got != want {
			t.Errorf("%q: %q", text, got)
		}
	}
}

func TestResolve(t *testing.T) {
	accounts(t, passwdText, groupText)
	u, err := Lookup("user")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ path, workdir, want string }{
		{"/a//b/../c", "", "/a/c"},
		{"a/b", "", "/home/user/a/b"},
		{"", "", "/home/user"},
		{"a", "/work", "/work/a"},
		{"a", "project", "/home/user/project/a"},
		{"a", "~root", "/root/a"},
		{"../../../x", "", "/x"},
		{"~", "/work", "/home/user"},
		{"~/x", "/work", "/home/user/x"},
		{"~root/x", "", "/root/x"},
		{"a/~", "", "/home/user/a/~"},
	} {
		if got, err := Resolve(c.path, u, c.workdir); err != nil || got != c.want {
			t.Errorf("%+v: %q %v", c, got, err)
		}
	}
	if got, err := Resolve("~stranger/x", u, ""); err == nil {
		t.Error(got)
	}
}
