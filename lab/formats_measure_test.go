package lab

import (
	"bytes"
	"debug/elf"
	"debug/macho"
	"debug/pe"
	"encoding/binary"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/format/compactunwind"
	"github.com/unspool/unspool/format/dwarf"
	"github.com/unspool/unspool/format/ehabi"
	"github.com/unspool/unspool/format/pclntab"
	readsframe "github.com/unspool/unspool/format/sframe"
	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/rows"
)

// measureGas assembles a library with SFrame by a release of binutils.
func measureGas(t testing.TB, root, asm string) measured {
	tool := func(name string, args ...string) []byte {
		return oracle.Run(t, root+"/lib64/ld-linux-x86-64.so.2", append([]string{"--library-path", root + "/usr/lib/x86_64-linux-gnu", root + "/usr/bin/x86_64-linux-gnu-" + name}, args...)...)
	}
	so := filepath.Join(t.TempDir(), "gas.so")
	version := tool("as", "--version")
	release := regexp.MustCompile(`^.* ([0-9]+\.[0-9]+)`).FindSubmatch(version)
	if release == nil {
		t.Fatalf("the assembler of %s does not tell its version: %.300q", root, version)
	}
	tool("as", "--gsframe", "-o", so+".o", asm)
	tool("ld", "-shared", "--eh-frame-hdr", "--unresolved-symbols=ignore-all", "-o", so, so+".o")
	img, f := open(t, so)
	sf, err := readsframe.Open(img)
	if sf == nil || err != nil {
		t.Fatalf("%s has no SFrame: %v", so, err)
	}
	section, err := img.Data(img.Section(".sframe"))
	if err != nil {
		t.Fatal(err)
	}
	name := fmt.Sprintf("SFrame V%d, by binutils %s", section[2], release[1]) // sfp_version
	got, errs := sf.Rows()
	if len(errs) > 0 {
		t.Fatalf("Rows of %s: %v", so, errs[0])
	}
	ref, _ := f.Build(dwarf.EHFrame)
	all, left := missing(ref, bounded(f, dwarf.EHFrame), func(p rows.Piece) bool { return !got.At(p.Lo).Gap() })
	of := f.Sizes()
	return measured{name, sectionSize(img, ".text"), forELFPlain + ", binutils", int(of.EHFrame + of.EHFrameHdr), int(sf.Size()), all.functions, left.functions, all.code, left.code, 0}
}

// measureApple reads a library for macOS, and compares it with the library for ELF of the same intermediate code, function by function.
func measureApple(t testing.TB, dylib, so string, standard measured) measured {
	img, _ := open(t, dylib)
	m := measured{format: "compact unwind + `__eh_frame`", text: sectionSize(img, "__TEXT,__text"), standard: standard.standard, of: standard.of,
		bytes: sectionSize(img, compactunwind.UnwindInfo) + sectionSize(img, "__TEXT,__eh_frame")}
	if standard.format == forELFFramed {
		m.format += ", frame pointers"
	}
	c, err := compactunwind.Open(img)
	if c == nil || err != nil {
		t.Fatalf("%s has no compact unwind information: %v", dylib, err)
	}
	const modeMask, modeDWARF = 0x0f000000, 0x04000000 // UNWIND_X86_64_MODE_MASK, UNWIND_X86_64_MODE_DWARF
	for e := range c.Entries {
		m.entries++
		if e.Encoding&modeMask == modeDWARF {
			m.lacking++
		}
	}
	got, errs := c.Rows()
	if len(errs) > 0 {
		t.Fatalf("Rows of %s: %v", dylib, errs[0])
	}
	_, f := open(t, so)
	want, _ := f.Build(dwarf.EHFrame)
	there, here := elfFunctions(t, so), machoFunctions(t, dylib)
	for name, w := range there {
		g, ok := here["_"+name]
		if !ok || g.hi-g.lo != w.hi-w.lo {
			continue
		}
		for off := arch.Vaddr(0); w.lo+off < w.hi; off++ {
			s, x := want.At(w.lo+off), got.At(g.lo+off)
			switch {
			case s.Gap():
				continue // padding
			case x.Gap():
				m.left++
			case s.CFA == x.CFA:
				m.right++
			}
			m.code++
		}
	}
	if m.code == 0 {
		t.Errorf("no function of %s is as long as for ELF", dylib)
	}
	return m
}

type span struct{ lo, hi arch.Vaddr }

// spans makes ranges of starts: each ends where the next begins. A name that is not unique has none.
func spans(starts map[arch.Vaddr]string, end arch.Vaddr) map[string]span {
	var at []arch.Vaddr
	for pc := range starts {
		at = append(at, pc)
	}
	slices.Sort(at)
	at = append(at, end)
	out, twice := map[string]span{}, map[string]bool{}
	for i, pc := range at[:len(at)-1] {
		name := starts[pc]
		_, met := out[name]
		twice[name] = twice[name] || met
		out[name] = span{pc, at[i+1]}
	}
	for name, is := range twice {
		if is {
			delete(out, name)
		}
	}
	return out
}

