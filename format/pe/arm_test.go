package pe

import (
	"encoding/binary"
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
	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/module"
	"github.com/unspool/unspool/rows"
)

const thumbTriple = "thumbv7-pc-windows-msvc"

// thumbImages makes images for 32-bit Arm: of what a compiler writes, and of the assembler's directives by hand.
func thumbImages(t *testing.T) (list []string) {
	t.Helper()
	oracle.Need(t, "clang-19", "lld-link-19")
	dir := t.TempDir()
	link := func(name string, args ...string) {
		object, image := filepath.Join(dir, name+".obj"), filepath.Join(dir, name+".dll")
		oracle.Run(t, "clang-19", append([]string{"--target=" + thumbTriple, "-c", "-o", object}, args...)...)
		oracle.Run(t, "lld-link-19", "/dll", "/noentry", "/nodefaultlib", "/opt:noref,noicf", "/debug:symtab", "/force:unresolved", "/out:"+image, object)
		list = append(list, image, object)
	}
	for _, level := range []string{"-O0", "-O1", "-O2", "-Os"} {
		link(level, level, "testdata/arm.c")
		link(level+"f", level, "-fomit-frame-pointer", "testdata/arm.c")
	}
	link("arm", "testdata/arm.s")
	return list
}

// text writes an instruction of a sequence as thumbText makes it of the judge's.
func (o *thumb) text() string {
	switch {
	case o.from > 0:
		return fmt.Sprintf("sp = r%d", o.from)
	case o.mask != 0:
		return fmt.Sprintf("pop %#x", o.mask)
	case o.count > 0:
		return fmt.Sprintf("vpop d%d and %d more", o.first, o.count-1)
	case o.lr:
		return fmt.Sprintf("lr, %d", o.pop)
	case o.pop > 0:
		return fmt.Sprintf("add %d", o.pop)
	}
	return "nop"
}

// registerList reads a list of registers, such as {r4-r7, lr}.
func registerList(s string) (mask uint64) {
	for _, part := range strings.Split(strings.Trim(s, "{} "), ",") {
		lo, hi, ok := strings.Cut(strings.TrimSpace(part), "-")
		number := func(s string) int {
			switch s {
			case "sp":
				return armSP
			case "lr", "pc": // of what epilogues pop, pc gets the return address
				return armLR
			}
			n, err := strconv.Atoi(s[1:])
			if err != nil {
				return 63
			}
			return n
		}
		if !ok {
			hi = lo
		}
		for r := number(lo); r <= number(hi); r++ {
			mask |= 1 << r
		}
	}
	return mask
}

var (
	thumbNumber   = regexp.MustCompile(`#-?\(?(\d+)( \* 4\))?`)
	thumbPrologue = regexp.MustCompile(`(?s)Prologue \[\n(.*?)\n\s+\]`)
)

// thumbText makes a list of what llvm-readobj writes of a prologue or an epilogue.
func thumbText(list string, packed bool) (out []string) {
	for line := range strings.Lines(list) {
		line = strings.TrimSpace(line)
		if _, after, ok := strings.Cut(line, "; "); ok {
			line = after
		}
		name, ops, _ := strings.Cut(line, " ")
		name = strings.TrimSuffix(name, ".w")
		n := int64(0)
		if m := thumbNumber.FindStringSubmatch(ops); m != nil {
			if n, _ = strconv.ParseInt(m[1], 10, 64); m[2] != "" {
				n *= 4
			}
		}
		switch {
		case name == "bx" || name == "b" || line == "end":
			return out
		case packed && ops == "{r0-r3}": // whose values nobody needs
			out = append(out, "add 16")
		case name == "push" || name == "pop":
			out = append(out, fmt.Sprintf("pop %#x", registerList(ops)))
		case name == "vpush" || name == "vpop":
			m := registerList(ops)
			out = append(out, fmt.Sprintf("vpop d%d and %d more", bits.TrailingZeros64(m), bits.OnesCount64(m)-1))
		case name == "mov" && !packed:
			r, other, _ := strings.Cut(ops, ", ")
			if r == "sp" {
				r = other
			}
			out = append(out, "sp = "+r)
		case strings.HasPrefix(ops, "sp, sp, "), strings.HasPrefix(ops, "sp, #"):
			out = append(out, fmt.Sprintf("add %d", n))
		case name == "ldr" || name == "str":
			out = append(out, fmt.Sprintf("lr, %d", n))
		case name == "nop", packed && (name == "mov" || name == "add"):
			out = append(out, "nop")
		default:
			out = append(out, line)
		}
	}
	return out
}

