package compactunwind

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/module"
	"github.com/unspool/unspool/rows"
)

// table returns the table of a section's bytes, in a file whose code is all bytes 0x10, 0x11 and so on, and whose header is at 0x1000.
func table(machine *arch.Machine, b []byte, object bool) *Table {
	t := &Table{name: UnwindInfo, b: b, base: 0x1000, machine: machine, order: binary.LittleEndian, object: object, is64: machine.ELF != arch.EM_386}
	t.of(machine)
	t.text = func(at arch.Vaddr, n int) ([]byte, bool) {
		code := []byte{0x10, 0x11, 0, 0}
		return code[:n], at < 0x10_0000
	}
	return t
}

// section makes a section of one page.
func section(kind uint32, common, personalities, own []uint32, entries ...[2]uint32) []byte {
	var b []byte
	u32 := func(v ...uint32) {
		for _, v := range v {
			b = binary.LittleEndian.AppendUint32(b, v)
		}
	}
	at := uint32(headerSize)
	u32(1, at, uint32(len(common)), at+4*uint32(len(common)), uint32(len(personalities)))
	at += 4 * uint32(len(common)+len(personalities))
	u32(at, 2)
	u32(common...)
	u32(personalities...)
	page := at + 2*indexSize + 8
	u32(0x100, page, page-8, 0x900, 0, page)
	u32(entries[0][0], 0x800) // language-specific data of the first function
	n := uint32(len(entries))
	if kind == regularPage {
		u32(kind, 8|n<<16)
		for _, e := range entries {
			u32(e[0], e[1])
		}
		return b
	}
	u32(kind, 16|n<<16, 16+4*n|uint32(len(own))<<16, 0)
	for _, e := range entries {
		u32(e[1]<<24 | e[0] - 0x100)
	}
	u32(own...)
	return b
}

// x86-64's and arm64's encodings, one of each kind, and what is damaged.
var someEncodings = []uint32{0x01030161, 0x020e0c0b, 0x03032000, 0x04000000, 0, 0x0100000e, 0x02080007, 0x05000000, 0x52020000}

func seeds() (out [][]byte) {
	var entries, compressed [][2]uint32
	for i, e := range someEncodings {
		entries = append(entries, [2]uint32{uint32(0x100 + 0x40*i), e})
		compressed = append(compressed, [2]uint32{uint32(0x100 + 0x40*i), uint32(i)})
	}
	return [][]byte{
		section(regularPage, nil, []uint32{0x2000}, nil, entries...),
		section(compressedPage, someEncodings[:4], []uint32{0x2000}, someEncodings[4:], compressed...),
	}
}

func text(t *Table) string {
	x, damage := t.Rows()
	var b strings.Builder
	x.WriteText(&b)
	for _, d := range damage {
		fmt.Fprintln(&b, d)
	}
	for e := range t.Entries {
		fmt.Fprintf(&b, "%x %x %08x %x %x %v\n", e.Lo, e.Hi, e.Encoding, e.Personality, e.LSDA, e.HasLSDA)
	}
	return b.String()
}

// TestPages: both kinds of pages say the same, and a damaged entry costs itself only.
func TestPages(t *testing.T) {
	const want = `machine x86_64
1100  cfa=rbp+16  rbx=c-40  rbp=c-16  r14=c-32  r15=c-24  ra=c-8  sync-only
1140  cfa=rsp+112  rbx=c-32  rbp=c-16  r14=c-24  ra=c-8  sync-only
1180  cfa=rsp+4376  ra=c-8  sync-only
11c0  gap
1300  cfa=rsp+16  ra=c-8  sync-only
1900  gap
`
	const entries = `1100 1140 01030161 0 0 false
1140 1180 020e0c0b 0 0 false
1180 11c0 03032000 0 0 false
11c0 1200 04000000 0 0 false
1200 1240 00000000 0 0 false
1240 1280 0100000e 0 0 false
1280 12c0 02080007 0 0 false
12c0 1300 05000000 0 0 false
1300 1900 52020000 3000 0 false
`
	for i, b := range seeds() {
		at := []int{0x70, 0x74}[i] // of the entry whose encoding is 0x0100000e
		step := []int{8, 4}[i]
		damage := fmt.Sprintf(`__TEXT,__unwind_info+%#x: function 0x1240, encoding 0x0100000e: the frame pointer is saved twice: malformed
__TEXT,__unwind_info+%#x: function 0x1280, encoding 0x02080007: no such permutation of 0 registers: malformed
__TEXT,__unwind_info+%#x: function 0x12c0, encoding 0x05000000: mode 5: unsupported
`, at, at+step, at+2*step)
		if got := text(table(arch.AMD64, b, false)); got != want+damage+entries {
			t.Errorf("page %d\n got %s\nwant %s", i, got, want+damage+entries)
		}
	}
	b := section(compressedPage, []uint32{0x04000001}, nil, nil, [2]uint32{0x100, 0}, [2]uint32{0x140, 9}, [2]uint32{0x180, 0})
	const damaged = `machine aarch64
1100  cfa=x29+16  x19=c-24  x20=c-32  x29=c-16  ra=c-8  sync-only
1140  gap
1180  cfa=x29+16  x19=c-24  x20=c-32  x29=c-16  ra=c-8  sync-only
1900  gap
__TEXT,__unwind_info+0x54: function 0x1140: encoding 9 of 1: malformed
1100 1140 04000001 0 0 false
1180 1900 04000001 0 0 false
`
	if got := text(table(arch.ARM64, b, false)); got != damaged {
		t.Errorf("an entry without an encoding\n got %s\nwant %s", got, damaged)
	}
	// The function with language-specific data is the first.
	b = section(regularPage, nil, []uint32{0x2000}, nil, [2]uint32{0x100, 0x54000000})
	if got, want := text(table(arch.ARM64, b, false)), "1100 1900 54000000 3000 1800 true\n"; !strings.HasSuffix(got, want) {
		t.Errorf("%s does not end with %s", got, want)
	}
}

