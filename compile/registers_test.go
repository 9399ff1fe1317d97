package compile

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/rows"
)

var four = []string{"rip", "rsp", "rbp", "rbx"}

// TestRegisters: what is compiled for some registers recovers these as the whole table does, loses all others, and is smaller. native.Verify proves
// the machine code equal to these rows.
func TestRegisters(t *testing.T) {
	m := arch.AMD64
	keep, err := registersOf(m, four)
	if err != nil || keep != 1<<3|1<<6|1<<7|1<<16 {
		t.Fatalf("registersOf = %#x, %v", keep, err)
	}
	var slots uint64 // that the machine has
	for r := range m.Regs() {
		if slot := m.Slot(r); slot != arch.NoSlot {
			slots |= 1 << slot
		}
	}
	trials := rows.NewTrials(1)
	for _, path := range []string{spin, "/lib/x86_64-linux-gnu/libc.so.6", "/lib64/ld-linux-x86-64.so.2"} {
		img, f, err := Open(path)
		if err != nil {
			t.Logf("%s: %v", path, err)
			continue
		}
		whole, _ := f.Rows()
		img.Close()
		if whole.Machine != m {
			continue
		}
		part, err := only(whole, keep)
		if err != nil {
			t.Errorf("%s: %v", path, err)
			continue
		}
		right, done := 0, map[rows.SetID]bool{}
		for _, r := range whole.Rows {
			a, b := &whole.Sets[r.Set], part.At(r.Lo)
			if a.Gap() != b.Gap() {
				t.Fatalf("%s: %#x: one is a gap", path, r.Lo)
			}
			if a.Gap() || done[r.Set] {
				continue
			}
			done[r.Set] = true
			check := func(id uint32, s *rows.State, mem *rows.Memory) rows.Outcome {
				was, got := *s, *s
				p := rows.Step(m, b, &got, mem)
				o := rows.Step(m, a, s, mem)
				if o == rows.OK && p == rows.OK {
					right++
				} else if o == rows.Unreadable || o == rows.LostRegister {
					return o // perhaps for a register that is not wanted
				}
				bad := o != p
				if o == rows.OK {
					bad = bad || got.PC != s.PC || got.CFA != s.CFA || got.Known&slots != s.Known&keep || (got.InMem^s.InMem)&got.Known&keep != 0
					for slot := range arch.NumSlots {
						bad = bad || got.Known&keep>>slot&1 != 0 && got.Val[slot] != s.Val[slot]
					}
				}
				if bad {
					t.Fatalf("%s: %#x: Step(%+v)\n by %s\n got %v, %+v\nwant %v, %+v, known %#x", path, r.Lo, was, b.Text(m), p, got, o, *s, s.Known&keep)
				}
				return o
			}
			if err := trials.Check(m, a, uint32(r.Set), check); err != nil {
				t.Fatal(err)
			}
		}
		var sizes [2]int64
		for i, regs := range [][]string{nil, four} {
			c := Compiler{Emit: "native", Dir: t.TempDir(), Registers: regs}
			r, err := c.File(path)
			if err != nil {
				t.Errorf("%s: %v", path, err)
			}
			sizes[i] = r.Size
		}
		if sizes[1] > sizes[0] || path != spin && sizes[1] == sizes[0] {
			t.Errorf("%s: %d bytes with four registers, %d with all", path, sizes[1], sizes[0])
		}
		t.Logf("%s: %d rules, %d steps, %d bytes of %d", path, len(done), right, sizes[1], sizes[0])
	}
}

// TestRegistersRefused: a register that a rule needs is not left out, and the message says which and where.
func TestRegistersRefused(t *testing.T) {
	b := rows.NewBuilder(arch.AMD64)
	b.Begin(0x1000, 0x1010)
	ra := rows.Rule{Of: 16, Kind: rows.Offset, Off: -8}
	b.Row(0x1000, b.Intern(rows.Set{CFA: rows.CFA{Kind: rows.CFAReg, Reg: 10, Off: 8}, RA: 16, Rules: []rows.Rule{ra}})) // r10: calls do not preserve it
	b.Row(0x1004, b.Intern(rows.Set{CFA: rows.CFA{Kind: rows.CFAReg, Reg: 15, Off: 64}, RA: 16, Rules: []rows.Rule{{Of: 15, Kind: rows.Offset, Off: -64}, ra}}))
	b.Row(0x1008, b.Intern(rows.Set{CFA: rows.CFA{Kind: rows.CFAExpr, Expr: string([]byte{rows.DW_OP_breg0 + 12, 8})}, RA: 16, Rules: []rows.Rule{ra}}))
	table := rows.Build(b)
	for _, x := range []struct{ names, want string }{
		{"rip,rsp", "--registers lacks r15, which is needed at 0x1004: cfa=r15+64"},
		{"rip,rsp,r15", "--registers lacks r12, which is needed at 0x1008: "},
		{"rip,rsp,r12,r15", ""},
		{"rip,rbp", "--registers: without rsp, there is no way to the caller"},
		{"rsp", "--registers: without rip, there is no way to the caller"},
		{"rip,rsp,x29", `--registers: no register of x86_64 that frames recover is called "x29"`},
	} {
		c := Compiler{Registers: strings.Split(x.names, ",")}
		_, err := c.rows(table)
		if got := errText(err); x.want == "" && got != "" || !strings.HasPrefix(got, x.want) {
			t.Errorf("%s:\n got %q\nwant %q", x.names, got, x.want)
		}
	}
	dir := t.TempDir()
	c := Compiler{Emit: "native", Dir: dir, Registers: []string{"rip"}}
	if r, err := c.File(spin); err == nil {
		t.Errorf("%s was compiled with %q only, without rsp: %+v; want an error", spin, c.Registers, r)
	}
	if left, _ := os.ReadDir(dir); len(left) > 0 {
		t.Errorf("%s is left", filepath.Join(dir, left[0].Name()))
	}
}

func errText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
