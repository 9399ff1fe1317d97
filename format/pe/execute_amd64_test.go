package pe

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/format/pclntab"
	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/internal/ptrace"
	"github.com/unspool/unspool/module"
	"github.com/unspool/unspool/rows"
)

// An execution runs functions of an image, one instruction after the other, on a shadow stack of their calls.
type execution struct {
	t      *testing.T
	path   string
	img    *module.Image
	tab    *Table
	rows   *rows.Table
	r      *rand.Rand
	code   *reader
	amd64  *amd64
	golang bool     // Go preserves no registers
	where  []uint32 // beginnings of functions

	pid                                   int
	base, stop, stack, top, lo, hi, delta uint64

	mem   rows.Memory
	state rows.State

	steps, compared, calls, returned int
	seen                             map[uint64]bool // addresses that were compared
	wrong                            map[uint64]string
	unwind                           []called
}

// A called is a call that has not returned: what will hold then.
type called struct {
	ra, sp uint64
	gen    [8]uint64
	xmm    [10][2]uint64
}

// registers is a thread's registers.
type registers struct {
	unix.PtraceRegs
	fp [512]byte // as FXSAVE lays them out
}

func (c *registers) xmm(i int) (v [2]uint64) {
	return [2]uint64{binary.LittleEndian.Uint64(c.fp[160+16*i:]), binary.LittleEndian.Uint64(c.fp[168+16*i:])}
}

// slots are the general registers by slot.
func (c *registers) slots() [17]uint64 {
	return [17]uint64{c.Rax, c.Rdx, c.Rcx, c.Rbx, c.Rsi, c.Rdi, c.Rbp, c.Rsp, c.R8, c.R9, c.R10, c.R11, c.R12, c.R13, c.R14, c.R15, c.Rip}
}

func (c *registers) saved() (s called) {
	s.gen = [8]uint64{c.Rbx, c.Rsi, c.Rdi, c.Rbp, c.R12, c.R13, c.R14, c.R15}
	for i := range s.xmm {
		s.xmm[i] = c.xmm(6 + i)
	}
	return s
}

func fpregs(request uintptr, pid int, b *[512]byte) error {
	io := unix.Iovec{Base: &b[0], Len: uint64(len(b))}
	if _, _, e := unix.RawSyscall6(unix.SYS_PTRACE, request, uintptr(pid), 2, uintptr(unsafe.Pointer(&io)), 0, 0); e != 0 {
		return e
	}
	return nil
}

func (x *execution) get(c *registers) error {
	return errors.Join(unix.PtraceGetRegs(x.pid, &c.PtraceRegs), fpregs(unix.PTRACE_GETREGSET, x.pid, &c.fp))
}

// Read8 implements rows.Reader.
func (x *execution) Read8(addr uint64) (uint64, bool) {
	var b [8]byte
	if !x.read(addr, b[:]) {
		return 0, false
	}
	return binary.LittleEndian.Uint64(b[:]), true
}

func (x *execution) read(addr uint64, b []byte) bool {
	n, err := unix.ProcessVMReadv(x.pid, []unix.Iovec{{Base: &b[0], Len: uint64(len(b))}}, []unix.RemoteIovec{{Base: uintptr(addr), Len: len(b)}}, 0)
	return err == nil && n == len(b)
}

func (x *execution) write(addr uint64, b []byte) bool {
	n, err := unix.ProcessVMWritev(x.pid, []unix.Iovec{{Base: &b[0], Len: uint64(len(b))}}, []unix.RemoteIovec{{Base: uintptr(addr), Len: len(b)}}, 0)
	return err == nil && n == len(b)
}

// loader compiles the program that maps images.
func loader(t *testing.T) string {
	oracle.Need(t, "gcc")
	bin := filepath.Join(t.TempDir(), "loader")
	oracle.Run(t, "gcc", "-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-o", bin, "testdata/loader.c")
	return bin
}

