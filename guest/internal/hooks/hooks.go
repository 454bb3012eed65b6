// Package hooks runs what an image or a user has provided for the moment after a restore: programs in a folder.
package hooks

import (
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"aenv/envd/internal/guestos"
	"aenv/envd/internal/journal"
	"aenv/envd/internal/reaper"
)

// Folder holds the hooks: executable files, run one after the other in the order of their names.
const Folder = "/etc/envd/restored.d"

// limit bounds all hooks together: a client waits for them, and the host gives a guest half a minute.
const limit = 5 * time.Second

const logger = "hooks"

// Run runs every hook as root, while the user's processes stand still: a signal that a hook sends reaches its process before
// that does anything else. A hook that fails, or isn't done in time, is noted, and the others go on without it. What a hook
// leaves running is ended.
func Run(env map[string]string, j *journal.Journal) { run(Folder, env, j, limit) }

func run(folder string, env map[string]string, j *journal.Journal, limit time.Duration) {
	entries, err := os.ReadDir(folder) // sorted by name
	if err != nil {
		if !os.IsNotExist(err) {
			j.Add(journal.Warn, logger, "the hooks can't be read: "+err.Error(), nil)
		}
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	ran := false
	for _, entry := range entries {
		path := filepath.Join(folder, entry.Name())
		if stat, err := os.Stat(path); err != nil || !stat.Mode().IsRegular() || stat.Mode()&0o111 == 0 {
			continue
		}
		ran = true
		note(j, path, runOne(ctx, path, env))
	}
	if ran {
		end(j)
	}
}

// end kills what hooks have left running: it would not be stopped for the next capture.
func end(j *journal.Journal) {
	if _, ok := guestos.HooksCgroupFD(); !ok {
		return
	}
	if err := guestos.EndHooks(); err != nil {
		j.Add(journal.Warn, logger, "what hooks left running can't be ended: "+err.Error(), nil)
	}
}

func runOne(ctx context.Context, path string, env map[string]string) error {
	if ctx.Err() != nil {
		return fmt.Errorf("there was no time left")
	}
	cmd := exec.Command(path)
	cmd.Dir = "/"
	cmd.Env = environment(env)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if fd, ok := guestos.HooksCgroupFD(); ok {
		cmd.SysProcAttr.UseCgroupFD, cmd.SysProcAttr.CgroupFD = true, fd
	}
	if err := reaper.Start(cmd); err != nil {
		return err
	}
	_ = guestos.ResetOOMScore(cmd.Process.Pid)
	stop := context.AfterFunc(ctx, func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) })
	err := reaper.Wait(cmd)
	if !stop() {
		return fmt.Errorf("it was not done in time")
	}
	return err
}

// environment is root's, with what the sandbox's processes get.
func environment(session map[string]string) []string {
	env := map[string]string{"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "USER": "root"}
	maps.Copy(env, session)
	list := make([]string, 0, len(env))
	for name, value := range env {
		list = append(list, name+"="+value)
	}
	return list
}

func note(j *journal.Journal, path string, err error) {
	fields := journal.Fields{"event": "hook", "path": path}
	if err != nil {
		j.Add(journal.Warn, logger, "hook "+path+" failed: "+err.Error(), fields)
		return
	}
	j.Add(journal.Info, logger, "hook "+path+" ran", fields)
}
