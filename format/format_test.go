package format

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/module"
	"github.com/unspool/unspool/rows"
	"github.com/unspool/unspool/symbol/gosym"
)

// opened returns the image of a file and its unwind information.
func opened(t *testing.T, path string) (*module.Image, *Unwind) {
	t.Helper()
	img, err := module.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { img.Close() })
	u, err := Open(img)
	if err != nil {
		t.Fatal(err)
	}
	return img, u
}

func (u *Unwind) names() (out []string) {
	for _, s := range u.Sources {
		out = append(out, s.Name)
	}
	return out
}

func run(t *testing.T, dir string, args ...string) {
	t.Helper()
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "GOFLAGS=-trimpath", "GO111MODULE=off", "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", args, err, out)
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestPrecedence: .eh_frame wins where it has rows, and .debug_frame has the others. Both know the functions' bounds.
func TestPrecedence(t *testing.T) {
	oracle.Need(t, "gcc")
	dir := t.TempDir()
	write(t, filepath.Join(dir, "f.s"), `
	.globl f
	.text
f:	.cfi_startproc
	ret
	.cfi_endproc
	.section .note.GNU-stack,"",@progbits
`)
	// g is in .debug_frame alone. f is too, by hand, with another CFA: rsp+24.
	write(t, filepath.Join(dir, "g.s"), `
	.globl g
	.cfi_sections .debug_frame
	.text
g:	.cfi_startproc
	ret
	.cfi_endproc
	.section .debug_frame,"",@progbits
.Lcie:	.long .Lend - .Lid
.Lid:	.long 0xffffffff
	.byte 1, 0
	.uleb128 1
	.sleb128 -8
	.byte 16
	.byte 0x0c, 7, 24, 0x90, 1
	.balign 8
.Lend:	.long .Lstop - .Lfde
.Lfde:	.long .Lcie
	.quad f, 1
	.balign 8
.Lstop:
	.section .note.GNU-stack,"",@progbits
`)
	run(t, dir, "gcc", "-nostdlib", "-static", "-no-pie", "-Wl,-e,f", "-o", "both", "f.s", "g.s")
	img, u := opened(t, filepath.Join(dir, "both"))
	if got := u.names(); !slices.Equal(got, []string{EHFrame, DebugFrame}) {
		t.Fatalf("sources %v", got)
	}
	at := map[string]arch.Vaddr{}
	img.Symbols(func(s module.Symbol) bool { at[s.Name] = s.Value; return true })
	all, damage := u.Rows()
	eh, _ := u.Rows(EHFrame)
	debug, _ := u.Rows(DebugFrame)
	if len(damage) > 0 {
		t.Errorf("damage: %v", damage)
	}
	text := func(v arch.Vaddr) string { return all.At(v).Text(all.Machine) }
	if got, want := text(at["f"]), eh.At(at["f"]).Text(eh.Machine); got != want || debug.At(at["f"]).Gap() || debug.At(at["f"]).Text(debug.Machine) == want {
		t.Errorf("f: got %s, .eh_frame has %s, .debug_frame %s", got, want, debug.At(at["f"]).Text(debug.Machine))
	}
	if got, want := text(at["g"]), debug.At(at["g"]).Text(debug.Machine); got != want || !eh.At(at["g"]).Gap() {
		t.Errorf("g: got %s, .debug_frame has %s", got, want)
	}
	for name, want := range map[string]rows.Origin{"f": rows.FromEHFrame, "g": rows.FromDebugFrame} {
		if got := all.Origin(at[name]); got != want {
			t.Errorf("%s is from %s, want %s", name, got, want)
		}
	}
	for _, name := range []string{"f", "g"} {
		if lo, hi, ok := u.Bounds(at[name]); !ok || lo != at[name] || hi != lo+1 {
			t.Errorf("%s: bounds %#x-%#x, %v; want %#x and one byte", name, lo, hi, ok, at[name])
		}
	}
	if none, damage := u.Rows(PCLNTab); len(none.Rows) != 0 || damage != nil {
		t.Errorf("of no source: %d rows, %v", len(none.Rows), damage)
	}
}

