// Package journal keeps what happened in the guest lately, for the host to collect: processes, files that clients touched,
// the sandbox's identity, and the kernel's warnings. What processes print is not in it.
package journal

import (
	"maps"
	"sync"
	"time"
)

// Level says how much an entry matters.
type Level string

// The levels of the E2B contract.
const (
	Debug Level = "debug"
	Info  Level = "info"
	Warn  Level = "warn"
	Error Level = "error"
)

// Bounds of a journal: the oldest entries give way. Sizes are bytes of text.
const (
	maxEntries = 1000
	maxSize    = 1 << 20
	maxText    = 4 << 10 // of a message, and of each field
)

// Fields say more about an entry. Their values are for programs, the message is for people.
type Fields map[string]string

// Entry is one thing that happened.
type Entry struct {
	Sequence uint64    `json:"sequence"`
	Time     time.Time `json:"time"`
	Level    Level     `json:"level"`
	Logger   string    `json:"logger"` // the part of the guest it comes from
	Message  string    `json:"message"`
	Fields   Fields    `json:"fields,omitempty"`
}

// size is roughly what the entry takes, in bytes of text.
func (e *Entry) size() int {
	size := len(e.Message) + len(e.Logger) + 64
	for name, value := range e.Fields {
		size += len(name) + len(value) + 8
	}
	return size
}

// Journal is a bounded list of entries. Its methods may be called from any goroutine; a nil Journal forgets everything.
type Journal struct {
	id string

	mu      sync.Mutex
	entries []Entry // ascending by Sequence
	size    int
	last    uint64
}

// New returns an empty journal. Its id tells it from the journal of an earlier boot, whose sequence it doesn't continue.
func New() *Journal {
	return &Journal{id: bootID()}
}

// Add appends an entry with the present time.
func (j *Journal) Add(level Level, logger, message string, fields Fields) {
	if j == nil {
		return
	}
	entry := Entry{Time: time.Now().UTC(), Level: level, Logger: logger, Message: clip(message)}
	if len(fields) > 0 {
		entry.Fields = maps.Clone(fields)
		for name, value := range entry.Fields {
			entry.Fields[name] = clip(value)
		}
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.last++
	entry.Sequence = j.last
	j.entries = append(j.entries, entry)
	j.size += entry.size()
	drop := 0
	for len(j.entries)-drop > maxEntries || j.size > maxSize {
		j.size -= j.entries[drop].size()
		drop++
	}
	clear(j.entries[:drop]) // the texts can be freed before the array moves
	j.entries = j.entries[drop:]
}

// Forget drops every entry: they belong to the sandbox that this guest was copied from. The sequence goes on.
func (j *Journal) Forget() {
	if j == nil {
		return
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.entries, j.size = nil, 0
}

// page returns the entries after a sequence number, up to limit bytes of text but at least one, and whether there are more.
func (j *Journal) page(after uint64, limit int) (entries []Entry, more bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	entries = []Entry{}
	for _, entry := range j.entries {
		if entry.Sequence <= after {
			continue
		}
		limit -= entry.size()
		if limit < 0 && len(entries) > 0 {
			return entries, true
		}
		entries = append(entries, entry)
	}
	return entries, false
}

// clip shortens a text that is too long.
func clip(text string) string {
	if len(text) <= maxText {
		return text
	}
	return text[:maxText] + "…"
}

// File adds what a client did to a file; more are names and values of further fields.
func (j *Journal) File(level Level, operation, path, user string, more ...string) {
	if j == nil {
		return
	}
	fields := Fields{"event": operation, "path": path, "user": user}
	message := operation + " " + path
	for i := 0; i+1 < len(more); i += 2 {
		fields[more[i]] = more[i+1]
		message += " " + more[i] + " " + more[i+1]
	}
	j.Add(level, "files", message, fields)
}
