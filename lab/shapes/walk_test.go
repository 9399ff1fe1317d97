package shapes

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// A walk is a stack that somebody found.
type walk struct {
	source string
	chain  string
	stop   string // why it ends, as JSON has it; gdb's is ""
	last   place  // of the last frame
}

func (w walk) String() string {
	return fmt.Sprintf("%s: %sends: %s at %s+%#x", w.source, shorter(w.chain), w.stop, filepath.Base(w.last.module), w.last.off)
}

// walk makes a walk of frames.
func (p *program) walk(source string, frames []place, stop string) walk {
	w := walk{source: source, chain: p.chain(frames), stop: stop}
	if len(frames) > 0 {
		w.last = frames[len(frames)-1]
	}
	return w
}

// shorter writes what is repeated once, with how often.
func shorter(chain string) string {
	names := strings.Fields(chain)
	var b strings.Builder
	for len(names) > 0 {
		k, n := 1, 1
		for _, k = range []int{1, 2} {
			for n = 1; (n+1)*k <= len(names) && slices.Equal(names[:k], names[n*k:(n+1)*k]); n++ {
			}
			if n > 1 {
				break
			}
		}
		if n == 1 {
			k = 1
		}
		b.WriteString(strings.Join(names[:k], " ") + " ")
		if n > 1 {
			fmt.Fprintf(&b, "×%d ", n)
		}
		names = names[n*k:]
	}
	return b.String()
}

// patience ends what hangs.
const patience = time.Minute

// start runs a program until it says that its chain stands.
func (p *program) start(t testing.TB) int {
	t.Helper()
	cmd := exec.Command(p.path)
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	said := make(chan error, 1)
	go func() {
		line, err := bufio.NewReader(out).ReadString('\n')
		if line != "ready\n" {
			said <- fmt.Errorf("%q, %v", line, err)
		}
		close(said)
	}()
	select {
	case err = <-said:
	case <-time.After(patience):
		err = errors.New("it says nothing")
	}
	if err != nil {
		t.Fatalf("%s: %v", p.path, err)
	}
	return cmd.Process.Pid
}

// hex is a number as JSON has them.
type hex uint64

func (h *hex) UnmarshalJSON(b []byte) error {
	v, err := strconv.ParseUint(string(bytes.Trim(b, `"`)), 0, 64)
	*h = hex(v)
	return err
}

// stack walks with unspool stack.
func (p *program) stack(t testing.TB, source string, args ...string) []walk {
	t.Helper()
	return p.walksOfStacks(t, source, p.unspool(t, append(slices.Clone(stackJSON), args...)...), false)
}

// stackJSON prints stacks for walksOfStacks.
var stackJSON = []string{"stack", "--raw", "--format", "json"}

// walksOfStacks are those of all threads. Where the machine is slow, a thread may be late to stop, and has none.
func (p *program) walksOfStacks(t testing.TB, source string, b []byte, slow bool) (out []walk) {
	t.Helper()
	var got struct {
		Threads []struct {
			Stop, Error string
			Frames      []struct {
				Module string
				Offset hex
			}
		}
	}
	if err := json.Unmarshal(b, &got); err != nil {
		t.Fatalf("%v\n%s", err, b)
	}
	for _, th := range got.Threads {
		if slow && strings.HasPrefix(th.Error, "it did not stop within") {
			continue
		}
		var frames []place
		for _, f := range th.Frames {
			frames = append(frames, place{f.Module, uint64(f.Offset)})
		}
		out = append(out, p.walk(source, frames, th.Stop))
	}
	return out
}

func (p *program) unspool(t testing.TB, args ...string) []byte {
	t.Helper()
	path, err := unspool()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(path, args...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	cmd.WaitDelay = patience
	out, err := cmd.Output()
	if err != nil {
		t.Errorf("unspool %s: %v\n%s", strings.Join(args, " "), err, stderr.Bytes())
	}
	return out
}

// record samples with unspool record, for a short time, and again where a busy machine let the program run too little.
func (p *program) record(t testing.TB, source string, args ...string) (out []walk) {
	t.Helper()
	for tries := 0; tries < 10 || len(out) == 0 && tries < 50; tries++ { // on a busy machine, the program seldom runs
		file := filepath.Join(t.TempDir(), "x.jsonl")
		p.unspool(t, append([]string{"record", "--source", source, "--no-inline", "-o", file}, args...)...)
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, p.walksOfSamples(t, source, b, 0)...)
		if len(out) >= 10 {
			break
		}
	}
	return out
}

// walksOfSamples are those of a process, or of all, in JSON lines.
func (p *program) walksOfSamples(t testing.TB, source string, b []byte, pid int) (out []walk) {
	t.Helper()
	for line := range bytes.Lines(b) {
		var got struct {
			PID    int
			Stop   string
			Frames []struct {
				Module  string
				IP, Off hex
			}
		}
		if err := json.Unmarshal(line, &got); err != nil {
			t.Fatalf("%v\n%s", err, line)
		}
		if got.Stop == "no-user-stack" || pid != 0 && got.PID != pid {
			continue
		}
		var frames []place
		for _, f := range got.Frames {
			if int64(f.IP) >= 0 {
				frames = append(frames, place{f.Module, uint64(f.Off)})
			}
		}
		out = append(out, p.walk(source, frames, got.Stop))
	}
	return out
}

// gdbScript prints the frames of all threads: the address that stands for the frame in hexadecimal.
const gdbScript = `
import gdb
gdb.execute("set pagination off")
gdb.execute("set backtrace past-main on")
gdb.execute("set backtrace past-entry on")
for t in gdb.selected_inferior().threads():
    t.switch()
    f = gdb.newest_frame()
    at = []
    while f is not None:
        pc = f.pc()
        if pc == 0:
            break
        if f.newer() is not None and f.newer().type() != gdb.SIGTRAMP_FRAME:
            pc -= 1
        at.append("%x" % pc)
        try:
            f = f.older()
        except gdb.error:
            f = None
    print("CHAIN " + " ".join(at))
`

// core has gdb write a core and say what it sees at this moment itself.
func (p *program) core(t testing.TB, pid, core string) (out []walk) {
	t.Helper()
	script := core + ".py"
	if err := os.WriteFile(script, []byte(gdbScript), 0o666); err != nil {
		t.Fatal(err)
	}
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%s/maps", pid))
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("gdb", "-nx", "-batch", "-p", pid, "-ex", "source "+script, "-ex", "generate-core-file "+core)
	b, err := cmd.CombinedOutput()
	if _, none := os.Stat(core); err != nil || none != nil {
		t.Fatalf("gdb: %v %v\n%s", err, none, b)
	}
	for line := range strings.Lines(string(b)) {
		list, ok := strings.CutPrefix(strings.TrimSpace(line), "CHAIN ")
		if !ok {
			continue
		}
		var frames []place
		for _, a := range strings.Fields(list) {
			addr, err := strconv.ParseUint(a, 16, 64)
			if err != nil {
				t.Fatal(err)
			}
			frames = append(frames, placeOf(string(maps), addr))
		}
		out = append(out, p.walk("gdb", frames, ""))
	}
	return out
}

// placeOf finds an address in a process's list of mappings.
func placeOf(maps string, addr uint64) place {
	for line := range strings.Lines(maps) {
		var lo, hi, off, inode uint64
		var perm, dev, path string
		fmt.Sscanf(line, "%x-%x %s %x %s %d %s", &lo, &hi, &perm, &off, &dev, &inode, &path)
		if addr >= lo && addr < hi {
			return place{path, addr - lo + off}
		}
	}
	return place{}
}
