package minidump

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/stacks"
	"github.com/unspool/unspool/unwind"
)

// A verdict is what lldb makes of a dump: testdata/lldb.py writes it.
type verdict struct {
	Path, Error string
	PID         int
	Threads     []struct {
		TID    int
		Frames []uint64
		Regs   map[string]uint64
		Stop   string
	}
	Modules []struct {
		Path, ID string
		Base     uint64
	}
}

// lldb returns the verdicts on dumps, by path. dirs have files of their modules.
func lldb(t testing.TB, dumps, dirs []string) map[string]*verdict {
	t.Helper()
	oracle.Need(t, "lldb-19")
	script, err := filepath.Abs("testdata/lldb.py")
	if err != nil {
		t.Fatal(err)
	}
	c := exec.Command("lldb-19", "--no-lldbinit", "-b", "-o", "command script import "+script)
	c.Env = append(os.Environ(), "JUDGED="+strings.Join(dumps, ":"), "FILES="+strings.Join(dirs, ":"), "DEBUGINFOD_URLS=")
	out, err := c.Output()
	if err != nil {
		t.Fatalf("lldb-19: %v", err)
	}
	all := map[string]*verdict{}
	for line := range strings.Lines(string(out)) {
		if text, ok := strings.CutPrefix(line, "JUDGE "); ok {
			v := &verdict{}
			if err := json.Unmarshal([]byte(text), v); err != nil {
				t.Fatal(err)
			}
			all[v.Path] = v
		}
	}
	if len(all) != len(dumps) {
		t.Fatalf("lldb-19 judges %d of %d dumps", len(all), len(dumps))
	}
	return all
}

// lldbNames are lldb's names of registers that have others here.
var lldbNames = map[*arch.Machine]map[arch.Reg]string{
	arch.ARM:          {13: "sp", 14: "lr", 15: "pc"},
	arch.ARM64:        {29: "fp", 30: "lr", 31: "sp", 32: "pc"},
	arch.WindowsARM64: {29: "fp", 30: "lr", 31: "sp", 32: "pc"},
	arch.I386:         {8: "eip"},
	arch.AMD64:        {16: "rip"},
	arch.WindowsAMD64: {16: "rip"},
}

// lldbID is how lldb writes the ID of a module.
func (f *File) lldbID(m *mapped) string {
	b := m.buildID
	if m.guid != nil {
		b = m.guid
		if windows := f.os <= windowsNT; windows || f.os == macOS || f.os == iOS { // Breakpad swaps the words of Apple's UUIDs
			b = normal(b)
		}
		if m.age != 0 && f.os != macOS && f.os != iOS {
			order := binary.AppendByteOrder(le) // the end of a build ID of 20 bytes
			if f.os <= windowsNT {
				order = binary.BigEndian
			}
			b = order.AppendUint32(bytes.Clone(b), m.age)
		}
	}
	text, dashes := strings.ToUpper(id(b)), []int{8, 13, 18, 23, 36}
	for _, at := range dashes {
		if len(text) > at {
			text = text[:at] + "-" + text[at:]
		}
	}
	return text
}

