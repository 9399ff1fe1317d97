package symbol

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/internal/procfs"
)

const kallsyms = `0000000000000000 A fixed_percpu_data
ffffffff81000000 T startup_64
ffffffff81000000 T _stext
ffffffff81000000 T _text
ffffffff81000100 t local
ffffffff81000100 T __global
ffffffff81000100 W weak
ffffffff81000200 T next
ffffffff81000280 d data_inside
ffffffff81000300 T _etext
ffffffff82000000 D data
ffffffffc0000000 t ext4_init	[ext4]
ffffffffc0000010 T ext4_read	[ext4]
ffffffffc0100000 T other	[other]
not a line
zzzz T x
ffffffffc0100040 T
`

func kernelOf(t *testing.T, text string, opt Options) *Resolver {
	t.Helper()
	opt.Kallsyms = filepath.Join(t.TempDir(), "kallsyms")
	if err := os.WriteFile(opt.Kallsyms, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return New(opt)
}

// TestKallsyms: names, modules, ends.
func TestKallsyms(t *testing.T) {
	r := kernelOf(t, kallsyms, Options{})
	if note := noteOf(r); note != "" {
		t.Errorf("KernelNote = %q, want none", note)
	}
	for _, c := range []struct {
		addr uint64
		want string
	}{
		{0, ""}, {0x1000, ""}, {0xffffffff80ffffff, ""},
		{0xffffffff81000000, "startup_64+0 [kernel.kallsyms]"},
		{0xffffffff810000ff, "startup_64+ff [kernel.kallsyms]"},
		{0xffffffff81000100, "__global+0 [kernel.kallsyms]"},
		{0xffffffff8100027f, "next+7f [kernel.kallsyms]"},
		{0xffffffff81000280, ""},
		{0xffffffff82000000, ""},
		{0xffffffffc000000f, "ext4_init+f [ext4]"},
		{0xffffffffc0000010, "ext4_read+0 [ext4]"},
		{0xffffffffc0002000, ""}, // the last of its module: a guess of its size
		{0xffffffffc0100000, "other+0 [other]"},
		{0xffffffffffffffff, ""},
	} {
		got := ""
		if s, mod, ok := r.Kernel(c.addr); ok {
			got = fmt.Sprintf("%s+%x %s", s.Name, c.addr-uint64(s.Start), mod)
		}
		if got != c.want {
			t.Errorf("%#x: %q, want %q", c.addr, got, c.want)
		}
	}
	if lo, hi, ok := r.KernelText(); lo != 0xffffffff81000000 || hi != 0xffffffff81000300 || !ok {
		t.Errorf("text %#x-%#x, %v", lo, hi, ok)
	}
}

// TestKernelMoved: a kernel that was booted again lies elsewhere, and its modules anywhere.
func TestKernelMoved(t *testing.T) {
	r := kernelOf(t, kallsyms, Options{KernelText: 0xffffffff91000000})
	if s, _, ok := r.Kernel(0xffffffff91000104); !ok || s.Name != "__global" || s.Start != 0xffffffff91000100 {
		t.Errorf("%+v, %v", s, ok)
	}
	if s, _, ok := r.Kernel(0xffffffffd0000010); ok {
		t.Errorf("a module was found: %+v", s)
	}
	if lo, hi, ok := r.KernelText(); lo != 0xffffffff91000000 || hi != 0xffffffff91000300 || !ok {
		t.Errorf("text %#x-%#x, %v", lo, hi, ok)
	}
}

// TestKptrRestrict: hidden addresses give no names, and a reason.
func TestKptrRestrict(t *testing.T) {
	var hidden strings.Builder
	for line := range strings.Lines(kallsyms) {
		if i := strings.IndexByte(line, ' '); i == 16 {
			line = strings.Repeat("0", 16) + line[i:]
		}
		hidden.WriteString(line)
	}
	for _, r := range []*Resolver{kernelOf(t, hidden.String(), Options{}), kernelOf(t, hidden.String(), Options{KernelText: 0xffffffff81000000})} {
		for _, a := range []uint64{0, 1, 0xffffffff81000000, 0xffffffff81000104} {
			if s, _, ok := r.Kernel(a); ok {
				t.Errorf("%#x is %q", a, s.Name)
			}
		}
		if !strings.Contains(noteOf(r), "kptr_restrict") {
			t.Errorf("note %q", noteOf(r))
		}
		if lo, hi, ok := r.KernelText(); ok {
			t.Errorf("the text is known, although addresses are hidden: %#x-%#x; want false", lo, hi)
		}
	}
}

// TestOpenKernel: a file that was opened is read later, although it cannot be opened any more, and is closed.
func TestOpenKernel(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kallsyms")
	if err := os.WriteFile(path, []byte(kallsyms), 0o600); err != nil {
		t.Fatal(err)
	}
	r := New(Options{Kallsyms: path})
	r.OpenKernel()
	r.OpenKernel()
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if s, _, ok := r.Kernel(0xffffffff81000104); !ok || s.Name == "" || r.kernel.file.Load() != nil {
		t.Errorf("%+v, note %q", s, noteOf(r))
	}
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	unread := New(Options{Kallsyms: path})
	unread.OpenKernel()
	f := unread.kernel.file.Load()
	if err := unread.Close(); err != nil || f.Close() == nil {
		t.Errorf("the file is still open: %v", err)
	}
}

// TestOtherKernel: another kernel's addresses get no names.
func TestOtherKernel(t *testing.T) {
	running := hex.EncodeToString(procfs.KernelBuildID())
	if running == "" {
		t.Skip("the kernel does not tell its build ID")
	}
	r := kernelOf(t, kallsyms, Options{KernelID: "0123456789abcdef"})
	if s, _, ok := r.Kernel(0xffffffff81000104); ok || !strings.Contains(noteOf(r), "another kernel") {
		t.Errorf("%+v, note %q", s, noteOf(r))
	}
	r = kernelOf(t, kallsyms, Options{KernelID: running})
	if _, _, ok := r.Kernel(0xffffffff81000104); !ok {
		t.Errorf("Kernel(0xffffffff81000104) finds nothing in the running kernel's names, note %q", noteOf(r))
	}
	if r := New(Options{Kallsyms: "/nonexistent"}); noteOf(r) == "" {
		t.Error("/nonexistent, given as Kallsyms, is not there, and there is no note; want one")
	}
}

// TestRealKernel: every function of the running kernel has its name at its start.
func TestRealKernel(t *testing.T) {
	oracle.Long(t)
	r := New(Options{})
	if noteOf(r) != "" {
		t.Skip(noteOf(r))
	}
	b, err := os.ReadFile("/proc/kallsyms")
	if err != nil {
		t.Fatal(err)
	}
	names := map[uint64]map[string]bool{}
	var order []uint64
	for line := range bytes.Lines(b) {
		if bytes.Contains(line, []byte("\t[bpf]")) { // programs in the kernel come and go
			continue
		}
		var a uint64
		var typ, name string
		fmt.Sscanf(string(line), "%x %s %s", &a, &typ, &name)
		if strings.ContainsAny(typ, "tTwW") {
			if names[a] == nil {
				names[a] = map[string]bool{}
				order = append(order, a)
			}
			names[a][name] = true
		}
	}
	bad := 0
	for _, a := range order {
		if s, _, ok := r.Kernel(a); !ok || !names[a][s.Linkage] || uint64(s.Start) != a {
			if bad++; bad < 10 {
				t.Errorf("%#x: %+v, want one of %v", a, s, names[a])
			}
		}
	}
	t.Logf("%d addresses", len(order))
}

func FuzzKallsyms(f *testing.F) {
	f.Add([]byte(kallsyms), uint64(0xffffffff81000104))
	f.Fuzz(func(t *testing.T, b []byte, a uint64) {
		var k kernel
		if err := k.read(bytes.NewReader(b)); err != nil {
			return
		}
		r := New(Options{})
		r.kernel.once.Do(func() {})
		r.kernel.funcs, r.kernel.names, r.kernel.mods = k.funcs, k.names, k.mods
		if s, _, ok := r.Kernel(a); ok && (a < uint64(s.Start) || a-uint64(s.Start) >= s.Size) {
			t.Errorf("Kernel(%#x) = %+v", a, s)
		}
		last := kfunc{}
		for i := range k.funcs.len() {
			f := k.funcs.at(i)
			r.Kernel(f.start)
			if f.end < f.start || f.start < last.end {
				t.Fatalf("functions %+v, %+v", last, f)
			}
			last = f
		}
	})
}

// TestRecordedKernel: a recording without its kernel's build ID has names where the release is this kernel's, or where that lies at the same
// address; else the note says why not.
func TestRecordedKernel(t *testing.T) {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		t.Fatal(err)
	}
	here := unix.ByteSliceToString(u.Release[:])
	for _, c := range []struct {
		what string
		o    Options
		at   uint64
		want bool
	}{
		{"this release", Options{Recorded: true, KernelRelease: here}, 0, true},
		{"another release", Options{Recorded: true, KernelRelease: "4.19.0-other"}, 0, false},
		{"another release at the same address", Options{Recorded: true, KernelRelease: "4.19.0-other"}, 0xffffffff81000000, false},
		{"nothing", Options{Recorded: true}, 0, false},
		{"the same address", Options{Recorded: true}, 0xffffffff81000000, true},
		{"another address", Options{Recorded: true}, 0xffffffff91000000, false},
		{"live", Options{}, 0, true},
	} {
		r := kernelOf(t, kallsyms, c.o)
		if c.at != 0 {
			r.KernelAt(c.at, "_text")
		}
		if s, _, ok := r.Kernel(0xffffffff81000104); ok != c.want || (noteOf(r) == "") != c.want {
			t.Errorf("%s: %+v, %v, note %q", c.what, s, ok, noteOf(r))
		}
	}
}
