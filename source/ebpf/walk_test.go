package ebpf

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/emit/compact"
	"github.com/unspool/unspool/format/dwarf"
	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/module"
	"github.com/unspool/unspool/rows"
	"github.com/unspool/unspool/rows/rowstest"
	"github.com/unspool/unspool/unwind"
)

// targets are the macros that say which machine's walk is compiled.
var targets = map[*arch.Machine]string{arch.AMD64: "-D__TARGET_ARCH_x86", arch.ARM64: "-D__TARGET_ARCH_arm64"}

// userProgram compiles a machine's walk for user space of this one.
func userProgram(t testing.TB, m *arch.Machine, cc string, flags ...string) string {
	t.Helper()
	oracle.Need(t, cc)
	prog := filepath.Join(t.TempDir(), "user")
	args := append([]string{"-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O2", targets[m], "-I../../runtime", "-o", prog, "testdata/user.c"}, flags...)
	oracle.Run(t, cc, args...)
	return prog
}

// What testdata/user.c reads and writes, with as many slots as the machine has.
type (
	head     struct{ Kind, Size, Lo, _, _, _, N uint64 }
	userRegs struct {
		PC, CFA, Known, InMem, InReg uint64
		Val, Snap                    []uint64
		Fault                        uint64
	}
	question struct {
		PC, Seed uint64
		Regs     userRegs
	}
	answer struct {
		Found, Outcome, Signal, _ uint32
		Regs                      userRegs
	}
)

// slotsOf returns how many slots a machine has.
func slotsOf(m *arch.Machine) (n int) {
	for r := range arch.Reg(256) {
		if s := m.Slot(r); s != arch.NoSlot {
			n = max(n, int(s)+1)
		}
	}
	return n
}

// ask makes a question about pc, in the n-th adversarial state. The kernel's walk has no registers of a snapshot besides
// the values that it begins with, so those are in the place of what the state says of them.
func ask(mach *arch.Machine, pc arch.Vaddr, n int) question {
	seed := rowstest.Mix(uint64(n)^uint64(pc)<<8) | 1
	b := &rows.NewTrial(seed, n%rows.NumTrials).Before
	slots := slotsOf(mach)
	all := uint64(1)<<slots - 1
	r := userRegs{PC: b.PC, CFA: b.CFA, Known: b.Known & all, InMem: b.InMem & all, Fault: b.Fault, Val: make([]uint64, slots), Snap: make([]uint64, slots)}
	for i := range r.Val {
		r.Val[i] = b.Val[i]
		if b.InMem>>i&1 == 0 && b.InReg>>i&1 != 0 {
			r.Val[i] = b.Snap[b.Val[i]%uint64(slots)]
		}
	}
	return question{uint64(pc), seed, r}
}

// words are those of r, in the program's order.
func (r *userRegs) words() []*uint64 {
	list := []*uint64{&r.PC, &r.CFA, &r.Known, &r.InMem, &r.InReg}
	for i := range r.Val {
		list = append(list, &r.Val[i])
	}
	for i := range r.Snap {
		list = append(list, &r.Snap[i])
	}
	return append(list, &r.Fault)
}

func (r *userRegs) state() (s rows.State) {
	s = rows.State{PC: r.PC, CFA: r.CFA, Known: r.Known, InMem: r.InMem, Fault: r.Fault}
	copy(s.Val[:], r.Val)
	return s
}

// check holds an answer against Step.
func check(ref *rows.Table, bits int, q *question, a *answer, c *rows.Checker) error {
	set := ref.At(arch.Vaddr(q.PC))
	if found := a.Found == 0; found == set.Gap() {
		return fmt.Errorf("at %#x: found %v, but the row is %s", q.PC, found, set.Text(ref.Machine))
	} else if !found {
		return nil
	}
	if signal := set.Flags&rows.Signal != 0; signal != (a.Signal != 0) {
		return fmt.Errorf("at %#x: signal %d, want %v", q.PC, a.Signal, signal)
	}
	before := q.Regs.state()
	m := rows.Memory{Next: rowstest.Numbers(q.Seed), Tags: ref.Machine.Tags}
	if bits > 0 {
		m.Addresses = 1<<bits - 1
	}
	if err := c.Check(ref.Machine, set, &before, &m, func(s *rows.State) rows.Outcome { *s = a.Regs.state(); return rows.Outcome(a.Outcome) }); err != nil {
		return fmt.Errorf("at %#x%w", q.PC, err)
	}
	return nil
}

