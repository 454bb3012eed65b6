package journal

import (
	"crypto/rand"
	"net/http"
	"os"
	"strconv"
	"strings"

	"aenv/envd/internal/rest"
)

// pageSize bounds one answer, in bytes of text. JSON may make it several times as long.
const pageSize = 128 << 10

const bootIDFile = "/proc/sys/kernel/random/boot_id"

// answer is the body of GET /logs.
type answer struct {
	Journal string  `json:"journal"` // other than before: the guest was booted again, and the sequence began anew
	Entries []Entry `json:"entries"`
	More    bool    `json:"more"` // ask again, after the last of these
}

// Register serves GET /logs?journal=…&after=…: what was added after that sequence number of that journal, oldest first.
func (j *Journal) Register(mux *http.ServeMux) {
	mux.HandleFunc("GET /logs", func(w http.ResponseWriter, r *http.Request) {
		query := r.URL.Query()
		var after uint64
		if text := query.Get("after"); text != "" {
			var err error
			if after, err = strconv.ParseUint(text, 10, 64); err != nil {
				rest.Error(w, http.StatusBadRequest, "after: %q is not a sequence number", text)
				return
			}
		}
		if query.Get("journal") != j.id {
			after = 0
		}
		entries, more := j.page(after, pageSize)
		rest.JSON(w, http.StatusOK, answer{j.id, entries, more})
	})
}

// bootID identifies this boot of the kernel (random(4)).
func bootID() string {
	if content, err := os.ReadFile(bootIDFile); err == nil {
		return strings.TrimSpace(string(content))
	}
	return rand.Text()
}
