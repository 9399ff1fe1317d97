package dwarf

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/unspool/unspool/arch"
)

// withTable returns Frames of n functions of 0x100 bytes from 0x1000 on, whose exception tables are at an offset each of one section, at 0x8000.
func withTable(table []byte, n int, at func(i int) uint32) *Frames {
	l := &listing{eh: true}
	cie := l.cie(cieHead{aug: "zLR", data: sized(DW_EH_PE_udata4, DW_EH_PE_udata4)})
	for i := range n {
		lsda := binary.LittleEndian.AppendUint32(nil, 0x8000+at(i))
		l.entry(cie, join(l.num(4, uint64(0x1000+0x100*i)), l.num(4, 0x100), sized(lsda...))...)
	}
	in := l.sections()
	in.Exceptions = []Section{{Name: ".gcc_except_table", Addr: 0x8000, Data: table}}
	return New(in)
}

// text prints what was read of a table.
func (x *Exceptions) text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "[%x,%x) +%x %x:", x.FDE.Lo, x.FDE.Hi, x.Off, x.Size)
	for _, s := range x.CallSites {
		fmt.Fprintf(&b, " [%x,%x)", s.Lo, s.Hi)
		if s.HasPad {
			fmt.Fprintf(&b, "→%x", s.Pad)
		}
		for a := s.Actions; a != nil; a = a.Next {
			fmt.Fprintf(&b, " %v", a.Kind)
			for _, t := range a.Types {
				fmt.Fprintf(&b, " %x %v", t.Addr, t.Any)
			}
		}
	}
	return b.String()
}

// TestExceptions: tables by hand, good ones and damaged ones.
func TestExceptions(t *testing.T) {
	head := func(callSites []byte, rest ...byte) []byte { // types of two bytes: the second is 0x1234, the first is none
		b := append([]byte{0xff, DW_EH_PE_udata2, byte(3 + len(callSites) - 1 + len(rest)), 0x01, byte(len(callSites))}, callSites...)
		return append(append(b, rest...), 0x34, 0x12, 0, 0)[:len(b)+len(rest)+4]
	}
	types := func(b []byte) []byte { b[2] = byte(len(b) - 3); return b } // the types end the table
	for _, c := range []struct {
		what  string
		table []byte
		want  string
		cause error
	}{
		{"no call sites", []byte{0xff, 0xff, 1, 0}, "[1000,1100) +0 4:", nil},
		{"clean-up", []byte{0xff, 0xff, 1, 4, 0x10, 5, 0x40, 0}, "[1000,1100) +0 8: [1010,1015)→1040", nil},
		{"four bytes", append([]byte{0xff, 0xff, 3, 13}, 0x10, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 0), "[1000,1100) +0 11: [1010,1015)", nil},
		{"base", []byte{3, 0, 0x20, 0, 0, 0xff, 1, 4, 0x10, 5, 0x40, 0}, "[1000,1100) +0 c: [1010,1015)→2040", nil},
		{"catch", types(head([]byte{0x10, 5, 0x40, 1}, 1, 0)), "[1000,1100) +0 f: [1010,1015)→1040 catch 0 true", nil},
		{"catch, catch, cleanup", types(head([]byte{0x10, 5, 0x40, 1}, 2, 1, 1, 1, 0, 0)), "[1000,1100) +0 13: [1010,1015)→1040 catch 1234 false catch 0 true cleanup", nil},
		{"filter", append(types(head([]byte{0x10, 5, 0x40, 1}, 0x7f, 0)), 2, 1, 0), "[1000,1100) +0 12: [1010,1015)→1040 filter 1234 false 0 true", nil},
		{"action follows itself", types(head([]byte{0x10, 5, 0x40, 1}, 1, 0x7f)), ".gcc_except_table+0x9: FDE 0x1000: action: malformed: it follows itself", ErrMalformed},
		{"action outside", []byte{0xff, 0xff, 1, 4, 0x10, 5, 0x40, 1}, ".gcc_except_table+0x8: FDE 0x1000: action: truncated LEB128 number", ErrTruncated},
		{"next outside", types(head([]byte{0x10, 5, 0x40, 1}, 0, 0x40)), ".gcc_except_table+0xa: FDE 0x1000: action: malformed: more than 128 follow, or the next is -64 bytes away", ErrMalformed},
		{"type outside", types(head([]byte{0x10, 5, 0x40, 1}, 9, 0)), ".gcc_except_table+0x9: FDE 0x1000: action: malformed: type 9, in encoding 0x02", ErrMalformed},
		{"no types", []byte{0xff, 0xff, 1, 4, 0x10, 5, 0x40, 1, 1, 0}, ".gcc_except_table+0x8: FDE 0x1000: action: malformed: type 1, in encoding 0xff", ErrMalformed},
		{"list of types outside", types(head([]byte{0x10, 5, 0x40, 1}, 0x40, 0)), ".gcc_except_table+0x9: FDE 0x1000: action: malformed: list of types at +0x3f", ErrMalformed},
		{"call sites too long", []byte{0xff, 0xff, 1, 5, 0x10, 5, 0x40, 0}, ".gcc_except_table+0x3: FDE 0x1000: call sites: malformed: 0x5 bytes, of which 0x4 are there", ErrMalformed},
		{"call site cut", []byte{0xff, 0xff, 1, 3, 0x10, 5, 0x40, 0}, ".gcc_except_table+0x7: FDE 0x1000: call site: truncated LEB128 number", ErrTruncated},
		{"types outside", []byte{0xff, 3, 0x20, 1, 0}, ".gcc_except_table+0x2: FDE 0x1000: types: malformed: 0x20 bytes, of which 0x2 are there", ErrMalformed},
		{"encoding", []byte{0xff, 0xff, 7, 4, 0x10, 5, 0x40, 0}, ".gcc_except_table+0x4: FDE 0x1000: call site: malformed: pointer format 0x7", ErrMalformed},
	} {
		got := ""
		ds := withTable(c.table, 1, func(int) uint32 { return 0 }).Exceptions(func(x *Exceptions) bool { got += x.text(); return true })
		for _, d := range ds {
			got += d.Error()
			if !errors.Is(d, c.cause) {
				t.Errorf("%s: the cause of %v is not %v", c.what, d, c.cause)
			}
		}
		if got != c.want {
			t.Errorf("%s: %x\n got %s\nwant %s", c.what, c.table, got, c.want)
		}
	}
	// A function whose table is damaged costs itself only; one without a section, too.
	n := 0
	ds := withTable([]byte{0xff, 0xff, 1, 0, 0xff, 0xff, 9, 1}, 3, func(i int) uint32 { return []uint32{0, 4, 0x900}[i] }).Exceptions(func(x *Exceptions) bool { n++; return true })
	if n != 1 || len(ds) != 2 || !strings.Contains(ds[1].Error(), "no section has the exception table at 0x8900") {
		t.Errorf("%d tables, %v", n, ds)
	}
}

