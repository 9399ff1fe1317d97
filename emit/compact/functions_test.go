package compact

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/rows"
)

// someFunctions are of all kinds, out of order, two at one address, one inside another, one empty.
var someFunctions = []rows.Function{
	{Lo: 0x2000, Hi: 0x2100, Personality: 0x9000, Indirect: true, LSDA: 0x8000, HasLSDA: true},
	{Lo: 0x1000, Hi: 0x1080},
	{Lo: 0x1080, Hi: 0x1100, Personality: 0x9000},
	{Lo: 0x2080, Hi: 0x2200}, // begins in another one
	{Lo: 0x2000, Hi: 0x2040}, // starts with another one
	{Lo: 0x3000, Hi: 0x3000},
	{Lo: 0x3000, Hi: 0x3010, Personality: 0x9000, Indirect: true},
	{Lo: 0x3010, Hi: 0x3020, HasLSDA: true},
}

// TestFunctions: the section gives back what was put in, sorted and disjoint, at each address; the table in front of it stays as it is.
func TestFunctions(t *testing.T) {
	table := emit(t, manyRules(arch.AMD64, 5)).Bytes()
	whole, err := AppendFunctions(table, someFunctions)
	if err != nil {
		t.Fatal(err)
	}
	if ct, err := Load(whole); err != nil || !bytes.Equal(ct.Bytes(), table) {
		t.Fatalf("the table with functions: %v", err)
	}
	f, err := LoadFunctions(whole)
	if err != nil {
		t.Fatal(err)
	}
	want := []rows.Function{someFunctions[1], someFunctions[2], someFunctions[0], someFunctions[6], someFunctions[7]}
	if f.Len() != len(want) {
		t.Fatalf("%d functions, want %d", f.Len(), len(want))
	}
	for pc := arch.Vaddr(0xf00); pc < 0x3100; pc++ {
		var at rows.Function
		some := false
		for _, w := range want {
			if pc >= w.Lo && pc < w.Hi {
				at, some = w, true
			}
		}
		if got, ok := f.Find(pc); ok != some || ok && got != at {
			t.Fatalf("at %#x\n got %+v %v\nwant %+v %v", uint64(pc), got, ok, at, some)
		}
	}
	if len(f.handlers) != 2*handlerSize {
		t.Errorf("%d bytes of handlers, want two", len(f.handlers))
	}
	for _, b := range [][]byte{table, append(table[:len(table):len(table)], "a trailer"...)} {
		if f, err := LoadFunctions(b); f != nil || err != nil {
			t.Errorf("a table without functions: %v, %v", f, err)
		}
	}
}

// TestFunctionsDamage: each flipped bit and each cut of the section is an error. With the checksum repaired, no bytes lead out of it.
func TestFunctionsDamage(t *testing.T) {
	table := emit(t, manyRules(arch.AMD64, 5)).Bytes()
	whole, err := AppendFunctions(table, someFunctions)
	if err != nil {
		t.Fatal(err)
	}
	n := len(table)
	for end := n + len(FunctionsMagic); end < len(whole); end++ {
		if _, err := LoadFunctions(whole[:end]); err == nil {
			t.Fatalf("%d of %d bytes: no error", end-n, len(whole)-n)
		}
	}
	r := rand.New(rand.NewPCG(3, 3))
	refused := 0
	for at := n + len(FunctionsMagic); at < len(whole); at++ {
		b := bytes.Clone(whole)
		b[at] ^= 1 << r.IntN(8)
		if _, err := LoadFunctions(b); err == nil {
			t.Fatalf("byte %#x flipped: no error", at-n)
		}
		if size := uint64(le.Uint32(b[n+fhdrLength:])); size >= fhdrSize && size <= uint64(len(b)-n) {
			le.PutUint32(b[n+fhdrChecksum:], checksum(b[n:][:size]))
		}
		f, err := LoadFunctions(b)
		if err != nil {
			refused++
			continue
		}
		for i := range f.Len() {
			if x := f.At(i); x.Lo >= x.Hi {
				t.Fatalf("byte %#x flipped: %+v", at-n, x)
			}
		}
		for pc := arch.Vaddr(0); pc < 0x4000; pc += 0x40 {
			f.Find(pc)
		}
	}
	if refused == 0 {
		t.Errorf("in none of %d bytes is a flipped bit refused if the checksum is right; want some", len(whole)-n-len(FunctionsMagic))
	}
}