// TestGo: a Go program has names and rows, whatever was stripped of it: from .debug_frame, or else from Go's own table, which says the same.
func TestGo(t *testing.T) {
	oracle.Long(t)
	oracle.Need(t, "go", "llvm-objcopy-19")
	dir := t.TempDir()
	write(t, filepath.Join(dir, "main.go"), "package main\n\nimport \"fmt\"\n\nfunc main() { fmt.Println() }\n")
	for _, mode := range []string{"exe", "pie"} {
		run(t, dir, "go", "build", "-buildmode="+mode, "-ldflags=-compressdwarf=false", "-o", "whole", "main.go")
		run(t, dir, "llvm-objcopy-19", "--strip-all", "whole", "bare")
		run(t, dir, "llvm-objcopy-19", "--strip-all", "--rename-section=.gopclntab=.rodata.pc", "whole", "renamed")
		run(t, dir, "llvm-objcopy-19", "--strip-sections", "whole", "headless")
		run(t, dir, "llvm-objcopy-19", "--remove-section=.note.go.buildid", "whole", "noteless")
		run(t, dir, "llvm-objcopy-19", "--remove-section=.gopclntab", "whole", "tableless")
		for name, want := range map[string]bool{"whole": true, "bare": true, "renamed": true, "headless": true, "noteless": true, "tableless": true, "/bin/sh": false} {
			path := filepath.Join(dir, name)
			if filepath.IsAbs(name) {
				path = name
			}
			img, err := module.Open(path)
			if err != nil {
				t.Fatal(err)
			}
			if got := IsGo(img); got != want {
				t.Errorf("%s: IsGo(%s) = %v", mode, name, got)
			}
			img.Close()
		}
		_, whole := opened(t, filepath.Join(dir, "whole"))
		if got := whole.names(); !slices.Equal(got, []string{DebugFrame, PCLNTab}) || !whole.Sources[1].Spare {
			t.Fatalf("%s: whole: sources %v", mode, got)
		}
		want, _ := whole.Rows()
		if spare, _ := whole.Rows(PCLNTab); len(spare.Rows) == 0 || len(want.Origins) != 1 {
			t.Errorf("%s: whole: %d rows of the spare source; all rows are from %v", mode, len(spare.Rows), want.Origins)
		}
		for _, name := range []string{"bare", "renamed", "headless"} {
			img, u := opened(t, filepath.Join(dir, name))
			if got := u.names(); !slices.Equal(got, []string{PCLNTab}) {
				t.Errorf("%s: %s: sources %v", mode, name, got)
				continue
			}
			got, damage := u.Rows()
			bad := 0
			for _, r := range want.Rows {
				if got.At(r.Lo).Text(got.Machine) != want.At(r.Lo).Text(want.Machine) {
					bad++
				}
				if r.Set != rows.GapID && (got.Origin(r.Lo) != rows.FromPCLNTab || want.Origin(r.Lo) != rows.FromDebugFrame) {
					t.Fatalf("%s: %s: the row at %#x is from %s and %s", mode, name, uint64(r.Lo), got.Origin(r.Lo), want.Origin(r.Lo))
				}
			}
			if bad > 0 || len(want.Rows) < 5000 || damage != nil {
				t.Errorf("%s: %s: %d of %d rows differ from .debug_frame's; damage %v", mode, name, bad, len(want.Rows), damage)
			}
			lo := arch.Vaddr(0)
			if funcs := Functions(img); funcs != nil {
				funcs(func(name string, at, _ arch.Vaddr) {
					if name == "main.main" {
						lo = at
					}
				})
			}
			tab, err := gosym.Open(img)
			if err != nil || tab == nil {
				t.Fatalf("%s: %s: names: %v, %v", mode, name, tab, err)
			}
			if p := tab.Places([]arch.Vaddr{lo})[0]; lo == 0 || len(p) == 0 || p[len(p)-1].Func != "main.main" {
				t.Errorf("%s: %s: main.main is at %#x, and there is %+v", mode, name, lo, p)
			}
		}
	}
}

