package test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/unspool/unspool/emit/native"
	"github.com/unspool/unspool/format/dwarf"
	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/module"
	"github.com/unspool/unspool/rows"
)

var cflags = []string{"-Wall", "-Wextra", "-Wpedantic", "-Werror", "-I..", "-Wl,--build-id", "-pthread"}

// compile compiles a C program of testdata, or skips the test.
func compile(t testing.TB, cc, source string, flags ...string) string {
	t.Helper()
	if runtime.GOARCH != "amd64" || runtime.GOOS != "linux" {
		t.Skip("this test lacks x86-64 Linux, which eh_elf files run on")
	}
	return compiledAs(t, "prog", cc, slices.Concat(cflags, flags, []string{filepath.Join("testdata", source), "-ldl"})...)
}

// tableOf returns a module's rows, and its ID.
func tableOf(t testing.TB, img *module.Image) (*rows.Table, string) {
	t.Helper()
	f, err := dwarf.Open(img)
	if err != nil {
		t.Fatal(err)
	}
	ref, damage := f.Build(dwarf.Both)
	if len(damage) > 0 {
		t.Logf("%s: %v", img.Name(), damage[0])
	}
	return ref, img.ID()
}

// libraries returns what a program loads, and itself.
func libraries(t testing.TB, prog string) []string {
	t.Helper()
	out, err := exec.Command("ldd", prog).Output()
	if err != nil {
		t.Fatalf("ldd: %v", err)
	}
	libs := []string{prog, "/lib/x86_64-linux-gnu/libgcc_s.so.1"}
	for _, f := range strings.Fields(string(out)) {
		if strings.HasPrefix(f, "/") && !slices.Contains(libs, f) {
			libs = append(libs, f)
		}
	}
	return libs
}

// write makes the eh_elf file of an image in a directory.
func write(t testing.TB, dir string, img *module.Image, o native.Options) string {
	t.Helper()
	ref, id := tableOf(t, img)
	o.ID = id
	b, err := native.Emit(ref, o)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, id+".eh_elf.so")
	if err := os.WriteFile(path, b, 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// files makes the eh_elf files of all modules of a program, and returns their directory and that of the program itself.
func files(t testing.TB, prog string, o native.Options) (dir, own string) {
	t.Helper()
	dir = t.TempDir()
	for i, lib := range libraries(t, prog) {
		img, err := module.Open(lib)
		if err != nil {
			t.Fatal(err)
		}
		path := write(t, dir, img, o)
		if i == 0 {
			own = path
		}
		img.Close()
	}
	vdso, err := module.VDSO()
	if err != nil {
		t.Fatal(err)
	}
	write(t, dir, vdso, o)
	return dir, own
}

// run runs a test program, which judges itself.
func run(t *testing.T, cmd *exec.Cmd) string {
	t.Helper()
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("%s: %v\n%s", strings.Join(cmd.Args[1:], " "), err, out)
	} else {
		t.Logf("%s", bytes.TrimSpace(out))
	}
	return string(out)
}

var layouts = []native.Layout{native.Page, native.Tree, native.Inline}

var derefs = []native.Deref{native.Self, native.Callback, native.Slice}

// TestWalk compares a program's walks of its own stack with libgcc's: from recursion through libc, in a thread, in signal
// handlers on both stacks, and under a storm of signals.
func TestWalk(t *testing.T) {
	prog := compile(t, "gcc", "walk.c", "-std=c11", "-O2", "-g")
	for _, l := range layouts {
		for _, d := range derefs {
			t.Run(l.String()+" "+d.String(), func(t *testing.T) {
				dir, _ := files(t, prog, native.Options{Layout: l, Deref: d})
				for _, how := range []string{"recurse", "signal", "altstack", "storm", "maps", "dlopen", "speed"} {
					if l != native.Page && how == "storm" || d == native.Slice && how == "speed" {
						continue
					}
					run(t, exec.Command(prog, dir, fmt.Sprint(int(d)), how))
				}
				if d != native.Self {
					run(t, exec.Command(prog, dir, fmt.Sprint(int(d)), "hostile"))
				}
				if d == native.Callback {
					run(t, exec.Command(prog, dir, fmt.Sprint(int(d)), "traced"))
				}
			})
		}
	}
}

// TestCompilers compiles the header as strictly as its promise, without optimization and with sanitizers.
func TestCompilers(t *testing.T) {
	for _, x := range []struct {
		cc    string
		flags []string
	}{
		{"gcc", []string{"-std=c11", "-O0"}},
		{"clang-19", []string{"-std=c11", "-O2"}},
		{"gcc", []string{"-std=c11", "-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"}},
		{"clang-19", []string{"-std=c11", "-O1", "-g", "-fsanitize=undefined", "-fsanitize-trap=undefined"}},
	} {
		t.Run(x.cc+" "+strings.Join(x.flags, " "), func(t *testing.T) {
			prog := compile(t, x.cc, "walk.c", x.flags...)
			for _, d := range derefs {
				dir, _ := files(t, prog, native.Options{Deref: d})
				for _, how := range []string{"recurse", "signal", "altstack", "storm", "maps"} {
					if how == "storm" && !strings.Contains(strings.Join(x.flags, " "), "address") {
						continue
					}
					cmd := exec.Command(prog, dir, fmt.Sprint(int(d)), how)
					cmd.Env = append(os.Environ(), "ASAN_OPTIONS=handle_segv=0:allow_user_segv_handler=1:use_sigaltstack=0:detect_leaks=0")
					run(t, cmd)
				}
			}
		})
	}
}