func (q *thumbSequence) text() (out []string) {
	for i := range q.ops {
		out = append(out, q.ops[i].text())
	}
	return out
}

// TestReadobjARM compares lengths, prologues and epilogues of all functions for 32-bit Arm with llvm-readobj's.
func TestReadobjARM(t *testing.T) {
	oracle.Long(t)
	oracle.Need(t, "llvm-readobj-19")
	functions, packed, epilogues, refused := 0, 0, 0, 0
	for _, path := range thumbImages(t) {
		img, err := module.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer img.Close()
		tab := Open(img)
		if tab == nil || len(tab.errs) > 0 {
			t.Fatalf("%s: no unwind information: %v", path, tab)
		}
		list := strings.Split(string(oracle.Run(t, "llvm-readobj-19", "--unwind", path)), "  RuntimeFunction {\n")[1:]
		slices.SortStableFunc(tab.entries, func(a, b entry) int { return int(a.at) - int(b.at) })
		if len(list) != len(tab.entries) {
			t.Fatalf("%s: %d functions, want %d", path, len(tab.entries), len(list))
		}
		a := newARM(tab, tab.reader(), func(err error) {
			if !strings.Contains(err.Error(), "condition") {
				t.Error(err)
			}
		})
		for i, text := range list {
			e := &tab.entries[i]
			var got [][]string
			a.seen = func(_ int64, q *thumbSequence) { got = append(got, q.text()) }
			if _, err := a.rows(e); err != nil || e.err != nil {
				if refused++; !strings.HasPrefix(filepath.Base(path), "arm.") {
					t.Errorf("%s: %v\n%s", path, err, text)
				}
				continue
			}
			var want [][]string
			functions++
			isPacked := e.data&3 != 0
			if isPacked {
				packed++
			}
			m := thumbPrologue.FindStringSubmatch(text)
			if m == nil && e.data&3 == 2 {
				m = []string{"", ""}
			}
			if w := thumbText(m[1], isPacked); e.data&3 != 2 && !slices.Equal(a.pro.text(), w) {
				t.Errorf("%s: prologue of %#x\n got %q\nwant %q\n%s", path, e.begin, a.pro.text(), w, text)
			}
			if s := armSingle.FindStringSubmatch(text); s != nil {
				want = append(want, thumbText(s[1], isPacked))
			}
			for _, s := range armScope.FindAllStringSubmatch(text, -1) {
				want = append(want, thumbText(s[2], false))
			}
			if strings.Contains(text, "EpiloguePacked: Yes") && len(want) == 0 {
				want = append(want, a.pro.text()) // it lists none that has the prologue's codes
			}
			if !slices.EqualFunc(got, want, slices.Equal) {
				t.Errorf("%s: epilogues of %#x\n got %q\nwant %q\n%s", path, e.begin, got, want, text)
			}
			epilogues += len(want)
			if size := fmt.Sprintf("FunctionLength: %d\n", e.end-e.begin); !strings.Contains(text, size) {
				t.Errorf("%s: function %#x: no %q in %s", path, e.begin, size, text)
			}
			if t.Failed() {
				return
			}
		}
	}
	t.Logf("%d functions, %d of them packed, %d epilogues", functions, packed, epilogues)
	if functions < 240 || packed < 60 || epilogues < 260 || refused != 8 {
		t.Errorf("%d functions, %d packed, %d epilogues; want 240, 60, 260 or more. %d refused, want 8", functions, packed, epilogues, refused)
	}
}

// A thumbCore executes the instructions of prologues and epilogues for 32-bit Arm.
type thumbCore struct {
	r   [16]uint32
	d   [32]uint64
	mem []byte // below coreTop
}

const coreTop = 0x80000000

func newThumbCore() *thumbCore {
	c := &thumbCore{mem: make([]byte, 1<<20)}
	for i := range c.r {
		c.r[i] = 0x10000 + uint32(i)
	}
	for i := range c.d {
		c.d[i] = 0x20000_0000_0000 + uint64(i)
	}
	c.r[armSP], c.r[armLR] = coreTop-256, 0x12345679
	return c
}

func (c *thumbCore) Read8(addr uint64) (uint64, bool) {
	off := addr - (coreTop - uint64(len(c.mem)))
	if off+8 > uint64(len(c.mem)) {
		return 0, false
	}
	return binary.LittleEndian.Uint64(c.mem[off:]), true
}

