package ebpf

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/rows"
	"github.com/unspool/unspool/rows/rowstest"
)

// coreProgram compiles the drop-ins' step, which reads the same cases and answers them in the same form.
func coreProgram(t testing.TB) string {
	t.Helper()
	oracle.Need(t, "gcc")
	prog := filepath.Join(t.TempDir(), "core")
	args := []string{"-std=c11", "-Wall", "-Wextra", "-Werror", "-O2", "-I../../runtime", "-o", prog, "../../runtime/test/testdata/core.c"}
	for _, file := range []string{"core", "frames", "rule", "table"} {
		args = append(args, "../../runtime/"+file+".c")
	}
	oracle.Run(t, "gcc", args...)
	return prog
}

// pushed returns an expression that pushes v.
func pushed(v uint64) string {
	return string(binary.LittleEndian.AppendUint64([]byte{rows.DW_OP_const8u}, v))
}

// jump returns an operation with a distance.
func jump(op byte, n int16) string {
	return string(binary.LittleEndian.AppendUint16([]byte{op}, uint16(n)))
}

// edges are expressions at the bounds of what is allowed.
func edges() (list []string) {
	values := []uint64{0, 1, 2, 63, 64, 65, 1 << 32, 1<<63 - 1, 1 << 63, 1<<63 + 1, ^uint64(1), ^uint64(0)}
	for op := range 256 {
		if o := byte(op); o < rows.DW_OP_abs || o > rows.DW_OP_ne {
			for _, tail := range []string{"", "\x00", "\x01\x02", "\x7f\x00\x00\x00\x00\x00\x00\x00", "\x80\x80", "\xff\xff\x03\x70"} {
				list = append(list, string([]byte{o})+tail, pushed(7)+pushed(8)+pushed(9)+string([]byte{o})+tail)
			}
			continue
		}
		operand := map[byte]string{rows.DW_OP_plus_uconst: "\x05", rows.DW_OP_bra: "\x00\x00"}[byte(op)]
		for _, b := range values {
			for _, a := range values {
				list = append(list, pushed(b)+pushed(a)+string([]byte{byte(op)})+operand)
			}
		}
	}
	for _, n := range []int{1, 9, 10, 11, 23, 24} { // bytes of a LEB128
		for _, last := range []string{"\x00", "\x01", "\x02", "\x3f", "\x40", "\x7f"} {
			for _, more := range []string{"\x80", "\xff"} {
				for _, op := range []byte{rows.DW_OP_constu, rows.DW_OP_consts, rows.DW_OP_breg0 + 7, rows.DW_OP_bregx} {
					list = append(list, string([]byte{op})+strings.Repeat(more, n-1)+last+last)
				}
			}
		}
	}
	lit, drop := string([]byte{rows.DW_OP_lit0 + 5}), string([]byte{rows.DW_OP_drop})
	for n := 61; n <= 66; n++ { // values on the stack
		list = append(list, strings.Repeat(lit, n), strings.Repeat(lit, n)+string([]byte{rows.DW_OP_over}), strings.Repeat(lit, n)+string([]byte{rows.DW_OP_rot})+
			strings.Repeat(string([]byte{rows.DW_OP_plus}), n))
	}
	for n := 4093; n <= 4098; n++ { // operations
		list = append(list, lit+strings.Repeat(string([]byte{rows.DW_OP_nop}), n))
	}
	for i := range 4 {
		list = append(list, lit+string([]byte{rows.DW_OP_pick, byte(i)}), pushed(3)+pushed(4)+string([]byte{rows.DW_OP_pick, byte(i)}))
	}
	for n := int16(-14); n <= 8; n++ { // out of the expression, or round and round
		list = append(list, pushed(1)+jump(rows.DW_OP_skip, n)+lit+drop+drop+lit, pushed(1)+jump(rows.DW_OP_bra, n)+lit+lit)
	}
	for n := range 10 {
		list = append(list, pushed(0x1234567)+string([]byte{rows.DW_OP_deref_size, byte(n)}))
	}
	return list
}

// A both is the two builds of runtime/step.h.
type both struct {
	kernel, core string
	checker      rows.Checker
	outcomes     map[rows.Outcome]int
}

func newBoth(t testing.TB) *both {
	return &both{kernel: userProgram(t, arch.AMD64, "gcc"), core: coreProgram(t), outcomes: map[rows.Outcome]int{}}
}

