// Package metrics tells how much of the guest's processors, memory and disk is in use.
package metrics

import (
	"bytes"
	"fmt"
	"math"
	"net/http"
	"os"
	"strconv"
	"sync"
	"syscall"
	"time"

	"aenv/envd/internal/rest"
)

// sample is the body of GET /metrics. Sizes are bytes unless the name says otherwise.
type sample struct {
	Timestamp   int64   `json:"ts"` // seconds since 1970
	CPUCount    int     `json:"cpu_count"`
	CPUUsed     float64 `json:"cpu_used_pct"` // since the last request, of all processors together
	MemTotal    uint64  `json:"mem_total"`
	MemUsed     uint64  `json:"mem_used"`
	MemCache    uint64  `json:"mem_cache"`
	MemTotalMiB uint64  `json:"mem_total_mib"`
	MemUsedMiB  uint64  `json:"mem_used_mib"`
	DiskUsed    uint64  `json:"disk_used"`
	DiskTotal   uint64  `json:"disk_total"`
}

// cpuTimes are the jiffies of /proc/stat that all processors together spent since boot.
type cpuTimes struct {
	count       int
	busy, total uint64
}

type meter struct {
	mu   sync.Mutex
	last cpuTimes
}

// Register serves GET /metrics.
func Register(mux *http.ServeMux) {
	m := &meter{}
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, _ *http.Request) {
		s, err := m.sample()
		if err != nil {
			rest.Error(w, http.StatusInternalServerError, "metrics: %v", err)
			return
		}
		rest.JSON(w, http.StatusOK, s)
	})
}

func (m *meter) sample() (sample, error) {
	stat, err := os.ReadFile("/proc/stat")
	if err != nil {
		return sample{}, err
	}
	meminfo, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return sample{}, err
	}
	var disk syscall.Statfs_t
	if err := syscall.Statfs("/", &disk); err != nil {
		return sample{}, fmt.Errorf("statfs /: %w", err)
	}
	cpu := parseStat(stat)
	memory := parseMeminfo(meminfo)
	m.mu.Lock()
	used := usedPercent(m.last, cpu)
	m.last = cpu
	m.mu.Unlock()
	s := sample{
		Timestamp: time.Now().Unix(),
		CPUCount:  cpu.count,
		CPUUsed:   used,
		MemTotal:  memory["MemTotal"],
		MemUsed:   memory["MemTotal"] - min(memory["MemTotal"], memory["MemAvailable"]),
		MemCache:  memory["Cached"] + memory["Buffers"],
		DiskUsed:  (disk.Blocks - disk.Bfree) * uint64(disk.Bsize),
		DiskTotal: disk.Blocks * uint64(disk.Bsize),
	}
	s.MemTotalMiB, s.MemUsedMiB = s.MemTotal>>20, s.MemUsed>>20
	return s, nil
}

// usedPercent returns the busy share between two samples, rounded to two digits.
func usedPercent(before, now cpuTimes) float64 {
	if now.total <= before.total || now.busy < before.busy {
		return 0
	}
	share := float64(now.busy-before.busy) / float64(now.total-before.total)
	return math.Round(share*1e4) / 100
}

// parseStat reads /proc/stat (proc(5)): user nice system idle iowait irq softirq steal; guest time is part of user time.
func parseStat(content []byte) (t cpuTimes) {
	for line := range bytes.Lines(content) {
		fields := bytes.Fields(line)
		if len(fields) < 5 || !bytes.HasPrefix(fields[0], []byte("cpu")) {
			continue
		}
		if len(fields[0]) > len("cpu") {
			t.count++
			continue
		}
		for i, field := range fields[1:min(len(fields), 9)] {
			value := number(field)
			t.total += value
			if i != 3 && i != 4 { // idle and iowait
				t.busy += value
			}
		}
	}
	return t
}

// parseMeminfo returns the values of /proc/meminfo in bytes.
func parseMeminfo(content []byte) map[string]uint64 {
	values := map[string]uint64{}
	for line := range bytes.Lines(content) {
		if name, rest, ok := bytes.Cut(line, []byte(":")); ok {
			if fields := bytes.Fields(rest); len(fields) > 0 {
				values[string(name)] = number(fields[0]) << 10
			}
		}
	}
	return values
}

func number(digits []byte) uint64 {
	value, _ := strconv.ParseUint(string(digits), 10, 64)
	return value
}
