package compact

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/rows"
	"github.com/unspool/unspool/rows/rowstest"
)

// table makes one of x86-64 from a list of rows: CFA offsets by address; 0 is a gap.
func table(lohi [2]uint64, at ...[2]uint64) *rows.Table {
	b := rows.NewBuilder(arch.AMD64)
	b.Begin(arch.Vaddr(lohi[0]), arch.Vaddr(lohi[1]))
	for _, r := range at {
		b.Row(arch.Vaddr(r[0]), b.Intern(plain(int64(r[1]))))
	}
	return rows.Build(b)
}

func plain(off int64) rows.Set {
	return rows.Set{RA: 16, CFA: rows.CFA{Kind: rows.CFAReg, Reg: 7, Off: off}, Rules: []rows.Rule{{Of: 16, Kind: rows.Offset, Off: -8}}}
}

// TestShapes emits tables at the limits of the layout.
func TestShapes(t *testing.T) {
	oracle.Long(t)
	oneByteRows := func(lo uint64, n int) *rows.Table {
		b := rows.NewBuilder(arch.AMD64)
		b.Begin(arch.Vaddr(lo), arch.Vaddr(lo+uint64(n)))
		for i := range uint64(n) {
			b.Row(arch.Vaddr(lo+i), b.Intern(plain(int64(8*(1+i%3)))))
		}
		return rows.Build(b)
	}
	gaps := func(width uint64, n int) *rows.Table {
		b := rows.NewBuilder(arch.AMD64)
		at := uint64(0x1000)
		for i := range n {
			b.Begin(arch.Vaddr(at), arch.Vaddr(at+1+uint64(i)%5))
			b.Row(arch.Vaddr(at), b.Intern(plain(8)))
			at += width + uint64(i)%5
		}
		return rows.Build(b)
	}
	long := func(width uint64, n int) *rows.Table {
		b := rows.NewBuilder(arch.AMD64)
		at := uint64(0x1234)
		b.Begin(arch.Vaddr(at), arch.Vaddr(at+width*uint64(n)))
		for i := range n {
			b.Row(arch.Vaddr(at), b.Intern(plain(int64(8*(1+i%3)))))
			at += width - uint64(i)%7
		}
		return rows.Build(b)
	}
	top := ^uint64(0)
	for _, c := range []struct {
		name string
		ref  *rows.Table
	}{
		{"empty", rows.Build(rows.NewBuilder(arch.AMD64))},
		{"empty, ARM64", rows.Build(rows.NewBuilder(arch.ARM64))},
		{"one byte", table([2]uint64{0, 1}, [2]uint64{0, 8})},
		{"one byte at the top", table([2]uint64{top - 1, top}, [2]uint64{top - 1, 8})},
		{"all of the address space but its ends", table([2]uint64{0x1000, 0x1000 + 1<<20}, [2]uint64{0x1000, 8}, [2]uint64{0x1000 + 1<<19, 16})},
		{"a row a byte", oneByteRows(0x1234, 100_000)},
		{"a row a byte from 0", oneByteRows(0, 70_000)},
		{"a row a byte, to the top", oneByteRows(top-70_000, 70_000)},
		{"a row a byte, across 4 GiB", oneByteRows(1<<32-3000, 7000)},
		{"gaps", gaps(64, 5000)},
		{"gaps of pages", gaps(4096, 2000)},
		{"gaps of regions", gaps(1<<16, 2000)},
		{"gaps of 4 GiB", gaps(1<<32, 2000)},
		{"gaps of 2⁵⁰", gaps(1<<50, 2000)},
		{"one row", long(100, 1)},
		{"one row of 2⁶³", long(1<<63, 1)},
		{"one row of all", table([2]uint64{0, top}, [2]uint64{0, 8})},
		{"rows of 100 KiB", long(100<<10, 3000)},
		{"rows of 1 MiB", long(1<<20, 3000)},
		{"rows of 4 GiB", long(1<<32, 3000)},
		{"rows of 2⁵⁰", long(1<<50, 3000)},
		{"254 rules", manyRules(arch.AMD64, 254)},
		{"255 rules", manyRules(arch.AMD64, 255)},
		{"256 rules", manyRules(arch.AMD64, 256)},
		{"65,535 rules", manyRules(arch.AMD64, 65_535)},
		{"65,536 rules", manyRules(arch.AMD64, 65_536)},
		{"70,000 rules", manyRules(arch.AMD64, 70_000)},
	} {
		t.Run(c.name, func(t *testing.T) {
			ct := emit(t, c.ref)
			agree(t, ct, c.ref)
			s := ct.Stats()
			if most := 4096 + 100*len(c.ref.Rows) + s.RuleSize; s.Bytes > most {
				t.Errorf("%d bytes for %d rows, more than %d", s.Bytes, len(c.ref.Rows), most)
			}
			again, err := Emit(c.ref)
			if err != nil || !bytes.Equal(again, ct.Bytes()) {
				t.Errorf("Emit gives other bytes the second time: %v", err)
			}
		})
	}
}

