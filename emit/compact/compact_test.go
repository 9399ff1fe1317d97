package compact

import (
	"debug/elf"
	"encoding/binary"
	"math/rand/v2"
	"os"
	"testing"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/format/dwarf"
	"github.com/unspool/unspool/rows"
)

// emit emits, loads and verifies a table.
func emit(t testing.TB, ref *rows.Table) *Table {
	t.Helper()
	b, err := Emit(ref)
	if err != nil {
		t.Fatal(err)
	}
	ct, err := Load(b)
	if err != nil {
		t.Fatal(err)
	}
	if err := Verify(ct, ref, 1); err != nil {
		t.Fatal(err)
	}
	return ct
}

// readELF builds the rows of a file.
func readELF(t testing.TB, path string) (ref *rows.Table, ehFrame int) {
	t.Helper()
	e, err := elf.Open(path)
	if err != nil {
		t.Skipf("no %s", path)
	}
	defer e.Close()
	in := dwarf.Sections{Machine: arch.ByELF(uint16(e.Machine)), Order: binary.ByteOrder(e.ByteOrder), AddrSize: 8}
	if e.Class == elf.ELFCLASS32 {
		in.AddrSize = 4
	}
	for _, s := range e.Sections {
		if s.Name == ".eh_frame" && s.Type != elf.SHT_NOBITS {
			b, err := s.Data()
			if err != nil {
				t.Fatal(err)
			}
			in.EHFrame = append(in.EHFrame, dwarf.Section{Name: s.Name, Addr: arch.Vaddr(s.Addr), Data: b})
			ehFrame += len(b)
		}
	}
	ref, _ = dwarf.New(in).Build(dwarf.EHFrame)
	return ref, ehFrame
}

const libc = "/lib/x86_64-linux-gnu/libc.so.6"

func TestFiles(t *testing.T) {
	files := []string{libc, "/lib64/ld-linux-x86-64.so.2", "/usr/aarch64-linux-gnu/lib/libc.so.6", "/usr/aarch64-linux-gnu/lib/libstdc++.so.6", os.Args[0]}
	for _, f := range files {
		ref, size := readELF(t, f)
		if len(ref.Rows) == 0 {
			continue
		}
		st := emit(t, ref).Stats()
		t.Logf("%s: %+v, %.3f of .eh_frame", f, st, float64(st.Bytes)/float64(size))
	}
}

// randomTable makes a table of up to n functions from r, with rules of every kind.
func randomTable(r *rand.Rand, mach *arch.Machine, n int) *rows.Table {
	b := rows.NewBuilder(mach)
	at := uint64(r.IntN(5)) * 0x1000
	if r.IntN(4) == 0 {
		at += 1 << 32
	}
	if r.IntN(16) == 0 {
		at = -uint64(r.IntN(1 << 20))
	}
	unit := uint64(1)
	if r.IntN(3) == 0 {
		unit = 4
	}
	sets := make([]rows.SetID, 1+r.IntN(600))
	for i := range sets {
		sets[i] = b.Intern(randomSet(r, mach))
	}
	for range n {
		switch r.IntN(12) {
		case 0:
			at += uint64(r.IntN(1<<10)) * unit
		case 1:
			if r.IntN(8) == 0 {
				at += uint64(r.IntN(1<<24)) * unit
			}
		}
		size := uint64(1+r.IntN(700)) * unit
		b.Begin(arch.Vaddr(at), arch.Vaddr(at+size))
		for p := at; p < at+size; p += uint64(1+r.IntN(1+r.IntN(60))) * unit {
			b.Row(arch.Vaddr(p), sets[r.IntN(1+r.IntN(len(sets)))])
		}
		at += size
	}
	return rows.Build(b)
}

// randomSet makes a set: often one that a compiler would make, sometimes nonsense.
func randomSet(r *rand.Rand, mach *arch.Machine) rows.Set {
	off := func() int64 {
		switch r.IntN(8) {
		case 0:
			return int64(r.Uint64())
		case 1:
			return int64(int32(r.Uint32()))
		case 2:
			return int64(r.IntN(4096)) - 2048
		}
		return int64(r.IntN(256)-128) * 8
	}
	reg := func() arch.Reg {
		if r.IntN(8) == 0 {
			return arch.Reg(r.IntN(100))
		}
		return arch.Reg(r.IntN(33))
	}
	exprs := []string{"", "\x77\x08", "\x77\x08\x06", "\x76\x00\x77\x00\x1c", "\x12\x06\x08\x10\x1c\x94\x04", "\xff"}
	s := rows.Set{RA: mach.RA}
	s.CFA = rows.CFA{Kind: rows.CFAReg, Reg: []arch.Reg{mach.SP, mach.FP}[r.IntN(2)], Off: int64(r.IntN(200)) * 8}
	nonsense := r.IntN(4) == 0
	if nonsense {
		s.CFA = rows.CFA{Kind: rows.CFAKind(r.IntN(int(rows.NumCFAKinds))), Reg: reg(), Off: off(), Off2: off(), Expr: exprs[r.IntN(len(exprs))]}
		s.Flags = rows.Flags(r.IntN(64))
		if r.IntN(4) == 0 {
			if s.RA = reg(); !mach.RAInReg && mach.Slot(s.RA) == arch.NoSlot {
				s.RA = mach.RA
			}
		}
	}
	for of := range arch.Reg(80) {
		rule := rows.Rule{Of: of, Kind: rows.Offset, Off: -8 * int64(1+r.IntN(100))}
		switch {
		case of == mach.RA:
			if rule.Off = -8; mach.RAInReg && r.IntN(2) == 0 {
				continue
			}
		case nonsense && r.IntN(4) != 0 || !nonsense && r.IntN(3) != 0:
			continue
		case !nonsense && (mach.SavedSlots()>>(mach.Slot(of)&63)&1 == 0 || of == mach.SP):
			continue
		}
		if nonsense {
			rule = rows.Rule{Of: of, Kind: rows.Kind(r.IntN(int(rows.NumKinds))), Reg: reg(), Off: off(), Expr: exprs[r.IntN(len(exprs))]}
		}
		s.Rules = append(s.Rules, rule)
	}
	return s
}

func TestRandom(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for i := range 60 {
		mach := []*arch.Machine{arch.AMD64, arch.ARM64, arch.ByELF(arch.EM_386)}[i%3]
		emit(t, randomTable(r, mach, r.IntN(300)))
	}
}