// TestSharedTable: many functions that share a long table cost no more than a multiple of it, and take nothing from the table behind it.
func TestSharedTable(t *testing.T) {
	const functions = 20_000
	table := append([]byte{0xff, 0xff, 1, 0xfc, 0xff, 3}, make([]byte, 0xfffc)...)
	innocent := uint32(len(table))
	table = append(table, 0xff, 0xff, 1, 4, 0x10, 5, 0x40, 0)
	n, last := 0, ""
	ds := withTable(table, functions, func(i int) uint32 { return innocent * uint32(i/(functions-1)) }).Exceptions(func(x *Exceptions) bool {
		n, last = n+1, x.text()
		return true
	})
	if n < 2 || n > 2*maxReread || len(ds) == 0 || !strings.HasSuffix(last, "+10002 8: [4e2f10,4e2f15)→4e2f40") {
		t.Errorf("%d tables, %d damages; the last table is %s", n, len(ds), last)
	}
}

// TestLateActions: actions that fail only at the end of a long chain are charged like those that are read, to their own function.
func TestLateActions(t *testing.T) {
	const functions, head = 100, 13
	long := func(v int) []byte { return []byte{byte(v) | 0x80, byte(v>>7) | 0x80, byte(v >> 14)} }
	chain := append(bytes.Repeat([]byte{0x7f, 1}, maxActions-1), 0xb8, 0x7e, 0) // filters by one list, and at last by a list that is not there
	var table []byte
	for i := range functions { // one call site each; the chain is behind all tables
		behind := head * (functions - i)
		table = append(append(table, 0xff, DW_EH_PE_udata2), long(behind-5+len(chain)+2)...)
		table = append(append(table, 1, 6, 0, 1, 1), long(behind-head+1)...)
	}
	table = append(append(table, chain...), 0x34, 0x12)
	table = append(append(table, bytes.Repeat([]byte{1}, maxActions)...), 0)
	innocent := uint32(len(table))
	table = append(table, 0xff, 0xff, 1, 4, 0x10, 5, 0x40, 0)
	got := ""
	ds := withTable(table, functions+1, func(i int) uint32 {
		if i == functions {
			return innocent
		}
		return uint32(head * i)
	}).Exceptions(func(x *Exceptions) bool {
		got += x.text()
		return true
	})
	if len(ds) != functions || got != "[7400,7500) +698 8: [7410,7415)→7440" {
		t.Errorf("%d damages; read: %s", len(ds), got)
	}
	for _, d := range ds {
		if !errors.Is(d, ErrUnsupported) || !strings.Contains(d.Error(), "more actions and types than the table has bytes for") {
			t.Errorf("%v", d)
		}
	}
}

