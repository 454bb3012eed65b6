package filesystem

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"unsafe"

	"aenv/envd/internal/connect"
)

// Names of filesystem.EventType.
const (
	eventCreate = "EVENT_TYPE_CREATE"
	eventWrite  = "EVENT_TYPE_WRITE"
	eventRemove = "EVENT_TYPE_REMOVE"
	eventRename = "EVENT_TYPE_RENAME"
	eventChmod  = "EVENT_TYPE_CHMOD"
)

const watchMask = syscall.IN_CREATE | syscall.IN_MODIFY | syscall.IN_ATTRIB | syscall.IN_DELETE | syscall.IN_MOVED_FROM |
	syscall.IN_MOVED_TO | syscall.IN_DELETE_SELF | syscall.IN_MOVE_SELF | syscall.IN_ONLYDIR

// readBuffer holds about 500 events of one inotify read, in bytes.
const readBuffer = 16 << 10

// fioNRead is FIONREAD of <asm-generic/ioctls.h>: how many bytes wait to be read.
const fioNRead = 0x541b

var errLost = connect.Errorf(connect.DataLoss, "the watcher was too slow: events were lost")

// event is filesystem.FilesystemEvent. Name is relative to the watched folder, "." for the folder itself.
type event struct {
	Name  string     `json:"name"`
	Type  string     `json:"type"`
	Entry *entryInfo `json:"entry,omitempty"`
}

// tree watches a folder, and with recursive all folders below it, by one inotify descriptor. It is not safe for use by several
// goroutines at once.
type tree struct {
	file         *os.File
	conn         syscall.RawConn
	root         string
	recursive    bool
	includeEntry bool

	folders map[int32]string // watch descriptor → path relative to root
	// A folder is listed once it is watched, to catch what was made in it before. What is made in between is both in the list
	// and in the queue: reported has it until the queue's content of that moment was read.
	reported map[string]uint64 // path → position in the queue up to which its creation is known
	position uint64            // bytes of events handled
	barrier  uint64            // the largest position in reported
	buffer   [readBuffer]byte
}

func watch(root string, recursive, includeEntry bool) (*tree, error) {
	fd, err := syscall.InotifyInit1(syscall.IN_CLOEXEC | syscall.IN_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("start a watcher: %w", err)
	}
	t := &tree{
		file: os.NewFile(uintptr(fd), "inotify"), root: root, recursive: recursive, includeEntry: includeEntry,
		folders: map[int32]string{}, reported: map[string]uint64{},
	}
	if t.conn, err = t.file.SyscallConn(); err == nil {
		err = t.add(".", nil)
	}
	if err != nil {
		_ = t.file.Close()
		return nil, err
	}
	return t, nil
}

func (t *tree) close() { _ = t.file.Close() }

// read handles one read of the queue; n is 0 if nothing waited. It never blocks.
func (t *tree) read(fd uintptr) (n int, events []event, err error) {
	for {
		n, err = syscall.Read(int(fd), t.buffer[:])
		if err != syscall.EINTR {
			break
		}
	}
	if err == syscall.EAGAIN {
		return 0, nil, nil
	}
	if err != nil {
		return 0, nil, fmt.Errorf("read inotify events: %w", err)
	}
	for rest := t.buffer[:n]; len(rest) >= syscall.SizeofInotifyEvent; {
		raw := (*syscall.InotifyEvent)(unsafe.Pointer(&rest[0]))
		size := syscall.SizeofInotifyEvent + int(raw.Len)
		name, _, _ := bytes.Cut(rest[syscall.SizeofInotifyEvent:size], []byte{0})
		rest = rest[size:]
		t.position += uint64(size)
		if err := t.handle(raw.Wd, raw.Mask, string(name), len(rest), &events); err != nil {
			return n, events, err
		}
	}
	if t.position >= t.barrier {
		clear(t.reported)
	}
	return n, events, nil
}

