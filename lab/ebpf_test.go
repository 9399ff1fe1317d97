package lab

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/modules"
	"github.com/unspool/unspool/source/ebpf"
	"github.com/unspool/unspool/unwind"
)

// A kernelWalk is the walk that runs in the kernel, compiled for user space: source/ebpf/testdata/user.c.
type kernelWalk struct {
	mach   *arch.Machine
	in     *bufio.Writer
	out    *bufio.Reader
	tables map[*unwind.Module]uint32
	texts  map[codeKey]uint64
	space  *unwind.Space
}

// A codeKey is a mapping of a module's code, wherever it is.
type codeKey struct {
	m         *unwind.Module
	off, size uint64
}

// newKernelWalk compiles the walk of a machine.
func newKernelWalk(t *testing.T, m *arch.Machine) *kernelWalk {
	oracle.Need(t, "gcc")
	target := map[*arch.Machine]string{arch.AMD64: "-D__TARGET_ARCH_x86", arch.ARM64: "-D__TARGET_ARCH_arm64"}[m]
	prog := filepath.Join(t.TempDir(), "user")
	if out, err := exec.Command("gcc", "-std=gnu11", "-O2", target, "-I../runtime", "-o", prog, "../source/ebpf/testdata/user.c").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	cmd := exec.Command(prog)
	cmd.Stderr = os.Stderr
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
	t.Cleanup(func() {
		in.Close()
		cmd.Wait()
	})
	return &kernelWalk{mach: m, in: bufio.NewWriterSize(in, 1<<20), out: bufio.NewReaderSize(out, 1<<20), tables: map[*unwind.Module]uint32{}, texts: map[codeKey]uint64{}}
}

func (k *kernelWalk) words(v ...uint64) {
	for _, x := range v {
		k.in.Write(binary.LittleEndian.AppendUint64(nil, x))
	}
}

// table tells the program about a module's table.
func (k *kernelWalk) table(m *unwind.Module) uint32 {
	if id, ok := k.tables[m]; ok {
		return id
	}
	id := uint32(0)
	if c := m.Code(); c != nil && c.Machine == k.mach {
		if b, ok := c.Stepper.(interface{ Bytes() []byte }); ok {
			id = 1
			for _, other := range k.tables {
				id = max(id, other+1)
			}
			k.words(1, uint64(len(b.Bytes())), 0, 0, 0, 0, 0)
			k.in.Write(b.Bytes())
		}
	}
	k.tables[m] = id
	return id
}

// text tells the program about the code of a mapping, where there is a file.
func (k *kernelWalk) text(m *unwind.Mapping) (id uint64, ok bool) {
	key := codeKey{m.Module, m.Off, uint64(m.Hi - m.Lo)}
	if id, ok := k.texts[key]; ok {
		return id, true
	}
	v, ok := m.Vaddr(m.Lo)
	if c := m.Module.Code(); !ok || c.Text == nil || key.size > 64<<20 {
		return 0, false
	}
	b := make([]byte, key.size)
	b = b[:m.Module.Code().Text(v, b)]
	id = uint64(len(k.texts))
	k.texts[key] = id
	k.words(4, uint64(len(b)), 0, 0, 0, 0, 0)
	k.in.Write(b)
	return id, true
}

// ask writes a snapshot.
func (k *kernelWalk) ask(s *unwind.Snapshot) {
	if s.Space != k.space {
		k.space = s.Space
		ranges := ebpf.Ranges(s.Space, k.table)
		k.words(2, uint64(len(ranges)*32), 0, 0, 0, 0, uint64(s.Space.AddressBits(k.mach)))
		for _, r := range ranges {
			k.words(r.Lo, r.Hi, r.Bias, uint64(r.Table)|uint64(r.Kind)<<32)
		}
		var at []uint64
		maps := s.Space.Mappings()
		for i := range maps {
			if id, ok := k.text(&maps[i]); ok {
				at = append(at, uint64(maps[i].Lo), uint64(maps[i].Hi), id, 0)
			}
		}
		k.words(5, uint64(len(at)*8), 0, 0, 0, 0, 0)
		k.words(at...)
	}
	k.words(3, 0, 0, 0, 0, 0, 1)
	k.words(s.Regs[:k.mach.Slot(k.mach.PC)+1]...)
	k.words(s.Mem.Lo, uint64(len(s.Mem.Bytes)))
	k.in.Write(s.Mem.Bytes)
}