func elfFunctions(t testing.TB, path string) map[string]span {
	f, err := elf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	symbols, err := f.Symbols()
	if err != nil {
		t.Fatal(err)
	}
	text := f.Section(".text")
	starts := map[arch.Vaddr]string{}
	for _, s := range symbols {
		if elf.ST_TYPE(s.Info) == elf.STT_FUNC && int(s.Section) < len(f.Sections) && f.Sections[s.Section] == text {
			starts[arch.Vaddr(s.Value)] = s.Name
		}
	}
	return spans(starts, arch.Vaddr(text.Addr+text.Size))
}

func machoFunctions(t testing.TB, path string) map[string]span {
	f, err := macho.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	text := f.Section("__text")
	starts := map[arch.Vaddr]string{}
	for _, s := range f.Symtab.Syms {
		if s.Sect > 0 && f.Sections[s.Sect-1] == text {
			starts[arch.Vaddr(s.Value)] = s.Name
		}
	}
	return spans(starts, arch.Vaddr(text.Addr+text.Size))
}

// measurePE adds up the exception directory and the records that it leads to. The linker puts the records among other read-only data.
func measurePE(t testing.TB, dll string, standard measured) measured {
	f, err := pe.Open(dll)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	at := func(rva uint32, n int) []byte {
		for _, s := range f.Sections {
			if off := int(rva) - int(s.VirtualAddress); off >= 0 && off+n <= int(s.VirtualSize) {
				b := make([]byte, n)
				if _, err := s.ReadAt(b, int64(off)); err == nil {
					return b
				}
			}
		}
		t.Fatalf("%s has no %d bytes at %#x", dll, n, rva)
		return nil
	}
	directory := f.OptionalHeader.(*pe.OptionalHeader64).DataDirectory[pe.IMAGE_DIRECTORY_ENTRY_EXCEPTION]
	b := at(directory.VirtualAddress, int(directory.Size))
	m := measured{format: "`.pdata` + `.xdata`", text: int(f.Section(".text").VirtualSize), standard: standard.standard, of: standard.of, bytes: len(b)}
	records := map[uint32]bool{}
	for ; len(b) >= 12; b = b[12:] {
		m.entries++
		rva := binary.LittleEndian.Uint32(b[8:])
		if records[rva] {
			continue
		}
		records[rva] = true
		h := at(rva, 4)
		n := 4 + (int(h[2])+1)/2*4
		if flags := h[0] >> 3; flags&4 != 0 { // UNW_FLAG_CHAININFO
			n += 12
		} else if flags&3 != 0 { // UNW_FLAG_EHANDLER, UNW_FLAG_UHANDLER
			n += 4
		}
		m.bytes += n
	}
	return m
}

// measureARM compiles a project for 32-bit Arm, with EHABI's tables and with .debug_frame, which both describe the same code.
func measureARM(t testing.TB, dir string, flags, sources []string, root string) []measured {
	to := filepath.Join(dir, "arm.so")
	link := []string{"-shared", "-z", "undefs", "-o", to}
	for i, s := range sources {
		object := filepath.Join(dir, fmt.Sprint("arm", i, ".o"))
		include := filepath.Join(root, "usr/arm-linux-gnueabihf/include")
		args := append(slices.Clone(flags), "--target=armv7-linux-gnueabihf", "-O2", "-fPIC", "-w", "-g", "-funwind-tables", "-nostdlibinc")
		if !strings.HasSuffix(s, ".c") {
			args = append(args, "-isystem", include+"/c++/12", "-isystem", include+"/c++/12/arm-linux-gnueabihf")
		}
		oracle.Run(t, compiler("clang-19", s), append(args, "-isystem", include, "-c", "-o", object, s)...)
		link = append(link, object)
	}
	oracle.Run(t, "ld.lld-19", link...)
	img, f := open(t, to)
	x, err := ehabi.Open(img)
	if x == nil || err != nil {
		t.Fatalf("%s has no tables of EHABI: %v", to, err)
	}
	frame := measured{format: forARM, text: sectionSize(img, ".text"), standard: forARM, of: int(f.Sizes().DebugFrame), bytes: int(f.Sizes().DebugFrame)}
	m := frame
	m.format, m.bytes = "EHABI: `.ARM.exidx` + `.ARM.extab`", 0
	for e, err := range x.Entries {
		if err != nil {
			t.Fatal(err)
		}
		m.entries++
		m.bytes += 8
		switch e.Kind { // what follows the opcodes in .ARM.extab are exception tables
		case ehabi.CantUnwind:
			m.lacking++
		case ehabi.Compact:
			m.bytes += (len(e.Code) + 1 + 3) / 4 * 4
		case ehabi.Generic:
			m.bytes += 4 + (len(e.Code)+1+3)/4*4
		}
	}
	got, errs := x.Rows()
	if len(errs) > 0 {
		t.Fatalf("Rows of %s: %v", to, errs[0])
	}
	want, _ := f.Build(dwarf.DebugFrame)
	all, _ := missing(want, bounded(f, dwarf.DebugFrame), nil)
	frame.entries = all.functions
	for p := range want.Pieces(nil) {
		for pc := p.Lo; pc < p.Hi; pc += 2 { // the least size of an instruction
			m.code += 2
			switch s := got.At(pc); {
			case s.Gap():
				m.left += 2
			case s.CFA == want.Sets[p.Set].CFA:
				m.right += 2
			}
		}
	}
	return []measured{frame, m}
}

