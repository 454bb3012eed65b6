package filesystem

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"aenv/envd/internal/metadata"
)

func TestMoveToAnotherFileSystemTakesEverythingAlong(t *testing.T) {
	c, here, there := newClient(t), t.TempDir(), t.TempDir()
	if err := syscall.Mount("tmpfs", there, "tmpfs", 0, "size=1m"); err != nil {
		t.Skip(err)
	}
	defer syscall.Unmount(there, 0)
	folder := here + "/folder"
	if err := os.MkdirAll(folder+"/inner", 0o750); err != nil {
		t.Fatal(err)
	}
	write(t, folder+"/inner/file", "content")
	old := time.Unix(1_000_000_000, 0)
	os.Chown(folder+"/inner/file", 1234, 4321)
	os.Chmod(folder+"/inner/file", 0o711|os.ModeSetuid)
	os.Chtimes(folder+"/inner/file", old, old)
	os.Symlink("inner/file", folder+"/link")
	syscall.Mkfifo(folder+"/pipe", 0o600)
	tagged := metadata.Replace(folder+"/inner/file", map[string]string{"k": "v"}) == nil

	var r entryResponse
	if code := c.call("Move", moveRequest{folder, there + "/new/place"}, &r); code != "" {
		t.Fatal(code)
	}
	moved := there + "/new/place"
	if content, err := os.ReadFile(moved + "/link"); err != nil || string(content) != "content" {
		t.Fatal(string(content), err)
	}
	info, _ := os.Stat(moved + "/inner/file")
	stat := info.Sys().(*syscall.Stat_t)
	if info.Mode() != 0o711|os.ModeSetuid || stat.Uid != 1234 || stat.Gid != 4321 || !info.ModTime().Equal(old) {
		t.Errorf("%v %d %d %v", info.Mode(), stat.Uid, stat.Gid, info.ModTime())
	}
	if kept := metadata.Read(moved + "/inner/file"); tagged && kept != nil && kept["k"] != "v" {
		t.Errorf("metadata: %v", kept)
	}
	if info, err := os.Lstat(moved + "/pipe"); err != nil || info.Mode()&os.ModeNamedPipe == 0 {
		t.Error(info, err)
	}
	if _, err := os.Lstat(folder); !os.IsNotExist(err) {
		t.Error("the source is still there")
	}
}

func TestAFailedMoveToAnotherFileSystemChangesNothing(t *testing.T) {
	c, here, there := newClient(t), t.TempDir(), t.TempDir()
	if err := syscall.Mount("tmpfs", there, "tmpfs", 0, "size=1m"); err != nil {
		t.Skip(err)
	}
	defer syscall.Unmount(there, 0)
	os.Mkdir(here+"/folder", 0o755)
	write(t, here+"/folder/big", string(make([]byte, 4<<20)))
	if code := c.call("Move", moveRequest{here + "/folder", there + "/folder"}, nil); code != "failed_precondition" {
		t.Error(code)
	}
	if left, _ := os.ReadDir(there); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
	if info, err := os.Stat(here + "/folder/big"); err != nil || info.Size() != 4<<20 {
		t.Error(info, err)
	}
	if code := c.call("Move", moveRequest{filepath.Dir(there), there + "/x/y"}, nil); code != "invalid_argument" {
		t.Errorf("into itself: %s", code)
	}
}
