// Package metadata keeps the small key-value pairs that a client attaches to a file, as extended attributes "user.e2b.<key>".
package metadata

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"syscall"
)

const (
	headerPrefix = "X-Metadata-" // in the canonical form of net/http
	attrPrefix   = "user.e2b."
)

// Limits of the contract, in bytes. A key's comes from the kernel: 255 for a name with its prefix.
const (
	maxKey   = 246
	maxTotal = 4096
)

// FromHeader collects a request's X-Metadata-<key> headers, with lower-case keys; nil if there are none.
func FromHeader(header http.Header) (map[string]string, error) {
	var pairs map[string]string
	total := 0
	for name, values := range header {
		key, ok := strings.CutPrefix(name, headerPrefix)
		if !ok {
			continue
		}
		key = strings.ToLower(key)
		value := strings.Join(values, ",")
		switch {
		case key == "" || len(key) > maxKey:
			return nil, fmt.Errorf("metadata key %q must have 1 to %d bytes", key, maxKey)
		case !printable(key) || !printable(value):
			return nil, fmt.Errorf("metadata %q must be printable ASCII", key)
		}
		if total += len(key) + len(value); total > maxTotal {
			return nil, fmt.Errorf("metadata is larger than %d bytes", maxTotal)
		}
		if pairs == nil {
			pairs = map[string]string{}
		}
		pairs[key] = value
	}
	return pairs, nil
}

func printable(text string) bool {
	for i := range len(text) {
		if text[i] < ' ' || text[i] > '~' {
			return false
		}
	}
	return true
}

// Replace makes pairs the whole metadata of a file.
func Replace(path string, pairs map[string]string) error {
	old, err := keys(path)
	if err != nil && len(pairs) > 0 {
		return fmt.Errorf("metadata of '%s': %w", path, err)
	}
	for _, key := range old {
		if _, kept := pairs[key]; kept {
			continue
		}
		if err := syscall.Removexattr(path, attrPrefix+key); err != nil && err != syscall.ENODATA {
			return fmt.Errorf("metadata of '%s': %w", path, err)
		}
	}
	for key, value := range pairs {
		if err := syscall.Setxattr(path, attrPrefix+key, []byte(value), 0); err != nil {
			return fmt.Errorf("metadata of '%s': %w", path, err)
		}
	}
	return nil
}

// Read returns the metadata of a file, nil if it has none or its file system keeps none.
func Read(path string) map[string]string {
	found, err := keys(path)
	if err != nil || len(found) == 0 {
		return nil
	}
	pairs := make(map[string]string, len(found))
	for _, key := range found {
		value, err := attribute(func(dest []byte) (int, error) { return syscall.Getxattr(path, attrPrefix+key, dest) })
		if err == nil {
			pairs[key] = string(value)
		}
	}
	return pairs
}

func keys(path string) ([]string, error) {
	list, err := attribute(func(dest []byte) (int, error) { return syscall.Listxattr(path, dest) })
	var found []string
	for name := range bytes.SplitSeq(list, []byte{0}) {
		if key, ok := strings.CutPrefix(string(name), attrPrefix); ok {
			found = append(found, key)
		}
	}
	return found, err
}

// attribute calls get with ever larger buffers until the value fits; 64 KiB is the kernel's limit.
func attribute(get func([]byte) (int, error)) ([]byte, error) {
	for size := 512; ; size *= 4 {
		buffer := make([]byte, size)
		n, err := get(buffer)
		if err == nil {
			return buffer[:n], nil
		}
		if !errors.Is(err, syscall.ERANGE) || size > 1<<16 {
			return nil, err
		}
	}
}