// TestMachines: the records of an object file of i386.
func TestMachines(t *testing.T) {
	var b []byte
	for i, e := range []uint32{0x01030065, 0x02040000, 0x020c1116, 0x03034000} {
		for _, v := range []uint32{uint32(0x1000 + 0x20*i), 0x20, e, 0, 0} {
			b = binary.LittleEndian.AppendUint32(b, v)
		}
	}
	const want = `machine i386
1000  cfa=ebp+8  ebx=c-12  ebp=c-8  esi=c-20  edi=c-16  ra=c-4  sync-only
1020  cfa=esp+16  ra=c-4  sync-only
1040  cfa=esp+48  ebx=c-12  ebp=c-8  esi=c-20  edi=c-16  ra=c-4  sync-only
1060  cfa=esp+4376  ra=c-4  sync-only
1080  gap
__TEXT,__unwind_info+0x50: record: truncated
1000 1020 01030065 0 0 false
1020 1040 02040000 0 0 false
1040 1060 020c1116 0 0 false
1060 1080 03034000 0 0 false
`
	if got := text(table(arch.ByELF(arch.EM_386), append(b, 1, 2, 3), true)); got != want {
		t.Errorf("got %s\nwant %s", got, want)
	}
}

// TestUnapplied: a record with a relocation that could not be applied costs itself only.
func TestUnapplied(t *testing.T) {
	var b []byte
	for i := range uint32(4) {
		for _, v := range []uint32{0x1000 + 0x20*i, 0x20, 0x02040000, 0, 0} {
			b = binary.LittleEndian.AppendUint32(b, v)
		}
	}
	x := table(arch.I386, b, true)
	for _, off := range []uint64{0x14, 0x3c + 16} {
		x.bad = append(x.bad, module.RelocError{Section: x.name, Off: off, Type: "5", Msg: "in unwind information", Err: module.ErrUnsupported})
	}
	const want = `machine i386
1000  cfa=esp+16  ra=c-4  sync-only
1020  gap
1040  cfa=esp+16  ra=c-4  sync-only
1060  gap
__TEXT,__unwind_info+0x14: relocation 5: in unwind information: unsupported
__TEXT,__unwind_info+0x4c: relocation 5: in unwind information: unsupported
1000 1020 02040000 0 0 false
1040 1060 02040000 0 0 false
`
	if got := text(x); got != want {
		t.Errorf("got %s\nwant %s", got, want)
	}
}

// TestBounds: each address has the range of its entry.
func TestBounds(t *testing.T) {
	for i, b := range seeds() {
		x := table(arch.AMD64, b, false)
		n := 0
		for e := range x.Entries {
			n++
			for _, pc := range []arch.Vaddr{e.Lo, e.Hi - 1} {
				if lo, hi, ok := x.Bounds(pc); lo != e.Lo || hi != e.Hi || !ok {
					t.Errorf("page %d: Bounds(%#x) = %#x, %#x, %v, want those of %#x", i, pc, lo, hi, ok, e.Lo)
				}
			}
		}
		for _, pc := range []arch.Vaddr{0, 0x10ff, 0x1900, 1 << 63} {
			if lo, hi, ok := x.Bounds(pc); ok {
				t.Errorf("page %d: Bounds(%#x) = %#x, %#x", i, pc, lo, hi)
			}
		}
		if n != len(someEncodings) {
			t.Errorf("page %d: %d entries", i, n)
		}
	}
}

