// Package dirs makes folders on behalf of a user of the guest.
package dirs

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"

	"aenv/envd/internal/users"
)

// MakeAll makes the folder path with all missing parents, mode 0755, each owned by user. made says whether path itself is new.
// Where something else than a folder is in the way the error is ENOTDIR.
func MakeAll(path string, user *users.User) (made bool, err error) {
	switch info, err := os.Stat(path); {
	case err == nil && info.IsDir():
		return false, nil
	case err == nil:
		return false, &os.PathError{Op: "mkdir", Path: path, Err: syscall.ENOTDIR}
	case !errors.Is(err, os.ErrNotExist):
		return false, err
	}
	if _, err := MakeAll(filepath.Dir(path), user); err != nil {
		return false, err
	}
	if err := os.Mkdir(path, 0o755); err != nil {
		if info, statErr := os.Stat(path); errors.Is(err, os.ErrExist) && statErr == nil && info.IsDir() {
			return false, nil // another request was faster
		}
		return false, err
	}
	return true, os.Chown(path, int(user.UID), int(user.GID))
}