func (c *thumbCore) at(addr uint32) []byte { return c.mem[addr-(coreTop-uint32(len(c.mem))):] }

// run executes an instruction as llvm-objdump spells it; done says that it leaves the function. ok is false where it does not know it.
func (c *thumbCore) run(text string) (done, ok bool) {
	name, ops, _ := strings.Cut(text, "\t")
	ops, _, _ = strings.Cut(ops, " @")
	name = strings.TrimSuffix(name, ".w")
	le := binary.LittleEndian
	list := strings.Split(ops, ", ")
	index := func(s string) int { return bits.TrailingZeros64(registerList(s)) }
	last := list[len(list)-1]
	num := func(s string) uint32 {
		if strings.HasPrefix(s, "#") {
			n, _ := strconv.ParseInt(s[1:], 0, 64)
			return uint32(n)
		}
		return c.r[index(s)]
	}
	switch {
	case name == "push":
		for r := 15; r >= 0; r-- {
			if registerList(ops)>>r&1 != 0 {
				c.r[armSP] -= 4
				le.PutUint32(c.at(c.r[armSP]), c.r[r])
			}
		}
	case name == "pop":
		for r := range 16 {
			if registerList(ops)>>r&1 != 0 {
				c.r[r] = le.Uint32(c.at(c.r[armSP]))
				c.r[armSP] += 4
			}
		}
		return strings.Contains(ops, "pc"), true
	case name == "vpush":
		for r := 31; r >= 0; r-- {
			if registerList(ops)>>r&1 != 0 {
				c.r[armSP] -= 8
				le.PutUint64(c.at(c.r[armSP]), c.d[r])
			}
		}
	case name == "vpop":
		for r := range 32 {
			if registerList(ops)>>r&1 != 0 {
				c.d[r] = le.Uint64(c.at(c.r[armSP]))
				c.r[armSP] += 8
			}
		}
	case name == "ldr" && strings.HasPrefix(ops, "pc, [sp], "), name == "ldr" && strings.HasPrefix(ops, "lr, [sp], "):
		c.r[armLR] = le.Uint32(c.at(c.r[armSP]))
		c.r[armSP] += num(last)
		return list[0] == "pc", true
	case name == "str" && strings.HasPrefix(ops, "lr, [sp, #-"):
		c.r[armSP] += num(strings.TrimSuffix(last, "]!"))
		le.PutUint32(c.at(c.r[armSP]), c.r[armLR])
	case name == "str" && strings.HasSuffix(ops, ", [sp, #-0x4]!"):
		c.r[armSP] -= 4
		le.PutUint32(c.at(c.r[armSP]), c.r[index(list[0])])
	case name == "ldr" && strings.HasSuffix(ops, ", [sp], #4"), name == "ldr" && strings.HasSuffix(ops, ", [sp], #0x4"):
		c.r[index(list[0])] = le.Uint32(c.at(c.r[armSP]))
		c.r[armSP] += 4
	case name == "mov", name == "movw":
		c.r[index(list[0])] = num(last)
	case name == "movt":
		c.r[index(list[0])] = c.r[index(list[0])]&0xffff | num(last)<<16
	case name == "add" || name == "addw":
		c.r[index(list[0])] = c.r[index(list[len(list)-2])] + num(last)
	case name == "sub" || name == "subw":
		c.r[index(list[0])] = c.r[index(list[len(list)-2])] - num(last)
	case name == "bl" || name == "blx": // __chkstk: words to bytes
		c.r[4] *= 4
	case name == "nop":
	case name == "bx" || name == "b":
		return true, true
	default:
		return false, false
	}
	return false, true
}

var thumbLine = regexp.MustCompile(`(?m)^\s*([0-9a-f]+):\s+(\S.*)$`)

