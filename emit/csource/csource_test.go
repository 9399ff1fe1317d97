package csource

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/format/dwarf"
	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/module"
	"github.com/unspool/unspool/rows"
)

var le = binary.LittleEndian

const (
	libc      = "/lib/x86_64-linux-gnu/libc.so.6"
	hackbench = "/usr/bin/hackbench"
)

// readELF builds the rows of a file.
func readELF(t testing.TB, path string) (ref *rows.Table, ehFrame int) {
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
	ref, _ = f.Build(dwarf.EHFrame)
	return ref, int(f.Sizes().EHFrame)
}

// C's view of a state is Go's: struct unspool_state.
var _ = [1]struct{}{}[unsafe.Sizeof(rows.State{})-(5+2*arch.NumSlots+1)*8]

type cQuestion struct {
	PC           uint64
	Rule, NWords uint32
	Lo, Size     uint64
	State        rows.State
}

type cAnswer struct {
	Outcome, Differs uint32
	State            rows.State
}

type cWord struct{ Addr, Value, OK uint64 }

// asBytes returns the memory of x, which is the same in C on a little-endian machine.
func asBytes[T any](x *T) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(x)), unsafe.Sizeof(*x))
}

// generate writes a table's C to a file.
func generate(dir string, ref *rows.Table, o Options) (path string, err error) {
	o.Prefix = "gen"
	f, err := os.CreateTemp(dir, "*.c")
	if err != nil {
		return "", err
	}
	defer f.Close()
	return f.Name(), Emit(f, ref, o)
}

var strict = []string{"-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror"}

// compile runs a compiler; a warning is an error.
func compile(args ...string) error {
	if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%.3000s", strings.Join(args, " "), err, out)
	}
	return nil
}

// A build is one way to make a program of C.
type build struct {
	cc    string
	flags []string
}

func (b build) String() string { return b.cc + " " + strings.Join(b.flags, " ") }

var (
	gcc0     = build{"gcc", []string{"-O0"}}
	gcc2     = build{"gcc", []string{"-O2"}}
	clang0   = build{"clang-19", []string{"-O0"}}
	clang1   = build{"clang-19", []string{"-O1"}}
	gccSan   = build{"gcc", []string{"-O1", "-fsanitize=undefined", "-fno-sanitize-recover=all"}}
	clangSan = build{"clang-19", []string{"-O0", "-fsanitize=undefined", "-fsanitize-trap=undefined"}}
)

// program compiles a table's C with the driver.
func (b build) program(dir string, ref *rows.Table, o Options) (string, error) {
	src, err := generate(dir, ref, o)
	if err != nil {
		return "", err
	}
	args, define := strict, []string{fmt.Sprintf("-DDEREF=%d", o.Deref)}
	if o.Layout == Switch {
		args, define = []string{"-std=gnu11", "-Wall", "-Wextra", "-Werror"}, append(define, "-DSTEP_ONLY")
	}
	args = append(append([]string{b.cc}, args...), b.flags...)
	if err := compile(append(args, "-c", "-o", src+".o", src)...); err != nil {
		return "", err
	}
	prog := src + ".program"
	args = append(append([]string{b.cc}, b.flags...), define...)
	return prog, compile(append(args, "-Itestdata", "-o", prog, "testdata/driver.c", src+".o")...)
}

// agree fails the test if the C code of a table is in disagreement with rows.Step.
func agree(t *testing.T, ref *rows.Table, o Options, b build) {
	t.Helper()
	if err := disagreement(t, ref, o, b); err != nil {
		t.Fatal(err)
	}
}

// disagreement asks the C code of a table for both ends of each row and for each rule on many states, and
// compares the answers with those of rows.Step.
func disagreement(t testing.TB, ref *rows.Table, o Options, b build) error {
	t.Helper()
	dir, err := os.MkdirTemp("", "csource")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	t0 := time.Now()
	prog, err := b.program(dir, ref, o)
	if err != nil {
		return err
	}
	d := time.Since(t0)
	var in, out bytes.Buffer
	x := newExam(ref, o)
	x.write(&in)
	cmd := exec.Command(prog)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = &in, &out, os.Stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%v %v, %v: %w", o.Layout, o.Deref, b, err)
	}
	if err := x.check(&out); err != nil {
		return fmt.Errorf("%v %v, %v: %w", o.Layout, o.Deref, b, err)
	}
	t.Logf("%v %v, %v: compiled in %.1f s; %d lookups, %d states of %d rules: outcomes %v", o.Layout, o.Deref, b, d.Seconds(), len(x.pcs),
		len(x.asked), len(ref.Sets)-1, x.outcomes)
	return nil
}

// An exam is the questions for a table, and what is to be answered.
type exam struct {
	ref      *rows.Table
	opt      Options
	pcs      []uint64
	asked    []asked
	outcomes map[rows.Outcome]int
}

type asked struct {
	id   rows.SetID
	seed uint64
	k    int
}

func newExam(ref *rows.Table, o Options) *exam {
	x := &exam{ref: ref, opt: o, outcomes: map[rows.Outcome]int{}}
	for i, r := range ref.Rows {
		if i == 0 && r.Lo > 0 {
			x.pcs = append(x.pcs, 0, uint64(r.Lo-1))
		}
		x.pcs = append(x.pcs, uint64(r.Lo), uint64(ref.Hi(i))-1)
	}
	x.pcs = append(x.pcs, ^uint64(0))
	return x
}

