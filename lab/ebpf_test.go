package lab

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
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
	in     *bufio.Writer
	out    *bufio.Reader
	tables map[*unwind.Module]uint32
	space  *unwind.Space
}

func newKernelWalk(t *testing.T) *kernelWalk {
	oracle.Need(t, "gcc")
	prog := filepath.Join(t.TempDir(), "user")
	if out, err := exec.Command("gcc", "-std=gnu11", "-O2", "-I../runtime", "-o", prog, "../source/ebpf/testdata/user.c").CombinedOutput(); err != nil {
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
	return &kernelWalk{in: bufio.NewWriterSize(in, 1<<20), out: bufio.NewReaderSize(out, 1<<20), tables: map[*unwind.Module]uint32{}}
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
	if c := m.Code(); c != nil && c.Machine == arch.AMD64 {
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

// ask writes a snapshot.
func (k *kernelWalk) ask(s *unwind.Snapshot) {
	if s.Space != k.space {
		k.space = s.Space
		ranges := ebpf.Ranges(s.Space, k.table)
		k.words(2, uint64(len(ranges)*32), 0, 0, 0, 0, 0)
		for _, r := range ranges {
			k.words(r.Lo, r.Hi, r.Bias, uint64(r.Table)|uint64(r.Kind)<<32)
		}
	}
	k.words(3, 0, 0, 0, 0, 0, 1)
	k.words(s.Regs[:17]...)
	k.words(s.Mem.Lo, uint64(len(s.Mem.Bytes)))
	k.in.Write(s.Mem.Bytes)
}

// answer reads the words of a walk, and why it ended.
func (k *kernelWalk) answer() (words []uint64, stop unwind.Stop, err error) {
	var b [8]byte
	if _, err = io.ReadFull(k.out, b[:]); err != nil {
		return nil, 0, err
	}
	n := binary.LittleEndian.Uint64(b[:])
	words = make([]uint64, uint32(n))
	for i := range words {
		if _, err = io.ReadFull(k.out, b[:]); err != nil {
			return nil, 0, err
		}
		words[i] = binary.LittleEndian.Uint64(b[:])
	}
	return words, unwind.Stop(n >> 32), nil
}

// TestKernelWalk: the walk that runs in the kernel finds what our walker finds, on all stacks of the recordings.
func TestKernelWalk(t *testing.T) {
	for _, file := range recordings(t) {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".data"), func(t *testing.T) {
			k, spaces, w := newKernelWalk(t), newSpaces(modules.New()), unwind.NewWalker(1024)
			n, bad := 0, 0
			var frames []unwind.Frame
			batches(t, file, 1000, func(snaps []oracle.Snapshot, in []*oracle.Space) {
				us := make([]unwind.Snapshot, len(snaps))
				for i := range us {
					us[i] = snapshot(&snaps[i], spaces.space(in[i]))
				}
				go func() {
					for i := range us {
						k.ask(&us[i])
					}
					k.in.Flush()
				}()
				for i := range us {
					words, stop, err := k.answer()
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
		pc, how := words[i]&(1<<60-1), unwind.How(words[i]>>60&7)
		exact := words[i]>>63 != 0 || how == unwind.HowStart || how.Interrupted()
		// Permitted: that no call has led to a place can be seen of the code there, which the program is not given here.
		if pc != uint64(f.PC) || how != f.How || exact && !f.Exact {
			return fmt.Sprintf("frame %d is %#x by %v, exact %v, not %#x by %v, exact %v", i, pc, how, exact, f.PC, f.How, f.Exact)
		}
	}
	if len(words) > len(frames) || stop != want {
		return fmt.Sprintf("%d frames and %v, not %d and %v", len(words), stop, len(frames), want)
	}
	return ""
}