// handle turns one inotify event into events for the client. waiting is the number of bytes already read but not handled.
func (t *tree) handle(wd int32, mask uint32, name string, waiting int, out *[]event) error {
	if mask&syscall.IN_Q_OVERFLOW != 0 {
		_ = t.add(".", nil) // the creation of folders may be among the lost events
		return errLost
	}
	folder, known := t.folders[wd]
	if !known {
		return nil
	}
	if mask&syscall.IN_IGNORED != 0 {
		delete(t.folders, wd)
		return nil
	}
	if name == "" && folder != "." {
		return nil // the folder above has the same event
	}
	path := filepath.Join(folder, name)
	isFolder := mask&syscall.IN_ISDIR != 0
	switch {
	case mask&(syscall.IN_CREATE|syscall.IN_MOVED_TO) != 0:
		if t.position > t.reported[path] {
			t.emit(out, path, eventCreate)
		}
		if isFolder && t.recursive {
			return t.added(path, waiting, out)
		}
	case mask&syscall.IN_MODIFY != 0:
		t.emit(out, path, eventWrite)
	case mask&syscall.IN_ATTRIB != 0:
		t.emit(out, path, eventChmod)
	case mask&(syscall.IN_DELETE|syscall.IN_DELETE_SELF) != 0:
		t.emit(out, path, eventRemove)
		delete(t.reported, path)
	case mask&(syscall.IN_MOVED_FROM|syscall.IN_MOVE_SELF) != 0:
		t.emit(out, path, eventRename)
		delete(t.reported, path)
		if isFolder && name != "" {
			t.forget(path)
		}
	}
	return nil
}

// added watches a new folder, and everything in it.
func (t *tree) added(folder string, waiting int, out *[]event) error {
	var found []string
	if err := t.add(folder, &found); err != nil {
		return err
	}
	if len(found) == 0 {
		return nil
	}
	t.barrier = t.position + uint64(waiting) + t.queued()
	for _, path := range found {
		if t.position <= t.reported[path] {
			continue // an outer folder's list had it
		}
		t.reported[path] = t.barrier
		t.emit(out, path, eventCreate)
	}
	return nil
}

// add watches folder and, with recursive, what is below; found gets the paths of what is in there, outer ones first. Folders that
// vanish meanwhile are no error, except the root.
func (t *tree) add(folder string, found *[]string) error {
	path := filepath.Join(t.root, folder)
	mask := uint32(watchMask)
	if folder != "." {
		mask |= syscall.IN_DONT_FOLLOW
	}
	var wd int
	var err error
	if controlErr := t.conn.Control(func(fd uintptr) { wd, err = syscall.InotifyAddWatch(int(fd), path, mask) }); controlErr != nil {
		return controlErr
	}
	if err == syscall.ENOSPC {
		return connect.Errorf(connect.ResourceExhausted, "no more directories can be watched (fs.inotify.max_user_watches)")
	}
	if err != nil && folder == "." {
		return &os.PathError{Op: "watch", Path: path, Err: err}
	}
	if err != nil {
		return nil
	}
	t.folders[int32(wd)] = folder
	if !t.recursive {
		return nil
	}
	children, _ := os.ReadDir(path)
	for _, child := range children {
		inner := filepath.Join(folder, child.Name())
		if found != nil {
			*found = append(*found, inner)
		}
		if child.IsDir() {
			if err := t.add(inner, found); err != nil {
				return err
			}
		}
	}
	return nil
}

// forget stops watching a folder that was moved away, with everything below it.
func (t *tree) forget(folder string) {
	for wd, path := range t.folders {
		if path == folder || strings.HasPrefix(path, folder+"/") {
			delete(t.folders, wd)
			_ = t.conn.Control(func(fd uintptr) { _, _ = syscall.InotifyRmWatch(int(fd), uint32(wd)) })
		}
	}
}

// queued returns how many bytes of events wait in the kernel.
func (t *tree) queued() uint64 {
	var n int32
	_ = t.conn.Control(func(fd uintptr) {
		_, _, _ = syscall.Syscall(syscall.SYS_IOCTL, fd, fioNRead, uintptr(unsafe.Pointer(&n)))
	})
	return uint64(n)
}

func (t *tree) emit(out *[]event, path, kind string) {
	e := event{Name: path, Type: kind}
	if t.includeEntry && kind != eventRemove && kind != eventRename {
		e.Entry, _ = newDescriber().stat(filepath.Join(t.root, path)) // nil if it is gone already
	}
	*out = append(*out, e)
}
