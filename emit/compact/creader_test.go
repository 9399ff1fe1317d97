package compact

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"unsafe"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/rows"
	"github.com/unspool/unspool/rows/rowstest"
)

// The C reader's view of a state: struct unspool_state.
type cState struct {
	PC, CFA, Known, InMem, InReg uint64
	Val, Snap                    [arch.NumSlots]uint64
	Fault                        uint64
}

func toC(s *rows.State) cState {
	return cState{s.PC, s.CFA, s.Known, s.InMem, s.InReg, s.Val, s.Snap, s.Fault}
}

func (c *cState) state() rows.State {
	return rows.State{PC: c.PC, CFA: c.CFA, Known: c.Known, InMem: c.InMem, InReg: c.InReg, Val: c.Val, Snap: c.Snap, Fault: c.Fault}
}

type cQuestion struct {
	PC, Seed uint64
	State    cState
}

type cAnswer struct {
	Rule, Outcome, Signal, _ uint32
	State                    cState
}

const cIsWide = uint32(rows.BadExpr) + 1

// hashMemory is the memory of testdata/reader.c.
type hashMemory uint64

func (m hashMemory) Read8(addr uint64) (uint64, bool) {
	h := mix(addr ^ uint64(m))
	return mix(h), h>>60 >= 1
}

// mix is SplitMix64's finalizer, as in testdata/reader.c.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// asBytes returns the memory of s, which is the same in C on a little-endian machine.
func asBytes[T any](s []T) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(s))), len(s)*int(unsafe.Sizeof(*new(T))))
}

// questions asks for both ends of each row, in a state of its own. Of very long tables it leaves some out.
func questions(ref *rows.Table) []cQuestion {
	skip := 1 + len(ref.Rows)/40_000*16
	qs := make([]cQuestion, 0, 2*len(ref.Rows)+2)
	ask := func(pc arch.Vaddr) {
		seed := mix(uint64(len(qs)))
		t := rows.NewTrial(seed, len(qs)%rows.NumTrials)
		qs = append(qs, cQuestion{uint64(pc), seed, toC(&t.Before)})
	}
	for i, r := range ref.Rows {
		if i == 0 {
			ask(r.Lo - 1)
		}
		if i%skip != 0 {
			continue
		}
		ask(r.Lo)
		ask(ref.Hi(i) - 1)
	}
	return qs
}

// TestC compiles the C reader and holds its answers against Go's: for both ends of every row of libc and
// of random tables, each in a state of its own.
func TestC(t *testing.T) {
	oracle.Long(t)
	oracle.Need(t, "cc")
	var refs []*rows.Table
	for _, f := range []string{libc, "/usr/aarch64-linux-gnu/lib/libc.so.6"} {
		if _, err := os.Stat(f); err == nil {
			ref, _ := readELF(t, f)
			refs = append(refs, ref)
		}
	}
	r := rand.New(rand.NewPCG(3, 4))
	for i := range 12 {
		refs = append(refs, rowstest.Table(r, []*arch.Machine{arch.AMD64, arch.ARM64}[i%2], r.IntN(60)))
	}
	refs = append(refs, manyRules(arch.ARM64, 70_000))
	tables := make([]*Table, len(refs))
	for i, ref := range refs {
		tables[i] = emit(t, ref)
	}
	askC(t, refs, tables)
}

// askC holds the C reader's answers for both ends of every row against the tables'.
func askC(t *testing.T, refs []*rows.Table, tables []*Table) {
	t.Helper()
	var in bytes.Buffer
	asked := make([][]cQuestion, len(refs))
	for i, ref := range refs {
		asked[i] = questions(ref)
		b := tables[i].Bytes()
		in.Write(le.AppendUint32(nil, uint32(len(b))))
		in.Write(b)
		in.Write(le.AppendUint32(nil, uint32(len(asked[i]))))
		in.Write(asBytes(asked[i]))
	}
	for _, std := range []string{"c11", "c99"} {
		prog := filepath.Join(t.TempDir(), "reader")
		oracle.Run(t, "cc", "-std="+std, "-O2", "-pedantic", "-Wall", "-Wextra", "-Werror", "-I../../runtime", "-o", prog, "testdata/reader.c")
		if std == "c11" {
			continue
		}
		cmd := exec.Command(prog)
		cmd.Stdin, cmd.Stderr = bytes.NewReader(in.Bytes()), os.Stderr
		out, err := cmd.Output()
		if err != nil {
			t.Fatal(err)
		}
		answers, total, wide := bytes.NewReader(out), 0, 0
		for i, ct := range tables {
			as := make([]cAnswer, len(asked[i]))
			if _, err := io.ReadFull(answers, asBytes(as)); err != nil {
				t.Fatal(err)
			}
			for k := range as {
				if as[k].Outcome == cIsWide {
					wide++
				}
				if err := checkC(ct, &asked[i][k], &as[k]); err != nil {
					t.Fatalf("table %d: %v", i, err)
				}
			}
			total += len(as)
		}
		if n, _ := io.Copy(io.Discard, answers); n > 0 {
			t.Errorf("%d bytes more than was asked for", n)
		}
		t.Logf("%s: %d questions, %d of them for wide rules: no difference", std, total, wide)
	}
}

func checkC(ct *Table, q *cQuestion, a *cAnswer) error {
	id, ok := ct.Find(arch.Vaddr(q.PC))
	if !ok {
		id = 0
	}
	if a.Rule != id || a.Signal != 0 != ct.Signal(id) {
		return fmt.Errorf("unspool_table_find(%#x)\n got  rule %d, signal %d\n want rule %d, %v", q.PC, a.Rule, a.Signal, id, ct.Signal(id))
	}
	want := q.State.state()
	m := rows.Memory{Next: hashMemory(q.Seed)}
	o := uint32(0)
	if ct.isWide(id) {
		o = cIsWide
	} else {
		o = uint32(ct.Apply(id, &want, &m))
	}
	if got := a.State.state(); a.Outcome != o || got != want {
		before, set := q.State.state(), ct.Set(id)
		return fmt.Errorf("unspool_table_apply(rule %d)\n in   %s\n got  %d %s\n want %d %s\n (%s)", id, before.Text(ct.machine),
			a.Outcome, got.Text(ct.machine), o, want.Text(ct.machine), set.Text(ct.machine))
	}
	return nil
}

// TestBPF compiles the reader for eBPF.
func TestBPF(t *testing.T) {
	oracle.Long(t)
	oracle.Need(t, "clang-19")
	out := filepath.Join(t.TempDir(), "reader.o")
	oracle.Run(t, "clang-19", "-target", "bpf", "-mcpu=v3", "-O2", "-Wall", "-Wextra", "-Werror", "-I../../runtime", "-c", "-o", out, "testdata/reader_bpf.c")
}

// manyRules makes a table with n distinct rules, one byte of text for each.
func manyRules(mach *arch.Machine, n int) *rows.Table {
	b := rows.NewBuilder(mach)
	b.Begin(0x1000, 0x1000+arch.Vaddr(n))
	for i := range n {
		b.Row(0x1000+arch.Vaddr(i), b.Intern(rows.Set{RA: mach.RA, CFA: rows.CFA{Kind: rows.CFAReg, Reg: mach.SP, Off: int64(i)},
			Rules: []rows.Rule{{Of: mach.RA, Kind: rows.Offset, Off: -8}}}))
	}
	return rows.Build(b)
}
