package filesystem

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"aenv/envd/internal/connect"
)

// moveTo renames source to destination, also if they are on different file systems: then everything is copied beside the
// destination, takes its place at once when it is complete, and only then the source is removed.
func moveTo(ctx context.Context, source, destination string) error {
	err := os.Rename(source, destination)
	if !errors.Is(err, syscall.EXDEV) {
		return err
	}
	if strings.HasPrefix(destination+"/", strings.TrimSuffix(source, "/")+"/") {
		return connect.Errorf(connect.InvalidArgument, "'%s' can't be moved into itself", source)
	}
	var random [8]byte
	_, _ = rand.Read(random[:]) // it never fails
	copied := filepath.Join(filepath.Dir(destination), ".moving-"+hex.EncodeToString(random[:]))
	err = copyTree(ctx, source, copied)
	if err == nil {
		err = os.Rename(copied, destination)
	}
	if err != nil {
		_ = os.RemoveAll(copied)
		return err
	}
	return os.RemoveAll(source)
}

// copyTree copies what is at source with its owner, permissions, times and extended attributes.
func copyTree(ctx context.Context, source, target string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	info, err := os.Lstat(source)
	if err != nil {
		return err
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return fmt.Errorf("describe %s: no stat", source)
	}
	switch kind := info.Mode().Type(); kind {
	case 0:
		err = copyFile(ctx, source, target)
	case os.ModeDir:
		err = copyFolder(ctx, source, target)
	case os.ModeSymlink:
		var link string
		if link, err = os.Readlink(source); err == nil {
			err = os.Symlink(link, target)
		}
	default: // a pipe, a socket or a device
		if err = syscall.Mknod(target, stat.Mode, int(stat.Rdev)); err != nil {
			err = &os.PathError{Op: "mknod", Path: target, Err: err}
		}
	}
	if err != nil {
		return err
	}
	return copyAttributes(source, target, info, stat)
}

func copyFolder(ctx context.Context, source, target string) error {
	if err := os.Mkdir(target, 0o700); err != nil {
		return err
	}
	children, err := os.ReadDir(source)
	if err != nil {
		return err
	}
	for _, child := range children {
		if err := copyTree(ctx, filepath.Join(source, child.Name()), filepath.Join(target, child.Name())); err != nil {
			return err
		}
	}
	return nil
}

// copyChunk is how much of a file is copied between two looks at whether the client has gone, in bytes.
const copyChunk = 8 << 20

func copyFile(ctx context.Context, source, target string) error {
	in, err := os.Open(source)
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }()
	out, err := os.OpenFile(target, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	for err == nil {
		if err = ctx.Err(); err == nil {
			_, err = io.CopyN(out, in, copyChunk)
		}
	}
	if err == io.EOF {
		err = nil
	}
	return errors.Join(err, out.Close())
}

// copyAttributes makes target, itself and not what it links to, look like source. The owner comes before the permissions:
// a change of owner takes the set-user-ID bit away.
func copyAttributes(source, target string, info os.FileInfo, stat *syscall.Stat_t) error {
	if err := os.Lchown(target, int(stat.Uid), int(stat.Gid)); err != nil {
		return err
	}
	if info.Mode()&os.ModeSymlink != 0 {
		return nil
	}
	if err := os.Chmod(target, info.Mode()); err != nil {
		return err
	}
	copyXattrs(source, target)
	accessed := time.Unix(stat.Atim.Unix())
	return os.Chtimes(target, accessed, info.ModTime())
}

// maxXattrs bounds the list of a file's attributes and the value of one, in bytes (Linux's XATTR_LIST_MAX, XATTR_SIZE_MAX).
const maxXattrs = 64 << 10

// copyXattrs copies the extended attributes that the target's file system takes.
func copyXattrs(source, target string) {
	names := make([]byte, maxXattrs)
	n, err := syscall.Listxattr(source, names)
	if err != nil || n == 0 {
		return
	}
	value := make([]byte, maxXattrs)
	for name := range strings.SplitSeq(strings.TrimSuffix(string(names[:n]), "\x00"), "\x00") {
		if size, err := syscall.Getxattr(source, name, value); err == nil {
			_ = syscall.Setxattr(target, name, value[:size], 0)
		}
	}
}
