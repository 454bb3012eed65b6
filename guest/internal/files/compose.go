package files

import (
	"encoding/json"
	"io"
	"net/http"
	"os"

	"aenv/envd/internal/rest"
	"aenv/envd/internal/users"
)

// composeLimit bounds the request's body, in bytes.
const composeLimit = 1 << 20

type composeRequest struct {
	Sources     []string `json:"source_paths"`
	Destination string   `json:"destination"`
	Username    string   `json:"username"`
}

// compose joins files into one and removes them: the end of an upload in parts.
func (s *service) compose(w http.ResponseWriter, r *http.Request) error {
	if !s.state.Authorized(r.Header.Get("X-Access-Token")) {
		return &failure{http.StatusUnauthorized, rest.Unauthorized}
	}
	var request composeRequest
	if err := json.NewDecoder(io.LimitReader(r.Body, composeLimit)).Decode(&request); err != nil {
		return badRequest("malformed body: " + err.Error())
	}
	if len(request.Sources) == 0 || request.Destination == "" {
		return badRequest("source_paths and destination are required")
	}
	user, destination, err := s.resolve(request.Destination, request.Username)
	if err != nil {
		return err
	}
	target, _ := os.Stat(destination)
	sources := make([]string, len(request.Sources))
	for i, source := range request.Sources {
		if sources[i], err = users.Resolve(source, user, s.state.DefaultWorkdir()); err != nil {
			return err
		}
		info, err := os.Stat(sources[i])
		if err != nil {
			return err
		}
		if target != nil && os.SameFile(info, target) {
			return badRequest("path '" + sources[i] + "' is source and destination")
		}
	}
	parts := &sequence{paths: sources}
	defer parts.close()
	entry, err := s.save(destination, user, parts, -1, nil)
	if err != nil {
		return err
	}
	for _, source := range sources {
		if err := os.Remove(source); err != nil && !os.IsNotExist(err) { // the same part may be named twice
			return err
		}
	}
	rest.JSON(w, http.StatusOK, entry)
	return nil
}

// sequence reads files one after the other, with at most one of them open.
type sequence struct {
	paths []string
	file  *os.File
}

func (q *sequence) Read(p []byte) (int, error) {
	for {
		if q.file == nil {
			if len(q.paths) == 0 {
				return 0, io.EOF
			}
			file, _, err := openRegular(q.paths[0], os.O_RDONLY)
			if err != nil {
				return 0, err
			}
			q.file, q.paths = file, q.paths[1:]
		}
		n, err := q.file.Read(p)
		if err != io.EOF {
			return n, err
		}
		q.close()
		if n > 0 {
			return n, nil
		}
	}
}

func (q *sequence) close() {
	if q.file != nil {
		_ = q.file.Close()
		q.file = nil
	}
}
