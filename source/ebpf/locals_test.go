package ebpf

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"

	"github.com/unspool/unspool/internal/oracle"
)

// Bounds of the verifier, check_max_stack_depth in kernel/bpf/verifier.c: bytes of locals in a chain of calls, and before the call of a
// function that makes tail calls; functions in a chain. Each function's locals are rounded up; kernels with 16 refuse no more than those with 32.
const (
	maxLocals     = 512
	maxBeforeTail = 256
	maxChain      = 8
	roundTo       = 32
)

// A subprogram is a function as the verifier counts it.
type subprogram struct {
	name   string
	locals int // bytes of its frame
	tail   bool
	calls  []string
}

// rounded is what the verifier adds for the function.
func (s *subprogram) rounded() int { return (max(s.locals, 1) + roundTo - 1) / roundTo * roundTo }

// subprograms reads a program's functions, in their order: the program itself is the first. The locals are those of the lowest address
// that an instruction reaches or makes, relative to r10, which is never above what the verifier finds.
func subprograms(p *ebpf.ProgramSpec) (out []*subprogram) {
	var s *subprogram
	var from map[asm.Register]int // registers that hold addresses of the frame, relative to r10
	for _, ins := range p.Instructions {
		if btf.FuncMetadata(&ins) != nil {
			s = &subprogram{name: ins.Symbol()}
			out = append(out, s)
			from = map[asm.Register]int{asm.RFP: 0}
		}
		reach := func(r asm.Register, off int) {
			if at, ok := from[r]; ok {
				s.locals = max(s.locals, (7-at-off)&^7) // the verifier marks words of eight bytes
			}
		}
		switch op := ins.OpCode; op.Class() {
		case asm.StClass, asm.StXClass:
			reach(ins.Dst, int(ins.Offset))
		case asm.LdXClass:
			reach(ins.Src, int(ins.Offset))
			delete(from, ins.Dst)
		case asm.LdClass:
			delete(from, ins.Dst)
			if ins.IsLoadOfFunctionPointer() { // the verifier counts callbacks as calls
				s.calls = append(s.calls, ins.Reference())
			}
		case asm.ALU64Class:
			at, ok := from[ins.Dst]
			switch {
			case op.ALUOp() == asm.Mov && op.Source() == asm.RegSource:
				if at, ok = from[ins.Src]; !ok {
					delete(from, ins.Dst)
					continue
				}
			case ok && op.ALUOp() == asm.Add && op.Source() == asm.ImmSource:
				at += int(ins.Constant)
			default: // with an offset that varies, the verifier counts what it may reach, within an object made before
				delete(from, ins.Dst)
				continue
			}
			from[ins.Dst] = at
			reach(ins.Dst, 0)
		case asm.ALUClass:
			delete(from, ins.Dst)
		case asm.JumpClass:
			switch {
			case ins.IsFunctionCall():
				s.calls = append(s.calls, ins.Reference())
			case ins.IsBuiltinCall() && asm.BuiltinFunc(ins.Constant) == asm.FnTailCall:
				s.tail = true
			}
		}
	}
	return out
}

// deepest returns the chain of calls that takes most, and what is wrong with any.
func deepest(all []*subprogram) (chain []*subprogram, bytes int, err error) {
	byName := map[string]*subprogram{}
	for _, s := range all {
		byName[s.name] = s
	}
	var visit func(s *subprogram, above []*subprogram, depth int)
	visit = func(s *subprogram, above []*subprogram, depth int) {
		if slices.Contains(above, s) {
			err = errors.Join(err, fmt.Errorf("%s calls itself", s.name))
			return
		}
		if len(above) > 0 && s.tail && depth >= maxBeforeTail {
			err = errors.Join(err, fmt.Errorf("%s makes tail calls, %d bytes below the top", s.name, depth))
		}
		here := append(slices.Clone(above), s)
		if len(here) > maxChain {
			err = errors.Join(err, fmt.Errorf("%s is the %d. function of a chain", s.name, len(here)))
			return
		}
		depth += s.rounded()
		if depth > bytes {
			chain, bytes = here, depth
		}
		for _, name := range s.calls {
			if f := byName[name]; f != nil {
				visit(f, here, depth)
			} else {
				err = errors.Join(err, fmt.Errorf("%s calls %s, which is not there", s.name, name))
			}
		}
	}
	visit(all[0], nil, 0)
	return chain, bytes, err
}