// measureGCC returns how many bytes of code and of .eh_frame with its index GCC makes of a project. It also finds out that dwz and objcopy leave
// .eh_frame as it is.
func measureGCC(t testing.TB, dir string, flags, sources []string, options ...string) (code, standard int, c *compared) {
	to := filepath.Join(dir, "gcc.so")
	args := append(slices.Concat(flags, options), "-g", "-O2", "-fPIC", "-w", "-shared", "-o", to)
	oracle.Run(t, compiler("gcc", sources[0]), append(args, sources...)...)
	img, _ := open(t, to)
	ehFrame := func(path string) []byte {
		img, _ := open(t, path)
		b, err := img.Data(img.Section(".eh_frame"))
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	oracle.Run(t, "dwz", "-o", to+".dwz", to)
	oracle.Run(t, "objcopy", "--compress-debug-sections=zlib", to, to+".z")
	for _, path := range []string{to + ".dwz", to + ".z"} {
		if !bytes.Equal(ehFrame(path), ehFrame(to)) {
			t.Errorf("%s has another .eh_frame: the document says that no tool shortens it", path)
		}
	}
	c, err := compareFile(to)
	if c == nil || err != nil {
		t.Fatalf("%s: %v", to, err)
	}
	return sectionSize(img, ".text"), c.standard, c
}

// measureGo reads this project's program, linked by Go alone.
func measureGo(t testing.TB) (list []measured) {
	img, f := open(t, build(t))
	h := pclntab.Open(img)
	if h == nil {
		t.Fatalf("the program, an %s file of %d bytes, has no pclntab: .gopclntab has %d bytes", img.Format(), len(img.Bytes()), sectionSize(img, ".gopclntab"))
	}
	want, _ := f.Build(dwarf.DebugFrame)
	c, err := compareRows(want, bounded(f, dwarf.DebugFrame))
	if err != nil {
		t.Fatal(err)
	}
	const name = "`.debug_frame`, expanded"
	standard := measured{format: name, text: sectionSize(img, ".text"), standard: name, of: int(f.Sizes().DebugFrame), bytes: int(f.Sizes().DebugFrame), entries: c.all.functions, code: c.all.code}
	whole := standard
	whole.format, whole.bytes, whole.entries = "pclntab, all of it", len(h.Bytes), h.N
	got := h.Rows()
	for p := range want.Pieces(nil) {
		for pc := p.Lo; pc < p.Hi; pc++ {
			switch s := got.At(pc); {
			case s.Gap():
				whole.left++
			case s.CFA == want.Sets[p.Set].CFA:
				whole.right++
			}
		}
	}
	part := whole
	part.format, part.bytes = "pclntab, what unwinding reads", 0
	met := map[uint32]bool{0: true}
	for i := range h.N {
		part.bytes += 8 + 4 // where it starts and is described; the offset of its deltas
		off := h.U32(h.Desc(i), 12)
		if met[off] || int(off) >= len(h.Numbers) {
			continue
		}
		met[off] = true
		part.bytes += deltas(h.Numbers[off:])
	}
	list = append(list, standard, whole, part)
	for i, f := range written[:len(written)-1] {
		m := standard
		m.format, m.bytes, m.left, m.lacking = byUs(f.name), c.forms[i].bytes, c.forms[i].left.code, c.forms[i].left.functions
		list = append(list, m)
	}
	return list
}

// deltas returns the length of a table of pairs of numbers, a value's difference and a program counter's, which a difference of 0 ends (runtime.step).
func deltas(b []byte) (n int) {
	for first := true; ; first = false {
		v, k := binary.Uvarint(b[n:])
		if k <= 0 {
			return n
		}
		if n += k; v == 0 && !first {
			return n
		}
		if _, k = binary.Uvarint(b[n:]); k <= 0 {
			return n
		}
		n += k
	}
}