// agree looks up addresses on and around rows' ends and random ones, and compares with rows.Interp.
func agree(t testing.TB, ct *Table, ref *rows.Table) {
	t.Helper()
	want := rows.Interp{Table: ref}
	idOf := map[uint32]uint32{}
	check := func(pc arch.Vaddr) {
		a, aok := ct.Find(pc)
		b, bok := want.Find(pc)
		if have, seen := idOf[b]; aok != bok || aok && seen && have != a {
			t.Fatalf("Find(%#x)\n got  %d %v\n want set %d %v", uint64(pc), a, aok, b, bok)
		}
		idOf[b] = a
	}
	r := rand.New(rand.NewPCG(uint64(len(ref.Rows)), 0))
	for i, row := range ref.Rows {
		check(row.Lo - 1)
		check(row.Lo)
		if n := uint64(ref.Hi(i) - row.Lo); n > 0 {
			check(row.Lo + arch.Vaddr(r.Uint64N(n)))
		}
	}
	for range 1000 {
		check(arch.Vaddr(r.Uint64()))
	}
	check(0)
	check(^arch.Vaddr(0) - 1)
}

// repair gives damaged bytes the checksum that belongs to them.
func repair(b []byte) []byte {
	if len(b) >= headerSize {
		if n := le.Uint32(b[hdrSize:]); n >= headerSize && uint64(n) <= uint64(len(b)) {
			le.PutUint32(b[hdrChecksum:], checksum(b[:n]))
		}
	}
	return b
}

// TestDamage flips each bit and cuts at each length: Load says so. With the checksum repaired, either Load
// refuses the table, or Verify finds the difference, or the bit has no meaning.
func TestDamage(t *testing.T) {
	oracle.Long(t)
	r := rand.New(rand.NewPCG(9, 9))
	for i, mach := range []*arch.Machine{arch.AMD64, arch.ARM64, arch.AMD64} {
		ref := rowstest.Table(r, mach, 8)
		if i == 2 {
			ref = manyRules(mach, 300) // has escapes
		}
		good, err := Emit(ref)
		if err != nil {
			t.Fatal(err)
		}
		ct, err := Load(good)
		if err != nil {
			t.Fatal(err)
		}
		for n := range good {
			if _, err := Load(good[:n]); err == nil {
				t.Fatalf("Load of %d of %d bytes: no error", n, len(good))
			}
		}
		if _, err := Load(append(good[:len(good):len(good)], "more"...)); err != nil {
			t.Errorf("bytes behind the table: %v", err)
		}
		refused, found, meaningless := 0, 0, 0
		for at := 0; at < len(good); at += 1 + r.IntN(1+len(good)/600) {
			b, bit := bytes.Clone(good), r.IntN(8)
			b[at] ^= 1 << bit
			_, err := Load(b)
			var pos *Error
			if err == nil || !errors.As(err, &pos) {
				t.Fatalf("byte %#x flipped: %v", at, err)
			}
			if _, err := LoadProven(b); err == nil {
				t.Fatalf("byte %#x flipped: LoadProven takes it", at)
			}
			if bt, err := LoadProven(repair(b)); err == nil {
				exercise(bt, uint64(at))
			}
			bt, err := Load(b)
			if err != nil {
				refused++
				continue
			}
			exercise(bt, uint64(at))
			if Verify(bt, ref, 7) != nil {
				found++
				continue
			}
			meaningless++
			if ok, part := matters(ct, at, bit); ok {
				t.Errorf("byte %#x (%s) flipped from %#x to %#x: neither Load nor Verify minds", at, part, good[at], b[at])
			}
		}
		t.Logf("%s: of %d bytes, some of which are flipped, %d are refused, %d found, %d have no meaning", mach.Name, len(good), refused, found, meaningless)
	}
}

