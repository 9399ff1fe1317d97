package ebpf

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
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

// userProgram compiles the walk for user space.
func userProgram(t testing.TB, cc string, flags ...string) string {
	t.Helper()
	oracle.Need(t, cc)
	prog := filepath.Join(t.TempDir(), "user")
	args := append([]string{"-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O2", "-I../../runtime", "-o", prog, "testdata/user.c"}, flags...)
	if out, err := exec.Command(cc, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", cc, err, out)
	}
	return prog
}

const slots = 17

// What testdata/user.c reads and writes.
type (
	head     struct{ Kind, Size, _, _, _, _, N uint64 }
	userRegs struct {
		PC, CFA, Known, InMem, InReg uint64
		Val, Snap                    [slots]uint64
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

// ask makes a question about pc, in the n-th adversarial state. The kernel's walk has no registers of a snapshot besides
// the values that it begins with, so those are in the place of what the state says of them.
func ask(pc arch.Vaddr, n int) question {
	seed := rowstest.Mix(uint64(n)^uint64(pc)<<8) | 1
	b := &rows.NewTrial(seed, n%rows.NumTrials).Before
	const all = 1<<slots - 1
	r := userRegs{PC: b.PC, CFA: b.CFA, Known: b.Known & all, InMem: b.InMem & all, Fault: b.Fault}
	for i := range r.Val {
		r.Val[i] = b.Val[i]
		if b.InMem>>i&1 == 0 && b.InReg>>i&1 != 0 {
			r.Val[i] = b.Snap[b.Val[i]%slots]
		}
	}
	return question{uint64(pc), seed, r}
}

func (r *userRegs) state() (s rows.State) {
	s = rows.State{PC: r.PC, CFA: r.CFA, Known: r.Known, InMem: r.InMem, Fault: r.Fault}
	copy(s.Val[:], r.Val[:])
	return s
}

// check holds an answer against Step.
func check(ref *rows.Table, q *question, a *answer, c *rows.Checker) error {
	set := ref.At(arch.Vaddr(q.PC))
	if found := a.Found == 0; found == set.Gap() {
		return fmt.Errorf("at %#x: found %v, but the row is %s", q.PC, found, set.Text(arch.AMD64))
	} else if !found {
		return nil
	}
	if signal := set.Flags&rows.Signal != 0; signal != (a.Signal != 0) {
		return fmt.Errorf("at %#x: signal %d, want %v", q.PC, a.Signal, signal)
	}
	before := q.Regs.state()
	m := rows.Memory{Next: rowstest.Numbers(q.Seed)}
	if err := c.Check(arch.AMD64, set, &before, &m, func(s *rows.State) rows.Outcome { *s = a.Regs.state(); return rows.Outcome(a.Outcome) }); err != nil {
		return fmt.Errorf("at %#x%w", q.PC, err)
	}
	return nil
}

// answers asks the program about both ends of each row of a table.
func answers(t testing.TB, prog string, ref *rows.Table) (qs []question, as []answer) {
	t.Helper()
	b, err := compact.Emit(ref)
	if err != nil {
		t.Fatal(err)
	}
	for i, r := range ref.Rows {
		qs = append(qs, ask(r.Lo, 2*i), ask(ref.Hi(i)-1, 2*i+1))
	}
	var in bytes.Buffer
	binary.Write(&in, binary.LittleEndian, head{Size: uint64(len(b)), N: uint64(len(qs))})
	in.Write(b)
	binary.Write(&in, binary.LittleEndian, qs)
	cmd := exec.Command(prog)
	cmd.Stdin, cmd.Stderr = &in, os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	as = make([]answer, len(qs))
	if err := binary.Read(bytes.NewReader(out), binary.LittleEndian, as); err != nil && err != io.EOF {
		t.Fatal(err)
	}
	return qs, as
}

// steps asks the program about a table, and checks the answers.
func steps(t testing.TB, prog, name string, ref *rows.Table) (n int) {
	qs, as := answers(t, prog, ref)
	var c rows.Checker
	bad := 0
	for i := range qs {
		if err := check(ref, &qs[i], &as[i], &c); err != nil {
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
	plain := userProgram(t, "gcc")
	sane := userProgram(t, "gcc", "-g", "-fsanitize=address,undefined", "-fno-sanitize=alignment", "-fno-sanitize-recover=all")
	clang := userProgram(t, "clang-19")
	for i := range 60 {
		ref := rowstest.Table(r, arch.AMD64, r.IntN(60))
		for _, prog := range []string{plain, sane, clang} {
			steps(t, prog, fmt.Sprint("random table ", i), ref)
		}
	}
	paths := []string{"/lib/x86_64-linux-gnu/libc.so.6", "/lib64/ld-linux-x86-64.so.2", "/usr/lib/x86_64-linux-gnu/libcrypto.so.3"}
	if os.Getenv("UNSPOOL_CORPUS") == "all" {
		paths = oracle.Binaries(t)
	}
	n, files := 0, 0
	for _, path := range paths {
		img, err := module.Open(path)
		if err != nil {
			continue
		}
		if f, err := dwarf.Open(img); err == nil && img.Machine() == arch.AMD64 {
			if ref, _ := f.Build(dwarf.Both); len(ref.Rows) > 0 {
				n += steps(t, plain, path, ref)
				files++
			}
		}
		img.Close()
	}
	t.Logf("%d steps in %d files", n, files)
}

// TestObject: the program that is committed is what its source compiles to.
func TestObject(t *testing.T) {
	oracle.Need(t, "clang-19", "llvm-strip-19")
	if _, err := os.Stat("/usr/include/bpf/bpf_helpers.h"); err != nil {
		oracle.Lacks(t, "libbpf-dev")
	}
	path := filepath.Join(t.TempDir(), "unspool.bpf.o")
	if out, err := exec.Command("c/build.sh", path).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(b, object) {
		t.Errorf("unspool.bpf.o is not what c/ compiles to: go generate ./source/ebpf")
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