// answers asks the program about both ends of each row of a table.
func answers(t testing.TB, prog string, ref *rows.Table, bits int) (qs []question, as []answer) {
	t.Helper()
	b, err := compact.Emit(ref)
	if err != nil {
		t.Fatal(err)
	}
	for i, r := range ref.Rows {
		qs = append(qs, ask(ref.Machine, r.Lo, 2*i), ask(ref.Machine, ref.Hi(i)-1, 2*i+1))
	}
	var in bytes.Buffer
	le := binary.LittleEndian
	binary.Write(&in, le, head{Size: uint64(len(b)), Lo: uint64(bits), N: uint64(len(qs))})
	in.Write(b)
	for i := range qs {
		q := le.AppendUint64(le.AppendUint64(nil, qs[i].PC), qs[i].Seed)
		for _, w := range qs[i].Regs.words() {
			q = le.AppendUint64(q, *w)
		}
		in.Write(q)
	}
	cmd := exec.Command(prog)
	cmd.Stdin, cmd.Stderr = &in, os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	slots := slotsOf(ref.Machine)
	as = make([]answer, len(qs))
	if size := 16 + 8*(6+2*slots); len(out) != size*len(as) {
		t.Fatalf("%d bytes of output, not %d", len(out), size*len(as))
	}
	for i := range as {
		a := &as[i]
		a.Found, a.Outcome, a.Signal = le.Uint32(out), le.Uint32(out[4:]), le.Uint32(out[8:])
		a.Regs.Val, a.Regs.Snap = make([]uint64, slots), make([]uint64, slots)
		out = out[16:]
		for _, w := range a.Regs.words() {
			*w, out = le.Uint64(out), out[8:]
		}
	}
	return qs, as
}

// steps asks the program about a table, and checks the answers.
func steps(t testing.TB, prog, name string, ref *rows.Table, bits int) (n int) {
	qs, as := answers(t, prog, ref, bits)
	var c rows.Checker
	bad := 0
	for i := range qs {
		if err := check(ref, bits, &qs[i], &as[i], &c); err != nil {
			if bad++; bad <= 2 {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
	if bad > 2 {
		t.Errorf("%s: %d of %d answers differ", name, bad, len(qs))
	}
	return len(qs)
}

// TestSteps: one step of the walk does what Step does, at both ends of each row: of random tables, and of binaries, all of
// them with UNSPOOL_CORPUS=all.
func TestSteps(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	paths := map[*arch.Machine][]string{
		arch.AMD64: {"/lib/x86_64-linux-gnu/libc.so.6", "/lib64/ld-linux-x86-64.so.2", "/usr/lib/x86_64-linux-gnu/libcrypto.so.3"},
		arch.ARM64: {"/usr/aarch64-linux-gnu/lib/libc.so.6", "/usr/aarch64-linux-gnu/lib/libstdc++.so.6"},
	}
	if os.Getenv("UNSPOOL_CORPUS") == "all" {
		paths[arch.AMD64] = oracle.Binaries(t)
	}
	for _, m := range arch.Machines() {
		widths := append([]int{0}, m.AddressBits...) // of addresses in signed return addresses
		plain := userProgram(t, m, "gcc")
		sane := userProgram(t, m, "gcc", "-g", "-fsanitize=address,undefined", "-fno-sanitize=alignment", "-fno-sanitize-recover=all")
		clang := userProgram(t, m, "clang-19")
		for i := range oracle.Few(20, 60) {
			ref := rowstest.Table(r, m, r.IntN(60))
			for _, prog := range []string{plain, sane, clang} {
				steps(t, prog, fmt.Sprint("random table ", i), ref, widths[i%len(widths)])
			}
		}
		n, files := 0, 0
		for _, path := range paths[m] {
			img, err := module.Open(path)
			if err != nil {
				continue
			}
			if f, err := dwarf.Open(img); err == nil && img.Machine() == m {
				if ref, _ := f.Build(dwarf.Both); len(ref.Rows) > 0 {
					n += steps(t, plain, path, ref, widths[files%len(widths)])
					files++
				}
			}
			img.Close()
		}
		t.Logf("%s: %d steps in %d files", m.Name, n, files)
	}
}

// TestObject: the programs that are committed are what their source compiles to.
func TestObject(t *testing.T) {
	oracle.Need(t, "clang-19", "llvm-strip-19")
	if _, err := os.Stat("/usr/include/bpf/bpf_helpers.h"); err != nil {
		oracle.Lacks(t, "libbpf-dev")
	}
	dir := t.TempDir()
	oracle.Run(t, "c/build.sh", dir)
	for _, m := range arch.Machines() {
		name := "unspool_" + m.GoArch + ".bpf.o"
		got, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if want, err := os.ReadFile(name); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s is not what c/ compiles to: go generate ./source/ebpf (%v)", name, err)
		}
	}
}

// TestLoadUnload: nothing is left behind.
func TestLoadUnload(t *testing.T) {
	before := fds(t)
	for i := range 20 {
		p, err := Load(Options{Mods: func(string, string) *unwind.Module { return nil }})
		if errors.Is(err, os.ErrPermission) {
			oracle.Lacks(t, "the permission to load programs into the kernel")
		}
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Close(); err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			before = fds(t) // the runtime has opened its own
		}
	}
	if after := fds(t); after > before {
		t.Errorf("%d descriptors are open, %d were", after, before)
	}
}

func fds(t *testing.T) int {
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}