// matters says whether a bit of the byte at an offset of the table changes what it says, and in which part it lies.
func matters(t *Table, at, bit int) (bool, string) {
	places := []struct {
		name  string
		field int
		size  int
	}{
		{"spans", hdrSpans, len(t.spans)}, {"regions", hdrRegions, len(t.regions)}, {"granules", hdrGranules, len(t.granules)},
		{"rows", hdrRows, len(t.body) - rowsPad}, {"escape keys", hdrEscKeys, len(t.keys)}, {"escape rules", hdrEscRules, len(t.escs)},
	}
	for _, p := range places {
		if off := t.off(p.field); at >= off && at < off+p.size {
			return true, p.name
		}
	}
	if at >= len(t.b)-len(t.origins) || at == hdrOrigin {
		return true, "origins"
	}
	if off := t.off(hdrRules) + t.sh.size; at >= off && at < off+len(t.rules) {
		r := t.rule(uint32((at-off)>>t.ruleBits) + 1)
		kind, _, flags := parts(r)
		switch k := (at - off) & (1<<t.ruleBits - 1); {
		case kind == kindWide || kind == kindNone:
			return k == ruleFlags || k == ruleFlags+1, "rule" // the rest is the wide's, or unused; an outermost rule's CFA is unused too
		case flags&outermostFlag != 0:
			return false, "rule" // nothing else of it is used
		case t.sh.run > 0:
			return packedMatters(r, k, bit, t.sh.present(r)), "packed rule"
		case k < ruleHead:
			return k != ruleAux, "rule"
		case k < ruleHead+len(t.sh.saves):
			return t.sh.present(r)>>(k-ruleHead)&1 != 0, "rule"
		}
	}
	return false, "header, directory, wides or padding"
}

// packedMatters says the same of a bit of byte k of a packed rule that is not outermost, in which these saves are present.
func packedMatters(rule []byte, k, bit int, present uint64) bool {
	switch {
	case k == packedAux: // two words for one base, at some offsets of the CFA
		other := bytes.Clone(rule)
		other[k] ^= 1 << bit
		return present != 0 && packedBase(other) != packedBase(rule)
	case k == packedPlace: // the first of a run lies there, whatever the direction
		return rule[packedRun]&^1 != 0 || rule[packedRun] != 0 && bit > 0
	case k >= packedSaves && k < packedSaves+maskShift/8: // a digit
		return le.Uint64(rule[packedSaves:])>>(maskShift+2*(k-packedSaves)+bit/4)&1 != 0
	}
	return true
}