// TestExecuteARM executes prologues and epilogues, and unwinds at each of their instructions: the rows recover the caller, and all registers that
// a call preserves.
func TestExecuteARM(t *testing.T) {
	oracle.Long(t)
	oracle.Need(t, "llvm-objdump-19")
	steps, functions, epilogues := 0, 0, 0
	for _, path := range thumbImages(t) {
		if !strings.HasSuffix(path, ".dll") {
			continue
		}
		img, err := module.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer img.Close()
		tab := Open(img)
		r, errs := tab.Rows()
		for _, err := range errs {
			if !strings.HasSuffix(path, "arm.dll") {
				t.Error(err)
			}
		}
		code := map[uint64]string{}
		next := map[uint64]uint64{}
		lastAt := uint64(0)
		for _, m := range thumbLine.FindAllStringSubmatch(string(oracle.Run(t, "llvm-objdump-19", "-d", "--no-show-raw-insn", path)), -1) {
			v, _ := strconv.ParseUint(m[1], 16, 64)
			code[v], next[lastAt], lastAt = m[2], v, v
		}
		a := newARM(tab, tab.reader(), func(error) {})
		for i := range tab.entries {
			e := &tab.entries[i]
			var tails []int64
			a.seen = func(start int64, _ *thumbSequence) { tails = append(tails, start) }
			begin := uint64(tab.base) + uint64(e.begin)
			if _, err := a.rows(e); err != nil || e.err != nil || code[begin] == "nop" && code[next[begin]] == "nop" {
				continue // there is no function, but codes
			}
			functions++
			start, c := newThumbCore(), newThumbCore()
			check := func(at uint64) {
				steps++
				set := r.At(arch.Vaddr(at))
				s := rows.State{}
				known := uint64(0)
				for reg := range arch.Reg(16) {
					known |= 1 << r.Machine.Slot(reg)
					s.Snap[r.Machine.Slot(reg)] = uint64(c.r[reg])
				}
				for reg := range arch.Reg(16) {
					if slot := r.Machine.Slot(armD0 + reg); slot != arch.NoSlot {
						known |= 1 << slot
						s.Snap[slot] = c.d[reg]
					}
				}
				s.Start(at, known)
				mem := rows.Memory{Next: rows.WordsOf(r.Machine, c)}
				if set == nil {
					t.Errorf("%s: %#x: no row", path, at)
					return
				}
				if o := rows.Step(r.Machine, set, &s, &mem); o != rows.OK || s.CFA != uint64(start.r[armSP]) || uint32(s.PC)|1 != start.r[armLR] {
					t.Errorf("%s: %#x %s: %v, CFA %#x, want %#x; caller %#x, want %#x\n%s", path, at, code[at], o, s.CFA, start.r[armSP], s.PC, start.r[armLR], set.Text(r.Machine))
				}
				for _, reg := range r.Machine.CalleeSaved {
					slot := r.Machine.Slot(reg)
					if reg < armD0 {
						if v, o := s.Get(slot, &mem); o != rows.OK || uint32(v) != start.r[reg] {
							t.Errorf("%s: %#x %s: r%d: %v, %#x\n%s", path, at, code[at], reg, o, v, set.Text(r.Machine))
						}
					} else if s.InMem>>slot&1 != 0 { // a slot has an address or a word
						if v, ok := c.Read8(s.Val[slot]); !ok || v != start.d[reg-armD0] {
							t.Errorf("%s: %#x %s: d%d: %#x\n%s", path, at, code[at], reg-armD0, v, set.Text(r.Machine))
						}
					} else if v, o := s.Get(slot, &mem); o != rows.OK || v != start.d[reg-armD0] {
						t.Errorf("%s: %#x %s: d%d: %v, %#x\n%s", path, at, code[at], reg-armD0, o, v, set.Text(r.Machine))
					}
				}
			}
			at := uint64(tab.base) + uint64(e.begin)
			end := at + uint64(a.pro.size)
			if b := img32(tab.reader().tail(e.data &^ 3)); e.data&3 == 2 || e.data&3 == 0 && b.at(0)>>22&1 != 0 {
				continue // a part of a function
			}
			for at < end {
				check(at)
				if _, ok := c.run(code[at]); !ok {
					t.Fatalf("%s: %#x: %q", path, at, code[at])
				}
				at = next[at]
			}
			if at != end {
				t.Errorf("%s: the prologue of %#x has %d bytes: %#x is in an instruction", path, e.begin, a.pro.size, end)
			}
			check(at)
			body := *c
			body.mem = slices.Clone(c.mem)
			for _, tail := range tails {
				epilogues++
				*c = body
				c.mem = slices.Clone(body.mem)
				at := uint64(tab.base) + uint64(e.begin) + uint64(tail)
				for at < uint64(tab.base)+uint64(e.end) {
					if set := r.At(arch.Vaddr(at)); set == nil || set.Gap() {
						break // on a condition
					}
					check(at)
					done, ok := c.run(code[at])
					if !ok {
						t.Fatalf("%s: %#x: %q", path, at, code[at])
					}
					if at = next[at]; done {
						if c.r[armSP] != start.r[armSP] || c.r[4] != start.r[4] {
							t.Errorf("%s: the epilogue before %#x is not whole", path, at)
						}
						break
					}
				}
			}
			if t.Failed() {
				return
			}
		}
	}
	t.Logf("%d steps in %d functions with %d epilogues", steps, functions, epilogues)
	if steps < 750 || functions < 120 || epilogues < 130 {
		t.Errorf("%d steps, %d functions, %d epilogues; want 750, 120, 130 or more", steps, functions, epilogues)
	}
}

