// Workload is what the VM tests run inside a guest: it counts, keeps values, fills memory, writes to the disk and talks to the
// network, and tells over HTTP on port 7000 whether all it remembers is still true.
package main

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

const (
	filesKept = 24
	fileSize  = 96 << 10
)

type state struct {
	counter  atomic.Int64
	replies  atomic.Int64 // answers from outside
	written  atomic.Int64 // files
	mu       sync.Mutex
	files    map[string][32]byte
	failure  string
	memory   []byte
	traffic  atomic.Bool
	diskIdle sync.Mutex // held while a file is written
	values   sync.Map   // what was put, in memory only
}

func main() {
	s := &state{files: map[string][32]byte{}}
	go s.count()
	go s.echo()
	http.HandleFunc("GET /count", func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, s.counter.Load()) })
	http.HandleFunc("GET /clock", s.clock)
	http.HandleFunc("POST /fill", s.fill)
	http.HandleFunc("GET /memory", func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, digest(s.memory)) })
	http.HandleFunc("POST /traffic", s.startTraffic)
	http.HandleFunc("GET /report", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, s.written.Load(), " ", s.replies.Load())
	})
	http.HandleFunc("POST /verify", s.verify)
	http.HandleFunc("PUT /value/{name}", s.putValue)
	http.HandleFunc("GET /all", s.all)
	http.HandleFunc("PUT /file/{name}", s.put)
	http.HandleFunc("GET /file/{name}", func(w http.ResponseWriter, r *http.Request) { http.ServeFile(w, r, path(r.PathValue("name"))) })
	http.HandleFunc("POST /panic", func(w http.ResponseWriter, r *http.Request) {
		os.WriteFile("/proc/sysrq-trigger", []byte("c"), 0)
	})
	fmt.Fprintln(os.Stderr, http.ListenAndServe(":7000", nil))
	os.Exit(1)
}

func path(name string) string { return filepath.Join("/data", filepath.Base(name)) }

func digest(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

func (s *state) fail(format string, a ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failure == "" {
		s.failure = fmt.Sprintf(format, a...)
	}
}

func (s *state) count() {
	for range time.Tick(10 * time.Millisecond) {
		s.counter.Add(1)
	}
}

// echo answers datagrams from the host.
func (s *state) echo() {
	conn, err := net.ListenPacket("udp", ":7001")
	if err != nil {
		s.fail("echo: %v", err)
		return
	}
	buffer := make([]byte, 2048)
	for {
		if n, peer, err := conn.ReadFrom(buffer); err == nil {
			conn.WriteTo(buffer[:n], peer)
		}
	}
}

func (s *state) clock(w http.ResponseWriter, r *http.Request) {
	source, _ := os.ReadFile("/sys/devices/system/clocksource/clocksource0/current_clocksource")
	fmt.Fprintf(w, "%d %s", time.Now().UnixNano(), source)
}

// fill takes ?mib= of memory and writes random words into it.
func (s *state) fill(w http.ResponseWriter, r *http.Request) {
	mib, _ := strconv.Atoi(r.FormValue("mib"))
	s.memory = make([]byte, mib<<20)
	generator := rand.NewPCG(rand.Uint64(), rand.Uint64())
	for i := 0; i < len(s.memory); i += 8 {
		binary.LittleEndian.PutUint64(s.memory[i:], generator.Uint64())
	}
	fmt.Fprint(w, digest(s.memory))
}

// startTraffic writes files and, if ?outside= names one, talks to a UDP echo server, for ever.
func (s *state) startTraffic(w http.ResponseWriter, r *http.Request) {
	if !s.traffic.CompareAndSwap(false, true) {
		return
	}
	go s.writeFiles()
	if outside := r.FormValue("outside"); outside != "" {
		go s.talk(outside)
	}
}

func (s *state) writeFiles() {
	for i := 0; ; i++ {
		content := make([]byte, fileSize)
		for j := 0; j < len(content); j += 8 {
			binary.LittleEndian.PutUint64(content[j:], rand.Uint64())
		}
		name := path(fmt.Sprint("traffic-", i%filesKept))
		s.diskIdle.Lock()
		err := os.WriteFile(name, content, 0o600)
		s.mu.Lock()
		s.files[name] = sha256.Sum256(content)
		s.mu.Unlock()
		s.diskIdle.Unlock()
		if err != nil {
			s.fail("write %s: %v", name, err)
		}
		if i%4 == 0 {
			syscall.Sync()
		}
		s.written.Add(1)
		time.Sleep(2 * time.Millisecond)
	}
}

func (s *state) talk(outside string) {
	conn, err := net.Dial("udp", outside)
	if err != nil {
		s.fail("dial %s: %v", outside, err)
		return
	}
	buffer := make([]byte, 2048)
	for i := uint64(0); ; i++ {
		message := binary.LittleEndian.AppendUint64(make([]byte, 1000), i)
		conn.Write(message)
		conn.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
		if n, err := conn.Read(buffer); err == nil && n == len(message) {
			s.replies.Add(1)
		}
		time.Sleep(time.Millisecond)
	}
}

// verify drops the caches and reads every file back; it answers how many were right.
func (s *state) verify(w http.ResponseWriter, r *http.Request) {
	s.diskIdle.Lock()
	defer s.diskIdle.Unlock()
	syscall.Sync()
	if err := os.WriteFile("/proc/sys/vm/drop_caches", []byte("3"), 0); err != nil {
		s.fail("drop caches: %v", err)
	}
	s.mu.Lock()
	files := s.files
	s.mu.Unlock()
	for name, sum := range files {
		content, err := os.ReadFile(name)
		if err != nil || sha256.Sum256(content) != sum {
			s.fail("%s isn't what was written: %v", name, err)
		}
	}
	if s.failure != "" {
		http.Error(w, s.failure, http.StatusInternalServerError)
		return
	}
	fmt.Fprint(w, len(files))
}

func (s *state) put(w http.ResponseWriter, r *http.Request) {
	content, err := io.ReadAll(r.Body)
	if err == nil {
		err = replace(path(r.PathValue("name")), content)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
	}
}

// replace never leaves half a file to whoever reads it after a crash: ext4 writes the content before the new name.
func replace(name string, content []byte) error {
	if err := os.WriteFile(name+".new", content, 0o600); err != nil {
		return err
	}
	return os.Rename(name+".new", name)
}

func (s *state) putValue(w http.ResponseWriter, r *http.Request) {
	content, err := io.ReadAll(r.Body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	s.values.Store(r.PathValue("name"), string(content))
}

// all tells the counter, the values, and the files whose names begin with "key"; with ?cold= as they are on the disk, unless
// they have yet to be written.
func (s *state) all(w http.ResponseWriter, r *http.Request) {
	if r.FormValue("cold") != "" {
		if err := os.WriteFile("/proc/sys/vm/drop_caches", []byte("1"), 0); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
	}
	values, files := map[string]string{}, map[string]string{}
	s.values.Range(func(name, value any) bool {
		values[name.(string)] = value.(string)
		return true
	})
	names, _ := filepath.Glob(path("key*"))
	for _, name := range names {
		content, err := os.ReadFile(name)
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		files[filepath.Base(name)] = string(content)
	}
	json.NewEncoder(w).Encode(map[string]any{"count": s.counter.Load(), "values": values, "files": files})
}
