package test

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/emit/compact"
	"github.com/unspool/unspool/format/dwarf"
	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/module"
	"github.com/unspool/unspool/rows"
	"github.com/unspool/unspool/rows/rowstest"
)

// A coreMachine is a machine whose core is tested: compilers for it, what its programs run with, and files whose rows it has.
type coreMachine struct {
	mach   *arch.Machine
	cc     []string
	run    []string
	files  []string // whose rows are asked for
	slots  uint64
	checks []string // flags that make a compiler's programs check themselves; none where they cannot run
}

var coreMachines = []coreMachine{
	{mach: arch.AMD64, cc: []string{"gcc", "clang-19"}, slots: 17, checks: []string{"-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-g"},
		files: []string{"/lib/x86_64-linux-gnu/libc.so.6", "/usr/lib/x86_64-linux-gnu/libcrypto.so.3"}},
	{mach: arch.ARM64, cc: []string{"aarch64-linux-gnu-gcc"}, run: []string{"qemu-aarch64", "-L", armRoot}, slots: 43, checks: []string{"-fsanitize=undefined", "-fno-sanitize-recover=all", "-g"},
		files: []string{armRoot + "/lib/libc.so.6", armRoot + "/lib/libstdc++.so.6"}},
}

// armRoot is where Debian's cross compiler for AArch64 has its libraries.
const armRoot = "/usr/aarch64-linux-gnu"

// need skips a test where the machine's programs cannot be built or run.
func (m *coreMachine) need(t *testing.T) {
	t.Helper()
	oracle.Need(t, m.cc...)
	if len(m.run) > 0 {
		oracle.Need(t, m.run[0])
	}
}

// What testdata/core.c reads and writes.
type coreState struct {
	PC, CFA, Known, InMem, InReg uint64
	Val, Snap                    [arch.NumSlots]uint64
	Fault                        uint64
}

type coreQuestion struct {
	PC, Seed uint64
	State    coreState
}

type coreAnswer struct {
	Found, Outcome, Signal, _ uint32
	State                     coreState
}

type coreHead struct{ Kind, Size, Lo, Hdr, EH, EHEnd, N uint64 }

// A coreCase is bytes and questions about them.
type coreCase struct {
	name  string
	head  coreHead
	bytes []byte
	ref   *rows.Table // nil: only that the answers come
	ask   []coreAsked
}

// A coreAsked is what a question is about: a program counter, and which state of adversaries'.
type coreAsked struct {
	pc arch.Vaddr
	n  int
}

func memOf[T any](s []T) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(s))), len(s)*int(unsafe.Sizeof(*new(T))))
}

// question asks about a program counter in the n-th adversarial state.
func (m *coreMachine) question(a coreAsked) coreQuestion {
	seed := rowstest.Mix(uint64(a.n) ^ uint64(a.pc)<<8)
	b := &rows.NewTrial(seed, a.n%rows.NumTrials).Before
	all := uint64(1)<<m.slots - 1
	c := coreState{PC: b.PC, CFA: b.CFA, Known: b.Known & all, InMem: b.InMem & all, InReg: b.InReg & all, Fault: b.Fault}
	for i := range m.slots {
		c.Val[i], c.Snap[i] = b.Val[i], b.Snap[i]
		if c.InReg>>i&1 != 0 && c.InMem>>i&1 == 0 {
			c.Val[i] %= m.slots
		}
	}
	return coreQuestion{uint64(a.pc), seed, c}
}

func (c *coreState) rows() (s rows.State) {
	s = rows.State{PC: c.PC, CFA: c.CFA, Known: c.Known, InMem: c.InMem, InReg: c.InReg, Fault: c.Fault}
	copy(s.Val[:], c.Val[:])
	copy(s.Snap[:], c.Snap[:])
	return s
}

// ends asks about both ends of each row, of about limit rows.
func (m *coreMachine) ends(ref *rows.Table, limit int) (qs []coreAsked) {
	skip := 1 + len(ref.Rows)/limit
	for i, r := range ref.Rows {
		if i%skip == 0 {
			qs = append(qs, coreAsked{r.Lo, len(qs)}, coreAsked{ref.Hi(i) - 1, len(qs) + 1})
		}
	}
	return qs
}