// answer reads the words of a walk, why it ended, and whether something was missing: in the kernel, such a walk is given up for a copy of the stack.
func (k *kernelWalk) answer() (words []uint64, stop unwind.Stop, missing bool, err error) {
	var b [8]byte
	if _, err = io.ReadFull(k.out, b[:]); err != nil {
		return nil, 0, false, err
	}
	n := binary.LittleEndian.Uint64(b[:])
	words = make([]uint64, uint32(n))
	for i := range words {
		if _, err = io.ReadFull(k.out, b[:]); err != nil {
			return nil, 0, false, err
		}
		words[i] = binary.LittleEndian.Uint64(b[:])
	}
	return words, unwind.Stop(uint8(n >> 32)), n>>40 != 0, nil
}

// TestKernelWalk: the walk that runs in the kernel finds what our walker finds, on all stacks of the recordings.
func TestKernelWalk(t *testing.T) {
	for _, file := range recordings(t) {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".data"), func(t *testing.T) {
			k, spaces, w := newKernelWalk(t, arch.AMD64), newSpaces(modules.New()), unwind.NewWalker(1024)
			n, bad := 0, 0
			var frames []unwind.Frame
			batches(t, file, 1000, func(snaps []oracle.Snapshot, in []*oracle.Space) {
				us := make([]unwind.Snapshot, len(snaps))
				for i := range us {
					us[i] = snapshot(&snaps[i], spaces.space(in[i]))
				}
				asked := make(chan struct{})
				go func() {
					defer close(asked)
					for i := range us {
						k.ask(&us[i])
					}
					k.in.Flush()
				}()
				defer func() { <-asked }() // the last answer can be there before Flush returns
				for i := range us {
					words, stop, _, err := k.answer()
					if err != nil {
						t.Fatal(err)
					}
					var want unwind.Stop
					frames, want = w.Walk(&us[i], frames[:0])
					n++
					if len(us[i].Mem.Bytes) == 0 && stop == unwind.Truncated {
						stop = unwind.BadMemory // permitted: in the kernel, a stack is never without memory
					}
					if diff := differs(words, stop, frames, want); diff != "" {
						if bad++; bad <= 3 {
							t.Errorf("stack %d: %s", n, diff)
						}
					}
				}
			})
			if bad > 3 {
				t.Errorf("%d of %d stacks differ", bad, n)
			}
			t.Logf("%d stacks", n)
		})
	}
}

func differs(words []uint64, stop unwind.Stop, frames []unwind.Frame, want unwind.Stop) string {
	for i, f := range frames {
		if i >= len(words) {
			return fmt.Sprintf("%d frames and %v, not %d and %v", len(words), stop, len(frames), want)
		}
		pc, how := words[i]&(1<<56-1), unwind.How(words[i]>>56&0x7f)
		exact := words[i]>>63 != 0 || how == unwind.HowStart || how.Interrupted()
		if pc != uint64(f.PC) || how != f.How || exact != f.Exact {
			return fmt.Sprintf("frame %d is %#x by %v, exact %v, not %#x by %v, exact %v", i, pc, how, exact, f.PC, f.How, f.Exact)
		}
	}
	if len(words) > len(frames) || stop != want {
		return fmt.Sprintf("%d frames and %v, not %d and %v", len(words), stop, len(frames), want)
	}
	return ""
}