// exercise looks up and applies whatever a table has, from every kind of state.
func exercise(t *Table, seed uint64) {
	var pcs []arch.Vaddr
	t.Rows(func(lo arch.Vaddr, _ uint32, _ bool) bool {
		pcs = append(pcs, lo-1, lo, lo+1)
		return len(pcs) < 600
	})
	for i := range uint64(32) {
		pcs = append(pcs, arch.Vaddr(mix(seed+i)>>(i*2)), -arch.Vaddr(i))
	}
	for _, pc := range pcs {
		t.Find(pc)
	}
	ids := min(t.nrules, 64)
	for k := range 8 {
		try := rows.NewTrial(seed, k*5)
		for id := range ids + 2 {
			if id >= ids {
				id = t.nrules + id - ids
			}
			s, m := try.Before, try.Memory()
			t.Apply(id, &s, &m)
			t.Signal(id)
			t.Set(id)
		}
	}
	t.Stats()
}

// TestOrigins: a table tells the origins of its rows, in 16 bytes a range if there are several, and else in none. Load refuses lists that
// are cut off, out of order, or no origins.
func TestOrigins(t *testing.T) {
	ref := table([2]uint64{0x1000, 0x1100}, [2]uint64{0x1000, 8}, [2]uint64{0x1010, 16}, [2]uint64{0x1020, 0}, [2]uint64{0x1040, 24})
	without := len(emit(t, ref).Bytes())
	single := emit(t, ref.From(rows.FromPCLNTab))
	if got := slices.Collect(single.Origins()); len(single.Bytes()) != without || !slices.Equal(got, []rows.OriginRange{{Lo: 0x1000, Origin: rows.FromPCLNTab}}) {
		t.Errorf("one origin: %d bytes, not %d; %v", len(single.Bytes()), without, got)
	}
	ref.Origins = []rows.OriginRange{{Lo: 0x1000, Origin: rows.FromEHFrame}, {Lo: 0x1008, Origin: 77}, {Lo: 0x1020, Origin: rows.Unknown}}
	good := emit(t, ref).Bytes()
	if len(good) != without+3*originSize {
		t.Errorf("three origins: %d bytes, not %d", len(good), without+3*originSize)
	}
	ct, err := Load(good)
	if err != nil {
		t.Fatal(err)
	}
	for pc, want := range map[arch.Vaddr]rows.Origin{0x1000: rows.FromEHFrame, 0x1007: rows.FromEHFrame, 0x1008: 77, 0x101f: 77, 0x1020: rows.Unknown, 0x10ff: rows.Unknown} {
		if got := ct.Origin(pc); got != want {
			t.Errorf("origin at %#x\n got %s\nwant %s", uint64(pc), got, want)
		}
	}
	first := len(good) - 3*originSize
	for name, change := range map[string]func(b []byte) []byte{
		"no list":                   func(b []byte) []byte { return b[:first] },
		"one range":                 func(b []byte) []byte { return b[:first+originSize] },
		"half a range":              func(b []byte) []byte { return b[:len(b)-8] },
		"after the first row":       func(b []byte) []byte { b[first]++; return b },
		"before the first row":      func(b []byte) []byte { b[first+1]--; return b },
		"two at one address":        func(b []byte) []byte { copy(b[first+originSize:], b[first:first+8]); return b },
		"the same twice":            func(b []byte) []byte { copy(b[first+originSize+8:], b[first+8:first+16]); return b },
		"what no origin is":         func(b []byte) []byte { b[first+originWhat] = manyOrigins; return b },
		"a large number":            func(b []byte) []byte { b[first+originWhat+7] = 1; return b },
		"expressions up to the end": func(b []byte) []byte { le.PutUint32(b[hdrExprs:], uint32(len(b))); return b },
	} {
		b := change(bytes.Clone(good))
		le.PutUint32(b[hdrSize:], uint32(len(b)))
		if ct, err := Load(repair(b)); err == nil {
			t.Errorf("%s: no error, %v", name, slices.Collect(ct.Origins()))
		}
	}
	other, err := Load(good)
	if err != nil {
		t.Fatal(err)
	}
	wrong := *ref
	wrong.Origins = ref.Origins[:2]
	if err := Verify(other, &wrong, 1); err == nil {
		t.Errorf("Verify takes other origins for equal: %v and %v", slices.Collect(other.Origins()), wrong.Origins)
	}
}

