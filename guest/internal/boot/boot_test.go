package boot

import (
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"unsafe"
)

func TestArgumentsHaveDefaultsAndCanBeSet(t *testing.T) {
	args, err := parseArguments("console=ttyS0 quiet root=/dev/nfs\n")
	if err != nil || args.root != "/dev/vda" || args.address.String() != "169.254.0.21/30" || args.gateway.String() != "169.254.0.22" {
		t.Errorf("%+v, %v", args, err)
	}
	args, err = parseArguments("aenv.root=/dev/vdb aenv.ip=10.0.0.2/24 aenv.gw=10.0.0.1 aenv.dns=1.1.1.1,2606:4700::1111")
	want := []netip.Addr{netip.MustParseAddr("1.1.1.1"), netip.MustParseAddr("2606:4700::1111")}
	if err != nil || args.root != "/dev/vdb" || args.address.Bits() != 24 || args.gateway.String() != "10.0.0.1" || !slices.Equal(args.dns, want) {
		t.Errorf("%+v, %v", args, err)
	}
}

func TestWrongArgumentsAreNamed(t *testing.T) {
	for _, word := range []string{"aenv.ip=10.0.0.1", "aenv.ip=::1/64", "aenv.gw=x", "aenv.gw=::1", "aenv.dns=", "aenv.dns=1.1.1.1,", "aenv.root=vda"} {
		name, _, _ := strings.Cut(word, "=")
		if _, err := parseArguments(word); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", word, err)
		}
	}
}

func TestKernelStructuresHaveTheirSizes(t *testing.T) {
	if size := unsafe.Sizeof(routeEntry{}); size != 120 {
		t.Errorf("struct rtentry has %d bytes", size)
	}
	if size := unsafe.Sizeof(interfaceRequest{}); size != 40 {
		t.Errorf("struct ifreq has %d bytes", size)
	}
}

func TestFirstWord(t *testing.T) {
	for content, want := range map[string]string{"": "x", "\n# comment\n  name  other\n": "name", "a": "a"} {
		if got := firstWord([]byte(content), "x"); got != want {
			t.Errorf("%q: %q", content, got)
		}
	}
}

// TestLoopbackAndRoute runs itself again in a network namespace of its own, with a card to configure.
func TestLoopbackAndRoute(t *testing.T) {
	if os.Getenv("ENVD_TEST_NAMESPACE") == "" {
		command := exec.Command("/proc/self/exe", "-test.run=^TestLoopbackAndRoute$", "-test.v")
		command.Env = append(os.Environ(), "ENVD_TEST_NAMESPACE=1")
		command.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
		output, err := command.CombinedOutput()
		if err != nil {
			t.Fatalf("%v\n%s", err, output)
		}
		if strings.Contains(string(output), "SKIP") {
			t.Skip(string(output))
		}
		return
	}
	if output, err := exec.Command("ip", "link", "add", nic, "type", "veth", "peer", "name", "peer0").CombinedOutput(); err != nil {
		t.Skipf("no card to test with: %v %s", err, output)
	}
	socket, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_DGRAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Close(socket)
	args := defaultArguments()
	if err := setUp(socket, "lo"); err != nil {
		t.Fatal(err)
	}
	if !awaitCard() {
		t.Fatal("the card was not found")
	}
	if err := configure(socket, args.address, args.gateway); err != nil {
		t.Fatal(err)
	}
	for command, want := range map[string]string{
		"ip -4 addr show dev lo":         "127.0.0.1/8",
		"ip -4 addr show dev " + nic:     "169.254.0.21/30",
		"ip -4 route show default":       "default via 169.254.0.22 dev " + nic,
		"ip -br link show up dev " + nic: nic,
	} {
		output, err := exec.Command("sh", "-c", command).CombinedOutput()
		if err != nil || !strings.Contains(string(output), want) {
			t.Errorf("%s: %v %s", command, err, output)
		}
	}
}

func TestMakeFolderHasItsModeWhateverTheMask(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tmp")
	makeFolder(path, 0o1777)
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o777 || info.Mode()&os.ModeSticky == 0 {
		t.Errorf("%v, %v", info, err)
	}
	makeFolder(path, 0o1777) // it is there already
}
