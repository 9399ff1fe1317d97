package vm

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/unspool/unspool/internal/oracle"
)

// TestGCS walks a program with a guarded control stack (GCS), whose entries judge the walk: the processor writes one at each call. So unspool
// stack, recordings and the drop-in walk, through a signal frame, too. The drop-in's unw_resume is refused there; GNU's C library turns the
// stack on only without the drop-in, since the drop-in is not marked.
func TestGCS(t *testing.T) {
	oracle.Long(t)
	if list := os.Getenv("UNSPOOL_MACHINES"); list != "all" && !slices.Contains(strings.Fields(list), "sid/arm64") {
		t.Skip("this test lacks UNSPOOL_MACHINES=all (make vms): it fetches a kernel and a QEMU that have guarded control stacks")
	}
	oracle.Need(t, "aarch64-linux-gnu-gcc", "make")
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	k := New("sid", "arm64", oracle.Kernel(t, "sid", "arm64"))
	k.QEMU = newQEMU(t)
	root := tree(t, oracle.Debian(t, "sid", "arm64", "gcs", "coreutils"))
	if err := root.Init(ctx, "arm64"); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	unspool := exec.Command("go", "build", "-o", filepath.Join(dir, "unspool"), "github.com/unspool/unspool/cmd/unspool")
	unspool.Env = append(os.Environ(), "CGO_ENABLED=0", "GOARCH=arm64")
	for _, cmd := range []*exec.Cmd{
		unspool,
		exec.Command("make", "-s", "-C", "../../runtime", "CC=aarch64-linux-gnu-gcc", "BUILD="+dir),
		exec.Command("aarch64-linux-gnu-gcc", "-O2", "-Wall", "-Werror", "-mbranch-protection=standard", "-o", filepath.Join(dir, "gcs"), "testdata/gcs.c", filepath.Join(dir, "libunwind.so.8")),
	} {
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %v\n%s", cmd, err, out)
		}
	}
	for name, to := range map[string]string{"unspool": "unspool", "gcs": "gcs", "libunwind.so.8": "lib/libunwind.so.8"} {
		if err := root.Copy(to, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	env := []string{"UNSPOOL_CACHE=/cache"}
	steps := []Step{
		{Name: "walk", Args: []string{"/gcs", "walk"}, Start: true, Nice: 19},
		{Name: "stack", Args: []string{"/unspool", "stack", "--raw", "--format", "json", "$PID"}, Env: env, Seconds: 100},
	}
	for _, source := range []string{"ebpf", "perf"} {
		path := "/tmp/" + source + ".folded"
		steps = append(steps, Step{Name: source, Args: []string{"/unspool", "record", "--source", source, "-F", "99", "--duration", "2s", "--no-inline", "--user", "-o", path, "-p", "$PID"},
			Env: env, Seconds: 150, Files: []string{path}})
	}
	steps = append(steps,
		Step{Name: "local", Args: []string{"/gcs", "local"}, Seconds: 60, End: true},
		Step{Name: "resume", Args: []string{"/gcs", "resume"}, Seconds: 60},
		Step{Name: "resume-off", Args: []string{"/gcs", "resume", "off"}, Seconds: 60})
	// How GNU's C library is told to turn the stack on: never, or else not start; where all is marked; always.
	for _, how := range []string{"0", "1", "2", "3"} {
		for name, lib := range map[string]string{"alone-": "", "beside-": "/lib/libunwind.so.8"} {
			steps = append(steps, Step{Name: name + how, Args: []string{"/usr/bin/cat", "/proc/self/smaps"},
				Env: []string{"GLIBC_TUNABLES=glibc.cpu.aarch64_gcs=" + how, "LD_PRELOAD=" + lib}, Seconds: 60})
		}
	}
	results, err := k.Boot(ctx, root, steps)
	got := map[string]Result{}
	for _, r := range results {
		got[r.Name] = r
		t.Logf("%s: %.1f s", r.Name, r.Seconds)
	}
	if err != nil {
		t.Fatal(err)
	}
	fail := func(r Result) { t.Helper(); t.Errorf("%s: exit %d\n%s%s", r.Name, r.Exit, r.Stdout, r.Stderr) }

	var stack struct {
		Threads []struct {
			Stop   string
			Frames []struct{ PC, How string }
		}
	}
	r := got["stack"]
	if err := json.Unmarshal(r.Stdout, &stack); err != nil || len(stack.Threads) != 1 || stack.Threads[0].Stop != "outermost" {
		fail(r)
	} else {
		var frames []uint64
		for _, f := range stack.Threads[0].Frames {
			pc, err := strconv.ParseUint(f.PC, 0, 64)
			if err != nil {
				t.Error(err)
			}
			frames = append(frames, pc)
		}
		sameEntries(t, frames, numbers(t, got["walk"], "entry"))
	}
	const right = `;main;s_caller;s_fault;__kernel_rt_sigreturn;s_handler;s_deep;s_deep;s_deep;s_deep;s_end `
	for _, source := range []string{"ebpf", "perf"} {
		r := got[source]
		samples, others := 0, 0
		for line := range strings.Lines(string(r.Files["/tmp/"+source+".folded"])) {
			switch m := regexp.MustCompile(`^gcs;_start;.*` + right + `(\d+)$`).FindStringSubmatch(strings.TrimSpace(line)); {
			case m != nil:
				n, _ := strconv.Atoi(m[1])
				samples += n
			case line[0] != '#':
				others++
			}
		}
		if samples < 5 || others > 0 {
			fail(r)
			t.Logf("%s", r.Files["/tmp/"+source+".folded"])
		}
	}
	r = got["local"]
	if sameEntries(t, numbers(t, r, "frame"), numbers(t, r, "entry")); r.Exit != 0 || !strings.HasSuffix(string(r.Stdout), "back\n") {
		fail(r)
	}
	// SEGV_CPERR, by "ret x17", the last instruction of us_resume in runtime/local_aarch64.S.
	if r = got["resume"]; r.Exit != 3 || string(r.Stdout) != "signal 11, code 10, at 0xd65f0220\n" {
		fail(r)
	}
	if r = got["resume-off"]; r.Exit != 0 || string(r.Stdout) != "back\n" {
		fail(r)
	}
	for name, want := range map[string]bool{"alone-0": false, "alone-1": true, "alone-2": true, "alone-3": true, "beside-0": false, "beside-2": false, "beside-3": true} {
		r := got[name]
		flags := regexp.MustCompile(`(?m)^VmFlags:.* ss\b`)
		if r.Exit != 0 || len(r.Stdout) == 0 || flags.Match(r.Stdout) != want {
			fail(r)
		}
	}
	if r = got["beside-1"]; r.Exit != 127 || !strings.Contains(string(r.Stderr), "libunwind.so.8: not GCS compatible") {
		fail(r)
	}
}

// numbers are those of lines that begin with a word.
func numbers(t *testing.T, r Result, word string) (out []uint64) {
	t.Helper()
	for _, m := range regexp.MustCompile(`(?m)^`+word+` (0x[0-9a-f]+)$`).FindAllSubmatch(r.Stdout, -1) {
		n, err := strconv.ParseUint(string(m[1]), 0, 64)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, n)
	}
	return out
}

