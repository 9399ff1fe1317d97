package mips

import (
	"bytes"
	"debug/elf"
	"fmt"
	"math/bits"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/format/dwarf"
	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/module"
	"github.com/unspool/unspool/rows"
)

// conventions are GCC's arguments for each of them, and the linker's.
var conventions = []struct{ name, gcc, ld string }{
	{"o32", "-EL -mabi=32 -mips32r2", "-EL -m elf32ltsmip"},
	{"o32, big-endian", "-EB -mabi=32 -mips32r2", "-EB -m elf32btsmip"},
	{"o32, MIPS16", "-EL -mabi=32 -mips32r2 -mips16 -msoft-float", "-EL -m elf32ltsmip"},
	{"o32, microMIPS, big-endian", "-EB -mabi=32 -mips32r2 -mmicromips -msoft-float", "-EB -m elf32btsmip"},
	{"n32", "-EL -mabi=n32 -mips64r2", "-EL -m elf32ltsmipn32"},
	{"n32, big-endian", "-EB -mabi=n32 -mips64r2", "-EB -m elf32btsmipn32"},
	{"n64", "-EL -mabi=64 -mips64r2", "-EL -m elf64ltsmip"},
	{"n64, big-endian", "-EB -mabi=64 -mips64r2", "-EB -m elf64btsmip"},
}

// TestAssembler: each entry is where the assembler has put its function, and has the opcodes that the source gives it, in files of all conventions and
// byte orders, linked or not. The assembler pads opcodes out of line by no-ops, and opcodes in the index by ends.
func TestAssembler(t *testing.T) {
	oracle.Long(t)
	oracle.Need(t, "mipsel-linux-gnu-as", "mipsel-linux-gnu-ld")
	var cases []string
	for op := range 0x80 {
		switch {
		case op == opPush || op == opPushF:
			cases = append(cases, fmt.Sprintf("3, %d, 0x83", op), fmt.Sprintf("3, %d, 0x83, 1", op))
		case op == opLarge:
			cases = append(cases, "0x58, 5", "0x58, 0x85, 0x05", "0x58, 0x85, 0x05, 0x40")
		case op != opFinish:
			cases = append(cases, strconv.Itoa(op), fmt.Sprintf("0x5f, 0x5f, %d", op), fmt.Sprintf("0x5f, 0x5f, 0x5f, %d", op))
		}
	}
	var src strings.Builder
	src.WriteString("\t.cfi_sections .eh_frame_entry\n\t.text\n")
	for i, c := range cases {
		if i == len(cases)/2 {
			src.WriteString("\t.section .text.more, \"ax\"\n\t.align 2\n")
		}
		fmt.Fprintf(&src, "\t.globl f%d\nf%d:\t.cfi_startproc\n\t.cfi_fde_data %s\n\tnop\n\tnop\n\t.cfi_endproc\n", i, i, c)
	}
	path := filepath.Join(t.TempDir(), "a.s")
	if err := os.WriteFile(path, []byte(src.String()), 0o644); err != nil {
		t.Fatal(err)
	}
	inline, tables := 0, 0
	for _, b := range append(slices.Clone(builds), builds[0], builds[3]) {
		obj, so := assemble(t, path, b.as, b.ld)
		for _, file := range []string{obj, so} {
			x := open(t, file)
			at := map[arch.Vaddr]int{}
			for name, v := range symbols(t, file) {
				if i, err := strconv.Atoi(strings.TrimPrefix(name, "f")); err == nil {
					at[v] = i
				}
			}
			found := 0
			x.Entries(func(e *Entry, err error) bool {
				i, ok := at[e.Lo]
				if !ok {
					if err == nil && e.Lo == e.Hi || e.Lo+8 > e.Hi { // the end
						return true
					}
					t.Errorf("%s: an entry for %#x: %+v, %v", file, uint64(e.Lo), e, err)
					return true
				}
				found++
				var want []byte
				for _, s := range strings.Split(cases[i], ", ") {
					n, _ := strconv.ParseUint(s, 0, 8)
					want = append(want, byte(n))
				}
				kind := Inline
				if len(want) > 3 {
					kind, tables = Table, tables+1
				} else {
					inline++
				}
				if err != nil || e.Kind != kind || e.Routine != 1 || !bytes.HasPrefix(e.Code, want) || e.Hi != e.Lo+8 && e.Hi&15 != 0 { // or to the end of the section
					t.Errorf("%s: f%d: %s to %#x, % x, %v; the source has % x", file, i, e.Kind, uint64(e.Hi), e.Code[:min(len(e.Code), 8)], err, want)
					return true
				}
				set, n, err := x.Decode(e)
				if op := want[len(want)-1]; set.Gap() != (op == opNoUnwind) || err != nil {
					t.Errorf("%s: f%d: %s, %v", file, i, set.Text(x.machine), err)
				}
				if pad := e.Code[min(n, len(want)):n]; len(bytes.Trim(pad, "\x5c\x5f")) > 0 {
					t.Errorf("%s: f%d: % x behind % x", file, i, pad, want)
				}
				return true
			})
			if found != len(cases) {
				t.Errorf("%s: %d entries of %d functions", file, found, len(cases))
			}
		}
	}
	t.Logf("%d entries in the index, %d in tables", inline, tables)
}