// start starts the loader and waits until it has mapped the image. It must be called on the thread that traces.
func (x *execution) start(loader string) error {
	in, out, err := os.Pipe()
	if err != nil {
		return err
	}
	defer in.Close()
	cmd := exec.Command(loader, x.path)
	cmd.Stdout = out
	cmd.SysProcAttr = &syscall.SysProcAttr{Ptrace: true, Pdeathsig: syscall.SIGKILL}
	err = cmd.Start()
	out.Close()
	if err != nil {
		return err
	}
	x.pid = cmd.Process.Pid
	var ws unix.WaitStatus
	if _, err := unix.Wait4(x.pid, &ws, unix.WALL, nil); err != nil || !ws.Stopped() {
		return fmt.Errorf("the loader: %v, %#x", err, ws)
	}
	if err := unix.PtraceSetOptions(x.pid, 1<<20); err != nil { // PTRACE_O_EXITKILL
		return err
	}
	if err := unix.PtraceCont(x.pid, 0); err != nil {
		return err
	}
	if _, err := unix.Wait4(x.pid, &ws, unix.WALL, nil); err != nil || !ws.Stopped() || ws.StopSignal() != unix.SIGTRAP {
		return fmt.Errorf("the loader: %v, %#x", err, ws)
	}
	if _, err := fmt.Fscanf(in, "%x %x %x %x %x %x\n", &x.base, &x.stop, &x.stack, &x.top, &x.lo, &x.hi); err != nil {
		return err
	}
	x.delta = x.base - uint64(x.tab.base)
	return nil
}

func (x *execution) kill() {
	unix.Kill(x.pid, unix.SIGKILL)
	var ws unix.WaitStatus
	unix.Wait4(x.pid, &ws, unix.WALL, nil)
}

// value makes an argument, or what a register has.
func (x *execution) value() uint64 {
	switch x.r.IntN(6) {
	case 0:
		return 0
	case 1:
		return uint64(x.r.IntN(4096))
	case 2:
		return x.r.Uint64()
	}
	return x.lo + uint64(x.r.IntN(int(x.hi-x.lo)/2))&^15
}

// call calls a function with arguments of chance, and follows at most so many instructions. It is false where the process has ended.
func (x *execution) call(fn uint64, limit int) (alive bool) {
	x.calls++
	var c registers
	if x.get(&c) != nil {
		return false
	}
	scratch := make([]byte, 4096)
	for i := 0; i < len(scratch); i += 8 {
		v := x.value()
		binary.LittleEndian.PutUint64(scratch[i:], v)
	}
	x.write(x.lo, scratch)
	sp := x.top - 4096
	home := make([]byte, 256)
	for i := 40; i < len(home); i += 8 {
		binary.LittleEndian.PutUint64(home[i:], x.value())
	}
	binary.LittleEndian.PutUint64(home, x.stop)
	sp -= 8
	x.write(sp, home)
	c.Rip, c.Rsp, c.Eflags = fn, sp, 0x202
	c.Rcx, c.Rdx, c.R8, c.R9 = x.value(), x.value(), x.value(), x.value()
	for _, r := range []*uint64{&c.Rax, &c.R10, &c.R11, &c.Rbx, &c.Rsi, &c.Rdi, &c.Rbp, &c.R12, &c.R13, &c.R14, &c.R15} {
		*r = x.value()
	}
	c.Orig_rax = ^uint64(0)
	for i := 160; i < 416; i += 8 {
		binary.LittleEndian.PutUint64(c.fp[i:], x.r.Uint64())
	}
	if errors.Join(unix.PtraceSetRegs(x.pid, &c.PtraceRegs), fpregs(unix.PTRACE_SETREGSET, x.pid, &c.fp)) != nil {
		return false
	}
	first := c.saved()
	first.ra, first.sp = x.stop, sp+8
	x.unwind = append(x.unwind[:0], first)
	var before registers
	var code [maxLength]byte
	for range limit {
		if c.Rip == x.stop {
			if len(x.unwind) == 0 {
				x.returned++
			}
			return true
		}
		if len(x.unwind) == 0 {
			return true
		}
		if !x.read(c.Rip, code[:]) {
			return true
		}
		inside := c.Rip-x.base < uint64(x.img.Size())<<4
		if inside && !x.compare(&c) {
			return true
		}
		b := code[:]
		for len(b) > 1 && (b[0]&0xf0 == 0x40 || b[0] == 0x66 || b[0] == 0xf2 || b[0] == 0xf3 || b[0] == 0x65) {
			b = b[1:]
		}
		if b[0] == 0x0f && (b[1] == 5 || b[1] == 0x34 || b[1] == 0x0b) || b[0] == 0xcd || b[0] == 0xcc || b[0] == 0xf1 {
			return true // it calls Linux, or stops
		}
		isCall, isRet := b[0] == 0xe8 || b[0] == 0xff && b[1]>>3&7 == 2, b[0]&0xfe == 0xc2
		isJump := b[0] == 0xeb || b[0] == 0xe9 || b[0]&0xf0 == 0x70 || b[0] == 0x0f && b[1]&0xf0 == 0x80 || b[0] == 0xff && b[1]>>3&7 == 4
		before = c
		if unix.PtraceSingleStep(x.pid) != nil {
			return false
		}
		var ws unix.WaitStatus
		if _, err := unix.Wait4(x.pid, &ws, unix.WALL, nil); err != nil || !ws.Stopped() {
			return false
		}
		if x.get(&c) != nil {
			return false
		}
		x.steps++
		if ws.StopSignal() != unix.SIGTRAP {
			return true // a fault
		}
		switch {
		case c.Rsp < x.stack || c.Rsp > x.top:
			return true
		case (isCall || isJump) && !x.enters(before.Rip, c.Rip):
			return true // an address of chance was called
		case isCall && c.Rsp == before.Rsp-8:
			f := before.saved()
			f.ra, _ = x.Read8(c.Rsp)
			f.sp = before.Rsp
			x.unwind = append(x.unwind, f)
		case isRet:
			for n := len(x.unwind); n > 0 && x.unwind[n-1].sp <= c.Rsp; n = len(x.unwind) {
				x.unwind = x.unwind[:n-1]
			}
		case !isJump && inside && x.fellThrough(before.Rip, c.Rip):
			return true
		}
	}
	return true
}

