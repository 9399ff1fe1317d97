package sframe

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/format"
	"github.com/unspool/unspool/format/sframe"
	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/module"
	"github.com/unspool/unspool/rows"
)

// meaning is what a set says of the CFA, the return address and the frame pointer.
func meaning(s *rows.Set, m *arch.Machine, version int) string {
	if s.Gap() {
		return "gap"
	}
	flags := rows.RASigned | rows.BKey
	if version == 3 {
		flags |= rows.Signal
	}
	x := rows.Set{CFA: s.CFA, RA: s.RA, Flags: s.Flags & flags}
	if s.Outermost() {
		return fmt.Sprint("outermost ", x.Flags)
	}
	cell := func(r arch.Reg) string {
		rule, ok := s.Rule(r)
		if !ok || rule.Kind == rows.Register && rule.Reg == r {
			return "s"
		}
		return rule.Cell(m)
	}
	return x.Text(m) + " ra=" + cell(s.RA) + " fp=" + cell(m.FP)
}

// check compares what a section says with the table it was made of: equal where it says something, and what it does not say is counted.
func check(t *testing.T, name string, ref *rows.Table, s *Section, version int) {
	t.Helper()
	read, err := sframe.New(s.Bytes, s.Addr, ref.Machine)
	if err != nil {
		t.Errorf("%s: %v", name, err)
		return
	}
	got, errs := read.Rows()
	for _, err := range errs {
		t.Errorf("%s: %v", name, err)
	}
	var at []arch.Vaddr
	for _, x := range []*rows.Table{ref, got} {
		for _, r := range x.Rows {
			at = append(at, r.Lo)
		}
	}
	slices.Sort(at)
	at = slices.Compact(at)
	missing := uint64(0)
	for i, pc := range at {
		g, w := meaning(got.At(pc), ref.Machine, version), meaning(ref.At(pc), ref.Machine, version)
		if g == "gap" && w != g {
			missing += uint64(at[i+1] - pc)
		} else if g != w {
			t.Errorf("%s at %#x\n got %s\nwant %s", name, uint64(pc), g, w)
			return
		}
	}
	for _, l := range s.Left {
		missing -= l.Bytes
	}
	if missing != 0 {
		t.Errorf("%s: %d bytes more are left out than the counts say", name, int64(missing))
	}
}

// libraries are those of the cross compiler for AArch64.
func libraries(t *testing.T) []string {
	list, err := filepath.Glob("/usr/aarch64-linux-gnu/lib/*.so*")
	if err != nil || len(list) == 0 {
		oracle.Lacks(t, "libc6-arm64-cross")
	}
	return list
}

// TestEmit compares sections with the rows of this machine's programs and libraries, at every address.
func TestEmit(t *testing.T) {
	oracle.Long(t)
	small := slices.DeleteFunc(oracle.Binaries(t), func(p string) bool {
		st, err := os.Stat(p)
		return err != nil || st.Size() > 4<<20
	})
	paths := append(oracle.Spread(small, oracle.Few(20, 1000)), oracle.Spread(libraries(t), oracle.Few(5, 100))...)
	files := 0
	var code, tables, sizes [4]uint64
	left := [4]map[string]rows.Loss{}
	for _, path := range paths {
		img, err := module.Open(path)
		if err != nil {
			continue // a linker's script
		}
		if m := img.Machine(); m != arch.AMD64 && m != arch.ARM64 || !img.Is64() {
			img.Close()
			continue
		}
		f, _ := format.Open(img)
		ref, _ := f.Rows()
		if len(ref.Rows) == 0 {
			img.Close()
			continue
		}
		files++
		for _, version := range []int{2, 3} {
			for _, bounds := range []rows.Bounds{f.Bounds, nil} {
				s, err := Emit(ref, version, ref.Rows[len(ref.Rows)-1].Lo+4096, bounds)
				if err != nil {
					t.Errorf("%s: %v", path, err)
					continue
				}
				check(t, fmt.Sprintf("%s, version %d, %d functions", path, version, s.Functions), ref, s, version)
				if bounds == nil {
					continue
				}
				for i, r := range ref.Rows {
					if r.Set != rows.GapID {
						code[version] += uint64(ref.Hi(i) - r.Lo)
					}
				}
				tables[version] += f.Size(format.EHFrame) + f.IndexSize()
				sizes[version] += uint64(len(s.Bytes))
				if left[version] == nil {
					left[version] = map[string]rows.Loss{}
				}
				for _, l := range s.Left {
					sum := left[version][l.Reason]
					left[version][l.Reason] = rows.Loss{Reason: l.Reason, Rows: sum.Rows + l.Rows, Bytes: sum.Bytes + l.Bytes}
				}
			}
		}
		img.Close()
	}
	if files < oracle.Few(15, 200) {
		t.Errorf("%d files", files)
	}
	for _, v := range []int{2, 3} {
		t.Logf("version %d: %d files, %d bytes, .eh_frame and its index have %d; of %d bytes of code are left out:", v, files, sizes[v], tables[v], code[v])
		for _, r := range slices.Sorted(maps.Keys(left[v])) {
			t.Logf("  %d bytes in %d rows: %s", left[v][r].Bytes, left[v][r].Rows, r)
		}
	}
}