// symbols returns a file's symbols, by the ELF package of Go. In an object, addresses are those of module.
func symbols(t *testing.T, path string) map[string]arch.Vaddr {
	f, err := elf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	list, err := f.Symbols()
	if err != nil {
		t.Fatal(err)
	}
	img, err := module.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer img.Close()
	all := map[string]arch.Vaddr{}
	for _, s := range list {
		v := arch.Vaddr(s.Value)
		if f.Type == elf.ET_REL && s.Section > 0 && int(s.Section) < len(img.Sections()) {
			v += img.Sections()[s.Section].Addr
		}
		all[s.Name] = v
	}
	return all
}

// A framed is what GCC's directives say of a function: they tell the set of saved registers and the frame's size, and not where each register is.
type framed struct {
	base          string // the register that the CFA is counted from
	size          int64
	mask, fmask   uint32
	above, fabove int64 // of the registers saved last, from the CFA
}

// vector is how many bytes a store of a floating-point register takes, with the odd one of its pair in o32 code.
const vector = 8

// holed says that a word is left free between the floating-point registers and the others, so that opcodes cannot describe the frame.
func (f *framed) holed(l layout) bool {
	return f.fmask != 0 && f.above != f.fabove+vector-l.word*int64(bits.OnesCount32(f.fmask)+1)
}

// opcodes chooses opcodes for a frame by the sets of registers: floating-point ones are above the others.
func (f *framed) opcodes(l layout) (ops []byte) {
	if f.base == "fp" {
		ops = append(ops, opFP)
	} else if n, err := strconv.Atoi(f.base); err == nil { // MIPS16's frame pointer
		ops = append(ops, 0x50+byte(n-16))
	}
	grow := func(n int64) {
		switch n /= l.align; {
		case n == 0:
		case n <= 64:
			ops = append(ops, byte(n-1))
		case n <= 128:
			ops = append(ops, 63, byte(n-65))
		default:
			ops = append(ops, opLarge)
			for n -= 129; ; n >>= 7 {
				if n < 0x80 {
					ops = append(ops, byte(n))
					break
				}
				ops = append(ops, byte(n)|0x80)
			}
		}
	}
	// runs pushes registers by their numbers, from the highest one down.
	runs := func(op byte, mask uint32) {
		for mask != 0 {
			last := bits.Len32(mask) - 1
			n := min(bits.LeadingZeros32(^(mask << (31 - last))), 8)
			ops = append(ops, op, byte((last-n+1)<<3|n-1))
			mask &^= (1<<n - 1) << (last - n + 1)
		}
	}
	top := -f.above - l.word // variable arguments are above the registers
	if f.fmask != 0 {
		top = -f.fabove - vector
	}
	if f.mask == 0 && f.fmask == 0 {
		top = 0
	}
	grow(f.size - top)
	if n := bits.OnesCount32(f.fmask); n > 0 && n <= 12 && f.fmask == (1<<n-1)<<20 {
		ops = append(ops, 0x60+byte(n-1))
	} else {
		runs(opPushF, f.fmask)
	}
	saved := f.mask >> 16 & 0xff
	n := bits.Len32(saved)
	switch others := f.mask &^ (saved << 16); {
	case others == 1<<31 && slices.Contains([]uint32{0xfb, 0xf3, 0xe3}, saved):
		ops = append(ops, 0x6c+byte(bits.TrailingZeros32(saved>>2)))
	case n == 0 || saved != 1<<n-1:
		runs(opPush, f.mask)
	case others == 1<<31:
		ops = append(ops, 0x40+byte(n-1))
	case others == 3<<30:
		ops = append(ops, 0x48+byte(n-1))
	case others == 1<<31|1<<28:
		ops = append(ops, 0x70+byte(n-1))
	case others == 3<<30|1<<28:
		ops = append(ops, 0x78+byte(n-1))
	default:
		runs(opPush, f.mask)
	}
	grow(top)
	return ops
}