// TestKernelWalkWild: on stacks of random words the walk that runs in the kernel finds what ours finds: frame pointers that lead down, or
// in circles, registers below the stack pointer, places that nothing has called.
func TestKernelWalkWild(t *testing.T) {
	for m, path := range map[*arch.Machine]string{arch.AMD64: "/lib/x86_64-linux-gnu/libc.so.6", arch.ARM64: "/usr/aarch64-linux-gnu/lib/libc.so.6"} {
		t.Run(m.Name, func(t *testing.T) { walkWild(t, m, path) })
	}
}

// walkWild walks random stacks with the code of a C library.
func walkWild(t *testing.T, m *arch.Machine, path string) {
	const lo, stackLo, size = 0x7f0000000000, 0x7ffd00000000, 4 << 10
	real := modules.New().Module(path, "").Code()
	if real == nil || real.Machine != m || len(real.Segments) == 0 {
		oracle.Lacks(t, "a C library for "+m.Name)
	}
	blind := *real
	blind.Text = nil // or the program could load it as data
	seg := real.Segments[0]
	mod := unwind.NewModule("libc", "", func(*unwind.Module) *unwind.Code { return &blind })
	space := unwind.NewSpace(unwind.Mapping{Lo: lo, Hi: lo + arch.Addr(seg.Size), Off: seg.Off, Module: mod})
	rnd := rand.New(rand.NewPCG(15, 3))
	code := func() uint64 {
		at := lo + rnd.Uint64N(seg.Size)
		if m.RAInReg {
			at &^= 3 // instructions have four bytes
		}
		return at
	}
	signed := func() uint64 { // on AArch64, half of the return addresses are
		at := code()
		if m.RAInReg && rnd.IntN(2) == 0 {
			at |= rnd.Uint64N(1<<7) << 48
		}
		return at
	}
	snaps := make([]unwind.Snapshot, 20000)
	for i := range snaps {
		s := &snaps[i]
		*s = unwind.Snapshot{Machine: m, Space: space, PC: code(), Known: 1<<(m.Slot(m.PC)+1) - 1}
		from := stackLo + 8*rnd.Uint64N(size/16) // the stack pointer is amid the memory, half of the time
		s.Mem.Lo, s.Mem.Bytes = stackLo, make([]byte, size)
		if rnd.IntN(2) == 0 {
			s.Mem.Lo = from
		}
		for at := 0; at < size; at += 8 {
			v := signed()
			switch rnd.IntN(8) {
			case 0, 1, 2:
				v = stackLo + 8*rnd.Uint64N(size/8)
			case 3:
				v = rnd.Uint64()
			}
			binary.LittleEndian.PutUint64(s.Mem.Bytes[at:], v)
		}
		for r := range s.Regs[:m.Slot(m.PC)] {
			s.Regs[r] = stackLo + 8*rnd.Uint64N(size/8)
		}
		s.Regs[m.Slot(m.RA)] = signed()
		s.Regs[m.Slot(m.SP)], s.Regs[m.Slot(m.PC)] = from, s.PC
	}
	k, w := newKernelWalk(t, m), unwind.NewWalker(1024)
	go func() {
		for i := range snaps {
			k.ask(&snaps[i])
		}
		k.in.Flush()
	}()
	bad, total, down := 0, 0, 0
	for i := range snaps {
		words, stop, _, err := k.answer()
		if err != nil {
			t.Fatal(err)
		}
		frames, want := w.Walk(&snaps[i], nil)
		total += len(frames)
		if want == unwind.BadCFA {
			down++
		}
		// Permitted: without its memory's size the kernel's program takes what lies right above for a page that is missing.
		if stop == unwind.Truncated || stop == unwind.BadMemory {
			stop = want
		}
		if diff := differs(words, stop, frames, want); diff != "" {
			if bad++; bad <= 3 {
				t.Errorf("stack %d: %s", i, diff)
			}
		}
	}
	t.Logf("%d stacks, %d frames; %d lead nowhere; %d differ", len(snaps), total, down, bad)
	if bad > 3 || total < len(snaps)*3/2 {
		t.Errorf("%d of %d stacks differ; %d frames", bad, len(snaps), total)
	}
}