// fellThrough says whether a function's last instruction led to another function: it is one that was never to be behind the call of a function
// that never returns.
func (x *execution) fellThrough(from, to uint64) bool {
	a, b := x.tab.find(from-x.base), x.tab.find(to-x.base)
	return a != b && (a == nil || b == nil || b.begin == uint32(to-x.base))
}

// enters says whether a call or a jump leads to where it may: to the same function, to the beginning of another, or to code without an entry.
func (x *execution) enters(from, to uint64) bool {
	a, b := x.tab.find(from-x.base), x.tab.find(to-x.base)
	if b == nil || b.begin == uint32(to-x.base) || a == b {
		return true
	}
	if a == nil {
		return false
	}
	pa, err1 := x.tab.primary(x.code, *a)
	pb, err2 := x.tab.primary(x.code, *b)
	return err1 == nil && err2 == nil && (pa == pb || x.cold(a) || x.cold(b))
}

// cold says whether an entry is of a part whose frame is there from the beginning on, as GCC describes them.
func (x *execution) cold(e *entry) bool {
	return x.amd64.framed(*e)
}

// compare compares what the row recovers with the truth. It is false where the truth cannot be trusted any more.
func (x *execution) compare(c *registers) bool {
	v := arch.Vaddr(c.Rip - x.delta)
	f := &x.unwind[len(x.unwind)-1]
	if c.Rsp >= f.sp {
		return true // the frame is being left otherwise
	}
	set := x.rows.At(v)
	if set.Gap() {
		return true
	}
	regs := c.slots()
	st := &x.state
	st.Start(c.Rip, 1<<27-1)
	copy(st.Snap[:], regs[:])
	for i := range 10 {
		st.Snap[17+i] = c.xmm(6 + i)[0]
	}
	x.mem = rows.Memory{Next: x}
	x.compared++
	x.seen[uint64(v)] = true
	if x.wrong[uint64(v)] != "" {
		return true
	}
	o := rows.Step(x.rows.Machine, set, st, &x.mem)
	var bad []string
	diff := func(what string, got, want uint64) {
		if got != want {
			bad = append(bad, fmt.Sprintf("%s %#x want %#x", what, got, want))
		}
	}
	if o != rows.OK {
		bad = append(bad, o.String())
	} else {
		diff("rip", st.PC, f.ra)
		sp, _ := st.Get(7, &x.mem)
		diff("rsp", sp, f.sp)
		if x.golang {
			return x.judge(v, set, bad)
		}
		for i, slot := range []arch.Slot{3, 4, 5, 6, 12, 13, 14, 15} {
			v, o := st.Get(slot, &x.mem)
			if o != rows.OK {
				bad = append(bad, fmt.Sprintf("%s: %v", x.rows.Machine.RegName(arch.Reg(slot)), o))
			}
			diff(x.rows.Machine.RegName(arch.Reg(slot)), v, f.gen[i])
		}
		for i := range 10 {
			slot := arch.Slot(17 + i)
			low, o := st.Get(slot, &x.mem)
			high := c.xmm(6 + i)[1]
			if st.InMem>>slot&1 != 0 {
				high, _ = x.Read8(st.Val[slot] + 8)
			}
			if o != rows.OK || low != f.xmm[i][0] || high != f.xmm[i][1] {
				bad = append(bad, fmt.Sprintf("xmm%d %#x %#x want %#x: %v", 6+i, low, high, f.xmm[i], o))
			}
		}
	}
	return x.judge(v, set, bad)
}

