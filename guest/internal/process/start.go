package process

import (
	"errors"
	"os"
	"os/exec"
	"syscall"

	"aenv/envd/internal/connect"
	"aenv/envd/internal/users"
)

// files are the open files of a process on its way to start.
type files struct {
	parent []*os.File // ours, to close if the start fails
	child  []*os.File // the process's, to close after the start
}

func closeAll(files []*os.File) {
	for _, file := range files {
		_ = file.Close()
	}
}

// pipe makes a pipe whose parent end works with deadlines; the child end blocks, as programs expect.
// toChild says in which direction it flows.
func (f *files) pipe(toChild bool) (parent, child *os.File, err error) {
	var fds [2]int
	if err := syscall.Pipe2(fds[:], syscall.O_CLOEXEC); err != nil {
		return nil, nil, os.NewSyscallError("pipe2", err)
	}
	ours, theirs := fds[0], fds[1]
	if toChild {
		ours, theirs = theirs, ours
	}
	err = syscall.SetNonblock(ours, true)
	parent, child = os.NewFile(uintptr(ours), "|"), os.NewFile(uintptr(theirs), "|")
	f.parent, f.child = append(f.parent, parent), append(f.child, child)
	return parent, child, err
}

// prepare gives the command its pipes, or its terminal, and makes the record of the process.
func prepare(cmd *exec.Cmd, user *users.User, req *startRequest) (*running, *files, error) {
	p := &running{
		config: req.Process, tag: req.Tag, cmd: cmd,
		writing: make(chan struct{}, 1), exited: make(chan struct{}), done: make(chan struct{}),
	}
	f := &files{}
	connectFiles := p.attachPipes
	if req.PTY != nil {
		connectFiles = func(f *files, _ bool) error { return p.attachTerminal(f, user.UID, req.PTY.Size) }
	}
	// An absent "stdin" means true: clients older than the field always have a stdin.
	if err := connectFiles(f, req.Stdin == nil || *req.Stdin); err != nil {
		closeAll(f.parent)
		closeAll(f.child)
		code := connect.Internal
		if errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) || errors.Is(err, syscall.ENOSPC) {
			code = connect.ResourceExhausted
		}
		return nil, nil, connect.Errorf(code, "open the files of the process: %s", err.Error())
	}
	return p, f, nil
}

func (p *running) attachPipes(f *files, withStdin bool) error {
	stdout, childStdout, err := f.pipe(false)
	if err != nil {
		return err
	}
	stderr, childStderr, err := f.pipe(false)
	if err != nil {
		return err
	}
	p.outputs = []output{{"stdout", stdout, pipeChunk}, {"stderr", stderr, pipeChunk}}
	p.cmd.Stdout, p.cmd.Stderr = childStdout, childStderr
	p.cmd.SysProcAttr.Setsid = true
	if !withStdin {
		return nil
	}
	stdin, childStdin, err := f.pipe(true)
	p.stdin, p.cmd.Stdin = stdin, childStdin
	return err
}

func (p *running) attachTerminal(f *files, uid uint32, size *terminalSize) error {
	master, slave, err := openPTY(uid, size)
	if err != nil {
		return err
	}
	f.parent, f.child = append(f.parent, master), append(f.child, slave)
	p.terminal, p.stdin = master, master
	p.outputs = []output{{"pty", master, terminalChunk}}
	p.cmd.Stdin, p.cmd.Stdout, p.cmd.Stderr = slave, slave, slave
	p.cmd.SysProcAttr.Setsid, p.cmd.SysProcAttr.Setctty = true, true
	return nil
}
