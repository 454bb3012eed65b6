package files

import (
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"mime"
	"net/http"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"aenv/envd/internal/journal"
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
	user, path, err := s.resolve(r.URL.Query().Get("path"), requestUser(r))
	if err != nil {
		return err
	}
	accepted := parseEncodings(r.Header.Values("Accept-Encoding"))
	if !accepted.identity() && (!accepted.gzip() || partial(r)) {
		return &failure{http.StatusNotAcceptable, "files are sent as they are or with gzip, parts of files as they are"}
	}
	file, info, err := openRegular(path, os.O_RDONLY)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }()
	s.journal.File(journal.Debug, "read", path, user.Name)

	var content io.ReadSeeker = file
	var rest io.Reader // what follows content, if the size is unknown
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
	switch {
	case accepted.wantsGzip() && !partial(r) && (rest != nil || info.Size() > 0):
		header.Set("Last-Modified", info.ModTime().UTC().Format(http.TimeFormat))
		return compress(w, r, content, rest)
	case rest != nil:
		header.Set("Content-Type", "application/octet-stream")
		if r.Method == http.MethodGet {
			_, err := io.Copy(w, io.MultiReader(content, rest))
			abortOn(err)
		}
		return nil
	}
	// Without a name it looks at the content for the type; by the name it would first read the image's tables of types.
	http.ServeContent(w, r, "", info.ModTime(), content)
	return nil
}

// partial tells whether a request asks for a part of a file, or for the file under a condition: its answer depends on positions
// and validators, which are those of the file as it is.
func partial(r *http.Request) bool {
	for _, name := range []string{"Range", "If-Range", "If-Match", "If-None-Match", "If-Modified-Since", "If-Unmodified-Since"} {
		if r.Header.Get(name) != "" {
			return true
		}
	}
	return false
}

// sniffed is how many bytes http.DetectContentType looks at.
const sniffed = 512

// compress answers with content, and rest if there is one, in gzip.
func compress(w http.ResponseWriter, r *http.Request, content io.ReadSeeker, rest io.Reader) error {
	head := make([]byte, sniffed)
	n, err := io.ReadFull(content, head)
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, io.EOF) {
		return err
	}
	header := w.Header()
	header.Set("Content-Type", http.DetectContentType(head[:n]))
	header.Set("Content-Encoding", "gzip")
	if r.Method != http.MethodGet {
		return nil
	}
	parts := []io.Reader{bytes.NewReader(head[:n]), content}
	if rest != nil {
		parts = append(parts, rest)
	}
	out, _ := gzip.NewWriterLevel(w, gzip.BestSpeed) // the level is a valid one
	_, err = io.Copy(out, io.MultiReader(parts...))
	if err == nil {
		err = out.Close()
	}
	abortOn(err)
	return nil
}

// abortOn breaks the connection if an answer of unknown length can't be finished: the client must not take it for a whole one.
func abortOn(err error) {
	if err != nil {
		panic(http.ErrAbortHandler)
	}
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