// FuzzLoad mutates tables: what Load takes can be used on any address and state.
func FuzzLoad(f *testing.F) {
	r := rand.New(rand.NewPCG(5, 6))
	for i := range 12 {
		b, err := Emit(rowstest.Table(r, []*arch.Machine{arch.AMD64, arch.ARM64, arch.ByELF(arch.EM_386)}[i%3], 1+i))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b, uint64(i))
	}
	b, _ := Emit(manyRules(arch.AMD64, 300))
	f.Add(b, uint64(0))
	f.Fuzz(func(t *testing.T, b []byte, seed uint64) {
		b = repair(b)
		if ct, err := LoadProven(b); err == nil {
			exercise(ct, seed) // though nobody has looked at the rows
		}
		ct, err := Load(b)
		if err != nil {
			return
		}
		exercise(ct, seed)
		// The rows are sorted, and each one's ends find it.
		last, first := arch.Vaddr(0), true
		ct.Rows(func(lo arch.Vaddr, id uint32, gap bool) bool {
			if !first && lo <= last {
				t.Fatalf("row at %#x follows row at %#x", uint64(lo), uint64(last))
			}
			if got, ok := ct.Find(lo); ok == gap || got != id {
				t.Fatalf("Find(%#x)\n got  %d %v\n want %d", uint64(lo), got, ok, id)
			}
			last, first = lo, false
			return true
		})
		// A mapping that changes after Load gives wrong answers at worst.
		for i := range b {
			b[i] ^= byte(mix(seed + uint64(i)))
		}
		exerciseChanged(ct, seed)
	})
}

// exerciseChanged is exercise for bytes that Load has not seen: only what a walk does.
func exerciseChanged(t *Table, seed uint64) {
	try := rows.NewTrial(seed, 3)
	for i := range uint64(64) {
		id, _ := t.Find(arch.Vaddr(t.first.lo + mix(seed+i)%(t.first.size+1)))
		s, m := try.Before, try.Memory()
		t.Apply(id, &s, &m)
		t.Signal(id)
		t.Find(arch.Vaddr(mix(i)))
		s = try.Before
		t.Apply(uint32(i), &s, &m)
	}
}

// FuzzEmit makes tables of the fuzzer's numbers: what is emitted means what the rows say.
func FuzzEmit(f *testing.F) {
	r := rand.New(rand.NewPCG(7, 8))
	for i := range 8 {
		b := make([]byte, 40*(1+i))
		for k := range b {
			b[k] = byte(r.Uint32())
		}
		f.Add(b, i%2 == 0)
	}
	f.Fuzz(func(t *testing.T, b []byte, arm bool) {
		mach := arch.AMD64
		if arm {
			mach = arch.ARM64
		}
		ref := fuzzTable(b, mach)
		agree(t, emit(t, ref), ref)
	})
}

// fuzzTable reads ranges of rows out of bytes.
func fuzzTable(b []byte, mach *arch.Machine) *rows.Table {
	num := func() (v uint64) {
		n := min(len(b), 8)
		var buf [8]byte
		copy(buf[:], b[:n])
		b = b[n:]
		return binary.LittleEndian.Uint64(buf[:])
	}
	bl := rows.NewBuilder(mach)
	for len(b) > 0 {
		x := num()
		lo := num() >> (x & 63)
		size := num() >> (x >> 8 & 63)
		hi := lo + size
		if hi < lo || hi == ^uint64(0) {
			continue
		}
		bl.Begin(arch.Vaddr(lo), arch.Vaddr(hi))
		at := lo
		for range x >> 16 & 63 {
			y := num()
			r := rand.New(rand.NewPCG(y>>32, 1))
			bl.Row(arch.Vaddr(at), bl.Intern(rowstest.Set(r, mach)))
			next := at + y&0xffffffff>>(y>>59)
			if next <= at {
				break
			}
			at = next
		}
	}
	return rows.Build(bl)
}
