package main

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/unspool/unspool/doctor"
	"github.com/unspool/unspool/internal/caps"
	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/internal/procfs"
)

// diagnosed runs doctor and reads what it says.
func diagnosed(t *testing.T, c *exec.Cmd, status int) (d doctor.Diagnosis, named map[string]doctor.Finding) {
	t.Helper()
	r := finish(t, c)
	r.want(t, status, "")
	if err := json.Unmarshal([]byte(r.out), &d); err != nil {
		t.Fatalf("%v: %s", err, r.out)
	}
	named = map[string]doctor.Finding{}
	for _, f := range append(d.Ways, d.Needs...) {
		if _, twice := named[f.Name]; twice || f.Name == "" || f.What == "" {
			t.Errorf("%+v", f)
		}
		if !f.OK && f.Reason == "" {
			t.Errorf("%s: no, and no reason: %+v", f.Name, f)
		}
		named[f.Name] = f
	}
	return d, named
}

// Doctor says of root what record then finds, and measures.
func TestDoctor(t *testing.T) {
	canRecord(t)
	d, named := diagnosed(t, program(t, "doctor", "--json"), 0)
	if !named["record-user"].OK {
		t.Errorf("a recording has just been made: %+v", named["record-user"])
	}
	all := runProgram(t, "record", "--source", "perf", "-a", "--duration", "100ms", "-o", "x.folded")
	if named["record-all"].OK != (all.status == 0) {
		t.Errorf("%+v; recording all: %s", named["record-all"], all.stderr)
	}
	kernel := runProgram(t, "record", "--source", "ebpf", "-o", "x.folded", "--", "true")
	if named["record-ebpf"].OK != (kernel.status == 0) {
		t.Errorf("%+v; recording in the kernel: %s", named["record-ebpf"], kernel.stderr)
	}
	if !named["record-ebpf"].OK {
		oracle.Lacks(t, "the permission to walk in the kernel: "+named["record-ebpf"].Reason)
	}
	// The second begins while the recording is opened: what is left of it counts.
	m := d.Measured
	if m == nil || m.Load <= 0 || m.Processes < 1 || m.Modules < 1 || m.TableBytes < 1000 || m.MapBytes < m.TableBytes || m.Overhead < 1 ||
		m.Seconds < 0.5 || m.Samples == 0 || m.Whole <= 0 || m.Whole > 100 || (m.Runs == 0 || m.PerSample < 100) == (m.Note == "") {
		t.Errorf("%+v", m)
	}
	r := runProgram(t, "doctor")
	if r.want(t, 0, "^$"); !regexp.MustCompile(`(?m)^  yes  record own processes by copies of stacks, user space`).MatchString(r.out) ||
		!regexp.MustCompile(`(?m)^  [\d,]+ processes, tables of [\d,]+ modules: [\d.]+ MiB, which take [\d.]+ MiB of kernel memory`).MatchString(r.out) {
		t.Errorf("doctor prints\n%s\nwant a line of own processes, and one of all tables and their kernel memory", r.out)
	}
}

// as returns a command that runs the program as an ordinary user, by way of argv.
func as(t *testing.T, caps string, args ...string) *exec.Cmd {
	t.Helper()
	if os.Geteuid() != 0 {
		oracle.Lacks(t, "root, to become an ordinary user")
	}
	c := program(t, args...)
	dir, err := os.MkdirTemp("", "unspool")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	bin := filepath.Join(dir, "unspool")
	b, err := os.ReadFile(c.Path)
	if err == nil {
		err = errors.Join(os.WriteFile(bin, b, 0o755), os.Chmod(bin, 0o755), os.Chown(dir, 65534, 65534))
	}
	if err != nil {
		t.Fatal(err)
	}
	if caps != "" {
		if err := unix.Setxattr(bin, "security.capability", fileCaps(t, caps), 0); err != nil {
			oracle.Lacks(t, "a file system with capabilities: "+err.Error())
		}
	}
	c.Path, c.Args[0], c.Dir = bin, bin, dir
	c.Env = append(c.Env, "UNSPOOL_CACHE="+filepath.Join(dir, "cache"), "HOME="+dir)
	c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	return c
}