// judge remembers what was wrong at an address.
func (x *execution) judge(v arch.Vaddr, set *rows.Set, bad []string) bool {
	if len(bad) == 0 {
		return true
	}
	in := "no entry"
	if e := x.tab.find(uint64(v - x.tab.base)); e != nil {
		in = fmt.Sprintf("entry [%#x, %#x)", uint64(x.tab.base)+uint64(e.begin), uint64(x.tab.base)+uint64(e.end))
	}
	x.wrong[uint64(v)] = fmt.Sprintf("%#x (%s): %s\n  row: %s", uint64(v), in, strings.Join(bad, ", "), set.Text(x.rows.Machine))
	return false
}

// execute runs calls of an image's functions until so many instructions were compared.
func execute(t *testing.T, path string, seed uint64, want, limit int) *execution {
	img, err := module.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { img.Close() })
	tab := Open(img)
	if tab == nil {
		t.Fatalf("%s: no exception directory", path)
	}
	r, errs := tab.Rows()
	golang := pclntab.Open(img)
	for _, err := range errs {
		if golang == nil || !strings.Contains(err.Error(), "not sorted") { // Go's linker leaves it so
			t.Errorf("%s: %v", path, err)
		}
	}
	if golang != nil {
		r = golang.Rows().Overlay(r) // as package format does
	}
	x := &execution{t: t, path: path, img: img, tab: tab, rows: r.Overlay(tab.Leaves()), r: rand.New(rand.NewPCG(seed, 1)), code: tab.reader(), amd64: newAMD64(tab, tab.reader()), golang: golang != nil,
		seen: map[uint64]bool{}, wrong: map[uint64]string{}}
	for i := range tab.entries {
		// A part of a function that another part jumps to has its frame from the beginning on.
		e := &tab.entries[i]
		if set := r.At(tab.base + arch.Vaddr(e.begin)); set.CFA == (rows.CFA{Kind: rows.CFAReg, Reg: rsp, Off: 8}) && len(set.Rules) == 1 {
			if at, err := tab.primary(x.code, *e); err == nil && at == e.begin {
				x.where = append(x.where, e.begin)
			}
		}
	}
	bin := loader(t)
	ptrace.Do(func() {
		if err = x.start(bin); err != nil {
			return
		}
		defer func() { x.kill() }()
		order := slices.Clone(x.where)
		for err == nil && x.compared < want && x.calls < 40*len(order)+100 {
			x.r.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
			for _, fn := range order {
				if !x.call(x.base+uint64(fn), limit) {
					x.kill()
					err = x.start(bin)
				}
				if err != nil || x.compared >= want {
					break
				}
			}
			if x.calls%8 == 0 { // what one call has left behind does not decide for ever
				x.kill()
				err = x.start(bin)
			}
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	return x
}

// permitted says why a row is wrong in the image itself; "" where it is not.
func (x *execution) permitted(v uint64) string {
	// Rust's and clang's __cpuid keep rbx in another register while cpuid sets it, and say nothing of that.
	if b := x.code.tail(uint32(v - uint64(x.tab.base))); len(b) > 2 && b[0]&0xf8 == 0x48 && b[1] == 0x87 && strings.Contains(x.wrong[v], ": rbx ") {
		if before := x.code.tail(uint32(v-uint64(x.tab.base)) - 2); before[0] == 0x0f && before[1] == 0xa2 {
			return "cpuid"
		}
	}
	code := x.code.tail(uint32(v - uint64(x.tab.base)))
	e := x.tab.find(v - uint64(x.tab.base))
	// mingw-w64's exp and others, in C with parts in assembly: these move the stack pointer, and say nothing of that.
	if bytes.HasPrefix(code, []byte("\xd9\x7c\x24\x04")) || bytes.HasPrefix(code, []byte("\x48\x83\xec\x08\xd9\x7c\x24\x04")) { // sub $8,%rsp; fnstcw 4(%rsp)
		return "x87"
	}
	if e != nil {
		// Go's assembly that aligns the stack pointer before it calls C: no table of Go's can say by how much.
		if own := x.code.tail(e.begin); x.golang && bytes.Contains(own[:min(len(own), int(e.end-e.begin))], []byte("\x48\x83\xe4\xf0")) { // and $-16,%rsp
			return "aligned by Go"
		}
		// OpenSSL's assembly, and what comes of it: handlers of its own restore rdi and rsi, not the table.
		if bytes.HasPrefix(x.code.tail(e.begin), []byte("\x48\x89\xcf\x48\x89\xd6")) { // mov %rcx,%rdi; mov %rdx,%rsi
			return "perlasm"
		}
		return ""
	}
	if filepath.Base(x.path) == "libvips-42.dll" { // assembly of codecs, without entries
		return "assembly"
	}
	// libgcc's ___chkstk_ms pushes rcx and rax, without .seh_ directives (libgcc/config/i386/cygwin.S).
	code = x.code.tail(uint32(v-uint64(x.tab.base)) - 64)
	const probe = "\x51\x50\x48\x3d\x00\x10\x00\x00\x48\x8d\x4c\x24\x18"
	if bytes.Contains(code[:min(len(code), 64+len(probe))], []byte(probe)) {
		return "___chkstk_ms"
	}
	return ""
}

// report fails the test where a row is wrong.
func (x *execution) report() {
	x.t.Helper()
	var at []uint64
	why := map[string]int{}
	for v := range x.wrong {
		if w := x.permitted(v); w != "" {
			why[w]++
		} else {
			at = append(at, v)
		}
	}
	slices.Sort(at)
	for _, v := range at[:min(len(at), 12)] {
		x.t.Errorf("%s: %s", filepath.Base(x.path), x.wrong[v])
	}
	x.t.Logf("%s: %d calls, %d returned, %d instructions, %d compared at %d addresses, %d wrong; permitted: %v", filepath.Base(x.path), x.calls, x.returned,
		x.steps, x.compared, len(x.seen), len(at), why)
}

// compileRun makes images of testdata/run.c.
func compileRun(t *testing.T, name, linker string, args ...string) string {
	dir := t.TempDir()
	obj, dll := filepath.Join(dir, name+".o"), filepath.Join(dir, name+".dll")
	link := []string{linker, "/dll", "/noentry", "/nodefaultlib", "/out:" + dll, obj}
	if strings.HasSuffix(linker, "gcc") {
		link = []string{linker, "-shared", "-o", dll, obj}
	}
	for _, c := range [][]string{append(args, "-c", "-o", obj, "testdata/run.c"), link} {
		oracle.Run(t, c[0], c[1:]...)
	}
	return dll
}

// TestExecuteClang: the rows of functions that clang has compiled, at all instructions that all of them execute.
func TestExecuteClang(t *testing.T) {
	oracle.Long(t)
	oracle.Need(t, "clang-19", "lld-link-19")
	for _, o := range []string{"-O0", "-O2", "-Os"} {
		x := execute(t, compileRun(t, "clang"+o, "lld-link-19", "clang-19", "--target=x86_64-pc-windows-msvc", o), 1, oracle.Few(30_000, 300_000), 100_000)
		x.report()
		if x.returned < x.calls*9/10 {
			t.Errorf("%s: %d of %d calls have returned", o, x.returned, x.calls)
		}
	}
}

// TestExecuteMingw: the same, compiled by GCC for Windows.
func TestExecuteMingw(t *testing.T) {
	oracle.Full(t)
	root := mingw(t, "gcc-mingw-w64-x86-64-win32")
	gcc := filepath.Join(t.TempDir(), "gcc")
	bin := filepath.Join(root, "usr/bin")
	script := fmt.Sprintf("#!/bin/sh\nPATH=%s:$PATH exec %s/x86_64-w64-mingw32-gcc-win32 -B%s/usr/lib/gcc/x86_64-w64-mingw32/12-win32/ -B%s/usr/x86_64-w64-mingw32/bin/ --sysroot=%s/usr -L%s/usr/x86_64-w64-mingw32/lib \"$@\"\n",
		bin, bin, root, root, root, root)
	if err := os.WriteFile(gcc, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, o := range []string{"-O0", "-O1", "-O2", "-O3", "-Os"} {
		execute(t, compileRun(t, "gcc"+o, gcc, gcc, o), 1, 200_000, 100_000).report()
	}
}

// TestExecuteImages runs functions of images that others have built, with arguments of chance.
func TestExecuteImages(t *testing.T) {
	oracle.Long(t)
	compared, files := 0, 0
	for i, path := range images(t) {
		img, err := module.Open(path)
		if err != nil {
			t.Error(err)
			continue
		}
		tab := Open(img)
		img.Close()
		if tab == nil || tab.machine != arch.WindowsAMD64 {
			continue
		}
		x := execute(t, path, uint64(i), oracle.Few(60_000, 200_000), 3000)
		x.report()
		compared, files = compared+x.compared, files+1
	}
	if compared < 100_000 {
		t.Errorf("%d instructions compared", compared)
	}
	t.Logf("%d instructions compared, of %d images", compared, files)
}
