package guestos

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"syscall"
)

// maxHostname is __NEW_UTS_LEN of Linux, in bytes.
const maxHostname = 64

// hostAddress is the loopback address that /etc/hosts gives to the host's own name, as Debian does.
const hostAddress = "127.0.1.1"

// SetHostname sets the kernel's host name, and makes /etc/hostname and /etc/hosts agree with it as far as the image lets it.
// What already says so is left alone: each written block costs every sandbox a block of its own.
func SetHostname(name string) error {
	if err := checkHostname(name); err != nil {
		return err
	}
	if current, err := os.Hostname(); err != nil || current != name {
		if err := syscall.Sethostname([]byte(name)); err != nil {
			return fmt.Errorf("set the host name: %w", err)
		}
	}
	rewrite("/etc/hostname", func([]byte) []byte { return []byte(name + "\n") })
	rewrite("/etc/hosts", func(old []byte) []byte { return hostsFor(old, name) })
	return nil
}

func checkHostname(name string) error {
	if name == "" || len(name) > maxHostname {
		return fmt.Errorf("a host name has 1 to %d bytes", maxHostname)
	}
	for _, c := range []byte(name) {
		if !(c == '-' || c == '.' || '0' <= c && c <= '9' || 'A' <= c && c <= 'Z' || 'a' <= c && c <= 'z') {
			return fmt.Errorf("host name %q: only letters, digits, '-' and '.' are allowed", name)
		}
	}
	return nil
}

// hostsFor returns the hosts file old with exactly one line for hostAddress, which names name.
func hostsFor(old []byte, name string) []byte {
	var out bytes.Buffer
	wanted := hostAddress + "\t" + name
	done := false
	for line := range strings.Lines(string(old)) {
		line = strings.TrimSuffix(line, "\n")
		if fields := strings.Fields(line); len(fields) > 0 && fields[0] == hostAddress {
			if done {
				continue
			}
			line, done = wanted, true
		}
		out.WriteString(line + "\n")
	}
	if len(old) == 0 {
		out.WriteString("127.0.0.1\tlocalhost\n")
	}
	if !done {
		out.WriteString(wanted + "\n")
	}
	return out.Bytes()
}

// rewrite replaces the file's content if change alters it, where it is: a new file takes a quarter of the time of a whole
// /init under emulation, and blocks of its own. It is a best effort: images may lack /etc or link the file away.
func rewrite(path string, change func(old []byte) []byte) {
	if info, err := os.Lstat(path); err == nil && !info.Mode().IsRegular() {
		return
	}
	old, err := os.ReadFile(path)
	if err != nil && !os.IsNotExist(err) {
		return
	}
	content := change(old)
	if bytes.Equal(old, content) {
		return
	}
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|syscall.O_NOFOLLOW, 0o644)
	if err != nil {
		return
	}
	defer file.Close()
	if _, err := file.WriteAt(content, 0); err == nil && len(content) < len(old) {
		file.Truncate(int64(len(content)))
	}
}
