package process

import (
	"errors"
	"os"
	"syscall"
	"time"
)

const (
	// Sizes of the chunks in which output is sent, in bytes.
	pipeChunk     = 32 << 10
	terminalChunk = 16 << 10

	// A child that outlives its parent may hold the output open. After the exit, output counts as complete when
	// none came for drainIdle, and in any case once drainLimit is over and drainBytes were read: more than that can't
	// have been in the pipe at the exit (the kernel's fs.pipe-max-size).
	drainLimit = 5 * time.Second
	drainBytes = 1 << 20
)

var drainIdle = 100 * time.Millisecond // longer in a test that mustn't depend on the machine's load

// output is one stream that comes from the process.
type output struct {
	stream string
	file   *os.File
	chunk  int
}

// publish hands a chunk to every subscriber and waits for the slowest: that is what keeps memory bounded.
func (p *running) publish(stream string, data []byte) {
	p.mu.Lock()
	subscribers := p.subscribers
	p.mu.Unlock()
	if len(subscribers) == 0 {
		return
	}
	e := &event{stream: stream, data: append([]byte(nil), data...)}
	for _, s := range subscribers {
		select {
		case s.events <- e:
		case <-s.gone:
		}
	}
}

// read publishes an output until it ends.
func (p *running) read(out output) {
	buf := make([]byte, out.chunk)
	late := 0 // bytes read after the exit
	for {
		exited := p.hasExited()
		if exited {
			if late > drainBytes && time.Since(p.exitTime) > drainLimit {
				return
			}
			_ = out.file.SetReadDeadline(time.Now().Add(drainIdle))
		}
		n, err := out.file.Read(buf)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			// On a busy machine the deadline may have passed before the read began: only an empty pipe is the end.
			if n = readNow(out.file, buf); n > 0 || !exited {
				err = nil
			}
		}
		if n > 0 {
			p.publish(out.stream, buf[:n])
		}
		if err != nil {
			return
		}
		if exited {
			late += n
		}
	}
}

// readNow reads what is there without waiting, and returns how much that was.
func readNow(file *os.File, buf []byte) int {
	n := 0
	_ = file.SetReadDeadline(time.Time{})
	if raw, err := file.SyscallConn(); err == nil {
		_ = raw.Read(func(fd uintptr) bool {
			n, _ = syscall.Read(int(fd), buf)
			return true
		})
	}
	return max(n, 0)
}