// TestPermutations: each number of registers has as many permutations as there are ways to choose them in order, all different; the next number is
// refused. The examples of mach-o/compact_unwind_encoding.h count up to six registers.
func TestPermutations(t *testing.T) {
	ways := 1
	for n := range 7 {
		if n > 0 {
			ways *= 7 - n
		}
		seen := map[string]bool{}
		for p := range ways {
			numbers, err := permuted(n, uint32(p))
			if err != nil || len(numbers) != n {
				t.Fatalf("%d of %d registers: %v", p, n, err)
			}
			sorted := slices.Clone(numbers)
			slices.Sort(sorted)
			if len(slices.Compact(sorted)) != n || n > 0 && (sorted[0] < 1 || sorted[n-1] > 6) {
				t.Errorf("permutation %d of %d registers: %v", p, n, numbers)
			}
			seen[fmt.Sprint(numbers)] = true
		}
		if len(seen) != ways {
			t.Errorf("%d registers: %d permutations, want %d", n, len(seen), ways)
		}
		if _, err := permuted(n, uint32(ways)); err == nil {
			t.Errorf("permutation %d of %d registers", ways, n)
		}
	}
	if numbers, _ := permuted(3, 11); fmt.Sprint(numbers) != "[1 4 6]" {
		t.Errorf("the worked example: %v", numbers)
	}
}

// TestHostile: an index that leads to one page again and again does not multiply the work, and no truncation or flipped bit is fatal.
func TestHostile(t *testing.T) {
	const n = 100_000
	b := make([]byte, headerSize+n*indexSize+8+8*0xffff)
	le := binary.LittleEndian
	for i, v := range []uint32{1, headerSize, 0, headerSize, 0, headerSize, n} {
		le.PutUint32(b[4*i:], v)
	}
	page := headerSize + n*indexSize
	for i := range n {
		le.PutUint32(b[headerSize+i*indexSize:], uint32(i))
		le.PutUint32(b[headerSize+i*indexSize+4:], uint32(page))
	}
	le.PutUint32(b[page:], regularPage)
	le.PutUint32(b[page+4:], 8|0xffff<<16)
	start := time.Now()
	if _, damage := table(arch.ARM64, b, false).Rows(); len(damage) == 0 || !strings.Contains(damage[len(damage)-1].Error(), "pages overlap") {
		t.Errorf("damage %v", damage)
	}
	if took := time.Since(start); took > 5*time.Second {
		t.Errorf("%v for %d bytes", took, len(b))
	}
	for _, m := range []*arch.Machine{arch.AMD64, arch.ARM64, arch.ByELF(arch.EM_386)} {
		for _, b := range seeds() {
			for i := range b {
				table(m, b[:i:i], false).Rows()
				table(m, b[i:], true).Rows()
			}
			c := bytes.Clone(b)
			for i := range 8 * len(c) {
				c[i/8] ^= 1 << (i % 8)
				table(m, c, false).Rows()
				c[i/8] ^= 1 << (i % 8)
			}
		}
	}
}

// FuzzRows: no section panics, hangs or gives more rows than it has bytes; rows are sorted; the key is the same each time.
func FuzzRows(f *testing.F) {
	for _, b := range seeds() {
		for k := range byte(6) {
			f.Add(k, b)
		}
	}
	f.Fuzz(func(t *testing.T, kind byte, b []byte) {
		m := []*arch.Machine{arch.AMD64, arch.ARM64, arch.ByELF(arch.EM_386)}[kind%3]
		x := table(m, b, kind/3%2 == 1)
		got, _ := x.Rows()
		if len(got.Rows) > len(b) {
			t.Errorf("%d rows of %d bytes", len(got.Rows), len(b))
		}
		for i := 1; i < len(got.Rows); i++ {
			if got.Rows[i].Lo <= got.Rows[i-1].Lo {
				t.Errorf("row %d at %#x, after %#x", i, got.Rows[i].Lo, got.Rows[i-1].Lo)
			}
		}
		for i := range got.Sets {
			if s := &got.Sets[i]; !s.Gap() && s.Flags != rows.SyncOnly {
				t.Errorf("set %d has the flags %v", i, s.Flags)
			}
		}
		var one, two bytes.Buffer
		x.Sum(&one)
		x.Sum(&two)
		if !bytes.Equal(one.Bytes(), two.Bytes()) {
			t.Errorf("Sum writes\n%x, the second time\n%x", one.Bytes(), two.Bytes())
		}
		x.Bounds(0x1140)
	})
}