// sameEntries compares a walk with the entries of a guarded control stack, which was turned on in main, whose callers have none. The instruction
// that a signal interrupted was no call: its place has the kernel's token.
func sameEntries(t *testing.T, frames, entries []uint64) {
	t.Helper()
	const deep, all = 6, 9 // entries of s_end to the handler, which returns to the vDSO; and those of s_caller and s_fault besides
	if len(entries) != all || len(frames) < 1+all+1 {
		t.Fatalf("%d frames, %d entries\n%#x\n%#x", len(frames), len(entries), frames, entries)
	}
	for i, e := range entries {
		if i != deep && frames[1+i] != e {
			t.Errorf("frame %d: %#x, in the entry %#x\n%#x\n%#x", 1+i, frames[1+i], e, frames, entries)
		}
	}
	if token := entries[deep]; token%4096 != 0 || token == frames[1+deep] {
		t.Errorf("%#x is no token", token)
	}
}

// newQEMU begins a command of the QEMU of Debian's sid, which is newer than what a release has.
func newQEMU(t *testing.T) []string {
	root := oracle.Debian(t, "sid", "amd64", "qemu-system", "qemu-system-arm")
	libs := filepath.Join(root, "usr/lib/x86_64-linux-gnu")
	return []string{filepath.Join(root, "usr/lib64/ld-linux-x86-64.so.2"), "--library-path", libs + ":" + libs + "/pulseaudio",
		filepath.Join(root, "usr/bin/qemu-system-aarch64"), "-L", filepath.Join(root, "usr/share/qemu")}
}