// add writes a copy of a file with a section.
func add(t *testing.T, from, to string, version int) *Section {
	t.Helper()
	img, err := module.Open(from)
	if err != nil {
		t.Fatal(err)
	}
	defer img.Close()
	f, err := format.Open(img)
	if err != nil {
		t.Fatal(err)
	}
	ref, _ := f.Rows()
	b, s, err := Add(img.Bytes(), ref, version, f.Bounds)
	if err != nil {
		t.Fatalf("%s: %v", from, err)
	}
	if err := os.WriteFile(to, b, 0o755); err != nil {
		t.Fatal(err)
	}
	// What is in the file is what the section says.
	copied, err := module.Open(to)
	if err != nil {
		t.Fatal(err)
	}
	defer copied.Close()
	c, err := format.Open(copied)
	if err != nil {
		t.Fatal(err)
	}
	again, errs := c.Rows(format.SFrame)
	if len(errs) > 0 || len(again.Rows) == 0 {
		t.Fatalf("%s: %d rows, %v", to, len(again.Rows), errs)
	}
	check(t, to, ref, s, version)
	direct, err := sframe.New(s.Bytes, s.Addr, ref.Machine)
	if err != nil {
		t.Fatal(err)
	}
	want, _ := direct.Rows()
	if !slices.Equal(want.Rows, again.Rows) {
		t.Errorf("%s: other rows than the section's", to)
	}
	// Without section headers, PT_GNU_SFRAME leads to it.
	clear(b[40:48]) // e_shoff
	clear(b[60:64]) // e_shnum, e_shstrndx
	bare, err := module.New("bare", b)
	if err != nil {
		t.Fatal(err)
	}
	if c, err = format.Open(bare); err != nil {
		t.Fatal(err)
	}
	if again, _ = c.Rows(format.SFrame); !slices.Equal(want.Rows, again.Rows) {
		t.Errorf("%s: other rows than the section's by its program header", to)
	}
	return s
}

// says returns the lines that a tool says of a file and does not say of the original, without what the new section must change.
func says(t *testing.T, tool []string, original, altered string) (news []string) {
	t.Helper()
	lines := func(path string) map[string]bool {
		out, _ := exec.Command(tool[0], append(tool[1:], path)...).CombinedOutput()
		all := map[string]bool{}
		for line := range strings.Lines(string(out)) {
			all[strings.ReplaceAll(strings.TrimSpace(line), path, "FILE")] = true
		}
		return all
	}
	before := lines(original)
	for line := range lines(altered) {
		if !before[line] {
			news = append(news, line)
		}
	}
	slices.Sort(news)
	return news
}

// warns matches what readelf says of a file that is wrong.
var warns = regexp.MustCompile(`(?i)warning|error|corrupt|invalid|overlap`)

// look lets readelf and eu-elflint look at a copy: they say nothing that they do not say of the original.
func look(t *testing.T, original, altered string) {
	t.Helper()
	for _, line := range says(t, []string{"readelf", "-aW", "--section-details"}, original, altered) {
		if warns.MatchString(line) {
			t.Errorf("%s: readelf: %s", altered, line)
		}
	}
	for _, line := range says(t, []string{"eu-elflint", "--gnu-ld"}, original, altered) {
		ok := false
		for i := range permitted {
			if permitted[i].line.MatchString(line) {
				ok, permitted[i].used = true, true
			}
		}
		if !ok {
			t.Errorf("%s: eu-elflint: %s", altered, line)
		}
	}
}

