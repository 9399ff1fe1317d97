package lab

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/modules"
	"github.com/unspool/unspool/source"
	"github.com/unspool/unspool/source/ebpf"
	"github.com/unspool/unspool/source/perfevent"
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
		if pc, how := words[i]&(1<<60-1), unwind.How(words[i]>>60); pc != uint64(f.PC) || how != f.How {
			return fmt.Sprintf("frame %d is %#x by %v, not %#x by %v", i, pc, how, f.PC, f.How)
		}
	}
	if len(words) > len(frames) || stop != want {
		return fmt.Sprintf("%d frames and %v, not %d and %v", len(words), stop, len(frames), want)
	}
	return ""
}

// A doubled program takes samples in the kernel while the kernel writes its own, and keeps them by processor.
type doubled struct {
	*ebpf.Program
	dec *source.Decoder
	got map[uint32][]source.Record
}

func (d *doubled) Samples(began uint64, _ func(n int) []byte) bool {
	var raws [][]byte
	again := d.Program.Samples(began, func(n int) []byte {
		raws = append(raws, make([]byte, n))
		return raws[len(raws)-1]
	})
	for _, raw := range raws {
		var r source.Record
		if d.dec.Decode(raw, &r) == nil {
			d.got[r.CPU] = append(d.got[r.CPU], r)
		}
	}
	return again
}

// userChain returns the user part of a callchain.
func userChain(r *source.Record) (chain []uint64) {
	user := false
	for i := range r.Callchain.Len() {
		switch v := r.Callchain.At(i); {
		case v >= source.ContextMax:
			user = v == source.ContextUser
		case user:
			chain = append(chain, v)
		}
	}
	return chain
}

// TestKernelSamples: stacks that are walked in the kernel equal those of copies that the very same events made. Where a copy
// ends, the kernel goes on.
func TestKernelSamples(t *testing.T) {
	oracle.Need(t, "gcc", "g++", "openssl", "python3")
	signals, deep := gcc(t, "signals.c"), gcc(t, "deep.c")
	object := filepath.Join(t.TempDir(), "heavy.o")
	for _, cmd := range [][]string{
		{"openssl", "speed", "-seconds", "1", "rsa2048"},
		{"g++", "-std=c++17", "-O2", "-c", "workload/heavy.cc", "-o", object},
		{"python3", "workload/calls.py", "1"},
		{signals, "3000"}, {signals, "3000", "altstack"},
		{deep, "1000"},
	} {
		t.Run(strings.Join(append([]string{filepath.Base(cmd[0])}, cmd[1:min(len(cmd), 2)]...), " "), func(t *testing.T) {
			mods := modules.New()
			prog, err := ebpf.Load(ebpf.Options{Mods: mods.Module, Pass: true})
			if errors.Is(err, os.ErrPermission) {
				oracle.Lacks(t, "the permission to load programs into the kernel")
			}
			if err != nil {
				t.Fatal(err)
			}
			defer prog.Close()
			attr := source.Attr{SampleType: source.SampleIdentifier | source.SampleIP | source.SampleTID | source.SampleTime | source.SampleCPU | source.SamplePeriod}
			attr = attr.Walked()
			d := &doubled{Program: prog, dec: source.NewDecoder(), got: map[uint32][]source.Record{}}
			d.dec.AddAttr(&attr, nil, "")
			null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer null.Close()
			stdout, stderr := os.Stdout, os.Stderr
			os.Stdout, os.Stderr = null, null
			rec, err := perfevent.Open(t.Context(), perfevent.Options{Command: cmd, Frequency: 999, StackSize: 65528, Program: d})
			os.Stdout, os.Stderr = stdout, stderr
			if err != nil {
				t.Fatal(err)
			}
			defer rec.Close()
			type copied struct {
				time  uint64
				tid   int32
				chain []uint64
				stop  unwind.Stop
			}
			copies := map[uint32][]copied{}
			_, err = source.Run(t.Context(), rec, source.Options{Mods: mods.Module, Sample: func(s *source.Sample) error {
				c := copied{s.Time, s.TID, nil, s.Stop}
				for i := range s.User {
					c.chain = append(c.chain, uint64(s.User[i].Addr()))
				}
				copies[s.CPU] = append(copies[s.CPU], c)
				return nil
			}})
			if err != nil {
				t.Fatal(err)
			}
			st := prog.Stats()
			equal, longer, early, whole, deepest, n := 0, 0, 0, 0, 0, 0
			first, latest := uint64(math.MaxUint64), uint64(0)
			for _, cs := range copies {
				first = min(first, cs[0].time)
			}
			for cpu, cs := range copies {
				ks := d.got[cpu]
				for len(cs) > 0 && len(ks) > 0 {
					c, k := cs[0], &ks[0]
					// The program's time is a moment after the event's. Where a record was lost, the other has no partner.
					if k.Time < c.time {
						ks = ks[1:]
						continue
					}
					if k.TID != c.tid || len(cs) > 1 && k.Time > cs[1].time {
						cs = cs[1:]
						continue
					}
					cs, ks = cs[1:], ks[1:]
					chain := userChain(k)
					n++
					deepest = max(deepest, len(chain))
					common := min(len(chain), len(c.chain))
					switch {
					case len(chain) < len(c.chain) && slices.Equal(chain, c.chain[:len(chain)]):
						early++ // what the process had just mapped was not known yet
						latest = max(latest, k.Time-first)
					case !slices.Equal(chain[:common], c.chain[:common]) || len(chain) > common && c.stop == unwind.Outermost:
						t.Errorf("copied %x, %v\nwalked %x", c.chain, c.stop, chain)
					case len(chain) > common:
						longer++
					default:
						equal++
					}
					if c.stop == unwind.Outermost {
						whole++
					}
				}
			}
			t.Logf("%d samples: %d equal, %d longer than the copy, %d before the mapping was known (%d before the process; the last after %d ms); deepest %d; %d copies whole; lost %d",
				n, equal, longer, early, st.Cut, latest/1e6, deepest, whole, st.RingFull+st.Nested)
			if n < 100 || equal+longer < n/2 { // how soon a mapping is known depends on what else the machine does
				t.Error("too few")
			}
		})
	}
}
