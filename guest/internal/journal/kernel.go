package journal

import (
	"errors"
	"io"
	"os"
	"strconv"
	"strings"
	"syscall"
)

const (
	kernelLog = "/dev/kmsg"

	// recordSize is more than the longest record: the kernel's own limit is 8 KiB, and a read that is too short fails.
	recordSize = 16 << 10

	facilityKernel = 0 // a record's facility if the kernel itself wrote it, not a program (syslog(2))
)

// Priorities of syslog(2).
const (
	priorityError   = 3
	priorityWarning = 4
)

// FollowKernel adds the kernel's warnings, and worse, to the journal until its log can't be read any more.
func (j *Journal) FollowKernel() error {
	file, err := os.OpenFile(kernelLog, os.O_RDONLY|syscall.O_NONBLOCK, 0) // non-blocking: waiting costs no thread
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }()
	return j.follow(file)
}

// follow reads records, of which every read returns one.
func (j *Journal) follow(records io.Reader) error {
	buffer := make([]byte, recordSize)
	for {
		n, err := records.Read(buffer)
		if errors.Is(err, syscall.EPIPE) { // records were overwritten before we came to them
			continue
		}
		if err != nil {
			return err
		}
		if level, message, ok := parseRecord(string(buffer[:n])); ok {
			j.Add(level, "kernel", message, nil)
		}
	}
}

// parseRecord reads "priority,sequence,microseconds,flags[,…];message\n[ KEY=value\n…]" (Documentation/ABI/testing/dev-kmsg).
func parseRecord(record string) (level Level, message string, ok bool) {
	header, rest, found := strings.Cut(record, ";")
	if !found {
		return "", "", false
	}
	field, _, _ := strings.Cut(header, ",")
	number, err := strconv.ParseUint(field, 10, 32)
	if err != nil || number>>3 != facilityKernel {
		return "", "", false
	}
	message, _, _ = strings.Cut(rest, "\n")
	switch priority := number & 7; {
	case priority <= priorityError:
		return Error, message, true
	case priority == priorityWarning:
		return Warn, message, true
	}
	return "", "", false
}
