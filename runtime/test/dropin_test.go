package test

import (
	"bytes"
	"debug/elf"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/unspool/unspool/emit/compact"
	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/store"
)

// recordings returns the recordings to work on: those in $UNSPOOL_RECORDINGS, or small ones made now.
func recordings(t testing.TB) []string {
	t.Helper()
	dir := os.Getenv("UNSPOOL_RECORDINGS")
	if dir == "" {
		oracle.Need(t, "perf", "g++", "python3", "openssl", "gcc")
		if err := exec.Command("perf", "record", "-q", "-o", os.DevNull, "--call-graph", "dwarf", "true").Run(); err != nil {
			oracle.Lacks(t, "the permission to record")
		}
		dir = once(t, "recordings", func(dir string) error {
			out, err := exec.Command("sh", "../../lab/record.sh", "small", dir).CombinedOutput()
			if err != nil {
				return fmt.Errorf("%w\n%s", err, out)
			}
			return nil
		})
	}
	files, _ := filepath.Glob(filepath.Join(dir, "*.data"))
	if len(files) == 0 {
		t.Fatalf("no recordings in %s", dir)
	}
	return files
}

// stockEnv is the environment with Debian's library.
func stockEnv() []string {
	return slices.DeleteFunc(os.Environ(), func(s string) bool {
		return strings.HasPrefix(s, "LD_LIBRARY_PATH=") || strings.HasPrefix(s, "UNSPOOL_STRICT=") || strings.HasPrefix(s, "UNSPOOL_CACHE=")
	})
}

// dropInEnv is the environment with ours, and a store that is empty.
func dropInEnv(lib string, more ...string) []string {
	return append(append(stockEnv(), "LD_LIBRARY_PATH="+lib, "UNSPOOL_CACHE=/nonexistent"), more...)
}

// script runs perf script, or another of perf's commands, and writes what it prints to w.
func script(env []string, w io.Writer, args ...string) error {
	cmd := exec.Command("perf", args...)
	var stderr bytes.Buffer
	cmd.Env, cmd.Stdout, cmd.Stderr = env, w, &stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("perf %v: %w\n%s", args, err, stderr.Bytes())
	}
	return nil
}

// printed returns a file with what perf prints.
func printed(t *testing.T, env []string, args ...string) string {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "out"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := script(env, f, args...); err != nil {
		t.Fatal(err)
	}
	return f.Name()
}

// printedReport is printed without the advice at the end, which perf draws by lot.
func printedReport(t *testing.T, env []string, args ...string) string {
	t.Helper()
	path := printed(t, env, args...)
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	lines := slices.DeleteFunc(bytes.SplitAfter(b, []byte("\n")), func(l []byte) bool { return bytes.HasPrefix(l, []byte("# (Tip:")) })
	if err := os.WriteFile(path, bytes.Join(lines, nil), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// sameFiles says whether two files are equal, and where they are not.
func sameFiles(t *testing.T, a, b string) string {
	t.Helper()
	out, err := exec.Command("cmp", a, b).CombinedOutput()
	if err != nil {
		return string(out)
	}
	return ""
}

// TestStrict: in strict mode, stock perf prints the same bytes with the drop-in as with Debian's library.
func TestStrict(t *testing.T) {
	for _, file := range recordings(t) {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".data"), func(t *testing.T) {
			for _, args := range [][]string{
				{"script", "--no-inline", "-i", file},
				{"report", "--stdio", "--no-inline", "-i", file},
			} {
				if args[0] == "report" && tooLarge(file) {
					continue // sorting by perf takes minutes
				}
				get := printed
				if args[0] == "report" {
					get = printedReport
				}
				stock := get(t, stockEnv(), args...)
				for _, cc := range []string{"gcc", "clang-19"} {
					if diff := sameFiles(t, stock, get(t, dropInEnv(dropIn(t, cc), "UNSPOOL_STRICT=1"), args...)); diff != "" {
						t.Errorf("perf %v, library by %s: %s", args, cc, diff)
					}
				}
			}
		})
	}
}

func tooLarge(file string) bool {
	st, err := os.Stat(file)
	return err != nil || st.Size() > 200<<20
}

// A sampleKey tells samples apart.
type sampleKey struct {
	tid  int
	time uint64
}

