package caps

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/unspool/unspool/internal/oracle"
)

// asDropped, in the environment, has this test binary give up capabilities and say what its threads then have.
const asDropped = "UNSPOOL_TEST_CAPS"

func TestMain(m *testing.M) {
	if os.Getenv(asDropped) != "" {
		dropped()
		return
	}
	os.Exit(m.Run())
}

// status returns what the kernel says of a thread: its effective and its permitted capabilities.
func status(task string) (effective, permitted Set) {
	b, _ := os.ReadFile("/proc/self/task/" + task + "/status")
	of := func(which string) Set {
		m := regexp.MustCompile(`Cap` + which + `:\s*([0-9a-f]+)`).FindSubmatch(b)
		if m == nil {
			return ^Set(0)
		}
		n, _ := strconv.ParseUint(string(m[1]), 16, 64)
		return Set(n)
	}
	return of("Eff"), of("Prm")
}

func dropped() {
	// As a service that is not root has them.
	h := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	d := data(Own())
	d[0].Inheritable, d[1].Inheritable = uint32(Recording&(1<<32-1)), uint32(Recording>>32)
	if err := unix.Capset(&h, &d[0]); err != nil {
		fmt.Println(err)
	}
	if err := Drop(Recording, Outputs); err != nil {
		fmt.Println(err)
	}
	all, _ := os.ReadDir("/proc/self/task")
	for _, task := range all {
		if effective, permitted := status(task.Name()); effective != Recording || permitted != Recording|Outputs {
			fmt.Printf("a thread has %x of %x\n", effective, permitted)
		}
	}
	if i := inheritable(); i != 0 {
		fmt.Printf("a program that it executes may have %x\n", i)
	}
	if effective, permitted := Own(); effective != Recording || permitted != Recording|Outputs {
		fmt.Printf("Own is %x of %x\n", effective, permitted)
	}
	failed := errors.New("f's")
	err := Raised(func() error {
		if effective, _ := status(strconv.Itoa(unix.Gettid())); effective != Recording|Outputs {
			fmt.Printf("raised, it has %x\n", effective)
		}
		return failed
	})
	if err != failed {
		fmt.Println(err)
	}
	if effective, _ := Own(); effective != Recording {
		fmt.Printf("after it was raised, it has %x\n", effective)
	}
}

// TestDrop: all threads lose all but what is kept, and what is kept for later is in effect only while it is raised.
func TestDrop(t *testing.T) {
	oracle.Long(t)
	if effective, _ := Own(); effective&(Recording|Outputs) != Recording|Outputs || !effective.Has(unix.CAP_SYS_ADMIN) {
		oracle.Lacks(t, "root")
	}
	if err := CanDrop(); err != nil {
		if err := Drop(Recording, 0); !errors.Is(err, errors.ErrUnsupported) {
			t.Errorf("Drop in a program with cgo: %v, want %v", err, errors.ErrUnsupported)
		}
	}
	exe := testWithoutCgo(t)
	c := exec.Command(exe)
	c.Env = append(os.Environ(), asDropped+"=yes")
	if out, err := c.CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("%v\n%s", err, out)
	}
}

// testWithoutCgo returns this test binary as it is without cgo.
func testWithoutCgo(t *testing.T) string {
	if CanDrop() == nil {
		exe, err := os.Executable()
		if err != nil {
			t.Fatal(err)
		}
		return exe
	}
	oracle.Need(t, "go")
	bin := t.TempDir() + "/caps.test"
	c := exec.Command("go", "test", "-c", "-o", bin, ".")
	c.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return bin
}

func TestLacks(t *testing.T) {
	var all Set
	for _, r := range recording {
		all |= 1 << r.bit
	}
	if all != Recording {
		t.Errorf("recording names %x, Recording is %x", all, Recording)
	}
	for _, c := range []struct {
		has  Set
		want string
	}{
		{Recording, ""},
		{0, "cap_bpf cap_perfmon cap_sys_ptrace cap_dac_read_search"},
		{1 << unix.CAP_SYS_ADMIN, "cap_sys_ptrace cap_dac_read_search"},
		{Recording &^ (1 << unix.CAP_PERFMON), "cap_perfmon"},
	} {
		if got := strings.Join(c.has.Lacks(), " "); got != c.want {
			t.Errorf("Set(%#x).Lacks() = %q, want %q", uint64(c.has), got, c.want)
		}
	}
}