// differences are those between this package and lldb, a line each.
func differences(t testing.TB, path string, v *verdict, o Options) (out []string) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	differ := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	f := newFile(path, b)
	err = f.read(&o)
	defer f.Close()
	if v.Error != "" {
		if err == nil {
			differ("error: lldb has %q", v.Error)
		}
		return out
	}
	if err != nil && len(v.Threads) > 0 {
		differ("error: %v; lldb has %d threads", err, len(v.Threads))
	}
	if err == nil && f.PID != v.PID {
		differ("pid: %d, lldb has %d", f.PID, v.PID)
	}

	var ours, theirs []string
	for i := range f.modules {
		m := &f.modules[i]
		ours = append(ours, fmt.Sprintf("%#x %s %s", m.base, m.name(), f.lldbID(m)))
	}
	for _, m := range v.Modules {
		theirs = append(theirs, fmt.Sprintf("%#x %s %s", m.Base, m.Path[strings.LastIndexAny(m.Path, `/\`)+1:], m.ID))
	}
	for _, m := range ours {
		if !slices.Contains(theirs, m) {
			differ("module: lldb lacks %s", m)
		}
	}
	for _, m := range theirs {
		if !slices.Contains(ours, m) {
			differ("module: only lldb has %s", m)
		}
	}
	if err != nil {
		return out
	}

	walked, err := stacks.Walk(&f.Process, stacks.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if len(f.Threads) != len(v.Threads) {
		differ("threads: %d, lldb has %d", len(f.Threads), len(v.Threads))
	}
	for i, theirs := range v.Threads {
		j := slices.IndexFunc(walked.Threads, func(t stacks.Thread) bool { return t.TID == theirs.TID })
		if j < 0 {
			differ("threads: only lldb has %d", theirs.TID)
			continue
		}
		if crashed := theirs.Stop != ""; crashed && j != 0 {
			differ("crashed: lldb has thread %d: %s", theirs.TID, theirs.Stop)
		} else if name, ok := strings.CutPrefix(theirs.Stop, "signal "); ok && (f.Signal == nil || unix.SignalName(unix.Signal(f.Signal.Number)) != name) {
			differ("signal: %+v, lldb has %s", f.Signal, theirs.Stop)
		}
		s := &f.Threads[j].Snapshot
		for reg := range arch.Reg(34) {
			slot := f.Machine.Slot(reg)
			if slot == arch.NoSlot {
				continue
			}
			name := lldbNames[f.Machine][reg]
			if name == "" {
				name = f.Machine.RegName(reg)
			}
			if fp := 11; f.Machine == arch.ARM {
				if f.os == macOS || f.os == iOS {
					fp = 7
				}
				if reg == arch.Reg(fp) {
					name = "fp"
				}
			}
			v, ok := theirs.Regs[name]
			if known := s.Known&(1<<slot) != 0; ok && v != s.Regs[slot] || ok != known {
				differ("registers: thread %d: %s is %#x (known: %v), lldb has %#x (%v)", theirs.TID, name, s.Regs[slot], known, v, ok)
			}
		}
		var frames []uint64
		for _, fr := range walked.Threads[j].Frames {
			frames = append(frames, uint64(fr.PC))
		}
		// In code without rules, lldb takes words of the stack for return addresses that are in no code, and does not follow all frame pointers.
		pcs := slices.DeleteFunc(slices.Clone(theirs.Frames), func(pc uint64) bool { return pc != theirs.Frames[0] && f.Space.Find(arch.Addr(pc-1)) == nil })
		short := walked.Threads[j].Stop == unwind.Outermost && len(pcs) < len(frames) && slices.Equal(pcs, frames[:len(pcs)])
		if short || len(pcs) < len(theirs.Frames) {
			t.Logf("thread %d: %#x, lldb has %#x", theirs.TID, frames, theirs.Frames)
		}
		if !short && !slices.Equal(frames, pcs) {
			n := 0
			for n < min(len(frames), len(pcs)) && frames[n] == pcs[n] {
				n++
			}
			differ("stack: thread %d of %d: %#x, then %#x (%v); lldb has %#x", theirs.TID, i, frames[:n], frames[n:], walked.Threads[j].Stop, pcs[n:])
		}
	}
	return out
}

// judge compares dumps with what lldb makes of them. permitted are the differences, by the dump's name and the word that they begin with, with their reasons.
func judge(t *testing.T, dumps, dirs []string, permitted map[string]string) {
	t.Helper()
	verdicts := lldb(t, dumps, dirs)
	seen := map[string]bool{}
	for _, path := range dumps {
		o := options(t)
		o.Files.DebugDirs = dirs
		for _, d := range differences(t, path, verdicts[path], o) {
			key := filepath.Base(path) + " " + d[:strings.IndexByte(d, ':')]
			if seen[key] = true; permitted[key] == "" {
				t.Errorf("%s: %s", filepath.Base(path), d)
			} else {
				t.Logf("permitted: %s: %s", filepath.Base(path), d)
			}
		}
	}
	for key := range maps.Keys(permitted) {
		if !seen[key] {
			t.Errorf("nothing differs by %q: the permission is not needed", key)
		}
	}
}

// llvmDumps returns LLVM's own test dumps, and a directory with the files of some modules.
func llvmDumps(t testing.TB) (dumps []string, files string) {
	t.Helper()
	oracle.Need(t, "yaml2obj-19")
	src := oracle.Source(t, "bookworm", "minidumps", "llvm-toolchain-19", "*/lldb/test/API/functionalities/postmortem/*inidump*",
		"*/lldb/unittests/Process/minidump/Inputs", "*/lldb/test/Shell/Minidump", "*/llvm/test/tools/obj2yaml/Minidump")
	dir, files := t.TempDir(), t.TempDir()
	place := func(name string) string {
		if to := filepath.Join(dir, name); !slices.Contains(dumps, to) {
			return to
		}
		return filepath.Join(dir, "other-"+name)
	}
	seen := map[string]bool{}
	for _, path := range oracle.Files(t, src, func(string) bool { return true }) {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		name := filepath.Base(path)
		switch {
		case Is(b):
			if seen[string(b)] {
				continue
			}
			seen[string(b)] = true
			to := place(name)
			if err := os.WriteFile(to, b, 0o600); err != nil {
				t.Fatal(err)
			}
			dumps = append(dumps, to)
		case bytes.Contains(b, []byte("\n--- !minidump")) || bytes.HasPrefix(b, []byte("--- !minidump")):
			to := place(strings.TrimSuffix(name, filepath.Ext(name)) + ".yaml.dmp")
			oracle.Run(t, "yaml2obj-19", "-o", to, path)
			dumps = append(dumps, to)
		case strings.HasSuffix(name, ".exe.yaml") || strings.HasPrefix(name, "lib") && strings.HasSuffix(name, ".yaml"):
			to := strings.TrimSuffix(name, ".yaml")
			if !strings.HasSuffix(to, ".exe") {
				to += ".so"
			}
			oracle.Run(t, "yaml2obj-19", "-o", filepath.Join(files, to), path)
		case bytes.HasPrefix(b, []byte("\x7fELF")):
			if err := os.WriteFile(filepath.Join(files, name), b, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	if len(dumps) < 30 {
		t.Fatalf("%d dumps in %s", len(dumps), src)
	}
	return dumps, files
}

// TestLLDB: of LLVM's own dumps (Windows, Linux, Arm, i386, macOS), lldb has the same threads, registers, modules with their IDs, signals and stacks, with the
// modules' files and without.
func TestLLDB(t *testing.T) {
	oracle.Long(t)
	dumps, files := llvmDumps(t)
	const (
		twice   = "two files are at one address: only the first is taken, and a note says so"
		pieces  = "lldb shows only the first piece of a file that Breakpad lists in pieces"
		unlike  = "lldb gives a file without an ID one of its own, or has no address for a file without segments"
		noRegs  = "a thread without registers; lldb makes up a program counter"
		cutOff  = "the context ends behind its registers; lldb wants all of it"
		noPID   = "the dump has no PID: here it is the first thread's TID, lldb's is 1"
		outer   = "lldb does not follow the frame pointer of main, whose caller is __libc_start_main+245"
		earlier = "lldb takes a file with the right ID that it has seen in another dump; the name is another"
	)
	always := map[string]string{
		"linux-arm-uuids-elf-build-id-16.yaml.dmp module": twice, "linux-arm-uuids-elf-build-id-20.yaml.dmp module": twice,
		"linux-arm-uuids-elf-build-id-4.yaml.dmp module": twice, "linux-arm-uuids-elf-build-id-zero.yaml.dmp module": twice,
		"linux-arm-uuids-no-age.yaml.dmp module": twice, "linux-arm-uuids-with-age.yaml.dmp module": twice,
		"linux-arm-zero-uuids.yaml.dmp module": twice, "macos-arm-uuids-no-age.yaml.dmp module": twice,
		"linux-x86_64.dmp module": pieces, "linux-x86_64_not_crashed.dmp module": pieces,
		"linux-x86_64.yaml.dmp registers": cutOff, "linux-x86_64.yaml.dmp stack": cutOff,
		"linux-x86_64_null_signal.yaml.dmp stack": noRegs, "arm-fp-unwind.dmp.yaml.dmp registers": noRegs, "arm-fp-unwind.dmp.yaml.dmp stack": noRegs,
		"basic.yaml.dmp pid": noPID, "basic.yaml.dmp registers": noRegs, "basic.yaml.dmp stack": noRegs,
		"no-process-id.yaml.dmp pid": noPID, "other-linux-x86_64.dmp stack": outer,
	}
	files1 := maps.Clone(always)
	maps.Copy(files1, map[string]string{
		"linux-arm-breakpad-uuid-match.yaml.dmp module": unlike, "linux-arm-facebook-uuid-match.yaml.dmp module": unlike,
		"linux-arm-partial-uuids-match.yaml.dmp module": unlike, "linux-arm-uuids-match.yaml.dmp module": unlike,
		"arm-fp-unwind.dmp.yaml.dmp module": unlike, "disassemble-no-module.yaml.dmp module": earlier,
	})
	t.Run("without files", func(t *testing.T) { judge(t, dumps, nil, always) })
	t.Run("with files", func(t *testing.T) { judge(t, dumps, []string{files}, files1) })
}

// TestCrashpad: the dump that Chromium's Crashpad writes of a renderer that gets a signal has the threads that the process had, with their names; all stacks
// are whole, and lldb has the same frames.
func TestCrashpad(t *testing.T) {
	oracle.Long(t)
	oracle.Need(t, "chromium", "lldb-19")
	home := t.TempDir()
	c := exec.Command("chromium", "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--enable-crash-reporter",
		"--user-data-dir="+filepath.Join(home, "data"), "about:blank")
	c.Env = append(os.Environ(), "CHROME_HEADLESS=1", "HOME="+home, "XDG_CONFIG_HOME="+home, "BREAKPAD_DUMP_LOCATION="+filepath.Join(home, "dumps"))
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		syscall.Kill(-c.Process.Pid, syscall.SIGKILL)
		c.Wait()
	})
	until := time.Now().Add(2 * time.Minute)
	wait := func(what string, done func() bool) {
		t.Helper()
		for ; !done(); time.Sleep(100 * time.Millisecond) {
			if time.Now().After(until) {
				oracle.Lacks(t, fmt.Sprintf("a Chromium that shows %s within two minutes", what))
			}
		}
	}
	renderer := 0
	wait("renderer", func() bool {
		all, _ := filepath.Glob("/proc/[0-9]*/cmdline")
		for _, name := range all {
			b, _ := os.ReadFile(name)
			if bytes.Contains(b, []byte("--type=renderer")) && bytes.Contains(b, []byte(home)) {
				renderer, _ = strconv.Atoi(strings.Split(name, "/")[2])
			}
		}
		return renderer != 0
	})
	var names map[int]string
	ticks := ""
	settled := 0 // for how long it has had the same threads, and none of them has run: what its code is made of at run time has no unwind information
	wait("renderer at rest", func() bool {
		now := map[int]string{}
		tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/comm", renderer))
		for _, name := range tasks {
			b, _ := os.ReadFile(name)
			tid, _ := strconv.Atoi(strings.Split(name, "/")[4])
			now[tid] = strings.TrimSpace(string(b))
		}
		b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", renderer))
		f := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
		ran := ""
		if len(f) > 12 {
			ran = f[11] + " " + f[12] // in user space, in the kernel
		}
		if settled++; !maps.Equal(now, names) || ran != ticks {
			settled = 0
		}
		names, ticks = now, ran
		return settled >= 10
	})
	if err := syscall.Kill(renderer, syscall.SIGSEGV); err != nil {
		t.Fatal(err)
	}
	dump := ""
	wait("dump", func() bool {
		filepath.WalkDir(home, func(path string, _ fs.DirEntry, err error) error {
			if in := filepath.Base(filepath.Dir(path)); err == nil && strings.HasSuffix(path, ".dmp") && (in == "pending" || in == "completed") {
				dump = path
			}
			return nil
		})
		return dump != ""
	})

	f, err := Open(dump, options(t))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if f.PID != renderer || f.Threads[0].TID != renderer || f.Signal == nil || f.Signal.Number != int(syscall.SIGSEGV) || filepath.Base(f.Exe) != "chromium" {
		t.Errorf("PID %d, first thread %d, want %d; %+v, %s", f.PID, f.Threads[0].TID, renderer, f.Signal, f.Exe)
	}
	had := map[int]string{}
	for _, th := range f.Threads {
		had[th.TID] = th.Name
	}
	if !maps.Equal(had, names) {
		t.Errorf("threads %v, the process had %v", had, names)
	}
	s, err := stacks.Walk(&f.Process, stacks.Options{})
	if err != nil {
		t.Fatal(err)
	}
	dirs := map[string]bool{}
	used := map[*unwind.Module]bool{}
	for _, th := range s.Threads {
		if th.Stop != unwind.Outermost {
			t.Errorf("thread %d is not whole: %v after %d frames", th.TID, th.Stop, len(th.Frames))
		}
		for _, fr := range th.Frames {
			dirs[filepath.Dir(fr.Mapping.Module.Path)], used[fr.Mapping.Module] = true, true
		}
	}
	if notes := f.Missing(func(m *unwind.Module) bool { return used[m] }); len(notes) > 1 { // other modules' count
		t.Errorf("notes %q", notes)
	}
	judge(t, []string{dump}, slices.Sorted(maps.Keys(dirs)), nil)
}

// TestSameFile: the files that LLVM's dumps mean are used, and others with their names are not: by a build ID, the first 16 bytes of one, Breakpad's sum of
// .text, also where it reaches into the next section, a GUID and age.
func TestSameFile(t *testing.T) {
	oracle.Long(t)
	dumps, files := llvmDumps(t)
	for _, c := range []struct {
		dump, file, as string
		same           bool
	}{
		{"linux-arm-uuids-match", "libuuidmatch.so", "libuuidmatch.so", true},
		{"linux-arm-partial-uuids-match", "libuuidmatch.so", "libuuidmatch.so", true},
		{"linux-arm-partial-uuids-mismatch", "libuuidmismatch.so", "libuuidmismatch.so", false},
		{"linux-arm-breakpad-uuid-match", "libbreakpad.so", "libbreakpad.so", true},
		{"linux-arm-breakpad-uuid-match", "libbreakpad-overflow.so", "libbreakpad.so", true},
		{"linux-arm-breakpad-uuid-match", "libbreakpad-decoy.so", "libbreakpad.so", false},
		{"linux-arm-facebook-uuid-match", "libbreakpad.so", "libbreakpad.so", false}, // Facebook's own sum, which lldb knows
		{"find-module.dmp", "find-module.exe", "find-module.exe", true},
		{"find-module.dmp", "broken-unwind.exe", "find-module.exe", false},
		{"linux-x86_64", "linux-x86_64", "linux-x86_64", true},
		{"linux-x86_64", "linux-x86_64_not_crashed", "linux-x86_64", false},
	} {
		dir := t.TempDir()
		b, err := os.ReadFile(filepath.Join(files, c.file))
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, c.as), b, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
		i := slices.IndexFunc(dumps, func(p string) bool { return filepath.Base(p) == c.dump+".yaml.dmp" })
		if i < 0 {
			t.Fatalf("no %s in %q", c.dump, dumps)
		}
		if b, err = os.ReadFile(dumps[i]); err != nil {
			t.Fatal(err)
		}
		o := options(t)
		o.Files.DebugDirs = []string{dir}
		f := newFile(c.dump, b)
		if f.read(&o) != nil { // a dump without threads
			f.findModules(&o)
		}
		m := &f.modules[0]
		if found := m.img != nil; found != c.same || !found && !strings.Contains(m.why.Error(), filepath.Join(dir, c.as)) {
			t.Errorf("%s: %s is used: %v, %v", c.dump, c.file, found, m.why)
		}
		f.Close()
	}
}