// TestRestored: registers that a function has taken back from below its stack pointer.
func TestRestored(t *testing.T) {
	run(t, exec.Command(compile(t, "gcc", "restore.c", "-std=c11", "-O2")))
}

// TestHeader compiles the header alone, in C++, and beside unspool_table.h; and that of files alone.
func TestHeader(t *testing.T) {
	const alone = "#include \"eh_elf.h\"\nint main(void) { return sizeof(struct eh_elf_cursor) == 0; }\n"
	const file = "#include \"eh_elf_file.h\"\nint main(void) { struct eh_elf f; return eh_elf_open(\"/x\", &f); }\n"
	const both = "#define _GNU_SOURCE\n#define UNSPOOL_LOAD(c, a, to) ((void)(c), *(to) = *(const uint64_t *)(a), 1)\n#include \"unspool_table.h\"\n" + alone
	for _, x := range []struct{ cc, lang, std, text string }{
		{"gcc", "c", "c11", alone}, {"gcc", "c", "gnu17", alone}, {"g++", "c++", "c++17", alone}, {"gcc", "c", "c11", both},
		{"clang-19", "c", "c11", alone}, {"clang++-19", "c++", "c++17", alone}, {"clang-19", "c", "c11", both},
		{"gcc", "c", "c11", file}, {"g++", "c++", "c++17", file},
		{armCC, "c", "c11", alone}, {armCC, "c", "c11", both}, {"aarch64-linux-gnu-g++", "c++", "c++17", alone}, {armCC, "c", "c11", file},
	} {
		oracle.Need(t, x.cc)
		cmd := exec.Command(x.cc, slices.Concat(cflags, []string{"-Wshadow", "-std=" + x.std, "-O2", "-x", x.lang, "-o", filepath.Join(t.TempDir(), "a"), "-"})...)
		cmd.Stdin = strings.NewReader(x.text)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%s -std=%s: %v\n%s", x.cc, x.std, err, out)
		}
	}
}

// TestRefused shows files to the loader that it must not run.
func TestRefused(t *testing.T) {
	prog := compile(t, "gcc", "walk.c", "-std=c11", "-O2", "-g")
	dir, good := files(t, prog, native.Options{})
	b, err := os.ReadFile(good)
	if err != nil {
		t.Fatal(err)
	}
	const (
		system, file, owner, format, version, size, checksum, malformed = -1, -2, -3, -4, -5, -6, -7, -8
	)
	var paths strings.Builder
	var want []string
	show := func(code int, path string) {
		fmt.Fprintln(&paths, path)
		want = append(want, fmt.Sprintf("%d %s", code, filepath.Base(path)))
	}
	add := func(name string, code int, change func(b []byte) []byte, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, change(slices.Clone(b)), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		show(code, path)
		return path
	}
	at := bytes.Index(b, []byte("unspool\x00")) + 8 // the info
	same := func(b []byte) []byte { return b }
	set := func(off int, v byte) func([]byte) []byte {
		return func(b []byte) []byte { b[at+off] = v; return b }
	}
	sealed := func(change func([]byte) []byte) func([]byte) []byte { // with a checksum that is right
		return func(b []byte) []byte {
			b = change(b)
			clear(b[at+12 : at+16])
			binary.LittleEndian.PutUint32(b[at+12:], crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)))
			return b
		}
	}
	add("as it was", 0, same, 0o644)
	add("read-only", 0, same, 0o444)
	add("sealed", 0, sealed(same), 0o644)
	add("group", owner, same, 0o664)
	add("others", owner, same, 0o646)
	add("empty", file, func([]byte) []byte { return nil }, 0o644)
	add("short", file, func(b []byte) []byte { return b[:63] }, 0o644)
	add("headers only", format, func(b []byte) []byte { return b[:64] }, 0o644)
	add("cut", size, func(b []byte) []byte { return b[:len(b)-1] }, 0o644)
	add("half", size, func(b []byte) []byte { return b[:len(b)/2] }, 0o644)
	add("longer", size, func(b []byte) []byte { return append(b, 0) }, 0o644)
	add("text", format, func([]byte) []byte { return bytes.Repeat([]byte("text "), 1000) }, 0o644)
	add("version", version, sealed(set(0, 2)), 0o644)
	add("damaged", checksum, func(b []byte) []byte { b[len(b)/2] ^= 1; return b }, 0o644)
	add("deref", malformed, sealed(set(3, 3)), 0o644)
	add("layout", malformed, sealed(set(2, 2)), 0o644)
	add("machine", malformed, sealed(set(4, 183)), 0o644)
	add("no find", malformed, sealed(func(b []byte) []byte { clear(b[at+16 : at+20]); return b }), 0o644)
	add("step outside", malformed, sealed(set(27, 0x10)), 0o644)
	add("many rules", malformed, sealed(set(35, 0x7f)), 0o644)
	add("rule outside", malformed, sealed(func(b []byte) []byte {
		b[binary.LittleEndian.Uint32(b[at+28:])+4+2] ^= 0x40
		return b
	}), 0o644)
	show(file, dir)
	show(system, filepath.Join(dir, "not there"))
	link := filepath.Join(dir, "link")
	if err := os.Symlink(good, link); err != nil {
		t.Fatal(err)
	}
	show(system, link)
	fifo := filepath.Join(dir, "fifo")
	if err := syscall.Mkfifo(fifo, 0o644); err != nil {
		t.Fatal(err)
	}
	show(file, fifo)
	if os.Geteuid() == 0 {
		path := add("nobody's", owner, same, 0o644)
		if err := os.Chown(path, 65534, 65534); err != nil {
			t.Fatal(err)
		}
	} else {
		t.Log("not root: a file of another user was not tried")
	}

	cmd := exec.Command(prog, dir, "0", "open")
	cmd.Stdin = strings.NewReader(paths.String())
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	got := strings.Split(strings.TrimSpace(string(out)), "\n")
	if len(got) != len(want) {
		t.Fatalf("%d answers, not %d:\n%s", len(got), len(want), out)
	}
	for i, g := range got {
		if code, name, _ := strings.Cut(want[i], " "); code != strings.Fields(g)[0] {
			t.Errorf("%s\n got  %s\n want %s", name, g, code)
		}
	}
}

