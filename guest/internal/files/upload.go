package files

import (
	"compress/gzip"
	"errors"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"sync"
	"syscall"

	"aenv/envd/internal/dirs"
	"aenv/envd/internal/journal"
	"aenv/envd/internal/metadata"
	"aenv/envd/internal/rest"
	"aenv/envd/internal/users"
)

// copyBuffer is the size of one read and write of an upload, in bytes. Large: a system call costs much in an emulated guest.
const copyBuffer = 128 << 10

var buffers = sync.Pool{New: func() any { b := make([]byte, copyBuffer); return &b }}

func (s *service) upload(w http.ResponseWriter, r *http.Request) error {
	if err := s.authorize(r, operationWrite); err != nil {
		return err
	}
	user, err := s.state.User(requestUser(r))
	if err != nil {
		return err
	}
	pairs, err := metadata.FromHeader(r.Header)
	if err != nil {
		return badRequest(err.Error())
	}
	body, err := decoded(r)
	if err != nil {
		return err
	}
	kind, params, _ := mime.ParseMediaType(r.Header.Get("Content-Type"))
	entries := []Entry{}
	switch path := r.URL.Query().Get("path"); {
	case kind == "multipart/form-data" && params["boundary"] != "":
		entries, err = s.saveParts(multipart.NewReader(body, params["boundary"]), path, user, pairs)
	case kind == "multipart/form-data":
		err = badRequest("the multipart body has no boundary")
	case kind != "application/octet-stream":
		err = badRequest("content type '" + kind + "': send multipart/form-data or application/octet-stream")
	case path == "":
		err = badRequest("an upload of application/octet-stream needs the query parameter path")
	default:
		var entry Entry
		entry, err = s.save(path, user, body, r.ContentLength, pairs)
		entries = append(entries, entry)
	}
	if err != nil {
		return err
	}
	rest.JSON(w, http.StatusOK, entries)
	return nil
}

// decoded returns the request's body without its compression.
func decoded(r *http.Request) (io.Reader, error) {
	switch encoding := r.Header.Get("Content-Encoding"); encoding {
	case "", "identity":
		return r.Body, nil
	case "gzip":
		r.ContentLength = -1 // what it inflates to is unknown
		inflated, err := gzip.NewReader(r.Body)
		if err != nil {
			return nil, badRequest("the body is not gzip: " + err.Error())
		}
		return inflated, nil
	default:
		return nil, badRequest("content encoding '" + encoding + "': send gzip or identity")
	}
}

// saveParts writes every part named "file": to path if one is given, else to its own file name, which may have folders.
func (s *service) saveParts(parts *multipart.Reader, path string, user *users.User, pairs map[string]string) ([]Entry, error) {
	entries := []Entry{}
	for {
		part, err := parts.NextRawPart()
		if err == io.EOF {
			return entries, nil
		}
		if err != nil {
			return nil, badRequest("multipart body: " + err.Error())
		}
		name, filename, err := disposition(part.Header.Get("Content-Disposition"))
		if err != nil {
			return nil, badRequest("multipart body: Content-Disposition: " + err.Error())
		}
		if name != "file" {
			continue
		}
		target := path
		switch {
		case path != "" && len(entries) > 0:
			return nil, badRequest("several files can't be written to the one path '" + path + "'")
		case path == "":
			target = filename
		}
		if target == "" {
			return nil, badRequest("a part of the multipart body has no file name")
		}
		entry, err := s.save(target, user, part, -1, pairs)
		if err != nil {
			return nil, err
		}
		entries = append(entries, entry)
	}
}

// formParameters are the parameters of a part as browsers write them: quotes in a name are percent-encoded, backslashes mean
// themselves (https://html.spec.whatwg.org/multipage/form-control-infrastructure.html#multipart-form-data).
var formParameters = regexp.MustCompile(`^form-data; name="([^"]*)"(?:; filename="([^"]*)")?$`)

// disposition returns the names in a part's Content-Disposition. Part.FileName would keep only the last element of a path.
func disposition(header string) (name, filename string, err error) {
	_, params, err := mime.ParseMediaType(header)
	if err == nil {
		return params["name"], params["filename"], nil
	}
	if found := formParameters.FindStringSubmatch(header); found != nil {
		return found[1], found[2], nil
	}
	return "", "", err
}

// save writes a file owned by user, with missing parents. size is the content's length if it is known, else -1. A new file that
// can't be written whole is removed again. Watchers see CREATE, CHMOD (the change of owner) and WRITE.
func (s *service) save(path string, user *users.User, content io.Reader, size int64, pairs map[string]string) (Entry, error) {
	path, err := users.Resolve(path, user, s.state.DefaultWorkdir())
	if err != nil {
		return Entry{}, err
	}
	if _, err := dirs.MakeAll(filepath.Dir(path), user); err != nil {
		return Entry{}, err
	}
	file, isNew, err := create(path)
	if err != nil {
		return Entry{}, err
	}
	err = errors.Join(fill(file, user, content, size), file.Close())
	if err == nil {
		err = metadata.Replace(path, pairs)
	}
	if err != nil {
		if isNew {
			_ = os.Remove(path)
		}
		return Entry{}, err
	}
	s.journal.File(journal.Info, "write", path, user.Name)
	return entryOf(path, pairs), nil
}

// create opens path for writing, empty, and says whether it is a new file.
func create(path string) (file *os.File, isNew bool, err error) {
	file, _, err = openRegular(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL)
	if !errors.Is(err, os.ErrExist) {
		return file, err == nil, err
	}
	// O_CREATE again: it may be a link to a file that doesn't exist. Truncate only what turned out to be a regular file.
	file, _, err = openRegular(path, os.O_WRONLY|os.O_CREATE)
	if err != nil {
		return nil, false, err
	}
	if err := file.Truncate(0); err != nil {
		_ = file.Close()
		return nil, false, err
	}
	return file, false, nil
}

func fill(file *os.File, user *users.User, content io.Reader, size int64) error {
	if err := file.Chown(int(user.UID), int(user.GID)); err != nil {
		return err
	}
	if size > 0 && !fits(file, size) {
		return syscall.ENOSPC
	}
	buffer := buffers.Get().(*[]byte)
	defer buffers.Put(buffer)
	// The plain interfaces keep io from using other methods that would ignore the buffer.
	_, err := io.CopyBuffer(struct{ io.Writer }{file}, struct{ io.Reader }{content}, *buffer)
	var path *os.PathError // writing failed, or reading a part to compose
	var known *failure
	if err != nil && !errors.As(err, &path) && !errors.As(err, &known) {
		return badRequest("reading the body: " + err.Error())
	}
	return err
}

// fits tells whether the file's disk has room for size bytes more.
func fits(file *os.File, size int64) bool {
	var fs syscall.Statfs_t
	if syscall.Fstatfs(int(file.Fd()), &fs) != nil {
		return true
	}
	return uint64(size) <= fs.Bavail*uint64(fs.Bsize) || fs.Blocks == 0
}