// userChains returns the user frames of what perf script prints.
func userChains(t *testing.T, env []string, file string) map[sampleKey][]oracle.ScriptFrame {
	t.Helper()
	f, err := os.Open(printed(t, env, "script", "--no-inline", "--ns", "-F", "comm,pid,tid,time,ip,sym,dso", "-i", file))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	out := map[sampleKey][]oracle.ScriptFrame{}
	_, err = oracle.ParseScript(f, func(s *oracle.ScriptSample) bool {
		out[sampleKey{s.TID, s.Time}] = slices.DeleteFunc(slices.Clone(s.Frames), oracle.ScriptFrame.Kernel)
		return true
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// elfutilsChains walks some samples of a recording by libdwfl. Addresses are as perf prints them: offsets in files.
func elfutilsChains(t *testing.T, file string, want map[sampleKey]bool) map[sampleKey][]uint64 {
	t.Helper()
	w := oracle.Dwfl(t)
	told := map[uint32]int{}
	out := map[sampleKey][]uint64{}
	r, err := oracle.OpenRecording(file)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	err = r.Samples(func(s *oracle.RecordedSample) bool {
		k := sampleKey{s.TID, s.Time}
		if !s.User || !want[k] {
			return true
		}
		if n := told[s.Space.ID]; n < len(s.Space.Maps) {
			if err := w.Map(s.Space.ID, s.Space.Maps[n:]...); err != nil {
				t.Fatal(err)
			}
			told[s.Space.ID] = len(s.Space.Maps)
		}
		chains, err := w.Walk([]oracle.Snapshot{s.Snapshot})
		if err != nil {
			t.Fatal(err)
		}
		addrs := chains[0].Addrs()
		for i, a := range addrs {
			if m := s.Space.Find(a); m != nil && strings.HasPrefix(m.Path, "/") && !strings.HasPrefix(m.Path, "//") {
				addrs[i] = a - m.Lo + m.Off
			}
		}
		out[k] = addrs
		return true
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// What a chain of the default mode is to those of stock perf and elfutils. The last two are errors.
const (
	asStock     = "as stock perf"
	asElfutils  = "changed, and now as elfutils"
	elfutilsEnd = "changed, goes on where elfutils ends"
	depthLimit  = "changed, as elfutils up to perf's limit of frames"
	noRows      = "changed, as elfutils, which leaves out who called the code without rows that frame 0 is in"
	shorter     = "CHANGED, SHORTER THAN ELFUTILS'"
	different   = "CHANGED, OTHER THAN ELFUTILS'"
)

// maxFrames is how many frames perf shows.
const maxFrames = 127

func judge(ours []oracle.ScriptFrame, peer []uint64) string {
	n := 0
	for n < len(ours) && n < len(peer) && sameFrame(ours[n], peer[n]) {
		n++
	}
	switch {
	case n == len(ours) && n == len(peer):
		return asElfutils
	case n == len(peer):
		return elfutilsEnd
	case n == len(ours) && n >= maxFrames-1:
		return depthLimit
	case n == len(ours):
		return shorter
	}
	return different
}

// sameFrame compares a frame with an address. elfutils takes the address of a signal's trampoline to be exact; the
// addresses of the vDSO are printed in a way of their own.
func sameFrame(f oracle.ScriptFrame, addr uint64) bool {
	return f.IP == addr || f.IP+1 == addr || f.DSO == "[vdso]"
}

// TestDefault: in default mode, every chain that the drop-in changes is elfutils', or goes on where that ends.
func TestDefault(t *testing.T) {
	for _, file := range recordings(t) {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".data"), func(t *testing.T) {
			stock := userChains(t, stockEnv(), file)
			ours := userChains(t, dropInEnv(dropIn(t, "gcc")), file)
			changed := map[sampleKey]bool{}
			for k, c := range ours {
				if !slices.Equal(c, stock[k]) {
					changed[k] = true
				}
			}
			if len(ours) != len(stock) {
				t.Errorf("%d samples, with stock perf %d", len(ours), len(stock))
			}
			counts := map[string]int{asStock: len(ours) - len(changed)}
			peers := elfutilsChains(t, file, changed)
			kept, err := store.Open(t.TempDir())
			if err != nil && kept == nil {
				t.Fatal(err)
			}
			shown, more := 0, 0
			for k := range changed {
				why := judge(ours[k], peers[k])
				// Permitted: the drop-in tells by the code of a function without rows, as _fini, where its caller is.
				if c, p := ours[k], peers[k]; why == different && len(c) > 2 && len(p) > 0 && sameFrame(c[0], p[0]) && !hasRows(t, kept, c[0]) {
					if rest := judge(c[2:], p[1:]); rest == asElfutils || rest == elfutilsEnd || rest == depthLimit {
						why = noRows
					}
				}
				counts[why]++
				more += len(ours[k]) - len(stock[k])
				if why == shorter || why == different {
					if shown++; shown <= 3 {
						t.Errorf("thread %d at %d: %s\n%s", k.tid, k.time, why, beside(stock[k], ours[k], peers[k]))
					}
				}
			}
			var b strings.Builder
			for _, why := range slices.Sorted(maps.Keys(counts)) {
				fmt.Fprintf(&b, "%8d %6.2f %%  %s\n", counts[why], 100*float64(counts[why])/float64(len(ours)), why)
			}
			t.Logf("%d samples, %d frames more than with stock perf\n%s", len(ours), more, b.String())
		})
	}
}

// hasRows says whether the file of a frame has a rule where the frame is.
func hasRows(t *testing.T, kept *store.Store, f oracle.ScriptFrame) bool {
	img := openImage(t, f.DSO)
	if img == nil {
		return true
	}
	tab, _, _ := kept.Table(img)
	v, ok := img.OffToVaddr(f.IP)
	if tab == nil || !ok {
		return true
	}
	_, ok = tab.Find(v)
	return ok
}

func beside(stock, ours []oracle.ScriptFrame, peer []uint64) string {
	var b strings.Builder
	at := func(l []oracle.ScriptFrame, i int) string {
		if i < len(l) {
			return fmt.Sprintf("%s+%#x", filepath.Base(l[i].DSO), l[i].IP)
		}
		return ""
	}
	for i := range max(len(stock), len(ours), len(peer)) {
		p := ""
		if i < len(peer) {
			p = fmt.Sprintf("%#x", peer[i])
		}
		fmt.Fprintf(&b, "%3d  %-40s %-40s %s\n", i, at(stock, i), at(ours, i), p)
	}
	return b.String()
}

// exported returns the names that a library defines for others.
func exported(t *testing.T, path string) (names []string) {
	t.Helper()
	f, err := elf.Open(path)
	if err != nil {
		oracle.Lacks(t, path)
	}
	defer f.Close()
	syms, err := f.DynamicSymbols()
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range syms {
		if s.Section != elf.SHN_UNDEF {
			names = append(names, fmt.Sprintf("%s %v", s.Name, elf.ST_TYPE(s.Info)))
		}
	}
	slices.Sort(names)
	return names
}

// TestABI: the drop-in exports the names that Debian's library exports, and its layouts are those of Debian's header.
func TestABI(t *testing.T) {
	for _, cc := range []string{"gcc", "clang-19"} {
		got := exported(t, filepath.Join(dropIn(t, cc), "libunwind-x86_64.so.8"))
		want := exported(t, "/usr/lib/x86_64-linux-gnu/libunwind-x86_64.so.8")
		if !slices.Equal(got, want) {
			t.Errorf("exported by the library of %s:\n got  %q\n want %q", cc, got, want)
		}
	}
	layouts := func(flags ...string) string {
		prog := filepath.Join(t.TempDir(), "abi")
		args := append(flags, "-o", prog, "testdata/abi.c")
		if out, err := exec.Command("gcc", args...).CombinedOutput(); err != nil {
			if len(flags) == 1 {
				oracle.Lacks(t, "libunwind-dev")
			}
			t.Fatalf("gcc: %v\n%s", err, out)
		}
		out, err := exec.Command(prog).Output()
		if err != nil {
			t.Fatal(err)
		}
		return string(out)
	}
	if got, want := layouts("-DOURS", "-I.."), layouts("-w"); got != want {
		t.Errorf("layouts:\n got\n%s\n want\n%s", got, want)
	}
}

// TestStored: with tables stored, stock perf prints the same as when the drop-in reads .eh_frame itself; and it does take
// the tables.
func TestStored(t *testing.T) {
	for _, file := range recordings(t) {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".data"), func(t *testing.T) {
			paths := map[string]bool{}
			r, err := oracle.OpenRecording(file)
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			err = r.Samples(func(s *oracle.RecordedSample) bool {
				for _, m := range s.Space.Maps {
					paths[m.Path] = true
				}
				return true
			})
			if err != nil {
				t.Fatal(err)
			}
			const times = 5
			for range times {
				changed := settledFiles(t, paths)
				n, traced := storedOpened(t, file, paths)
				switch {
				case !traced:
					return
				case n > 0:
					t.Logf("%d stored tables opened, of %d files", n, len(paths))
					return
				case !changed():
					t.Fatalf("no stored table was opened, of %d files", len(paths))
				}
			}
			t.Errorf("perf has opened no stored table %d times, and each time one of %d recorded files has changed meanwhile", times, len(paths))
		})
	}
}

// storedOpened compares what perf prints of a recording with and without tables of the files in a store, and returns how many of these it opened. traced
// is false where strace is not there, or may not trace.
func storedOpened(t *testing.T, file string, paths map[string]bool) (n int, traced bool) {
	t.Helper()
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	kept, err := store.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	for path := range paths {
		if img := openImage(t, path); img != nil {
			kept.Table(img)
		}
	}
	lib := dropIn(t, "gcc")
	args := []string{"script", "--no-inline", "-i", file}
	stored := append(dropInEnv(lib), "UNSPOOL_CACHE="+dir)
	if diff := sameFiles(t, printed(t, dropInEnv(lib), args...), printed(t, stored, args...)); diff != "" {
		t.Error(diff)
	}
	if _, err := exec.LookPath("strace"); err != nil {
		return 0, false
	}
	trace := filepath.Join(t.TempDir(), "trace")
	cmd := exec.Command("strace", append([]string{"-o", trace, "-f", "-e", "trace=openat", "perf"}, args...)...)
	cmd.Env = stored
	if err := cmd.Run(); err != nil {
		return 0, false // not allowed to trace
	}
	b, err := os.ReadFile(trace)
	if err != nil {
		t.Fatal(err)
	}
	return bytes.Count(b, fmt.Appendf(nil, ".%d\", O_RDONLY|O_NONBLOCK|O_NOFOLLOW|O_CLOEXEC) = ", compact.Version)), true
}

// settledFiles waits until no file has changed in the last seconds, since a file that has is not remembered by its times. perf's cache of build IDs
// changes files: it makes hard links to them. changed says whether some file has changed since.
func settledFiles(t *testing.T, paths map[string]bool) (changed func() bool) {
	t.Helper()
	newest := func() (at time.Time) {
		for path := range paths {
			if st, err := os.Stat(path); err == nil {
				if c := time.Unix(st.Sys().(*syscall.Stat_t).Ctim.Unix()); c.After(at) {
					at = c
				}
			}
		}
		return at
	}
	for end := time.Now().Add(time.Minute); time.Since(newest()) < 3*time.Second; time.Sleep(100 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("for a minute, one of %d recorded files has always changed in the last 3 s: now %v ago", len(paths), time.Since(newest()).Round(time.Millisecond))
		}
	}
	before := newest()
	return func() bool { return newest() != before }
}

// TestShapes: of recorded stacks that are hard at one place, perf prints the whole chain with ours.
func TestShapes(t *testing.T) {
	oracle.Need(t, "perf", "clang-19")
	dir := t.TempDir()
	prog := filepath.Join(dir, "shapes")
	if out, err := exec.Command("clang-19", "-O2", "-pthread", "-fno-omit-frame-pointer", "-o", prog, "../../lab/workload/shapes.c").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	env := dropInEnv(dropIn(t, "gcc"))
	for name, end := range map[string]string{"": " work main __libc_start_call_main ", "coroutine": " work coroutine "} {
		data := filepath.Join(dir, "perf.data")
		if out, err := exec.Command("perf", "record", "-q", "-o", data, "--call-graph", "dwarf,8192", "-F", "499", prog, name).CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		var b bytes.Buffer
		if err := script(env, &b, "script", "-i", data, "-F", "ip,sym"); err != nil {
			t.Fatal(err)
		}
		n, bad := 0, ""
		for sample := range strings.SplitSeq(b.String(), "\n\n") {
			chain := " "
			for line := range strings.Lines(sample) {
				if f := strings.Fields(line); len(f) > 1 {
					chain += f[1] + " "
				}
			}
			if !strings.Contains(chain, " leaf ") {
				continue
			}
			if n++; !strings.Contains(chain, " leaf"+end) {
				bad = chain
			}
		}
		if n < 20 || bad != "" {
			t.Errorf("%q: of %d samples in leaf, one is %q", name, n, bad)
		}
	}
}
