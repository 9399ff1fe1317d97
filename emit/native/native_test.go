package native

import (
	"bytes"
	"debug/elf"
	"errors"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/format/dwarf"
	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/module"
	"github.com/unspool/unspool/rows"
	"github.com/unspool/unspool/rows/rowstest"
)

const (
	libc = "/lib/x86_64-linux-gnu/libc.so.6"
	ld   = "/lib64/ld-linux-x86-64.so.2"
)

// readTable returns the rows of a file.
func readTable(t testing.TB, path string) *rows.Table {
	t.Helper()
	img, err := module.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		oracle.Lacks(t, path)
	} else if err != nil {
		t.Fatal(err)
	}
	defer img.Close()
	f, err := dwarf.Open(img)
	if err != nil {
		t.Fatal(err)
	}
	ref, _ := f.Build(dwarf.Both)
	return ref
}

// all calls f for each layout and memory kind.
func all(t *testing.T, f func(t *testing.T, o Options)) {
	for l := range numLayouts {
		for d := range numDerefs {
			o := Options{Layout: l, Deref: d, ID: "0123456789abcdef"}
			t.Run(l.String()+" "+d.String(), func(t *testing.T) { f(t, o) })
		}
	}
}

// emitted returns a table's code, loaded; mustLoad closes it at the end of the test.
func emitted(t testing.TB, ref *rows.Table, o Options) *Code {
	t.Helper()
	b, err := Emit(ref, o)
	if err != nil {
		t.Fatal(err)
	}
	c, err := Load(b)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func mustLoad(t testing.TB, ref *rows.Table, o Options) *Code {
	t.Helper()
	c := emitted(t, ref, o)
	t.Cleanup(func() { c.Close() })
	return c
}

// armRoot is where Debian's cross compiler for AArch64 has its libraries.
const armRoot = "/usr/aarch64-linux-gnu/lib/"

// TestVerify proves the code of real modules, in every layout and with every memory kind.
func TestVerify(t *testing.T) {
	oracle.Long(t)
	paths := []string{ld, armRoot + "ld-linux-aarch64.so.1"}
	if !testing.Short() {
		paths = append(paths, libc, armRoot+"libc.so.6", armRoot+"libstdc++.so.6")
	}
	for _, path := range paths {
		ref := readTable(t, path)
		if ref.Machine == arch.AMD64 && !callable(ref.Machine) {
			continue
		}
		all(t, func(t *testing.T, o Options) {
			if o.Layout == Inline && len(ref.Rows) > 10_000 {
				return // as ld.so, and long: every row has a rule of its own
			}
			c := mustLoad(t, ref, o)
			if err := Verify(c, ref, 1); err != nil {
				t.Fatal(err)
			}
			t.Logf("%s: %d bytes, of them %d of code", path, len(c.Bytes()), c.TextSize())
		})
	}
}

// TestStateLayout holds the offsets in the emitted code against the structures they stand for.
func TestStateLayout(t *testing.T) {
	var s rows.State
	var m slice
	var w word
	var r reader
	for _, x := range []struct {
		name      string
		got, want uintptr
	}{
		{"PC", unsafe.Offsetof(s.PC), offPC}, {"CFA", unsafe.Offsetof(s.CFA), offCFA}, {"Known", unsafe.Offsetof(s.Known), offKnown},
		{"InMem", unsafe.Offsetof(s.InMem), offInMem}, {"InReg", unsafe.Offsetof(s.InReg), offInReg}, {"Val", unsafe.Offsetof(s.Val), offVal},
		{"Snap", unsafe.Offsetof(s.Snap), offSnap}, {"Fault", unsafe.Offsetof(s.Fault), offFault},
		{"lo", unsafe.Offsetof(m.lo), sliceLo}, {"size", unsafe.Offsetof(m.size), sliceSize}, {"bytes", unsafe.Offsetof(m.bytes), sliceBytes},
		{"words", unsafe.Offsetof(m.words), sliceWords}, {"n", unsafe.Offsetof(m.n), sliceN}, {"more", unsafe.Offsetof(m.more), sliceMore},
		{"addr", unsafe.Offsetof(w.addr), wordAddr}, {"value", unsafe.Offsetof(w.value), wordValue}, {"ok", unsafe.Offsetof(w.ok), wordOK},
		{"slice addresses", unsafe.Offsetof(m.addresses), sliceAddresses}, {"reader addresses", unsafe.Offsetof(r.addresses), readerAddresses},
		{"a word", unsafe.Sizeof(w), wordSize}, {"an info", unsafe.Sizeof(info{}), infoSize},
	} {
		if x.got != x.want {
			t.Errorf("%s: at %d\n want %d", x.name, x.got, x.want)
		}
	}
}

// TestArmRuns runs the tests of code for AArch64 there, under qemu-user: what Verify interprets on other machines is run.
func TestArmRuns(t *testing.T) {
	oracle.Long(t)
	if callable(arch.ARM64) {
		return // the tests themselves run it
	}
	oracle.Need(t, "go", "qemu-aarch64")
	prog := filepath.Join(t.TempDir(), "native.test")
	build := exec.Command("go", "test", "-c", "-o", prog, ".")
	build.Env = append(os.Environ(), "GOARCH=arm64", "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	out, err := exec.Command("timeout", "-s", "KILL", "500", "qemu-aarch64", "-cpu", "max", prog, "-test.v", "-test.run", "^Test(Verify|Random|Expressions|StateLayout|Signed)$").CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, want := range []string{"--- PASS: TestVerify", "--- PASS: TestRandom/aarch64", "--- PASS: TestExpressions/aarch64", "--- PASS: TestStateLayout", "--- PASS: TestSigned"} {
		if !bytes.Contains(out, []byte(want)) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
}

// strips says whether xpaclri takes signatures from addresses here: the interpreter does, and a processor with pointer authentication.
func strips(t *testing.T) bool {
	t.Helper()
	if !callable(arch.ARM64) {
		return true
	}
	const atHWCAP, hwcapPACA = 16, 1 << 30 // of Linux's auxvec.h, and of its asm/hwcap.h
	aux, err := unix.Auxv()
	if err != nil {
		t.Fatal(err)
	}
	return slices.ContainsFunc(aux, func(x [2]uintptr) bool { return x[0] == atHWCAP && x[1]&hwcapPACA != 0 })
}

// TestSigned: code for AArch64 takes the signature from a return address: by the processor itself in its own process, else by what its caller
// says of addresses. A processor that does not know signatures leaves an address alone.
func TestSigned(t *testing.T) {
	own := uint64(0x0000_7fff_1234_5678)
	if !strips(t) {
		own = 0x0055_7fff_1234_5678
	}
	ref := oneSet(arch.ARM64, rows.Set{RA: 30, CFA: rows.CFA{Kind: rows.CFAReg, Reg: 31, Off: 16}, Flags: rows.RASigned})
	for _, x := range []struct {
		deref     Deref
		addresses uint64
		ra, want  uint64
	}{
		{Self, 0, 0x0055_7fff_1234_5678, own},
		{Self, 0, 0x0000_7fff_1234_5678, 0x0000_7fff_1234_5678},
		{Slice, 0, 0x1255_7fff_1234_5678, 0x0000_7fff_1234_5678},
		{Slice, 1<<52 - 1, 0x1258_7fff_1234_5678, 0x0008_7fff_1234_5678},
		{Callback, 0, 0x1255_7fff_1234_5678, 0x0000_7fff_1234_5678},
		{Callback, 1<<39 - 1, 0x1255_7fff_1234_5678, 0x0000_007f_1234_5678},
	} {
		c := mustLoad(t, ref, Options{Deref: x.deref})
		s := new(rows.State)
		s.Known = 1<<30 | 1<<31
		s.Val[30], s.Val[31] = x.ra, 0x1000
		mem := sliceMemory(&slice{addresses: x.addresses}, nil, nil)
		if x.deref == Callback {
			r := &reader{addresses: x.addresses}
			mem.arg = unsafe.Pointer(r)
			mem.add(mem.arg, int(unsafe.Sizeof(*r)))
		}
		id := uint64(1)
		if o, err := c.call(c.in.Entries[entryApply], s, mem, id); err != nil || o != 0 || s.PC != x.want || s.CFA != 0x1010 {
			t.Errorf("%v, addresses %#x, return address %#x\n got  %d, %v, %#x\n want %#x", x.deref, x.addresses, x.ra, o, err, s.PC, x.want)
		}
	}
}

// TestSizes: files for AArch64 have at most 0.6 of the size of .eh_frame.
func TestSizes(t *testing.T) {
	var total, frames int
	for _, name := range []string{"ld-linux-aarch64.so.1", "libc.so.6", "libm.so.6", "libstdc++.so.6"} {
		f, err := elf.Open(armRoot + name)
		if err != nil {
			oracle.Lacks(t, armRoot+name)
		}
		frame := int(f.Section(".eh_frame").Size)
		f.Close()
		b, err := Emit(readTable(t, armRoot+name), Options{ID: "0123456789abcdef0123456789abcdef01234567"})
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%s: %d bytes, %.3f of .eh_frame", name, len(b), float64(len(b))/float64(frame))
		total, frames = total+len(b), frames+frame
		if frame > 16<<10 && 10*len(b) > 6*frame { // in smaller ones, what all files have counts
			t.Errorf("%s: %d bytes; .eh_frame has %d", name, len(b), frame)
		}
	}
	if t.Logf("%.3f in all", float64(total)/float64(frames)); 10*total > 6*frames {
		t.Errorf("%d bytes; .eh_frame has %d", total, frames)
	}
}

// TestSegments: each segment lies on pages of its own, as large as the machine's can be, at the same place in them as in the file.
func TestSegments(t *testing.T) {
	for m, page := range map[*arch.Machine]uint64{arch.AMD64: 4 << 10, arch.ARM64: 64 << 10} {
		r := rand.New(rand.NewPCG(6, 7))
		for _, n := range []int{0, 1, 20, 300} {
			b, err := Emit(rowstest.Table(r, m, n), Options{})
			if err != nil {
				t.Fatal(err)
			}
			f, err := elf.NewFile(bytes.NewReader(b))
			if err != nil {
				t.Fatal(err)
			}
			end, loads := uint64(0), 0
			for _, p := range f.Progs {
				if p.Type != elf.PT_LOAD {
					continue
				}
				if p.Align != page || p.Vaddr%page != p.Off%page || p.Vaddr/page < end {
					t.Errorf("%s, %d rows: %+v, behind page %d", m.Name, n, p.ProgHeader, end)
				}
				end = (p.Vaddr + p.Memsz + page - 1) / page
				loads++
			}
			dynamic := f.Section(".dynamic")
			if loads != 2 || dynamic.Addr%page != dynamic.Offset%page {
				t.Errorf("%s, %d rows: %d segments; .dynamic is at %#x, in the file at %#x", m.Name, n, loads, dynamic.Addr, dynamic.Offset)
			}
		}
	}
}

// TestTools shows a file to readelf, objdump and gdb.
func TestTools(t *testing.T) {
	oracle.Need(t, "readelf", "objdump")
	for _, path := range []string{ld, armRoot + "ld-linux-aarch64.so.1"} {
		t.Run(filepath.Base(path), func(t *testing.T) { testTools(t, readTable(t, path)) })
	}
}

func testTools(t *testing.T, ref *rows.Table) {
	b, err := Emit(ref, Options{ID: "0123"})
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "x.eh_elf.so")
	if err := os.WriteFile(path, b, 0o644); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("readelf", "-aW", path).CombinedOutput()
	if err != nil || bytes.Contains(out, []byte("Warning")) || bytes.Contains(out, []byte("Error")) {
		t.Errorf("readelf: %v\n%s", err, out)
	}
}