// TestSharedActions: call sites that share long actions cost no more than a multiple of the section.
func TestSharedActions(t *testing.T) {
	const sites = 5000
	table := append([]byte{0xff, DW_EH_PE_udata2, 0, 0, 0, 1}, 0xa0, 0x9c, 1) // 4*sites bytes of call sites
	table = append(table, bytes.Repeat([]byte{0, 1, 1, 1}, sites)...)
	table = append(table, bytes.Repeat([]byte{0x7f, 1}, maxActions-1)...) // each is a filter by the same list
	table = append(table, 0x7f, 0, 0x34, 0x12)
	n := len(table) - 5
	table[2], table[3], table[4] = byte(n)|0x80, byte(n>>7)|0x80, byte(n>>14)
	table = append(append(table, bytes.Repeat([]byte{1}, maxActions)...), 0)
	types := 0
	ds := withTable(table, 1, func(int) uint32 { return 0 }).Exceptions(func(x *Exceptions) bool {
		for _, s := range x.CallSites {
			for a := s.Actions; a != nil; a = a.Next {
				types += len(a.Types)
			}
		}
		return true
	})
	if types > freeWork+maxReread*len(table) || len(ds) != 1 || !errors.Is(ds[0], ErrUnsupported) || !strings.Contains(ds[0].Error(), "more actions and types than the table has bytes for") {
		t.Errorf("%d types in %d bytes, %v", types, len(table), ds)
	}
}

// FuzzExceptions reads arbitrary exception tables.
func FuzzExceptions(f *testing.F) {
	f.Add([]byte{0xff, 0xff, 1, 4, 0x10, 5, 0x40, 0}, uint16(0))
	f.Add([]byte{0xff, 2, 0x10, 1, 4, 0x10, 5, 0x40, 1, 2, 1, 1, 1, 0, 0, 0x34, 0x12, 0, 0}, uint16(4))
	f.Add([]byte{3, 0, 0x20, 0, 0, 0x9b, 9, 1, 4, 0x10, 5, 0x40, 1, 0x7f, 0, 1, 0, 0, 0, 2, 1, 0}, uint16(1))
	f.Fuzz(func(t *testing.T, b []byte, at uint16) {
		read, visited := 0, 0
		ds := withTable(b, 3, func(i int) uint32 { return uint32(i) * uint32(at) % uint32(len(b)+1) }).Exceptions(func(x *Exceptions) bool {
			read++
			if x.Off+x.Size > uint64(len(b)) || len(x.CallSites) > len(b)/4 {
				t.Fatalf("+%x %x, %d call sites, of %x", x.Off, x.Size, len(x.CallSites), len(b))
			}
			for _, s := range x.CallSites {
				n := 0
				for a := s.Actions; a != nil; a = a.Next {
					visited += 1 + len(a.Types)
					if n++; n > maxActions || len(a.Types) > maxActions {
						t.Fatalf("%d actions", n)
					}
				}
				if s.Hi < s.Lo || s.Pad != 0 && !s.HasPad {
					t.Fatalf("%+v", s)
				}
			}
			return true
		})
		if read+len(ds) != 3 {
			t.Fatalf("%d tables, %v", read, ds)
		}
		for _, d := range ds {
			if d.Error() == "" || d.PC == arch.Vaddr(0) {
				t.Fatalf("%+v", d)
			}
		}
		if visited > 3*(freeWork+maxReread*len(b)) {
			t.Fatalf("%d actions and types of %d bytes", visited, len(b))
		}
	})
}