// handledARM has functions with handlers: one with a scope table, and one whose handler is not known.
const handledARM = `
	.syntax unified
	.thumb
	.text
	.globl	scopes, other
	.thumb_func
	.seh_proc scopes
	.seh_handler __C_specific_handler, %except
scopes:
	push	{r4, lr}
	.seh_save_regs {r4, lr}
	.seh_endprologue
	nop
	nop
	.seh_startepilogue
	pop	{r4, pc}
	.seh_save_regs {r4, pc}
	.seh_endepilogue
	.seh_handlerdata
	.long	2
	.rva	scopes+2, scopes+4
	.long	1
	.rva	scopes+6
	.rva	scopes+4, scopes+6, other
	.long	0
	.text
	.seh_endproc
	.thumb_func
	.seh_proc other
	.seh_handler scopes, %unwind, %except
other:
	push	{r4, lr}
	.seh_save_regs {r4, lr}
	.seh_endprologue
	nop
	.seh_startepilogue
	pop	{r4, pc}
	.seh_save_regs {r4, pc}
	.seh_endepilogue
	.seh_handlerdata
	.long	7
	.text
	.seh_endproc
`

// TestHandlersARM: handlers of 32-bit Arm, in an object file and in an image that imports one. The lowest bits of addresses, which say that code
// is Thumb, are not theirs.
func TestHandlersARM(t *testing.T) {
	oracle.Long(t)
	oracle.Need(t, "clang-19", "lld-link-19", "llvm-dlltool-19", "llvm-readobj-19")
	dir := t.TempDir()
	path := func(name, text string) string {
		p := filepath.Join(dir, name)
		if text != "" {
			if err := os.WriteFile(p, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		return p
	}
	object, image := path("a.obj", ""), path("a.dll", "")
	oracle.Run(t, "clang-19", "--target="+thumbTriple, "-c", "-o", object, path("a.s", handledARM))
	oracle.Run(t, "llvm-dlltool-19", "-m", "arm", "-l", path("b.lib", ""), "-d", path("b.def", "LIBRARY b.dll\nEXPORTS\n__C_specific_handler\n"))
	oracle.Run(t, "lld-link-19", "/dll", "/noentry", "/nodefaultlib", "/opt:noref,noicf", "/export:scopes", "/out:"+image, object, path("b.lib", ""))
	for _, p := range []string{object, image} {
		img, err := module.Open(p)
		if err != nil {
			t.Fatal(err)
		}
		defer img.Close()
		tab := Open(img)
		var got []string
		errs := tab.Handlers(func(h *Handler) bool {
			line := fmt.Sprintf("%d bytes, %s, %d bytes of data", h.Hi-h.Lo, h.Name, h.Size)
			for _, s := range h.Scopes {
				line += fmt.Sprintf("; +%d to +%d: %v at +%d", s.Lo-h.Lo, s.Hi-h.Lo, s.Actions[0].Kind, s.Actions[0].Pad-h.Lo)
			}
			got = append(got, line)
			return true
		})
		want := []string{"8 bytes, __C_specific_handler, 36 bytes of data; +2 to +4: except at +6; +4 to +6: finally at +8", "6 bytes, scopes, 0 bytes of data"}
		if len(errs) > 0 || !slices.Equal(got, want) {
			t.Errorf("%s: %v\n got %q\nwant %q", p, errs, got, want)
		}
		if p == image {
			out := string(oracle.Run(t, "llvm-readobj-19", "--unwind", p))
			tab.Handlers(func(h *Handler) bool {
				if where := fmt.Sprintf("0x%X", uint64(h.Addr)|1); !strings.Contains(out, where) {
					t.Errorf("no handler at %s in\n%s", where, out)
				}
				return true
			})
		}
	}
}
