package minidump

import (
	"bytes"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/internal/oracle"
)

// shapes are dumps with all that this package reads: each machine, system and writer's form.
func shapes() (out [][]byte) {
	windows := []loaded{{0x1000, 0x3000, 1, `C:\Windows\System32\wow64.dll`, nil}, {0x8000, 0x1000, 2, `C:\x.exe`, append([]byte("RSDS0123456789abcdef\x01\x00\x00\x00"), "x.pdb"...)}}
	linuxes := []loaded{{0x1000, 0x3000, 0, "/bin/sh", []byte("LEpB01234567890123456789")}, {0x8000, 0x1000, 0, "/bin/sh", []byte("LEpB01234567890123456789")},
		{0xa000, 0x1000, 0, "libc.so.6", []byte("LEpB0123")}}
	for i, m := range []*arch.Machine{arch.AMD64, arch.I386, arch.ARM, arch.ARM64, arch.WindowsAMD64, arch.WindowsARM64, arch.I386} {
		for j, system := range [][]uint32{{linux, macOS}, {linux}, {android}, {android, iOS}, {windowsNT}, {windowsNT}, {windowsNT}}[i] {
			ctx := contextOf(m, func(r arch.Reg) uint64 { return 0x2000 + 16*uint64(r) })
			d := dump{cpu: []uint16{9, 0, 5, 0x8003, 9, 12, 0}[i], os: system, threads: []thread{{7, ctx, "a"}, {8, ctx, "b"}}, crashed: 7, code: 11, long: i&1 != 0, padded: j != 0,
				modules: linuxes, memory: []part{{0x2000, make([]byte, 256)}}}
			if system == windowsNT {
				d.modules, d.code = windows, 0xc0000005
			}
			// A thread's block at 0 with its 32-bit context, of a program below 64-bit Windows.
			block := make([]byte, 0x1490)
			le.PutUint64(block[0x1488:], 0x7000-4)
			d.memory = append(d.memory, part{0, block}, part{0x7000, contextOf(arch.I386, func(arch.Reg) uint64 { return 0x2010 })[:800]})
			info := le.AppendUint64(le.AppendUint32(le.AppendUint32(nil, 16), 48), 2)
			for _, at := range []uint64{0x2000, 0x3000} {
				for _, v := range []uint64{at, at, 0x40, 0x1000, 0x40<<32 | 0x1000, 0x20000} { // base, allocation, protection; size, state and protection, type
					info = le.AppendUint64(info, v)
				}
			}
			d.more = map[uint32][]byte{memoryInfoList: info, linuxCmdLine: []byte("/bin/sh\x00-c\x00true\x00"), linuxMaps: []byte("2000-3000 rwxp 00000000 00:00 0 \n")}
			out = append(out, d.build())
		}
	}
	return out
}

// TestHostile: real dumps of all systems and writers that are cut off, have other bytes, or lie about sizes cost little time and memory.
func TestHostile(t *testing.T) {
	oracle.Long(t)
	dumps := shapes()
	if real, _ := llvmDumps(t); real != nil {
		for _, path := range real {
			b, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			dumps = append(dumps, b)
		}
	}
	dumps = append(dumps, wholeModule())
	r := rand.New(rand.NewPCG(1, 2))
	lies := []uint32{0, 1, 0x7f, 0xff, 0xffff, 0x10000, 0x7fffffff, 0x80000000, 0xfffffff0, 0xffffffff}
	for _, whole := range dumps {
		n := oracle.Few(60, 3000)
		if len(whole) > 1<<20 {
			n = oracle.Few(6, 100)
		}
		streams := int(le.Uint32(whole[8:]))
		dir := int(le.Uint32(whole[12:]))
		for i := range n {
			b := whole[:r.IntN(len(whole)+1)]
			if i%3 != 0 {
				b = bytes.Clone(whole)
				for range 1 + r.IntN(4) {
					at := r.IntN(min(len(b), 1<<16) - 3)
					if streams > 0 && r.IntN(2) == 0 { // in the directory, or where a stream begins
						entry := dir + 12*r.IntN(streams)
						if at = entry + 4*r.IntN(3); r.IntN(2) == 0 && entry+12 <= len(b) {
							at = int(le.Uint32(whole[entry+8:])) + 4*r.IntN(8)
						}
					}
					if at < 0 || at+4 > len(b) {
						continue
					}
					if r.IntN(2) == 0 {
						b[at] ^= byte(1 << r.IntN(8))
					} else {
						le.PutUint32(b[at:], lies[r.IntN(len(lies))])
					}
				}
			}
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			start := time.Now()
			try(t, b)
			took := time.Since(start)
			runtime.ReadMemStats(&after)
			if spent := after.TotalAlloc - before.TotalAlloc; spent > 64<<20+8*uint64(len(b)) || took > 20*time.Second {
				path := filepath.Join(os.TempDir(), "hostile.dmp")
				os.WriteFile(path, b, 0o600)
				t.Fatalf("%d bytes take %d bytes of memory and %v: %s", len(b), spent, took, path)
			}
		}
	}
}