// sections makes a case of an ELF file's .eh_frame and .eh_frame_hdr. ok is false where it has none.
func (m *coreMachine) sections(img *module.Image) (c coreCase, ok bool) {
	hdr, eh := img.Section(".eh_frame_hdr"), img.Section(".eh_frame")
	if img.Machine() != m.mach || eh == nil {
		return c, false
	}
	lo, hi := eh.Addr, eh.Addr+arch.Vaddr(eh.Size)
	c.head = coreHead{Kind: 1, EH: uint64(lo), EHEnd: uint64(hi)}
	if hdr != nil {
		lo, hi = min(lo, hdr.Addr), max(hi, hdr.Addr+arch.Vaddr(hdr.Size))
		c.head.Hdr = uint64(hdr.Addr)
	}
	b, ok := img.At(lo, int(hi-lo))
	if !ok {
		return c, false
	}
	c.name, c.bytes, c.head.Lo = img.Name(), b, uint64(lo)
	return c, true
}

// build compiles testdata/core.c with the core, and returns the command that runs it.
func (m *coreMachine) build(t *testing.T, cc string, flags ...string) []string {
	t.Helper()
	args := append([]string{"-std=c11", "-Wall", "-Wextra", "-Werror", "-O2", "-I..", fmt.Sprintf("-DSTATE_SLOTS=%d", arch.NumSlots)}, flags...)
	prog := compiledAs(t, "core", cc, append(args, "testdata/core.c", "../core.c", "../frames.c", "../rule.c", "../table.c")...)
	return append(slices.Clone(m.run), prog)
}

// answers asks the program about the cases, and gives each answer to check with its question. No more of them are in memory than pipes hold.
func (m *coreMachine) answers(t *testing.T, prog []string, cases []coreCase, check func(c *coreCase, q *coreQuestion, a *coreAnswer)) {
	t.Helper()
	cmd := exec.Command(prog[0], prog[1:]...)
	cmd.Stderr = os.Stderr
	cmd.Env = append(os.Environ(), "ASAN_OPTIONS=detect_leaks=0")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	asked := make(chan error, 1)
	go func() {
		w := bufio.NewWriterSize(in, 1<<16)
		for i := range cases {
			c := &cases[i]
			c.head.Size, c.head.N = uint64(len(c.bytes)), uint64(len(c.ask))
			w.Write(memOf([]coreHead{c.head}))
			w.Write(c.bytes)
			for _, a := range c.ask {
				q := m.question(a)
				w.Write(memOf([]coreQuestion{q}))
			}
		}
		asked <- errors.Join(w.Flush(), in.Close())
	}()
	r := bufio.NewReaderSize(out, 1<<16)
	var answer [1]coreAnswer
	for i := range cases {
		for _, a := range cases[i].ask {
			if _, err := io.ReadFull(r, memOf(answer[:])); err != nil {
				t.Fatalf("%s: %v; %v", cases[i].name, err, cmd.Wait())
			}
			q := m.question(a)
			check(&cases[i], &q, &answer[0])
		}
	}
	rest, err := io.Copy(io.Discard, r)
	if err := errors.Join(err, <-asked, cmd.Wait()); err != nil || rest > 0 {
		t.Fatalf("%v; %d bytes too many", err, rest)
	}
}

// checkCore holds an answer against Step.
func checkCore(ref *rows.Table, q *coreQuestion, a *coreAnswer) error {
	set := ref.At(arch.Vaddr(q.PC))
	if found := a.Found == 0; found == set.Gap() {
		return fmt.Errorf("at %#x: found %d, but the row is %s", q.PC, a.Found, set.Text(ref.Machine))
	} else if !found {
		return nil
	}
	if signal := set.Flags&rows.Signal != 0; signal != (a.Signal != 0) {
		return fmt.Errorf("at %#x: signal %d, want %v", q.PC, a.Signal, signal)
	}
	before := q.State.rows()
	m := rows.Memory{Next: rowstest.Numbers(q.Seed)}
	if q.Seed&1 != 0 && ref.Machine == arch.ARM64 {
		m.Addresses = 1<<52 - 1
	}
	var c rows.Checker
	err := c.Check(ref.Machine, set, &before, &m, func(s *rows.State) rows.Outcome {
		*s = a.State.rows()
		return rows.Outcome(a.Outcome)
	})
	if err != nil {
		return fmt.Errorf("us_apply at %#x%w", q.PC, err)
	}
	return nil
}

