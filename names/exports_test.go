package names

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/module"
	"github.com/unspool/unspool/modules"
	"github.com/unspool/unspool/profile"
)

// TestExports: of a DLL without symbols, an exported function has its name, up to its end, and the function behind it has none.
func TestExports(t *testing.T) {
	oracle.Need(t, "clang-19", "lld-link-19")
	dir := t.TempDir()
	source, object, dll := filepath.Join(dir, "x.s"), filepath.Join(dir, "x.obj"), filepath.Join(dir, "x.dll")
	if err := os.WriteFile(source, []byte(`.text
.globl first
.p2align 4
.seh_proc first
first: subq $40,%rsp
.seh_stackalloc 40
.seh_endprologue
call hidden
addq $40,%rsp
ret
.seh_endproc
.p2align 4
.seh_proc hidden
hidden: subq $40,%rsp
.seh_stackalloc 40
.seh_endprologue
nop
addq $40,%rsp
ret
.seh_endproc
.data
.quad 0
`), 0o600); err != nil {
		t.Fatal(err)
	}
	oracle.Run(t, "clang-19", "--target=x86_64-pc-windows-msvc", "-c", "-o", object, source)
	oracle.Run(t, "lld-link-19", "/dll", "/noentry", "/nodefaultlib", "/export:first", "/out:"+dll, object)
	text, got := namesIn(t, dll, ".text", 9, 16+4)
	if got[0].Func != "first" || got[0].Start != text || got[1].Func != "" || got[1].Start != text+16 {
		t.Errorf("names %+v, want first at %#x, and none at %#x", got, text, text+16)
	}
}

// TestMachO: of a library for macOS, each function has its name, up to the next one.
func TestMachO(t *testing.T) {
	oracle.Long(t)
	oracle.Need(t, "clang-19", "ld64.lld-19")
	dir := t.TempDir()
	source, object, dylib := filepath.Join(dir, "x.s"), filepath.Join(dir, "x.o"), filepath.Join(dir, "x.dylib")
	if err := os.WriteFile(source, []byte(`.text
.globl _first, _second
.p2align 2
_first: nop
nop
ret
_second: nop
nop
ret
.const
.quad 1
.data
.quad 2
`), 0o600); err != nil {
		t.Fatal(err)
	}
	oracle.Run(t, "clang-19", "--target=arm64-apple-macos13", "-c", "-o", object, source)
	oracle.Run(t, "ld64.lld-19", "-arch", "arm64", "-platform_version", "macos", "13", "13", "-dylib", "-o", dylib, object)
	_, got := namesIn(t, dylib, "__TEXT,__text", 4, 8, 16)
	for i, want := range []string{"first", "first", "second"} {
		if got[i].Func != want {
			t.Errorf("name %d is %+v, want %s", i, got[i], want)
		}
	}
}

// namesIn returns where a section of a file begins, and the names of what is so many bytes behind.
func namesIn(t *testing.T, path, section string, behind ...uint64) (at uint64, got []profile.Name) {
	t.Helper()
	img, err := module.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer img.Close()
	mods := modules.New()
	defer mods.Close()
	n := New(Options{Mods: mods})
	defer n.Close()
	at = img.Section(section).Off
	offs := make([]uint64, len(behind))
	for i := range behind {
		offs[i] = at + behind[i]
	}
	got = make([]profile.Name, len(offs))
	n.User(n.Image(img), offs, got)
	return at, got
}