// specOf reads the object of a machine.
func specOf(t *testing.T, machine string) *ebpf.CollectionSpec {
	t.Helper()
	spec, err := ebpf.LoadCollectionSpec("unspool_" + machine + ".bpf.o")
	if err != nil {
		t.Fatal(err)
	}
	return spec
}

// TestLocals: no chain of calls in a program has more locals than every verifier permits, on both machines. Linux 5.10 counts most.
func TestLocals(t *testing.T) {
	for _, machine := range []string{"amd64", "arm64"} {
		spec := specOf(t, machine)
		if len(spec.Programs) < 5 {
			t.Fatalf("the object for %s has %d programs, want 5 or more", machine, len(spec.Programs))
		}
		for name, p := range spec.Programs {
			chain, bytes, err := deepest(subprograms(p))
			text := fmt.Sprintf("%s of %s: %d of %d bytes:", name, machine, bytes, maxLocals)
			for _, s := range chain {
				text += fmt.Sprintf(" %s %d (%d)", s.name, s.rounded(), s.locals)
			}
			t.Log(text)
			if err != nil || bytes > maxLocals {
				t.Errorf("deepest = %s, %v, want %d bytes at most", text, err, maxLocals)
			}
		}
	}
}

// TestLocalsVerifier: this kernel's verifier finds the same locals in every function, or less where it does not come: to code for other kernels.
func TestLocalsVerifier(t *testing.T) {
	if Machine.Name == "" {
		t.Skip("there is no program for this machine")
	}
	spec := specOf(t, runtime.GOARCH)
	if err := errors.Join(adapt(spec), fit(spec)); err != nil {
		t.Fatal(err)
	}
	depths := regexp.MustCompile(`(?m)^stack depth ([0-9+]+)`)
	var all, equal int
	for name, p := range spec.Programs {
		one := spec.Copy()
		maps.DeleteFunc(one.Programs, func(other string, _ *ebpf.ProgramSpec) bool { return other != name })
		coll, err := ebpf.NewCollectionWithOptions(one, ebpf.CollectionOptions{Programs: ebpf.ProgramOptions{LogLevel: ebpf.LogLevelStats}})
		if err != nil {
			t.Logf("%s cannot be loaded here: %v", name, err)
			continue
		}
		log := coll.Programs[name].VerifierLog
		coll.Close()
		m := depths.FindStringSubmatch(log)
		if m == nil {
			t.Fatalf("%s: the verifier tells no depths:\n%s", name, log)
		}
		theirs, ours := strings.Split(m[1], "+"), subprograms(p)
		if len(theirs) != len(ours) {
			t.Logf("%s: the verifier has %d functions, of %d: it takes out those to which nothing leads", name, len(theirs), len(ours))
			continue
		}
		for i, s := range ours {
			n, err := strconv.Atoi(theirs[i])
			if err != nil || n > s.locals {
				t.Errorf("%s: %s has %d bytes, and to the verifier %s", name, s.name, s.locals, theirs[i])
			}
			all++
			if n == s.locals {
				equal++
			}
		}
	}
	if all == 0 {
		oracle.Lacks(t, "the permission to load programs into the kernel")
	}
	t.Logf("%d of %d functions have as many bytes to the verifier", equal, all)
	if equal*10 < all*9 {
		t.Errorf("%d of %d functions have as many bytes to the verifier", equal, all)
	}
}
