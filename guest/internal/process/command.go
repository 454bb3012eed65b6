package process

import (
	"errors"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"aenv/envd/internal/connect"
	"aenv/envd/internal/session"
	"aenv/envd/internal/users"
)

// defaultPath is PATH where neither the session nor the request sets one.
const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// newCommand makes the command of a request: user, environment, working directory and program, but no files yet.
func newCommand(s *session.State, userName string, c *config) (*exec.Cmd, *users.User, error) {
	if c == nil || c.Cmd == "" {
		return nil, nil, connect.Errorf(connect.InvalidArgument, "the request names no command")
	}
	user, err := s.User(userName)
	if err != nil {
		return nil, nil, connect.Errorf(connect.Unauthenticated, "%s", err.Error())
	}
	env, err := environment(s, user, c.Envs)
	if err != nil {
		return nil, nil, err
	}
	dir, err := workdir(s, user, c.Cwd)
	if err != nil {
		return nil, nil, err
	}
	path, err := program(c.Cmd, env["PATH"], dir)
	if err != nil {
		return nil, nil, err
	}
	cmd := &exec.Cmd{Path: path, Args: append([]string{c.Cmd}, c.Args...), Dir: dir, SysProcAttr: &syscall.SysProcAttr{}}
	for name, value := range env {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	if os.Geteuid() == 0 {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: user.UID, Gid: user.GID, Groups: user.Groups}
	}
	return cmd, user, nil
}

// environment is the account's, then the session's, then the request's variables; the later win.
func environment(s *session.State, user *users.User, request map[string]string) (map[string]string, error) {
	env := map[string]string{"PATH": defaultPath, "HOME": user.Home, "USER": user.Name, "LOGNAME": user.Name}
	maps.Copy(env, s.Env())
	for name, value := range request {
		if name == "" || strings.ContainsAny(name, "=\x00") || strings.Contains(value, "\x00") {
			return nil, connect.Errorf(connect.InvalidArgument, "not an environment variable: %q", name)
		}
		env[name] = value
	}
	return env, nil
}

// workdir is the request's directory, which must exist, or else the default one, or else "/".
func workdir(s *session.State, user *users.User, requested *string) (string, error) {
	asked := requested != nil && *requested != ""
	path := "."
	if asked {
		path = *requested
	}
	dir, err := users.Resolve(path, user, s.DefaultWorkdir())
	if err != nil {
		return "", connect.Errorf(connect.InvalidArgument, "%s", err.Error())
	}
	stat, err := os.Stat(dir)
	switch {
	case err == nil && stat.IsDir():
		return dir, nil
	case !asked:
		return "/", nil
	case err == nil:
		return "", connect.Errorf(connect.InvalidArgument, "cwd '%s' is not a directory", dir)
	case errors.Is(err, os.ErrNotExist):
		return "", connect.Errorf(connect.InvalidArgument, "cwd '%s' does not exist", dir)
	}
	return "", connect.Errorf(connect.InvalidArgument, "cwd '%s': %s", dir, err.Error())
}

// program finds the file to run: a name without a slash is looked up in path, the PATH of the process's own environment.
func program(name, path, dir string) (string, error) {
	if strings.Contains(name, "/") {
		return name, nil
	}
	for _, folder := range filepath.SplitList(path) {
		candidate := filepath.Join(folder, name)
		if !filepath.IsAbs(candidate) {
			candidate = filepath.Join(dir, candidate)
		}
		if stat, err := os.Stat(candidate); err == nil && stat.Mode().IsRegular() && stat.Mode()&0o111 != 0 {
			return candidate, nil
		}
	}
	return "", connect.Errorf(connect.InvalidArgument, "exec: %q: executable file not found in $PATH", name)
}

// startError words why the kernel refused to start a command.
func startError(err error) error {
	if errors.Is(err, syscall.EAGAIN) || errors.Is(err, syscall.ENOMEM) {
		return connect.Errorf(connect.ResourceExhausted, "%s", err.Error())
	}
	return connect.Errorf(connect.InvalidArgument, "%s", err.Error())
}
