package filesystem

import (
	"os"
	"path/filepath"
	"syscall"
	"time"

	"aenv/envd/internal/connect"
	"aenv/envd/internal/metadata"
	"aenv/envd/internal/users"
)

// Names of filesystem.FileType.
const (
	typeUnspecified = "FILE_TYPE_UNSPECIFIED"
	typeFile        = "FILE_TYPE_FILE"
	typeDirectory   = "FILE_TYPE_DIRECTORY"
)

// entryInfo is filesystem.EntryInfo.
type entryInfo struct {
	Name          string            `json:"name"`
	Type          string            `json:"type"`
	Path          string            `json:"path"`
	Size          connect.Int64     `json:"size"`
	Mode          uint32            `json:"mode"`
	Permissions   string            `json:"permissions"`
	Owner         string            `json:"owner"`
	Group         string            `json:"group"`
	ModifiedTime  time.Time         `json:"modifiedTime"`
	SymlinkTarget *string           `json:"symlinkTarget,omitempty"`
	Metadata      map[string]string `json:"metadata,omitempty"`
	IsSymlink     bool              `json:"isSymlink,omitempty"`
}

// describer makes entries. It remembers account names, which lie in files, for as long as one answer takes.
type describer struct {
	owners, groups map[uint32]string
}

func newDescriber() *describer {
	return &describer{owners: map[uint32]string{}, groups: map[uint32]string{}}
}

// stat describes what is at path. A link is described itself, with the type of what it leads to.
func (d *describer) stat(path string) (*entryInfo, error) {
	info, err := os.Lstat(path)
	if err != nil {
		return nil, err
	}
	return d.describe(path, info), nil
}

func (d *describer) describe(path string, info os.FileInfo) *entryInfo {
	entry := &entryInfo{
		Name:         filepath.Base(path),
		Type:         fileType(info.Mode()),
		Path:         path,
		Size:         connect.Int64(info.Size()),
		Mode:         uint32(info.Mode().Perm()),
		Permissions:  info.Mode().String(),
		ModifiedTime: info.ModTime().UTC(),
	}
	if stat, ok := info.Sys().(*syscall.Stat_t); ok {
		entry.Owner = name(d.owners, stat.Uid, users.NameOf)
		entry.Group = name(d.groups, stat.Gid, users.GroupNameOf)
	}
	if info.Mode()&os.ModeSymlink != 0 {
		entry.IsSymlink = true
		entry.Type, entry.SymlinkTarget = follow(path)
	}
	if entry.Type != typeUnspecified {
		entry.Metadata = metadata.Read(path)
	}
	return entry
}

// follow returns the type of what a link leads to in the end, and its path; if that doesn't exist, what the link says.
func follow(path string) (string, *string) {
	if target, err := filepath.EvalSymlinks(path); err == nil {
		if info, err := os.Stat(target); err == nil {
			return fileType(info.Mode()), &target
		}
	}
	target, err := os.Readlink(path)
	if err != nil {
		return typeUnspecified, nil
	}
	return typeUnspecified, &target
}

// fileType returns the type of a file; pipes, sockets and devices have none in the protocol.
func fileType(mode os.FileMode) string {
	switch {
	case mode.IsRegular():
		return typeFile
	case mode.IsDir():
		return typeDirectory
	}
	return typeUnspecified
}

func name(known map[uint32]string, id uint32, lookup func(uint32) string) string {
	found, ok := known[id]
	if !ok {
		found = lookup(id)
		known[id] = found
	}
	return found
}
