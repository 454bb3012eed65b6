package boot

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"syscall"
	"time"
	"unsafe"
)

// nic is the guest's only network card, by the name the kernel gives it.
const nic = "eth0"

// nicDeadline bounds the wait for a card that the bus shows but the kernel hasn't named yet.
const nicDeadline = 5 * time.Second

// virtioNetwork is the device id of a network card in /sys/bus/virtio.
const virtioNetwork = "0x0001"

// startNetwork brings up the loopback device, and the network card if the guest has one.
func startNetwork(args arguments) error {
	write("/proc/sys/net/ipv6/conf/all/disable_ipv6", "1")
	write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1")
	socket, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_DGRAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("network: %w", err)
	}
	defer syscall.Close(socket)
	if err := setUp(socket, "lo"); err != nil { // the kernel adds 127.0.0.1 by itself
		return err
	}
	if err := writeResolver(args.dns); err != nil {
		console("no name resolution: %v", err)
	}
	if !awaitCard() {
		return nil
	}
	return configure(socket, args.address, args.gateway)
}

// awaitCard says whether the guest has a network card, once it is ready.
func awaitCard() bool {
	for deadline := time.Now().Add(nicDeadline); ; time.Sleep(pollInterval) {
		if _, err := os.Stat("/sys/class/net/" + nic); err == nil {
			return true
		}
		if !cardOnBus() || time.Now().After(deadline) {
			return false
		}
	}
}

func cardOnBus() bool {
	ids, _ := filepath.Glob("/sys/bus/virtio/devices/*/device")
	for _, path := range ids {
		if id, err := os.ReadFile(path); err == nil && firstWord(id, "") == virtioNetwork {
			return true
		}
	}
	return false
}

func configure(socket int, address netip.Prefix, gateway netip.Addr) error {
	mask := netip.AddrFrom4([4]byte(binary.BigEndian.AppendUint32(nil, ^uint32(0)<<(32-address.Bits()))))
	if err := setAddress(socket, syscall.SIOCSIFADDR, address.Addr()); err != nil {
		return fmt.Errorf("set the address of %s: %w", nic, err)
	}
	if err := setAddress(socket, syscall.SIOCSIFNETMASK, mask); err != nil {
		return fmt.Errorf("set the netmask of %s: %w", nic, err)
	}
	if err := setUp(socket, nic); err != nil {
		return err
	}
	if err := addDefaultRoute(socket, gateway); err != nil && !errors.Is(err, syscall.EEXIST) {
		return fmt.Errorf("route by %v: %w", gateway, err)
	}
	return nil
}

// interfaceRequest is struct ifreq of netdevice(7).
type interfaceRequest struct {
	name  [syscall.IFNAMSIZ]byte
	value [24]byte
}

func setUp(socket int, name string) error {
	var request interfaceRequest
	copy(request.name[:], name)
	binary.NativeEndian.PutUint16(request.value[:], syscall.IFF_UP|syscall.IFF_RUNNING)
	if err := ioctl(socket, syscall.SIOCSIFFLAGS, unsafe.Pointer(&request)); err != nil {
		return fmt.Errorf("bring %s up: %w", name, err)
	}
	return nil
}

func setAddress(socket int, command uintptr, address netip.Addr) error {
	var request interfaceRequest
	copy(request.name[:], nic)
	sockaddr := internetAddress(address)
	copy(request.value[:], sockaddr[:])
	return ioctl(socket, command, unsafe.Pointer(&request))
}

// internetAddress is struct sockaddr_in.
func internetAddress(address netip.Addr) (out [16]byte) {
	binary.NativeEndian.PutUint16(out[:], syscall.AF_INET)
	copy(out[4:], address.AsSlice())
	return out
}

// routeEntry is struct rtentry of <linux/route.h> on 64-bit machines.
type routeEntry struct {
	_                          uint64
	destination, gateway, mask [16]byte
	flags                      uint16
	_                          [62]byte
}

func addDefaultRoute(socket int, gateway netip.Addr) error {
	route := routeEntry{
		destination: internetAddress(netip.IPv4Unspecified()),
		gateway:     internetAddress(gateway),
		mask:        internetAddress(netip.IPv4Unspecified()),
		flags:       syscall.RTF_UP | syscall.RTF_GATEWAY,
	}
	return ioctl(socket, syscall.SIOCADDRT, unsafe.Pointer(&route))
}

func ioctl(fd int, command uintptr, argument unsafe.Pointer) error {
	if _, _, errno := syscall.Syscall(syscall.SYS_IOCTL, uintptr(fd), command, uintptr(argument)); errno != 0 {
		return errno
	}
	return nil
}

// writeResolver makes /etc/resolv.conf name these servers. An image's own file or link (to systemd-resolved, say) would point at
// something that doesn't run in the guest.
func writeResolver(servers []netip.Addr) error {
	const path = "/etc/resolv.conf"
	var content bytes.Buffer
	for _, server := range servers {
		fmt.Fprintf(&content, "nameserver %v\n", server)
	}
	if info, err := os.Lstat(path); err == nil && !info.Mode().IsRegular() {
		if err := os.Remove(path); err != nil {
			return err
		}
	} else if old, err := os.ReadFile(path); err == nil && bytes.Equal(old, content.Bytes()) {
		return nil
	}
	return os.WriteFile(path, content.Bytes(), 0o644)
}