// permitted are messages of eu-elflint of what it does not know, though the linkers of binutils write the same; and one that is wrong: it adds the
// size of a function to the address of its slot, and finds itself in the next segment.
var permitted = []struct {
	line *regexp.Regexp
	used bool
}{
	{line: regexp.MustCompile(`^program header entry \d+: unknown program header entry type 0x6474e554$`)}, // PT_GNU_SFRAME
	{line: regexp.MustCompile(`^section \[\d+\] '\.sframe' has unsupported type 1879048180$`)},             // SHT_GNU_SFRAME, in version 3
	{line: regexp.MustCompile(`^section \[ *\d+\] '\.rela\.(plt|dyn)': relocation \d+: read-only section modified but text relocation flag not set$`)},
}

// TestAdd adds sections to copies of programs and libraries: they run as before, and readelf and eu-elflint say nothing new.
func TestAdd(t *testing.T) {
	oracle.Long(t)
	oracle.Need(t, "readelf", "eu-elflint", "g++", "perl")
	dir := t.TempDir()
	run := func(args ...string) string {
		c := exec.Command(args[0], args[1:]...)
		c.Env = append(os.Environ(), "LC_ALL=C")
		out, err := c.CombinedOutput()
		return fmt.Sprintf("%s\n%v", out, err)
	}
	n := 0
	for i, p := range oracle.Spread([]string{"ls", "sort", "sed", "grep", "bash", "dash", "gzip", "perl", "tar", "xz", "find", "diff", "awk", "date", "make", "readelf",
		"gdb", "openssl", "sqlite3", "cat", "cp", "env", "id", "join", "md5sum", "nl", "od", "paste", "seq", "sha256sum", "tail", "tee", "touch", "tr", "uniq", "wc",
		"strace", "objdump", "ld", "as", "nm", "strip", "cmp", "expr"}, oracle.Few(6, 100)) {
		path, err := exec.LookPath(p)
		if err == nil {
			path, err = filepath.EvalSymlinks(path)
		}
		if err != nil {
			continue
		}
		to := filepath.Join(dir, filepath.Base(path))
		add(t, path, to, 2+i%2)
		look(t, path, to)
		if want, got := run(path, "--version"), run(to, "--version"); strings.ReplaceAll(got, to, path) != want {
			t.Errorf("%s\n got %s\nwant %s", to, got, want)
		}
		n++
	}

	// Libraries. The dynamic linker is refused.
	linker, err := os.ReadFile("/lib64/ld-linux-x86-64.so.2")
	if err != nil {
		t.Fatal(err)
	}
	one, err := rows.ParseText(strings.NewReader(byHand[0].table))
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := Add(linker, one, 3, nil); err == nil || !strings.Contains(err.Error(), "a dynamic linker") {
		t.Errorf("the dynamic linker: %v", err)
	}
	libs := filepath.Join(dir, "libs")
	if err := os.Mkdir(libs, 0o755); err != nil {
		t.Fatal(err)
	}
	for i, lib := range append([]string{"libc.so.6", "libm.so.6", "libtinfo.so.6"}, oracle.Spread([]string{"libstdc++.so.6", "libgcc_s.so.1", "libcrypto.so.3", "libssl.so.3", "libz.so.1", "libselinux.so.1", "libpcre2-8.so.0",
		"libacl.so.1", "liblzma.so.5", "libelf.so.1", "libdw.so.1", "libpthread.so.0", "libresolv.so.2", "libreadline.so.8", "libsqlite3.so.0", "libexpat.so.1"}, oracle.Few(2, 100))...) {
		found, _ := filepath.Glob("/lib/x86_64-linux-gnu/" + lib)
		if len(found) == 0 {
			continue
		}
		to := filepath.Join(libs, lib)
		add(t, found[0], to, 2+i%2)
		look(t, found[0], to)
		n++
	}
	for _, args := range [][]string{{"/usr/bin/perl", "-e", "use POSIX; print sin(1), join(q(,), sort map {$_**2} 1..9)"}, {"/bin/ls", "/"}, {"/usr/bin/sort", "--version"}} {
		if want, got := run(args...), run(append([]string{"/lib64/ld-linux-x86-64.so.2", "--library-path", libs}, args...)...); got != want {
			t.Errorf("%v\n got %s\nwant %s", args, got, want)
		}
	}

	// Programs of all kinds, with threads' own data, constructors and exceptions.
	src := filepath.Join(dir, "a.cc")
	if err := os.WriteFile(src, []byte(program), 0o600); err != nil {
		t.Fatal(err)
	}
	kinds := [][]string{{"g++"}, {"g++", "-static"}, {"g++", "-static-pie"}, {"g++", "-no-pie"}, {"g++", "-s"}, {"g++", "-Wl,-z,noseparate-code"}, {"g++", "-Wl,-z,max-page-size=65536"}, {"clang++-19", "-fuse-ld=lld-19"}}
	if _, err := exec.LookPath("qemu-aarch64"); err == nil {
		kinds = append(kinds, []string{"aarch64-linux-gnu-gcc", "-x", "c"}, []string{"aarch64-linux-gnu-gcc", "-x", "c", "-static"})
	}
	for i, kind := range kinds {
		if _, err := exec.LookPath(kind[0]); err != nil {
			oracle.Lacks(t, kind[0])
		}
		from, to := filepath.Join(dir, fmt.Sprint("p", i)), filepath.Join(dir, fmt.Sprint("q", i))
		oracle.Run(t, kind[0], append(slices.Clone(kind[1:]), "-O1", "-pthread", "-o", from, src)...)
		for _, version := range []int{2, 3} {
			add(t, from, to, version)
			look(t, from, to)
			args := []string{}
			if kind[0] == "aarch64-linux-gnu-gcc" {
				args = []string{"qemu-aarch64", "-L", "/usr/aarch64-linux-gnu"}
			}
			if want, got := run(append(args, from)...), run(append(args, to)...); got != want || !strings.Contains(got, "status 7") {
				t.Errorf("%v, version %d\n got %s\nwant %s", kind, version, got, want)
			}
			os.Remove(to)
		}
		n++
	}
	for _, p := range permitted {
		if !p.used {
			t.Errorf("eu-elflint does not say %s: take it off the list", p.line)
		}
	}
	if want := oracle.Few(15, 50); n < want {
		t.Errorf("%d programs and libraries, want %d", n, want)
	}
	t.Logf("%d programs and libraries run as before", n)
}

