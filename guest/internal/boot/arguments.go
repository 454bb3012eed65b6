package boot

import (
	"bytes"
	"fmt"
	"net/netip"
	"os"
	"strings"
)

// arguments are the kernel arguments that boot understands, with the defaults of every sandbox.
type arguments struct {
	root    string       // aenv.root: the root disk
	address netip.Prefix // aenv.ip: the guest's address with its prefix length
	gateway netip.Addr   // aenv.gw
	dns     []netip.Addr // aenv.dns: servers, with commas between
}

func defaultArguments() arguments {
	return arguments{
		root:    "/dev/vda",
		address: netip.MustParsePrefix("169.254.0.21/30"),
		gateway: netip.MustParseAddr("169.254.0.22"),
		dns:     []netip.Addr{netip.MustParseAddr("8.8.8.8")},
	}
}

func readArguments() (arguments, error) {
	line, err := os.ReadFile("/proc/cmdline")
	if err != nil {
		return arguments{}, fmt.Errorf("read the kernel arguments: %w", err)
	}
	return parseArguments(string(line))
}

func parseArguments(line string) (arguments, error) {
	args := defaultArguments()
	for _, word := range strings.Fields(line) {
		name, value, _ := strings.Cut(word, "=")
		var err error
		switch name {
		case "aenv.root":
			if args.root = value; !strings.HasPrefix(value, "/dev/") {
				err = fmt.Errorf("%q is not in /dev", value)
			}
		case "aenv.ip":
			if args.address, err = netip.ParsePrefix(value); err == nil && !args.address.Addr().Is4() {
				err = fmt.Errorf("%q is not an IPv4 address", value)
			}
		case "aenv.gw":
			if args.gateway, err = netip.ParseAddr(value); err == nil && !args.gateway.Is4() {
				err = fmt.Errorf("%q is not an IPv4 address", value)
			}
		case "aenv.dns":
			args.dns, err = parseAddresses(value)
		}
		if err != nil {
			return args, fmt.Errorf("kernel argument %s: %w", name, err)
		}
	}
	return args, nil
}

func parseAddresses(list string) ([]netip.Addr, error) {
	var addresses []netip.Addr
	for item := range strings.SplitSeq(list, ",") {
		address, err := netip.ParseAddr(item)
		if err != nil {
			return nil, err
		}
		addresses = append(addresses, address)
	}
	return addresses, nil
}

// firstWord returns the first word of the first line that has one and is no comment, or fallback.
func firstWord(content []byte, fallback string) string {
	for line := range bytes.Lines(content) {
		if words := bytes.Fields(line); len(words) > 0 && words[0][0] != '#' {
			return string(words[0])
		}
	}
	return fallback
}
