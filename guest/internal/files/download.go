package files

import (
	"bytes"
	"errors"
	"io"
	"mime"
	"net/http"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// Files of /proc and the like don't know their size: up to syntheticLimit bytes are read ahead to tell the client, and reading
// one gives up after syntheticPatience (/proc/kmsg waits for ever).
const (
	syntheticLimit    = 1 << 18
	syntheticPatience = 5 * time.Second
)

func (s *service) download(w http.ResponseWriter, r *http.Request) error {
	if err := s.authorize(r, operationRead); err != nil {
		return err
	}
	_, path, err := s.resolve(r.URL.Query().Get("path"), requestUser(r))
	if err != nil {
		return err
	}
	if !acceptsIdentity(r.Header.Values("Accept-Encoding")) {
		return &failure{http.StatusNotAcceptable, "files are sent without compression: accept the encoding identity"}
	}
	file, info, err := openRegular(path, os.O_RDONLY)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }()

	var content io.ReadSeeker = file
	var rest io.Reader
	if synthetic(path, info) {
		content, rest, err = readAhead(file)
		if err != nil {
			return err
		}
	}
	header := w.Header()
	header.Set("Vary", "Accept-Encoding")
	if disposition := mime.FormatMediaType("inline", map[string]string{"filename": filepath.Base(path)}); disposition != "" {
		header.Set("Content-Disposition", disposition)
	}
	if rest != nil {
		header.Set("Content-Type", "application/octet-stream")
		if r.Method == http.MethodGet {
			_, _ = io.Copy(w, io.MultiReader(content, rest))
		}
		return nil
	}
	// Without a name it looks at the content for the type; by the name it would first read the image's tables of types.
	http.ServeContent(w, r, "", info.ModTime(), content)
	return nil
}

// Magic numbers of statfs(2) of file systems whose files have a made-up size.
const (
	procMagic    = 0x9fa0
	sysfsMagic   = 0x62656572
	cgroup2Magic = 0x63677270
	debugfsMagic = 0x64626720
	tracefsMagic = 0x74726163
)

func synthetic(path string, info os.FileInfo) bool {
	if info.Size() == 0 {
		return true
	}
	var fs syscall.Statfs_t
	if syscall.Statfs(path, &fs) != nil {
		return false
	}
	switch int64(fs.Type) {
	case procMagic, sysfsMagic, cgroup2Magic, debugfsMagic, tracefsMagic:
		return true
	}
	return false
}

// readAhead returns the content of a file whose size is unknown, as far as it fits into the limit, and the rest, if there is one.
func readAhead(file *os.File) (io.ReadSeeker, io.Reader, error) {
	_ = file.SetReadDeadline(time.Now().Add(syntheticPatience)) // only files that can be waited for have deadlines
	head, err := io.ReadAll(io.LimitReader(file, syntheticLimit))
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return nil, nil, badRequest("path '" + file.Name() + "' has no end")
	}
	if err != nil {
		return nil, nil, err
	}
	if len(head) < syntheticLimit {
		return bytes.NewReader(head), nil, nil
	}
	return bytes.NewReader(head), file, nil
}