var (
	frameLine = regexp.MustCompile(`^\s*\.frame\s+\$(\w+),(\d+),`)
	maskLine  = regexp.MustCompile(`^\s*\.(f?)mask\s+(0x[0-9a-f]+),(-?\d+)`)
	cfiLine   = regexp.MustCompile(`^\s*\.cfi_`)
)

// compacted turns GCC's output into a source with opcodes instead of call frame instructions, which a function keeps if no opcodes can describe its
// frame. The code is the same.
func compacted(s string, l layout, used map[byte]int) string {
	var out strings.Builder
	out.WriteString("\t.cfi_sections .eh_frame_entry\n")
	var f framed
	for line := range strings.Lines(s) {
		if m := frameLine.FindStringSubmatch(line); m != nil {
			size, _ := strconv.ParseInt(m[2], 10, 64)
			f = framed{base: m[1], size: size}
		}
		if m := maskLine.FindStringSubmatch(line); m != nil {
			mask, _ := strconv.ParseUint(m[2], 0, 32)
			above, _ := strconv.ParseInt(m[3], 10, 64)
			if m[1] == "" {
				f.mask, f.above = uint32(mask), above
			} else {
				f.fmask, f.fabove = uint32(mask), above
			}
		}
		word := strings.TrimSpace(line)
		switch {
		case word == ".cfi_startproc", f.holed(l):
		case word == ".cfi_endproc":
			ops := f.opcodes(l)
			for i, op := range ops {
				word := ", "
				if i == 0 {
					word = "\t.cfi_fde_data "
				}
				fmt.Fprintf(&out, "%s0x%02x", word, op)
			}
			if len(ops) == 0 {
				out.WriteString("\t.cfi_fde_data")
			}
			for i := 0; i < len(ops); i++ {
				switch used[ops[i]]++; ops[i] {
				case opPush, opPushF:
					i++
				case opLarge:
					for i++; ops[i] >= 0x80; i++ {
					}
				}
			}
			out.WriteByte('\n')
		case cfiLine.MatchString(line):
			continue
		}
		out.WriteString(line)
	}
	return out.String()
}

var (
	instruction = regexp.MustCompile(`(?m)^\s*([0-9a-f]+):\s+(\w+)(?:\s|$)`)
	calls       = []string{"jal", "jalr", "jals", "jalrs", "bal"} // with a delay slot
)