// write makes the questions.
func (x *exam) write(w *bytes.Buffer) {
	num := func(n uint64) { w.Write(le.AppendUint64(nil, n)) }
	num(arenaLo)
	num(arenaSize)
	w.Write(arena[:])
	num(uint64(len(x.pcs)))
	for _, pc := range x.pcs {
		num(pc)
	}
	pcOf := make([]uint64, len(x.ref.Sets))
	for _, r := range x.ref.Rows {
		pcOf[r.Set] = uint64(r.Lo)
	}
	var qs bytes.Buffer
	for id := range x.ref.Sets {
		if id == 0 && x.opt.Layout == Switch {
			continue
		}
		for k, try := 0, uint64(0); k < states && try < 4*states; try++ {
			q := trial{seed: mix(uint64(id)<<16 | try), k: int(try % states), deref: x.opt.Deref}
			q.setUp(x.ref.Machine, &x.ref.Sets[id])
			s, m := q.state, q.memory()
			rows.Step(x.ref.Machine, &x.ref.Sets[id], &s, &m)
			if q.outside {
				continue // the own process has no such memory
			}
			k++
			x.asked = append(x.asked, asked{rows.SetID(id), q.seed, q.k})
			c := cQuestion{pcOf[id], uint32(id), uint32(len(q.words)), q.lo, q.size, q.state}
			qs.Write(asBytes(&c))
			for i := range q.words {
				qs.Write(asBytes(&q.words[i]))
			}
		}
	}
	num(uint64(len(x.asked)))
	qs.WriteTo(w)
}

// check compares answers.
func (x *exam) check(r io.Reader) error {
	br := bufio.NewReader(r)
	want := rows.Interp{Table: x.ref}
	for _, pc := range x.pcs {
		if x.opt.Layout == Switch {
			break
		}
		var rule uint32
		if _, err := io.ReadFull(br, asBytes(&rule)); err != nil {
			return err
		}
		if id, _ := want.Find(arch.Vaddr(pc)); id != rule {
			return fmt.Errorf("find(%#x)\n got  %d\n want %d", pc, rule, id)
		}
	}
	mach := x.ref.Machine
	for _, q := range x.asked {
		var a cAnswer
		if _, err := io.ReadFull(br, asBytes(&a)); err != nil {
			return err
		}
		t := trial{seed: q.seed, k: q.k, deref: x.opt.Deref}
		set := &x.ref.Sets[q.id]
		t.setUp(mach, set)
		s, m := t.state, t.memory()
		o := rows.Step(mach, set, &s, &m)
		x.outcomes[o]++
		code := uint32(o)
		if o == rows.OK && want.Signal(uint32(q.id)) {
			code |= 0x100
		}
		bad := a.Outcome != code || a.Differs != 0
		switch {
		case o == rows.OK:
			bad = bad || !s.Equal(&a.State) || a.State.Snap != s.Snap
		default:
			bad = bad || o == rows.Unreadable && a.State.Fault != s.Fault
			c := a.State
			c.Fault = t.state.Fault
			bad = bad || c != t.state
		}
		if bad {
			return fmt.Errorf("rule %d, seed %#x, state %d, pc slice %#x+%#x\n in   %s\n got  %#x (step differs: %d) %s\n want %#x %s\n (%.600s)", q.id, q.seed, q.k, t.lo, t.size,
				t.state.Text(mach), a.Outcome, a.Differs, a.State.Text(mach), code, s.Text(mach), set.Text(mach))
		}
	}
	if n, _ := io.Copy(io.Discard, br); n > 0 {
		return fmt.Errorf("%d bytes more than was asked for", n)
	}
	return nil
}

func TestFiles(t *testing.T) {
	oracle.Long(t)
	oracle.Need(t, "gcc", "clang-19")
	for _, c := range []struct {
		path   string
		derefs []Deref
		builds []build
	}{
		{"/usr/bin/true", []Deref{Self, Slice}, []build{gcc0}}, // -O2, which takes ten times as long, is for the smallest file
		{hackbench, []Deref{Self, Callback, Slice}, []build{gcc2, clang1}},
		{"/lib64/ld-linux-x86-64.so.2", []Deref{Slice}, []build{gcc0, clang1}},
		{"/usr/aarch64-linux-gnu/lib/ld-linux-aarch64.so.1", []Deref{Callback}, []build{gcc0}},
		{libc, []Deref{Slice}, []build{gcc0, clang0}},
		{"/usr/aarch64-linux-gnu/lib/libc.so.6", []Deref{Callback}, []build{clang0}},
	} {
		if os.Getenv("UNSPOOL_CORPUS") == "all" { // takes minutes
			c.derefs, c.builds = []Deref{Self, Callback, Slice}, []build{gcc0, gcc2, clang1}
		}
		t.Run(filepath.Base(c.path), func(t *testing.T) {
			ref, _ := readELF(t, c.path)
			for _, d := range c.derefs {
				for _, b := range c.builds {
					agree(t, ref, Options{Deref: d}, b)
				}
			}
			if len(ref.Rows) < 1000 {
				agree(t, ref, Options{Layout: Switch, Deref: Slice}, c.builds[0])
			}
		})
	}
}
