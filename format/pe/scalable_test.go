package pe

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/module"
	"github.com/unspool/unspool/rows"
)

// A core executes the instructions of prologues and epilogues for AArch64.
type core struct {
	x   [32]uint64  // sp is the last one
	d   [32]uint64  // the lowest words of z0 to z31
	mem rows.Memory // the stack
	vl  int64       // bytes of a scalable vector
}

const coreStack = 0x7f0000000000

func newCore(vl int64) *core {
	c := &core{vl: vl, mem: rows.Memory{Lo: coreStack - 1<<14, Bytes: make([]byte, 1<<14)}}
	for i := range c.x {
		c.x[i], c.d[i] = 0x1000_0000+uint64(i), 0x2000_0000+uint64(i)
	}
	c.x[sp] = coreStack - 64
	return c
}

// run executes an instruction.
func (c *core) run(t *testing.T, line string) {
	t.Helper()
	name, rest, _ := strings.Cut(line, "\t")
	ops := strings.Split(strings.NewReplacer("[", "", "]!", ",!", "]", ",]").Replace(rest), ",")
	for i := range ops {
		ops[i] = strings.TrimSpace(ops[i])
	}
	reg := func(s string) *uint64 {
		n, err := strconv.Atoi(s[1:])
		switch {
		case s == "sp":
			return &c.x[sp]
		case err == nil && s[0] == 'x':
			return &c.x[n]
		case err == nil && (s[0] == 'z' || s[0] == 'd'):
			return &c.d[n]
		case err == nil && s[0] == 'p':
			return new(uint64)
		}
		t.Fatalf("%q: %q", line, s)
		return nil
	}
	num := func(s string) int64 {
		n, err := strconv.ParseInt(strings.TrimPrefix(s, "#"), 0, 64)
		if err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		return n
	}
	switch name {
	case "nop", "ret":
		return
	case "addvl":
		*reg(ops[0]) = *reg(ops[1]) + uint64(num(ops[2])*c.vl)
		return
	case "add", "sub":
		n := num(ops[2])
		if name == "sub" {
			n = -n
		}
		*reg(ops[0]) = *reg(ops[1]) + uint64(n)
		return
	case "str", "ldr", "stp", "ldp":
	default:
		t.Fatalf("unknown instruction %q", line)
	}
	regs := ops[:1]
	if name[2] == 'p' {
		regs = ops[:2]
	}
	how := strings.Join(ops[len(regs)+1:], " ") // behind the base: "#8 ]", "]", "#8 mul vl ]", "#-8 !", "] #8"
	base, at := reg(ops[len(regs)]), *reg(ops[len(regs)])
	f := strings.Fields(how)
	switch {
	case how == "]":
	case f[0] == "]":
		*base += uint64(num(f[1]))
	case f[len(f)-1] == "!":
		at += uint64(num(f[0]))
		*base = at
	case strings.Contains(how, "mul vl") && regs[0][0] == 'p':
		at += uint64(num(f[0]) * c.vl / 8)
	case strings.Contains(how, "mul vl"):
		at += uint64(num(f[0]) * c.vl)
	default:
		at += uint64(num(f[0]))
	}
	for i, r := range regs {
		b := c.mem.Bytes[at+uint64(8*i)-c.mem.Lo:]
		switch {
		case r[0] == 'p':
		case name[0] == 'l':
			*reg(r) = binary.LittleEndian.Uint64(b)
		default:
			binary.LittleEndian.PutUint64(b, *reg(r))
			if r[0] == 'z' {
				for k := int64(8); k < c.vl; k++ {
					b[k] = 0xee
				}
			}
		}
	}
}

