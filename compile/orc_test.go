package compile

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/unspool/unspool/emit/orc"
	"github.com/unspool/unspool/format"
	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/module"
)

// An objtool runs that of a version of Linux.
type objtool struct {
	emit string // what Copy calls the version
	args []string
}

// objtools returns Linux 6.1's, and in make full those of Debian's newer kernels.
func objtools(t *testing.T) []objtool {
	const old = "/usr/lib/linux-kbuild-6.1/tools/objtool/objtool"
	oracle.Need(t, "gcc", "readelf", "ld", "eu-elflint", old)
	list := []objtool{{"orc-6.1", []string{old}}}
	if oracle.Few(0, 1) == 0 {
		return list
	}
	for _, x := range []struct{ suite, emit string }{{"trixie", "orc-6.12"}, {"sid", "orc"}} {
		root := oracle.Debian(t, x.suite, "amd64", "kbuild", `^linux-kbuild-[0-9.]+\+deb[0-9]+$`)
		found, _ := filepath.Glob(root + "/usr/lib/linux-kbuild-*/tools/objtool/objtool.real-x86")
		if len(found) == 0 {
			t.Fatalf("no objtool in %s", root)
		}
		list = append(list, objtool{x.emit, []string{root + "/lib64/ld-linux-x86-64.so.2", "--library-path", root + "/usr/lib/x86_64-linux-gnu", found[len(found)-1]}})
	}
	return list
}

func (o objtool) run(t *testing.T, args ...string) string {
	t.Helper()
	cmd := exec.Command(o.args[0], append(o.args[1:len(o.args):len(o.args)], args...)...)
	cmd.Env = append(os.Environ(), "SRCARCH=x86")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %v\n%s", cmd.Args, err, stderr.Bytes())
	}
	return string(out)
}

// An orcEntry is what objtool prints of an entry.
type orcEntry struct {
	off  uint64
	says string
}

// dump returns a file's entries, by section, in order.
func (o objtool) dump(t *testing.T, path string) map[string][]orcEntry {
	t.Helper()
	line := regexp.MustCompile(`^(\S+)\+([0-9a-f]+): ?(.*)$`)
	all := map[string][]orcEntry{}
	for text := range strings.Lines(o.run(t, "--dump=orc", path)) {
		m := line.FindStringSubmatch(strings.TrimSuffix(text, "\n"))
		if m == nil {
			t.Fatalf("%s: objtool prints %q", path, text)
		}
		off, _ := strconv.ParseUint(m[2], 16, 64)
		all[m[1]] = append(all[m[1]], orcEntry{off, m[3]})
	}
	for _, list := range all {
		slices.SortStableFunc(list, func(a, b orcEntry) int { return cmp.Compare(a.off, b.off) })
	}
	return all
}

// at returns what holds at an offset of a section.
func at(list []orcEntry, off uint64) string {
	i, found := slices.BinarySearchFunc(list, off, func(e orcEntry, off uint64) int { return cmp.Compare(e.off, off) })
	if !found {
		i--
	}
	if i < 0 {
		return ""
	}
	return list[i].says
}

// TestAddORC: copies of objects that gcc compiled as it does kernels have what objtool adds to them, at each byte of code, as objtool reads both.
// Linkers and checkers find nothing else in the copies.
func TestAddORC(t *testing.T) {
	oracle.Long(t)
	padding, copied := 0, 0
	for _, tool := range objtools(t) {
		for _, flags := range [][]string{{"-O2"}, {"-Os", "-ffunction-sections"}, {"-O2", "-fno-omit-frame-pointer"}, {"-O3", "-mpreferred-stack-boundary=3"}} {
			dir := t.TempDir()
			in, out, judged := filepath.Join(dir, "in.o"), filepath.Join(dir, "out.o"), filepath.Join(dir, "judged.o")
			oracle.Run(t, "gcc", append(flags, "-c", "-fno-pic", "-mcmodel=kernel", "-mno-red-zone", "-fcf-protection=none", "-fno-jump-tables", "-fno-stack-protector",
				"-fasynchronous-unwind-tables", "-mno-sse", "-o", in, "../format/orc/testdata/functions.c")...)
			put(t, judged, get(t, in), 0o600)
			tool.run(t, "--orc", judged)
			text, err := Copy(t.Context(), in, out, tool.emit)
			if err != nil || !strings.Contains(text, " entries in ") || strings.Contains(text, "left out") {
				t.Fatalf("%v: %s, %v", flags, text, err)
			}
			img, err := module.Open(in)
			if err != nil {
				t.Fatal(err)
			}
			defer img.Close()
			want, got := tool.dump(t, judged), tool.dump(t, out)
			bad := 0
			for name, list := range want {
				s := img.Section(name)
				code, err := img.Data(s)
				if err != nil {
					t.Fatal(err)
				}
				for off := range s.Size + 1 { // the end says that nothing is known
					g, w := at(got[name], off), at(list, off)
					switch from := off &^ 3; {
					case g == w, g == "" && strings.HasPrefix(w, "(und)"):
					case strings.Contains(w, "(und)") && off < s.Size && isPadding(code, off):
						padding++ // objtool does not reach what never runs
					case strings.Contains(g, "sp:r10+0 ") && strings.Contains(w, "sp:sp+8 ") && bytes.Contains(code[max(from, 8)-8:off+4], []byte("\x48\x83\xe4")):
						copied++ // before "and $-64,%rsp", r10 and rsp+8 are the same
					case bad < 10:
						bad++
						t.Errorf("%s %v: %s+%#x\nobjtool %s\n    got %s", tool.emit, flags, name, off, w, g)
					}
				}
			}
			if len(want) == 0 || len(got) != len(want) {
				t.Errorf("%s %v: %d sections of code, want %d", tool.emit, flags, len(got), len(want))
			}
			linked := filepath.Join(dir, "linked.o")
			oracle.Run(t, "ld", "-r", "-o", linked, out)
			for _, path := range []string{out, linked} {
				if text := oracle.Run(t, "readelf", "-aW", path); bytes.Contains(text, []byte("arning")) || bytes.Contains(text, []byte("rror")) {
					t.Errorf("readelf of %s: %s", path, text)
				}
				if text := oracle.Run(t, "eu-elflint", "--gnu-ld", path); string(text) != "No errors\n" {
					t.Errorf("eu-elflint of %s: %s", path, text)
				}
			}
			if _, err := Copy(t.Context(), out, filepath.Join(dir, "again.o"), tool.emit); err == nil || !strings.Contains(err.Error(), "the file has ORC") {
				t.Errorf("a copy of the copy: %v", err)
			}
		}
	}
	if padding == 0 || copied == 0 {
		t.Errorf("%d bytes of padding, %d before a stack is aligned: what never differs needs no permission", padding, copied)
	}
}

