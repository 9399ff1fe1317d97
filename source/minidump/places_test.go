package minidump

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/module"
)

// frames is code whose functions keep a frame record each: f calls g, g calls h.
const frames = `.text
.globl _start
.p2align 2
%[1]sh: .cfi_startproc
stp x29,x30,[sp,#-16]!
.cfi_def_cfa_offset 16
.cfi_offset w30,-8
.cfi_offset w29,-16
mov x29,sp
.cfi_def_cfa w29,16
nop
ldp x29,x30,[sp],#16
ret
.cfi_endproc
.p2align 2
%[1]sg: .cfi_startproc
sub sp,sp,#48
stp x29,x30,[sp,#32]
add x29,sp,#32
.cfi_def_cfa w29,16
.cfi_offset w30,-8
.cfi_offset w29,-16
bl %[1]sh
nop
ldp x29,x30,[sp,#32]
add sp,sp,#48
ret
.cfi_endproc
.p2align 2
_start: .cfi_startproc
sub sp,sp,#48
.cfi_def_cfa_offset 48
str x30,[sp,#40]
.cfi_offset w30,-8
bl %[1]sg
nop
.cfi_endproc
`

// TestPlaces: a dump of macOS or Linux on AArch64 finds each file where symbol servers keep it ("SSQP key conventions", Breakpad's debug identifiers), and
// walks it by the file's own unwind information.
func TestPlaces(t *testing.T) {
	oracle.Long(t)
	oracle.Need(t, "clang-19", "ld64.lld-19", "ld.lld-19")
	dir := t.TempDir()
	for _, c := range []struct {
		name, target, local string
		link                []string
		os                  uint32
		cv                  func(id []byte) []byte
		keys                func(id []byte) []string
	}{
		{"lib.dylib", "arm64-apple-macos13", "_", []string{"ld64.lld-19", "-arch", "arm64", "-platform_version", "macos", "13", "13", "-dylib"}, macOS,
			func(id []byte) []byte { return append(append([]byte("RSDS"), normal(id)...), 0, 0, 0, 0) },
			func(id []byte) []string {
				return []string{fmt.Sprintf("mach-uuid-%x", id), fmt.Sprintf("%X0", id), fmt.Sprintf("%x0", id)}
			}},
		{"lib.so", "aarch64-linux-gnu", "", []string{"ld.lld-19", "-shared", "--build-id=sha1"}, linux,
			func(id []byte) []byte { return append([]byte(elfID), id...) },
			func(id []byte) []string {
				return []string{fmt.Sprintf("elf-buildid-%x", id), fmt.Sprintf("%X0", normal(id))}
			}},
		{"short.so", "aarch64-linux-gnu", "", []string{"ld.lld-19", "-shared", "--build-id=fast"}, android,
			func(id []byte) []byte { return append([]byte(elfID), id...) },
			func(id []byte) []string {
				long := append(id[:len(id):len(id)], make([]byte, 12)...)
				return []string{fmt.Sprintf("elf-buildid-%x", id), fmt.Sprintf("elf-buildid-%x", long), fmt.Sprintf("%X0", normal(long))}
			}},
		{"old.so", "aarch64-linux-gnu", "", []string{"ld.lld-19", "-shared", "--build-id=sha1"}, android, // as Breakpad wrote it before there were records of build IDs
			func(id []byte) []byte { return append(append([]byte("RSDS"), id[:16]...), 0, 0, 0, 0) },
			func(id []byte) []string { return []string{fmt.Sprintf("%X0", normal(id))} }},
	} {
		source, object, file := filepath.Join(dir, c.name+".s"), filepath.Join(dir, c.name+".o"), filepath.Join(dir, c.name)
		if err := os.WriteFile(source, fmt.Appendf(nil, frames, c.local), 0o600); err != nil {
			t.Fatal(err)
		}
		oracle.Run(t, "clang-19", "--target="+c.target, "-c", "-o", object, source)
		oracle.Run(t, c.link[0], append(c.link[1:], "-o", file, object)...)
		img, err := module.Open(file)
		if err != nil {
			t.Fatal(err)
		}
		defer img.Close()
		var text uint64
		for _, s := range img.Sections() {
			if s.Name == ".text" || strings.HasSuffix(s.Name, "__text") {
				text = uint64(s.Addr)
			}
		}
		const base, stack = 0x100000000, 0x16f000000
		at := func(off uint64) uint64 { return base + text + off } // of the code; the files begin at address 0
		words := make([]byte, 16+48+48)
		put := func(at int, v uint64) { binary.LittleEndian.PutUint64(words[at:], v) }
		put(0, stack+16+32) // h's record
		put(8, at(20+16))
		put(16+32, 0) // g's
		put(16+40, at(20+32+12))
		put(16+48+40, 0) // start's return address
		get := func(r arch.Reg) uint64 {
			switch r {
			case 29, 31:
				return stack
			case 32:
				return at(8)
			}
			return 0
		}
		for _, key := range c.keys(img.BuildID()) {
			d := dump{cpu: 12, os: c.os, threads: []thread{{1, contextOf(arch.ARM64, get), ""}}, memory: []part{{stack, words}},
				modules: []loaded{{base, 0x40000, 0, "/nowhere/" + c.name, c.cv(img.BuildID())}}}
			for i := range 2 {
				root := t.TempDir()
				to := filepath.Join(root, c.name, key, c.name)
				if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(to, img.Bytes(), 0o600); err != nil {
					t.Fatal(err)
				}
				o := options(t)
				if i == 0 {
					o.Files.Sysroot = root
				} else {
					o.Files.DebugDirs = []string{root}
				}
				f := open(t, d.build(), o)
				if got := chain(t, &f.Process, 0); strings.Count(got, c.name+"+") != 3 || len(notes(f)) > 0 {
					t.Errorf("%s by %s: %s, %q", c.name, key, got, notes(f))
				}
			}
		}
	}
}