// ask asks both about a table, and holds their answers against Step and against each other.
func (b *both) ask(t testing.TB, ref *rows.Table) {
	t.Helper()
	qs, ks := answers(t, b.kernel, ref, 0)
	_, cs := answers(t, b.core, ref, 0)
	bad := 0
	for i := range qs {
		text := func() string { return ref.At(arch.Vaddr(qs[i].PC)).Text(arch.AMD64) }
		k, c := &ks[i], &cs[i]
		err := check(ref, 0, &qs[i], k, &b.checker)
		if err != nil {
			err = fmt.Errorf("the kernel's walk: %w: %s", err, text())
		} else if err = check(ref, 0, &qs[i], c, &b.checker); err != nil {
			err = fmt.Errorf("the drop-ins: %w: %s", err, text())
		} else if k.Found != c.Found || k.Outcome != c.Outcome || k.Signal != c.Signal || !same(&k.Regs, &c.Regs) {
			err = fmt.Errorf("the kernel's walk has %+v, the drop-ins %+v: %s", *k, *c, text())
		}
		if err != nil {
			if bad++; bad <= 2 {
				t.Error(err)
			}
		}
		b.outcomes[rows.Outcome(k.Outcome)]++
	}
	if bad > 2 {
		t.Errorf("%d of %d answers are wrong", bad, len(qs))
	}
}

// TestExpressions: the drop-ins and the kernel's walk do the same with expressions, and what Step does: at bounds of what is allowed, and
// with expressions that were made at random.
func TestExpressions(t *testing.T) {
	r := rand.New(rand.NewPCG(11, 12))
	list := edges()
	for range 4000 {
		list = append(list, rowstest.Expr(r, r.IntN(40) == 0)+rowstest.Expr(r, false))
	}
	b := newBoth(t)
	for len(list) > 0 {
		part := list[:min(len(list), 1000)]
		list = list[len(part):]
		made := rows.NewBuilder(arch.AMD64)
		for i, e := range part {
			s := rows.Set{RA: arch.AMD64.RA, CFA: rows.CFA{Kind: rows.CFAReg, Reg: arch.AMD64.SP, Off: 16}}
			ra, other := rows.Rule{Of: s.RA, Kind: rows.ValExpr, Expr: e}, rows.Rule{Of: 3, Kind: rows.Expr, Expr: part[(i+1)%len(part)]}
			if i%8 == 0 { // an expression says where the frame is, too
				s.CFA = rows.CFA{Kind: rows.CFAExpr, Expr: e}
				ra = rows.Rule{Of: s.RA, Kind: rows.Offset, Off: -8}
			}
			s.Rules = []rows.Rule{other, ra}
			at := arch.Vaddr(0x1000 + 16*i)
			made.Begin(at, at+16)
			made.Row(at, made.Intern(s))
		}
		b.ask(t, rows.Build(made))
	}
	for _, o := range []rows.Outcome{rows.OK, rows.LostRegister, rows.Unreadable, rows.BadExpr} {
		if b.outcomes[o] < 100 {
			t.Errorf("only %d steps came to %v", b.outcomes[o], o)
		}
	}
	t.Logf("outcomes: %v", b.outcomes)
}

// TestRules: the drop-ins and the kernel's walk do the same with rules of every kind, and what Step does.
func TestRules(t *testing.T) {
	r := rand.New(rand.NewPCG(13, 14))
	b := newBoth(t)
	for range 60 {
		b.ask(t, rowstest.Table(r, arch.AMD64, 20+r.IntN(60)))
	}
	for _, o := range []rows.Outcome{rows.OK, rows.Outermost, rows.NoRule, rows.LostRegister, rows.Unreadable, rows.BadExpr} {
		if b.outcomes[o] < 100 {
			t.Errorf("only %d steps came to %v", b.outcomes[o], o)
		}
	}
	t.Logf("outcomes: %v", b.outcomes)
}

// same says whether two states have the same, as far as it counts: what lies in a register that is lost does not.
func same(a, b *userRegs) bool {
	if a.PC != b.PC || a.CFA != b.CFA || a.Known != b.Known || (a.InMem^b.InMem)&a.Known != 0 || a.InReg != b.InReg || a.Fault != b.Fault || !slices.Equal(a.Snap, b.Snap) {
		return false
	}
	for i := range a.Val {
		if a.Known>>i&1 != 0 && a.Val[i] != b.Val[i] {
			return false
		}
	}
	return true
}