// TestGCC: at each call, opcodes chosen by the set of saved registers and the size of the frame say what GCC's own DWARF says of the same code: which word
// has which register follows from the format.
func TestGCC(t *testing.T) {
	oracle.Long(t)
	oracle.Need(t, "mipsel-linux-gnu-gcc", "mipsel-linux-gnu-as", "mipsel-linux-gnu-ld", "mipsel-linux-gnu-objdump")
	sites, swapped, slots, fdes, used := 0, 0, 0, 0, map[byte]int{}
	for _, c := range conventions {
		for _, mode := range []string{"-O0", "-O1 -fno-omit-frame-pointer", "-O2", "-Os -fno-pic -mno-abicalls", "-O2 -fno-pic -mno-abicalls -fno-omit-frame-pointer"} {
			if strings.Contains(c.gcc, "-mmicromips") && strings.Contains(mode, "-fno-pic") { // the linker has no calls from there to functions that are not defined
				continue
			}
			dir := t.TempDir()
			asm := filepath.Join(dir, "a.s")
			oracle.Run(t, "mipsel-linux-gnu-gcc", append(strings.Fields(c.gcc+" "+mode), "-fasynchronous-unwind-tables", "-S", "-o", asm, "testdata/calls.c")...)
			text, err := os.ReadFile(asm)
			if err != nil {
				t.Fatal(err)
			}
			l := o32
			if !strings.HasPrefix(c.name, "o32") {
				l = n64
			}
			short := filepath.Join(dir, "b.s")
			if err := os.WriteFile(short, []byte(compacted(string(text), l, used)), 0o644); err != nil {
				t.Fatal(err)
			}
			var linked [2]string
			for i, src := range []string{asm, short} {
				obj := src + ".o"
				linked[i] = src + ".so"
				oracle.Run(t, "mipsel-linux-gnu-gcc", append(strings.Fields(c.gcc+" "+mode), "-c", "-o", obj, src)...)
				oracle.Run(t, "mipsel-linux-gnu-ld", append(strings.Fields(c.ld), "-e", "0", "-Ttext=0x410000", "--unresolved-symbols=ignore-all", "--eh-frame-hdr", "-o", linked[i], obj)...)
			}
			img, err := module.Open(linked[0])
			if err != nil {
				t.Fatal(err)
			}
			defer img.Close()
			frames, err := dwarf.Open(img)
			if err != nil {
				t.Fatal(err)
			}
			want, damage := frames.Build(dwarf.EHFrame)
			x := open(t, linked[1])
			kinds := map[arch.Vaddr]Kind{}
			inFrame := fdeAddresses(t, linked[1])
			x.Entries(func(e *Entry, _ error) bool {
				if kinds[e.Lo] = e.Kind; e.Kind == FDE && e.FDE != inFrame[e.Lo] {
					t.Errorf("%s, %s: the FDE of %#x is at %#x, want %#x", c.name, mode, uint64(e.Lo), uint64(e.FDE), uint64(inFrame[e.Lo]))
				}
				return true
			})
			tab, errs := x.Rows()
			if len(damage) > 0 || len(errs) > 0 {
				t.Fatalf("%v, %v", damage, errs)
			}
			code := instruction.FindAllSubmatch(oracle.Run(t, "mipsel-linux-gnu-objdump", "-d", "--no-show-raw-insn", linked[1]), -1)
			for i, m := range code {
				if !slices.Contains(calls, string(m[2])) || i+2 >= len(code) {
					continue
				}
				at, _ := strconv.ParseUint(string(code[i+1][1]), 16, 64)
				pc := arch.Vaddr(at) // the delay slot, where a walk looks a caller up
				at, _ = strconv.ParseUint(string(code[i+2][1]), 16, 64)
				next := want.At(arch.Vaddr(at))
				a, b := want.At(pc), tab.At(pc)
				if a.Gap() {
					t.Errorf("%s, %s: %#x: no rows in .eh_frame", c.name, mode, uint64(pc))
					continue
				}
				if lo, _, ok := x.Bounds(pc); ok && kinds[lo] == FDE && b.Gap() {
					fdes++
					continue
				}
				sites++
				plain := *b
				plain.Flags &^= rows.SyncOnly
				got, should := plain.Text(x.machine), a.Text(x.machine)
				if got != should && x.machine == arch.MIPS && pairs(a).Text(x.machine) == got {
					swapped++ // big-endian stores of pairs: the package's comment
					continue
				}
				if got != should && got == next.Text(x.machine) && a.CFA.Reg == regSP && next.CFA.Reg == regFP {
					slots++ // the call's delay slot has move $fp,$sp
					continue
				}
				if got != should || b.Flags&rows.SyncOnly == 0 {
					t.Errorf("%s, %s: %#x: %s\n.eh_frame has %s", c.name, mode, uint64(pc), got, should)
				}
			}
		}
	}
	list := slices.Sorted(func(yield func(byte) bool) {
		for op := range used {
			if !yield(op) {
				return
			}
		}
	})
	t.Logf("%d calls, %d of them with swapped pairs, %d with the frame pointer set in the delay slot; %d more in functions with FDEs; opcodes % x", sites, swapped, slots, fdes, list)
	if sites < 1500 || swapped == 0 || slots == 0 || slots > 30 || fdes < 10 || len(list) < 50 {
		t.Errorf("%d calls, want 1500 or more; %d with swapped pairs, want some; %d with the frame pointer set in the delay slot, want 1 to 30; %d in functions with FDEs, want 10 or more; %d opcodes, want 50 or more",
			sites, swapped, slots, fdes, len(list))
	}
}

// fdeAddresses returns where the FDEs of .eh_frame are, by the functions' addresses.
func fdeAddresses(t *testing.T, path string) map[arch.Vaddr]arch.Vaddr {
	img, err := module.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer img.Close()
	d, err := dwarf.Open(img)
	if err != nil {
		t.Fatal(err)
	}
	all := map[arch.Vaddr]arch.Vaddr{}
	for _, s := range img.Sections() {
		if s.Name == ehFrame {
			d.Entries(dwarf.EHFrame, func(e dwarf.Entry) bool {
				if e.IsFDE {
					all[e.FDE.Lo] = s.Addr + arch.Vaddr(e.Off)
				}
				return true
			})
		}
	}
	return all
}

// pairs returns a set with the floating-point registers of each pair swapped.
func pairs(s *rows.Set) *rows.Set {
	p := *s
	p.Rules = slices.Clone(s.Rules)
	for i := range p.Rules {
		if r := &p.Rules[i]; r.Of >= regF0 && r.Of < numR {
			r.Of ^= 1
		}
	}
	slices.SortFunc(p.Rules, func(a, b rows.Rule) int { return int(a.Of) - int(b.Of) })
	return &p
}