// TestDamage damages each bit of a small file, and cuts it at each byte: it must be refused.
func TestDamage(t *testing.T) {
	prog := compile(t, "gcc", "walk.c", "-std=c11", "-O2", "-g")
	tab, err := rows.ParseText(strings.NewReader("machine x86_64\n1000  cfa=rsp+8  ra=c-8\n1001  cfa=rsp+16  rbp=c-16  ra=c-8\n1010  gap\n"))
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range []native.Layout{native.Page, native.Inline} {
		b, err := native.Emit(tab, native.Options{Layout: l, Deref: native.Slice, ID: "0123456789abcdef"})
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(t.TempDir(), "small.eh_elf.so")
		if err := os.WriteFile(path, b, 0o644); err != nil {
			t.Fatal(err)
		}
		run(t, exec.Command(prog, path, "2", "flip"))
	}
}

// TestTools shows files to readelf and gdb, and stops a program in emitted code.
func TestTools(t *testing.T) {
	oracle.Need(t, "readelf", "gdb")
	prog := compile(t, "gcc", "walk.c", "-std=c11", "-O2", "-g")
	for _, l := range layouts {
		dir, own := files(t, prog, native.Options{Layout: l, Deref: native.Callback})
		out, err := exec.Command("readelf", "-a", "-W", own).CombinedOutput()
		if err != nil || bytes.Contains(out, []byte("Warning")) || bytes.Contains(out, []byte("Error")) {
			t.Errorf("readelf -a: %v\n%s", err, out)
		}
		out, err = exec.Command("readelf", "-wF", own).CombinedOutput()
		if err != nil || bytes.Contains(out, []byte("Warning")) || !bytes.Contains(out, []byte("rsp+8")) {
			t.Errorf("readelf -wF: %v\n%s", err, out)
		}
		entry := "eh_elf_find"
		if l == native.Inline {
			entry = "eh_elf_step"
		}
		out, err = gdb("-ex", "info functions eh_elf", "-ex", "disassemble "+entry, own)
		if err != nil || bytes.Contains(bytes.ToLower(out), []byte("warning")) || !bytes.Contains(out, []byte("End of assembler dump")) ||
			!bytes.Contains(out, []byte("eh_elf_step")) || bytes.Contains(out, []byte("(bad)")) {
			t.Errorf("gdb: %v\n%s", err, out)
		}
		out, err = gdb("-ex", "break traced_read8", "-ex", "run", "-ex", "backtrace", "-ex", "ignore 1 60", "-ex", "continue", "-ex", "backtrace",
			"--args", prog, dir, "1", "traced")
		if n := bytes.Count(out, []byte(" in main (")); err != nil || n != 2 || bytes.Contains(out, []byte("Backtrace stopped")) {
			t.Errorf("gdb in emitted code: %v, main is in %d stacks of 2\n%s", err, n, out)
		}
	}
}

func gdb(args ...string) ([]byte, error) {
	cmd := exec.Command("gdb", append([]string{"-nx", "-batch", "-ex", "set debuginfod enabled off"}, args...)...)
	return cmd.CombinedOutput()
}