const program = `#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
static __thread int own = 3;
static int made, big[100000];
__attribute__((constructor)) static void make(void) { made = 2; }
static void *run(void *p) { own += *(int *)p; big[own] = own; return big + own; }
#ifdef __cplusplus
static int caught(int n) {
	try {
		if (n > 5)
			throw n;
		return caught(n + 1);
	} catch (int v) {
		return v;
	}
}
#else
static int caught(int n) { return n > 5 ? n : caught(n + 1); }
#endif
int main(void) {
	pthread_t t;
	int two = 2;
	void *r;
	pthread_create(&t, 0, run, &two);
	pthread_join(t, &r);
	printf("%d %d %d %d\n", *(int *)r, own, made, caught(0));
	return 7;
}
`

// TestObjdump lets the objdump of two releases list added sections.
func TestObjdump(t *testing.T) {
	oracle.Long(t)
	path := filepath.Join(t.TempDir(), "ls")
	for suite, version := range map[string]int{"trixie": 2, "sid": 3} {
		root := oracle.Debian(t, suite, "amd64", "binutils", "binutils", "binutils-aarch64-linux-gnu", "binutils-s390x-linux-gnu")
		for _, from := range []string{"/bin/ls", "/lib/x86_64-linux-gnu/libc.so.6"} {
			s := add(t, from, path, version)
			c := exec.Command(root+"/lib64/ld-linux-x86-64.so.2", "--library-path", root+"/usr/lib/x86_64-linux-gnu", root+"/usr/bin/x86_64-linux-gnu-objdump", "--sframe", path)
			var stderr bytes.Buffer
			c.Stderr = &stderr
			out, err := c.Output()
			if err != nil || stderr.Len() > 0 {
				t.Fatalf("%s: %v\n%s", from, err, stderr.Bytes())
			}
			if n := bytes.Count(out, []byte("func idx")); n != s.Functions {
				t.Errorf("%s, version %d: %d functions, want %d", from, version, n, s.Functions)
			}
		}
	}
}