func (m *coreMachine) checkCases(t *testing.T, prog []string, cases []coreCase) {
	t.Helper()
	n, bad := 0, map[*coreCase]int{}
	m.answers(t, prog, cases, func(c *coreCase, q *coreQuestion, a *coreAnswer) {
		if c.ref == nil {
			return
		}
		n++
		if err := checkCore(c.ref, q, a); err != nil {
			if bad[c]++; bad[c] <= 2 {
				t.Errorf("%s: %v", c.name, err)
			}
		}
	})
	for c, n := range bad {
		t.Errorf("%s: %d of %d answers differ", c.name, n, len(c.ask))
	}
	t.Logf("%d answers in %d cases", n, len(cases))
}

// reseal makes a damaged table's checksum right, if it still has a header that says its size.
func reseal(b []byte) {
	if len(b) < 16 {
		return
	}
	copy(b, "uTbl")
	n := min(uint64(binary.LittleEndian.Uint32(b[8:])), uint64(len(b)))
	if n < 16 {
		return
	}
	sum := crc32.Update(crc32.Checksum(b[:12], castagnoli), castagnoli, b[16:n])
	binary.LittleEndian.PutUint32(b[12:], sum)
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// TestCoreTables: rules of compact tables, wide ones and expressions included, do what Step does.
func TestCoreTables(t *testing.T) {
	for _, m := range coreMachines {
		t.Run(m.mach.Name, m.tables)
	}
}

func (m *coreMachine) tables(t *testing.T) {
	m.need(t)
	r := rand.New(rand.NewPCG(5, 6))
	var cases []coreCase
	add := func(name string, ref *rows.Table, limit int) {
		b, err := compact.Emit(ref)
		if err != nil {
			t.Fatal(err)
		}
		cases = append(cases, coreCase{name: name, bytes: b, ref: ref, ask: m.ends(ref, limit)})
	}
	for i := range 60 {
		add(fmt.Sprint("random table ", i), rowstest.Table(r, m.mach, r.IntN(60)), 3000)
	}
	for _, path := range m.files {
		if ref := ehRows(t, path); ref != nil {
			add(path, ref, 50_000) // of these, all
		}
	}
	for _, cc := range m.cc {
		t.Run(cc, func(t *testing.T) { m.checkCases(t, m.build(t, cc), cases) })
	}
	t.Run("sanitized", func(t *testing.T) {
		prog := m.build(t, m.cc[0], m.checks...)
		m.checkCases(t, prog, cases[:20])
		m.checkCases(t, prog, damaged(r, cases[:20], 20, true))
	})
}

func openImage(t *testing.T, path string) *module.Image {
	img, err := module.Open(path)
	if err != nil {
		return nil
	}
	t.Cleanup(func() { img.Close() })
	return img
}

// ehRows returns the rows of a file's .eh_frame, or nil.
func ehRows(t *testing.T, path string) *rows.Table {
	img := openImage(t, path)
	if img == nil {
		return nil
	}
	f, err := dwarf.Open(img)
	if err != nil {
		return nil
	}
	ref, _ := f.Build(dwarf.EHFrame)
	return ref
}

// damaged returns cases with bytes changed, about which only questions are asked.
func damaged(r *rand.Rand, cases []coreCase, times int, sealed bool) (out []coreCase) {
	for _, c := range cases {
		for range times {
			x := c
			x.ref, x.bytes, x.ask = nil, bytes.Clone(c.bytes), nil
			for range 1 + r.IntN(30) {
				if len(x.bytes) > 0 {
					x.bytes[r.IntN(len(x.bytes))] = byte(r.Uint32())
				}
			}
			if sealed {
				reseal(x.bytes)
			}
			for i := 0; i < len(c.ask); i += 1 + len(c.ask)/50 {
				x.ask = append(x.ask, c.ask[i])
			}
			out = append(out, x)
		}
	}
	return out
}

// hiding links functions whose FDEs lld leaves out of the search table, because empty functions have the same start (docs/FINDINGS.md). It returns
// the path.
func (m *coreMachine) hiding(t *testing.T) string {
	t.Helper()
	oracle.Need(t, "clang-19", "ld.lld-19")
	var src strings.Builder
	src.WriteString(".text\n")
	for i, empty := range []int{1, 0, 3, 63} {
		for range empty {
			src.WriteString(".cfi_startproc\n.cfi_endproc\n")
		}
		fmt.Fprintf(&src, ".cfi_startproc\nnop\n.cfi_def_cfa_offset %d\nnop\n.cfi_endproc\n", 16*(i+1))
	}
	dir := t.TempDir()
	asm, obj, lib := filepath.Join(dir, "a.s"), filepath.Join(dir, "a.o"), filepath.Join(dir, "hiding.so")
	if err := os.WriteFile(asm, []byte(src.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	target := map[*arch.Machine]string{arch.AMD64: "x86_64-linux-gnu", arch.ARM64: "aarch64-linux-gnu"}[m.mach]
	for _, c := range [][]string{{"clang-19", "--target=" + target, "-c", "-o", obj, asm}, {"ld.lld-19", "-shared", "--eh-frame-hdr", "-o", lib, obj}} {
		if out, err := exec.Command(c[0], c[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %v\n%s", c, err, out)
		}
	}
	img := openImage(t, lib)
	b, err := img.Data(img.Section(".eh_frame_hdr"))
	if err != nil || len(b) < 12 || binary.LittleEndian.Uint32(b[8:]) != 4 {
		t.Fatalf("%s: %v, % x: .eh_frame_hdr has not four entries", lib, err, b)
	}
	return lib
}

// TestCoreFrames: the C reader of .eh_frame makes the rules that package dwarf makes.
func TestCoreFrames(t *testing.T) {
	for _, m := range coreMachines {
		t.Run(m.mach.Name, m.frames)
	}
}

func (m *coreMachine) frames(t *testing.T) {
	m.need(t)
	var cases []coreCase
	paths := slices.Clone(m.files)
	if m.mach == arch.AMD64 {
		paths = append(paths, oracle.Spread(oracle.Binaries(t), 60)...)
		paths = append(paths, "/lib64/ld-linux-x86-64.so.2", "/usr/lib/x86_64-linux-gnu/libgcrypt.so.20")
	} else {
		all, _ := filepath.Glob(armRoot + "/lib/*.so.*")
		paths = append(paths, all...)
	}
	paths = append(paths, m.hiding(t))
	for _, path := range paths {
		img := openImage(t, path)
		if img == nil || !img.Linked() {
			continue
		}
		c, ok := m.sections(img)
		if !ok {
			continue
		}
		if c.ref = ehRows(t, path); c.ref == nil {
			continue
		}
		c.ask = m.ends(c.ref, 4000)
		if c.head.Hdr == 0 {
			c.ask = c.ask[:min(len(c.ask), 200)] // each looks at all entries
		}
		cases = append(cases, c)
	}
	for _, cc := range m.cc {
		t.Run(cc, func(t *testing.T) { m.checkCases(t, m.build(t, cc), cases) })
	}
	t.Run("sanitized", func(t *testing.T) {
		r := rand.New(rand.NewPCG(7, 8))
		prog := m.build(t, m.cc[0], m.checks...)
		var small []coreCase
		for _, c := range cases {
			if len(c.bytes) < 20_000 {
				small = append(small, c)
			}
		}
		m.checkCases(t, prog, small)
		m.checkCases(t, prog, damaged(r, small, 30, false))
	})
}