// TestKey: an image's ID and the key of its unwind information stay the same from version to version: tables in users' caches are found
// by them.
func TestKey(t *testing.T) {
	le := binary.LittleEndian
	names := "\x00.text\x00.eh_frame\x00.shstrtab\x00"
	text := bytes.Repeat([]byte{0xc3}, 16)
	frame := []byte("\x14\x00\x00\x00\x00\x00\x00\x00\x01zR\x00\x01\x78\x10\x01\x1b\x0c\x07\x08\x90\x01\x00\x00" + // CIE
		"\x10\x00\x00\x00\x1c\x00\x00\x00\xe0\xef\xff\xff\x10\x00\x00\x00\x00\x00\x00\x00" + // FDE of .text: 0x2000+0x20 - 0x1020
		"\x00\x00\x00\x00")
	const head, at = 64 + 56, 0x1000
	body := slices.Concat(text, frame, []byte(names))
	var b []byte
	put := func(v any) { b, _ = binary.Append(b, le, v) }
	put(elf.Header64{Ident: [16]byte{0x7f, 'E', 'L', 'F', 2, 1, 1}, Type: uint16(elf.ET_DYN), Machine: uint16(elf.EM_X86_64), Version: 1, Entry: at,
		Phoff: 64, Shoff: head + uint64(len(body)), Ehsize: 64, Phentsize: 56, Phnum: 1, Shentsize: 64, Shnum: 4, Shstrndx: 3})
	put(elf.Prog64{Type: uint32(elf.PT_LOAD), Flags: uint32(elf.PF_R | elf.PF_X), Off: head, Vaddr: at, Filesz: uint64(len(body)), Memsz: uint64(len(body)), Align: 8})
	put(body)
	put(elf.Section64{})
	put(elf.Section64{Name: 1, Type: uint32(elf.SHT_PROGBITS), Flags: uint64(elf.SHF_ALLOC | elf.SHF_EXECINSTR), Addr: at, Off: head, Size: 16, Addralign: 16})
	put(elf.Section64{Name: 7, Type: uint32(elf.SHT_PROGBITS), Flags: uint64(elf.SHF_ALLOC), Addr: at + 16, Off: head + 16, Size: uint64(len(frame)), Addralign: 8})
	put(elf.Section64{Name: 17, Type: uint32(elf.SHT_STRTAB), Off: head + 16 + uint64(len(frame)), Size: uint64(len(names))})
	img, err := module.New("small", b)
	if err != nil {
		t.Fatal(err)
	}
	u, err := Open(img)
	if err != nil {
		t.Fatal(err)
	}
	if table, damage := u.Rows(); len(table.Rows) != 2 || len(damage) > 0 { // a row and what follows it
		t.Errorf("%d rows, damage %v", len(table.Rows), damage)
	}
	if got, want := img.ID(), "sha256-464bc57800c3ca8ac22bef1fe3bb1ed370b06525c39a4db024c1d74ee8ecc6da"; got != want {
		t.Errorf("ID %s, want %s", got, want)
	}
	if got, want := u.Key(), "f24793451e737fe8cad1c4e84183251f"; got != want {
		t.Errorf("key %s, want %s", got, want)
	}
}

// TestUnreadableSource: a source that cannot be read is damage. It takes nothing from the others.
func TestUnreadableSource(t *testing.T) {
	oracle.Need(t, "gcc", "objcopy")
	dir := t.TempDir()
	write(t, filepath.Join(dir, "f.c"), "int main(void) { return 0; }\n")
	write(t, filepath.Join(dir, "future"), "\xe2\xde\x63\x00"+string(make([]byte, 60))) // version 99
	run(t, dir, "gcc", "-o", "good", "f.c")
	run(t, dir, "objcopy", "--add-section", ".sframe=future", "--set-section-flags", ".sframe=alloc,readonly", "good", "odd")
	_, good := opened(t, filepath.Join(dir, "good"))
	_, odd := opened(t, filepath.Join(dir, "odd"))
	if got := odd.names(); !slices.Equal(got, []string{EHFrame, SFrame}) {
		t.Fatalf("sources %v", got)
	}
	want, _ := good.Rows()
	got, damage := odd.Rows()
	if !slices.Equal(got.Rows, want.Rows) || len(want.Rows) == 0 || len(damage) != 1 {
		t.Errorf("%d rows, want %d; damage %v, want one", len(got.Rows), len(want.Rows), damage)
	}
}
