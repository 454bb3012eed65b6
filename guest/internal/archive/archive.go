// Package archive unpacks a tar archive that the host sends, for the COPY of a template build: it needs nothing of the image.
package archive

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"syscall"

	"aenv/envd/internal/dirs"
	"aenv/envd/internal/rest"
	"aenv/envd/internal/users"
)

// permissions are the bits of a mode that an archive or a request may set.
const permissions = 0o7777

// Register serves POST /extract. It belongs to the host alone.
func Register(mux *http.ServeMux) {
	mux.HandleFunc("POST /extract", extract)
}

// extract unpacks the body. Names in it are absolute paths of the guest. What is written belongs to the user in the query's owner
// (root if there is none) and has the octal mode in the query's mode, or else the archive's.
func extract(w http.ResponseWriter, r *http.Request) {
	u, err := newUnpacker(r)
	if err != nil {
		refuse(w, r, http.StatusBadRequest, err)
		return
	}
	if err := u.unpack(tar.NewReader(r.Body)); err != nil {
		status := http.StatusBadRequest
		if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
			status = http.StatusInsufficientStorage
		}
		refuse(w, r, status, err)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

// refuse reads the rest of the archive first: a client that is busy sending doesn't see an answer.
func refuse(w http.ResponseWriter, r *http.Request, status int, err error) {
	_, _ = io.Copy(io.Discard, r.Body)
	rest.Error(w, status, "%v", err)
}

// unpacker writes the entries of one archive.
type unpacker struct {
	owner *users.User
	mode  *uint32       // of everything but links, nil for the archive's own
	made  []*tar.Header // new folders
}

func newUnpacker(r *http.Request) (*unpacker, error) {
	query := r.URL.Query()
	u := &unpacker{}
	name := query.Get("owner")
	if name == "" {
		name = users.Root
	}
	owner, err := users.Lookup(name)
	if err != nil {
		return nil, err
	}
	u.owner = owner
	if text := query.Get("mode"); text != "" {
		bits, err := strconv.ParseUint(text, 8, 32)
		if err != nil || bits > permissions {
			return nil, fmt.Errorf("not an octal mode: '%s'", text)
		}
		u.mode = new(uint32(bits))
	}
	return u, nil
}

func (u *unpacker) unpack(archive *tar.Reader) error {
	for {
		header, err := archive.Next()
		if err == io.EOF {
			return u.dateFolders()
		}
		if err != nil {
			return fmt.Errorf("reading the archive: %w", err)
		}
		if err := u.write(header, archive); err != nil {
			return err
		}
	}
}

func (u *unpacker) write(header *tar.Header, content io.Reader) error {
	path := filepath.Join("/", header.Name)
	if _, err := dirs.MakeAll(filepath.Dir(path), u.owner); err != nil {
		return err
	}
	switch header.Typeflag {
	case tar.TypeDir:
		return u.folder(path, header)
	case tar.TypeReg:
		return u.file(path, header, content)
	case tar.TypeSymlink:
		if err := u.makeWay(path); err != nil {
			return err
		}
		if err := os.Symlink(header.Linkname, path); err != nil {
			return err
		}
		return os.Lchown(path, int(u.owner.UID), int(u.owner.GID))
	case tar.TypeLink:
		if err := u.makeWay(path); err != nil {
			return err
		}
		return os.Link(filepath.Join("/", header.Linkname), path)
	default:
		return fmt.Errorf("'%s' is neither a file, a folder nor a link", path)
	}
}

// folder makes a folder. One that exists, or a link to one, stays as it is.
func (u *unpacker) folder(path string, header *tar.Header) error {
	made, err := dirs.MakeAll(path, u.owner)
	if err != nil || !made {
		return err
	}
	header.Name = path
	u.made = append(u.made, header)
	return u.finish(path, header)
}

func (u *unpacker) file(path string, header *tar.Header, content io.Reader) error {
	if err := u.makeWay(path); err != nil {
		return err
	}
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(file, content)
	if err := errors.Join(err, file.Chown(int(u.owner.UID), int(u.owner.GID)), file.Close()); err != nil {
		return err
	}
	if err := u.finish(path, header); err != nil {
		return err
	}
	return os.Chtimes(path, header.ModTime, header.ModTime)
}

// makeWay removes what is at path, so that a link there isn't written through. A folder is in the way.
func (u *unpacker) makeWay(path string) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil
	case err != nil:
		return err
	case info.IsDir():
		return fmt.Errorf("'%s' is a folder: a file or link can't take its place", path)
	}
	return os.Remove(path)
}

// finish sets the mode: after the owner, as a change of that clears bits. They are in archives as the kernel wants them.
func (u *unpacker) finish(path string, header *tar.Header) error {
	mode := uint32(header.Mode & permissions)
	if u.mode != nil {
		mode = *u.mode
	}
	if err := syscall.Chmod(path, mode); err != nil {
		return &os.PathError{Op: "chmod", Path: path, Err: err}
	}
	return nil
}

// dateFolders gives new folders their times, now that nothing more is written into them.
func (u *unpacker) dateFolders() error {
	for _, header := range u.made {
		if err := os.Chtimes(header.Name, header.ModTime, header.ModTime); err != nil {
			return err
		}
	}
	return nil
}