// isPadding says whether an instruction that does nothing has the byte at off.
func isPadding(code []byte, off uint64) bool {
	for back := range min(off+1, 12) {
		b := append(bytes.Clone(code[off-back:min(off-back+3, uint64(len(code)))]), 0, 0)
		if b[0] == 0x90 && back == 0 || b[0] == 0x0f && b[1] == 0x1f && back < 8 || b[0] == 0x66 && (b[1] == 0x90 || b[1] == 0x0f && b[2] == 0x1f || b[1] == 0x2e || b[1] == 0x66) {
			return true
		}
	}
	return false
}

// TestAddORCRefused: what ORC cannot say is left out, with the reason; other files are refused.
func TestAddORCRefused(t *testing.T) {
	oracle.Long(t)
	oracle.Need(t, "g++", "aarch64-linux-gnu-gcc")
	dir := t.TempDir()
	source := filepath.Join(dir, "x.cc")
	put(t, source, []byte("void sink(void *);\nstruct A { int n; inline void f() { sink(this); n++; } };\nvoid large(A *a) { char b[70000]; sink(b); a->f(); a->f(); }\nint main() { return 0; }\n"), 0o600)
	object, out, program, arm := filepath.Join(dir, "x.o"), filepath.Join(dir, "out.o"), filepath.Join(dir, "x"), filepath.Join(dir, "arm.o")
	oracle.Run(t, "g++", "-O0", "-fno-stack-protector", "-fomit-frame-pointer", "-c", "-o", object, source)
	oracle.Run(t, "g++", "-O0", "-shared", "-fPIC", "-o", program, source)
	oracle.Run(t, "aarch64-linux-gnu-gcc", "-x", "c", "-c", "-o", arm, "../format/orc/testdata/functions.c")
	text, err := Copy(t.Context(), object, out, "orc")
	if err != nil || !regexp.MustCompile(`for Linux 7\.1\n  left out: .* of code: the CFA is at offset 70\d\d\d\n  left out: \d+ B of code: in a group of sections, which a linker may discard$`).MatchString(text) {
		t.Errorf("%s, %v", text, err)
	}
	for path, want := range map[string]string{program: "this file is linked", arm: "ORC is added to ELF files for x86-64"} {
		if _, err := Copy(t.Context(), path, out, "orc-6.4"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", path, err, want)
		}
	}
	if _, err := Copy(t.Context(), object, out, "orc-4.1"); err == nil || !strings.Contains(err.Error(), "ORC of Linux 4.1") {
		t.Errorf("Linux 4.1: %v", err)
	}
	for _, emit := range []string{"orc-", "orc-6", "orc-6.1.2", "orc6.1", "orc-06.1", "ORC"} {
		if Copies(emit) {
			t.Errorf("%q is taken", emit)
		}
	}
}

// FuzzAddORC adds ORC to damaged objects: the copy is no longer than its sections ask for, and readers take it.
func FuzzAddORC(f *testing.F) {
	if gcc, err := exec.LookPath("gcc"); err == nil {
		path := filepath.Join(f.TempDir(), "f.o")
		if err := exec.Command(gcc, "-O1", "-c", "-o", path, "../format/orc/testdata/functions.c").Run(); err == nil {
			b, err := os.ReadFile(path)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(b)
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		img, err := module.New("f.o", b)
		if err != nil {
			return
		}
		u, err := format.Open(img)
		if err != nil {
			return
		}
		x, _ := u.Rows()
		out, tab, err := orc.Add(b, x, orc.Version{Major: 6, Minor: 4}, placesOf(img))
		if err != nil {
			return
		}
		if limit := len(b) + 34*len(tab.Addrs) + 300 + 2*len(b); len(out) > limit || binary.LittleEndian.Uint64(out[40:]) > uint64(len(out)) {
			t.Errorf("%d bytes of %d and %d entries", len(out), len(b), len(tab.Addrs))
		}
		copied, err := module.New("out.o", out)
		if err != nil {
			t.Fatal(err)
		}
		if s := copied.Section(".orc_unwind"); s == nil || s.Size != uint64(6*len(tab.Addrs)) {
			t.Errorf("%v, of %d entries", s, len(tab.Addrs))
		}
	})
}