// fileCaps is what setcap makes of "cap_a,cap_b=ep": a vfs_cap_data of revision 2, effective (include/uapi/linux/capability.h).
func fileCaps(t *testing.T, s string) []byte {
	t.Helper()
	names, ok := strings.CutSuffix(s, "=ep")
	bits := map[string]int{
		"cap_bpf": unix.CAP_BPF, "cap_perfmon": unix.CAP_PERFMON, "cap_sys_ptrace": unix.CAP_SYS_PTRACE, "cap_dac_read_search": unix.CAP_DAC_READ_SEARCH,
	}
	var set uint64
	for name := range strings.SplitSeq(names, ",") {
		bit, known := bits[name]
		if !known || !ok {
			t.Fatalf("capabilities %q", s)
		}
		set |= 1 << bit
	}
	b := binary.LittleEndian.AppendUint32(nil, 0x02000001)
	for _, half := range []uint32{uint32(set), uint32(set >> 32)} {
		b = binary.LittleEndian.AppendUint32(b, half)
		b = binary.LittleEndian.AppendUint32(b, 0) // inheritable
	}
	return b
}

// What doctor says to an ordinary user about what is forbidden and how to change it is true.
func TestDoctorOrdinaryUser(t *testing.T) {
	canRecord(t)
	level, known := procfs.Setting("kernel/perf_event_paranoid")
	if !known {
		oracle.Lacks(t, "kernel.perf_event_paranoid")
	}
	status := 0
	if level > 2 {
		status = 1
	}
	_, named := diagnosed(t, as(t, "", "doctor", "--json"), status)
	for name, most := range map[string]int{"record-user": 2, "record-kernel": 1, "record-all": 0} {
		if f := named[name]; f.OK != (level <= most) || !f.OK && !strings.Contains(f.Change, "kernel.perf_event_paranoid=") {
			t.Errorf("at level %d: %+v", level, f)
		}
	}
	f := named["record-ebpf"]
	_, caps, _ := strings.Cut(f.Change, "setcap ")
	caps, _, _ = strings.Cut(caps, " ")
	if f.OK || !strings.HasSuffix(caps, "=ep") {
		t.Fatalf("%+v", f)
	}
	// With what it says is to be set, it can.
	_, named = diagnosed(t, as(t, caps, "doctor", "--json", "--quick"), 0)
	for _, name := range []string{"record-user", "record-kernel", "record-all", "record-ebpf", "capabilities"} {
		if f := named[name]; !f.OK {
			t.Errorf("with %s: %+v", caps, f)
		}
	}
	r := finish(t, as(t, caps, "record", "--source", "ebpf", "-a", "--duration", "500ms", "-o", "x.folded"))
	if r.want(t, 0, "samples"); strings.Contains(r.stderr, "could not be loaded into the kernel") {
		t.Errorf("%s", r.stderr)
	}
}

// A seccomp filter that refuses perf_event_open and bpf, as containers have it.
const refuse = `#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>
int main(int argc, char **argv) {
	struct sock_filter f[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_perf_event_open, 1, 0),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_bpf, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog p = { sizeof f / sizeof *f, f };
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &p))
		return 125;
	execv(argv[1], argv + 1);
	return 126;
}`

// Where nothing can be recorded, doctor says so and by its exit status.
func TestDoctorNothing(t *testing.T) {
	oracle.Long(t)
	oracle.Need(t, "gcc")
	prog := filepath.Join(t.TempDir(), "refuse")
	gcc := exec.Command("gcc", "-o", prog, "-x", "c", "-")
	gcc.Stdin = strings.NewReader(refuse)
	if out, err := gcc.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	c := program(t, "doctor", "--json")
	c.Args = append([]string{prog, c.Path}, c.Args[1:]...)
	c.Path = prog
	_, named := diagnosed(t, c, 1)
	if os.Geteuid() == 0 {
		if f := named["record-user"]; f.OK || !strings.Contains(f.Reason, "seccomp") {
			t.Errorf("%+v", f)
		}
	}
	for _, f := range named {
		if f.OK && strings.HasPrefix(f.Name, "record-") {
			t.Errorf("%+v", f)
		}
	}
}

// In another PID namespace as much can be done, and doctor says what is not seen.
func TestDoctorNamespace(t *testing.T) {
	oracle.Long(t)
	if c, _ := caps.Own(); !c.Has(unix.CAP_SYS_ADMIN) {
		oracle.Lacks(t, "CAP_SYS_ADMIN, to make a PID namespace")
	}
	_, first := diagnosed(t, program(t, "doctor", "--json", "--quick"), 0)
	c := program(t, "doctor", "--json", "--quick")
	c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}
	_, named := diagnosed(t, c, 0)
	if f, g := named["record-ebpf"], first["record-ebpf"]; f != g {
		t.Errorf("%+v, outside %+v", f, g)
	}
	if f := named["pid-namespace"]; f.OK || !strings.Contains(f.Change, "--pid=host") {
		t.Errorf("%+v", f)
	}
}