// TestScalable executes functions with scalable vectors, and unwinds at each instruction: rows recover the caller for vectors of all lengths.
// What the codes say is what llvm-readobj lists.
func TestScalable(t *testing.T) {
	oracle.Need(t, "llvm-mc-22", "llvm-readobj-22")
	source, object := "testdata/sve.s", filepath.Join(t.TempDir(), "sve.obj")
	oracle.Run(t, "llvm-mc-22", "--triple=aarch64-pc-windows-msvc", "-mattr=+sve", "-filetype=obj", "-o", object, source)
	tab, a := opened(t, object)
	r, errs := tab.Rows()
	if len(errs) > 0 {
		t.Fatalf("Rows of %s has damage %v, want none", object, errs)
	}

	list := strings.Split(string(oracle.Run(t, "llvm-readobj-22", "--unwind", object)), "  RuntimeFunction {\n")[1:]
	codes := 0
	for i, text := range list {
		epilogues := ""
		a.seen = func(start int64, q *sequence) { epilogues += q.lines(true) }
		if _, err := a.rows(&tab.entries[i]); err != nil {
			t.Fatal(err)
		}
		want := own(armFunction.FindStringSubmatch(text)[3])
		if got := a.pro.lines(false); got != want {
			t.Errorf("prologue\n got\n%s\nwant\n%s", got, want)
		}
		for _, s := range armScope.FindAllStringSubmatch(text, -1) {
			if w := own(s[2]); epilogues != w {
				t.Errorf("epilogue\n got\n%s\nwant\n%s", epilogues, w)
			}
		}
		codes += strings.Count(want, "\n") + strings.Count(epilogues, "\n")
	}

	b, err := os.ReadFile(source)
	if err != nil {
		t.Fatal(err)
	}
	addrs := map[string]arch.Vaddr{}
	tab.img.Symbols(func(s module.Symbol) bool { addrs[strings.Clone(s.Name)] = s.Value; return true })
	steps, lost := 0, 0
	for _, vl := range []int64{16, 32, 64, 256} {
		var at arch.Vaddr
		var c, start *core
		for line := range strings.Lines(string(b)) {
			line = strings.TrimSpace(line)
			if f, ok := strings.CutPrefix(line, ".seh_proc "); ok {
				at, c, start = addrs[f], newCore(vl), newCore(vl)
			}
			if line == "" || line[0] == '.' || line[0] == '/' || strings.HasSuffix(line, ":") {
				continue
			}
			set := *r.At(at)
			s := rows.State{}
			known := uint64(0)
			for reg := arch.Reg(0); reg < 80; reg++ {
				slot := r.Machine.Slot(reg)
				if slot == arch.NoSlot {
					continue
				}
				if reg < 32 {
					known |= 1 << slot
					s.Snap[slot] = c.x[reg]
				} else if reg >= v0 {
					known |= 1 << slot
					s.Snap[slot] = c.d[reg-v0]
				}
			}
			s.Start(uint64(at), known)
			if rows.Step(r.Machine, &set, &s, &c.mem) == rows.LostRegister && set.CFA.Kind == rows.CFAExpr {
				lost++
			} else if set.CFA.Kind == rows.CFAExpr {
				t.Errorf("%s: a step without the vectors' length", line)
			}
			s = rows.State{Snap: s.Snap}
			s.Start(uint64(at), known)
			withVG(&set, vl)
			if o := rows.Step(r.Machine, &set, &s, &c.mem); o != rows.OK || s.CFA != start.x[sp] || s.PC != start.x[lr] {
				t.Errorf("%s, vectors of %d bytes: %v, CFA %#x, want %#x; caller %#x, want %#x\n%s", line, vl, o, s.CFA, start.x[sp], s.PC, start.x[lr], set.Text(r.Machine))
			}
			for _, reg := range r.Machine.CalleeSaved {
				want := start.x[reg&31]
				if reg >= v0 {
					want = start.d[reg-v0]
				}
				if v, o := s.Get(r.Machine.Slot(reg), &c.mem); o != rows.OK || v != want {
					t.Errorf("%s, vectors of %d bytes: register %d: %v, %#x, want %#x\n%s", line, vl, reg, o, v, want, set.Text(r.Machine))
				}
			}
			steps++
			c.run(t, line)
			at += 4
		}
	}
	t.Logf("%d codes, %d steps, %d times no step without the vectors' length", codes, steps, lost)
	if steps < 150 || lost < 50 || codes < 40 {
		t.Errorf("%d codes, %d steps, %d lost; want 40, 150, 50 or more", codes, steps, lost)
	}
}

// withVG puts a length of vectors, in bytes, into the expressions of a set: there is no register for it in a State.
func withVG(s *rows.Set, vl int64) {
	vg := fmt.Sprintf("%c%c\x96", rows.DW_OP_constu, rune(vl/8)) // and a nop
	s.CFA.Expr = strings.ReplaceAll(s.CFA.Expr, "\x92\x2e\x00", vg)
	list := make([]rows.Rule, len(s.Rules))
	for i, r := range s.Rules {
		r.Expr = strings.ReplaceAll(r.Expr, "\x92\x2e\x00", vg)
		list[i] = r
	}
	s.Rules = list
}
