package jit

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"strings"
	"testing"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/rows"
)

func unhex(t testing.TB, s string) string {
	b, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// cpython is what CPython 3.13.0 writes for each function: a trampoline of 11 bytes.
func cpython(t testing.TB) Record {
	return Record{EHFrame: unhex(t, "14000000 00000000 017a5200 01781001 1b0c0708 90010000"+
		"14000000 1c000000 d0ffffff 0b000000 00440e10 460e0800"), Size: 11}
}

// v8 is what Node 18 wrote for a function of 402 bytes: 6 before the next multiple of eight.
func v8(t testing.TB) Record {
	return Record{EHFrame: unhex(t, "18000000 00000000 037a4c52 00017810 02ff1b0c 07089001 00000000"+
		"20000000 20000000 44feffff 92010000 004f0e10 8602430d 06740d07 410e0852 0c061000 00000000"), Size: 402}
}

// TestRules: the rules at each byte of functions that CPython and V8 made; they begin where the function does, wherever that is.
func TestRules(t *testing.T) {
	type from struct {
		off uint64
		cfa rows.CFA
	}
	const rsp, rbp = 7, 6
	for _, c := range []struct {
		name string
		rec  Record
		want []from
	}{
		{"CPython", cpython(t), []from{{0, reg(rsp, 8)}, {4, reg(rsp, 16)}, {10, reg(rsp, 8)}}},
		{"V8", v8(t), []from{{0, reg(rsp, 8)}, {15, reg(rsp, 16)}, {18, reg(rbp, 16)}, {70, reg(rsp, 16)}, {71, reg(rsp, 8)}, {89, reg(rbp, 16)}}},
	} {
		r := New(arch.AMD64, nil, func(err error) { t.Error(err) })
		for _, start := range []arch.Addr{0x1003, 0x7f21_87a6_7000, 0xffff_ffff_ff00_0000} {
			for off := range c.rec.Size + 2 {
				id, ok := r.Find(c.rec, start, off)
				if ok != (off < c.rec.Size) {
					t.Fatalf("%s: Find(+%d) = %v", c.name, off, ok)
				}
				want := rows.CFA{}
				for _, w := range c.want {
					if w.off <= off {
						want = w.cfa
					}
				}
				if got := r.set(id).CFA; ok && got != want {
					t.Errorf("%s+%d: CFA is %+v, want %+v", c.name, off, got, want)
				}
			}
		}
		if len(r.tables) != 1 {
			t.Errorf("%s: %d tables for one record", c.name, len(r.tables))
		}
	}
}

func reg(r arch.Reg, off int64) rows.CFA { return rows.CFA{Kind: rows.CFAReg, Reg: r, Off: off} }

// TestAddresses: a record with the function's address holds for that function only.
func TestAddresses(t *testing.T) {
	b := []byte(unhex(t, "14000000 00000000 017a5200 01781001 000c0708 90010000"+"1c000000 1c000000 0000000000000000 0b00000000000000 00440e10 460e0800"))
	binary.LittleEndian.PutUint64(b[0x20:], 0x5555_0000_1000)
	rec := Record{EHFrame: string(b), Size: 11}
	r := New(arch.AMD64, nil, func(err error) { t.Error(err) })
	for range 2 {
		if id, ok := r.Find(rec, 0x5555_0000_1000, 5); !ok || r.set(id).CFA.Off != 16 {
			t.Errorf("at its own address: %d, %v", id, ok)
		}
		if id, ok := r.Find(rec, 0x5555_0000_2000, 5); ok {
			t.Errorf("at another's: %d", id)
		}
	}
}

// TestOthers: what a record says of code that is not its function's counts for nothing.
func TestOthers(t *testing.T) {
	rec := cpython(t)
	b := []byte(rec.EHFrame)
	binary.LittleEndian.PutUint32(b[0x20:], ^uint32(0x1030-1))
	binary.LittleEndian.PutUint32(b[0x24:], 0x10000)
	rec.EHFrame = string(b)
	r := New(arch.AMD64, nil, nil)
	if id, ok := r.Find(rec, 0x1000, 0); !ok {
		t.Errorf("Find(0x1000, 0) = %d, false; want a rule for the function itself, of %d bytes", id, rec.Size)
	}
	for i, rec := range []Record{rec, cpython(t)} {
		if id, ok := r.Find(rec, 0x1000, 11); ok {
			t.Errorf("record %d: Find(0x1000, 11) = %d, true; want no rule behind the function, of %d bytes", i, id, rec.Size)
		}
	}
}

// TestBounds: records, rows and rules take what they are granted, and what is refused is said.
func TestBounds(t *testing.T) {
	for _, most := range []int64{100, 300, 500, 700, 4000} {
		left, refused := most, 0
		take := func(n int64) bool {
			if left < n {
				return false
			}
			left -= n
			return true
		}
		r := New(arch.AMD64, take, func(err error) {
			if refused++; err != errFull {
				t.Error(err)
			}
		})
		rec := cpython(t)
		found := 0
		for i := range 100 {
			rec.Size = uint64(11 + i)
			if _, ok := r.Find(rec, 0x1000, 0); ok {
				found++
			}
		}
		if refused == 0 || found+refused < 100 || (found > 0) != (most >= 700) || len(r.tables) > int(most/keyBytes) {
			t.Errorf("of %d bytes: %d are found, %d refused, in %d tables", most, found, refused, len(r.tables))
		}
	}
}

func FuzzRules(f *testing.F) {
	for _, rec := range []Record{cpython(f), v8(f)} {
		f.Add([]byte(rec.EHFrame), rec.Size, uint64(0x1000), uint64(5))
	}
	f.Fuzz(func(t *testing.T, eh []byte, size, start, off uint64) {
		r := New(arch.AMD64, nil, func(error) {})
		for _, big := range []bool{false, true} {
			rec := Record{EHFrame: string(eh), Size: size, Big: big}
			id, ok := r.Find(rec, arch.Addr(start), off)
			if ok && (off >= size || r.set(id).Gap()) {
				t.Errorf("+%#x of %#x bytes has rule %d", off, size, id)
			}
			again, ok2 := r.Find(rec, arch.Addr(start), off)
			if again != id || ok2 != ok {
				t.Errorf("%d, %v, then %d, %v", id, ok, again, ok2)
			}
		}
	})
}

// TestRegister: registered code has the rules of the last tables that were given, and of two for an address the first; all take what is granted.
func TestRegister(t *testing.T) {
	table := func(off int64, ranges ...arch.Vaddr) *rows.Table {
		b := rows.NewBuilder(arch.AMD64)
		for i := 0; i < len(ranges); i += 2 {
			b.Begin(ranges[i], ranges[i+1])
			b.Row(ranges[i], b.Intern(rows.Set{CFA: reg(7, off), RA: arch.AMD64.RA}))
		}
		return rows.Build(b)
	}
	room := int64(1 << 20)
	var damage []error
	r := New(arch.AMD64, func(n int64) bool { room -= n; return room >= 0 }, func(err error) { damage = append(damage, err) })
	check := func(want map[arch.Vaddr]int64) {
		t.Helper()
		for v, off := range want {
			id, ok := r.Registered(v)
			if ok != (off != 0) || ok && r.set(id).CFA != reg(7, off) {
				t.Errorf("Registered(%#x) = %d, %v; want CFA %d", v, id, ok, off)
			}
		}
	}
	check(map[arch.Vaddr]int64{0x1000: 0})
	r.Register([]*rows.Table{table(8, 0x3000, 0x3010, 0x1000, 0x1010), table(16, 0x1008, 0x1020, 0x2000, 0x2010)})
	check(map[arch.Vaddr]int64{0xfff: 0, 0x1000: 8, 0x100f: 8, 0x1010: 16, 0x101f: 16, 0x1020: 0, 0x2000: 16, 0x3000: 8, 0x300f: 8, 0x3010: 0})
	used := room
	r.Register([]*rows.Table{table(16, 0x1000, 0x1004)})
	check(map[arch.Vaddr]int64{0x1000: 16, 0x1008: 0, 0x2000: 0, 0x3000: 0})
	if room != used {
		t.Errorf("fewer rows take %d bytes", used-room)
	}
	room = 0
	r.Register([]*rows.Table{table(24, 0x1000, 0x1004)})
	check(map[arch.Vaddr]int64{0x1000: 0})
	if len(damage) != 1 {
		t.Errorf("%v", damage)
	}
}

// BenchmarkFind: new records, and the rule of a frame.
func BenchmarkFind(b *testing.B) {
	rec := cpython(b)
	b.Run("known", func(b *testing.B) {
		r := New(arch.AMD64, nil, nil)
		for b.Loop() {
			r.Find(rec, 0x1000, 5)
		}
	})
	b.Run("new", func(b *testing.B) {
		r := New(arch.AMD64, nil, nil)
		n := 0
		for b.Loop() {
			if n++; n%1000 == 0 {
				r = New(arch.AMD64, nil, nil)
			}
			rec.EHFrame = fmt.Sprintf("%s%08d", cpython(b).EHFrame, n)
			r.Find(rec, 0x1000, 5)
		}
	})
}