// wholeModule is a dump with all memory of a module of Windows.
func wholeModule() []byte {
	const base, pe = 0x140000000, 0x80
	b := make([]byte, 0x3000)
	copy(b, "MZ")
	le.PutUint32(b[0x3c:], pe)
	copy(b[pe:], "PE\x00\x00\x64\x86\x01\x00") // x86-64, a section
	le.PutUint16(b[pe+20:], 240)
	o := b[pe+24:] // the optional header
	le.PutUint16(o, 0x20b)
	le.PutUint64(o[24:], base)
	le.PutUint32(o[32:], 0x1000)
	le.PutUint32(o[36:], 0x200)
	le.PutUint32(o[56:], uint32(len(b)))
	le.PutUint32(o[60:], 0x1000)
	le.PutUint32(o[108:], 16)
	s := o[240:]
	copy(s, ".text")
	le.PutUint32(s[8:], 0x2000)
	le.PutUint32(s[12:], 0x1000)
	le.PutUint32(s[36:], 0x60000020)
	ctx := contextOf(arch.WindowsAMD64, func(arch.Reg) uint64 { return base + 0x1010 })
	d := dump{cpu: 9, os: windowsNT, long: true, threads: []thread{{7, ctx, "a"}}, crashed: 7, code: 0xc0000005, memory: []part{{base, b}},
		modules: []loaded{{base, uint32(len(b)), 0, `C:\x.exe`, nil}}}
	return d.build()
}

// TestRebuilt: a module of Windows is rebuilt from the dump's memory if all of it is there, once for each byte of the dump.
func TestRebuilt(t *testing.T) {
	f := open(t, wholeModule(), options(t))
	if m := &f.modules[0]; m.img == nil || m.img.Section(".text") == nil || len(m.maps) != 1 || m.maps[0].Lo != 0x140001000 || len(f.Missing(nil)) != 0 {
		t.Fatalf("%+v, %q", m, f.Notes)
	}
	if got := f.Notes[len(f.Notes)-1]; got != "1 module is rebuilt from the dump's memory, without files" {
		t.Errorf("%q", got)
	}
	lies := wholeModule()
	at := bytes.LastIndex(lies, le.AppendUint64(le.AppendUint64(nil, 0x140000000), 0x3000)) // the range
	le.PutUint64(lies[at+8:], 0x2000)
	if f := open(t, lies, options(t)); f.modules[0].img != nil {
		t.Errorf("a module of %d bytes is rebuilt, although the dump has only %d bytes of its memory: %q", f.modules[0].size, 0x2000, f.Notes)
	}
	f.copied = uint64(len(f.b))
	if f.rebuilt(&f.modules[0]) != nil {
		t.Errorf("a module of %d bytes is rebuilt, although all %d bytes of the dump had been copied: now %d have", f.modules[0].size, len(f.b), f.copied)
	}
}
