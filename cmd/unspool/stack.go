package main

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/module"
	"github.com/unspool/unspool/modules"
	"github.com/unspool/unspool/names"
	"github.com/unspool/unspool/profile"
	"github.com/unspool/unspool/report"
	"github.com/unspool/unspool/source"
	"github.com/unspool/unspool/source/corefile"
	running "github.com/unspool/unspool/source/live" // live is the profiler's
	"github.com/unspool/unspool/unwind"
)

// stackOptions are the flags of stack.
type stackOptions struct {
	format    string
	tid       int
	depth     int
	frames    int // maxFrames, but in tests
	noPause   bool
	registers bool
	raw       bool
	unique    bool
	plain     bool // no lines and inlined calls
	sysroot   string
	debugDirs []string
}

func stackCmd() *cobra.Command {
	o := stackOptions{format: "text", frames: maxFrames}
	var stepper func() (*modules.Set, error)
	c := &cobra.Command{
		Use:   "stack PID | CORE [EXE]",
		Short: "Print the stacks of a running process or a core dump",
		Long: `Print the stacks of all threads of a process: of a running one, which is stopped for as short a time as
possible, or of one that a core dump holds. A number is a PID; ./1234 is a file.

Of a core dump, the thread that got the signal comes first. The files that were mapped are the ones at their
paths, or those in .build-id/ in the directories of --debug-dir, and EXE stands for the executable; each is used
only if it has the build ID that is in the core. What is missing is said on standard error.

Each frame says how it was found, unless by call frame information: [signal] was interrupted by a signal, [plt] and
[fp] are found by the shape of the code and by the frame pointer, [inlined] is a call without a frame of its own. A
stack that is not whole says why. docs/STACK.md has the JSON.`,
		Example: `  unspool stack 1234
  unspool stack core ./program
  unspool stack --unique --format json 1234 | jq '.threads[].frames[0].function'`,
		Args: cobra.RangeArgs(1, 2),
		RunE: func(c *cobra.Command, args []string) error {
			// Nothing is left behind, not even a thread that is stopped: Ctrl-C ends at once, wherever this is.
			signal.Reset(os.Interrupt, syscall.SIGTERM)
			if report.StackFormats[o.format] == nil {
				return usage("--format is text, gdb, eu or json, not %q", o.format)
			}
			if o.depth < 0 || o.tid < 0 {
				return usage("--depth and --tid are positive")
			}
			mods, err := stepper()
			if err != nil {
				return err
			}
			mods.Files.DebugDirs = o.dirs()
			if pid, err := strconv.Atoi(args[0]); err == nil {
				if len(args) > 1 {
					return usage("EXE goes with a core file, and %d is a PID; a file of that name is ./%d", pid, pid)
				}
				return runStackPID(pid, &o, mods)
			}
			if o.noPause {
				return usage("--no-pause goes with a PID")
			}
			exe := ""
			if len(args) > 1 {
				exe = args[1]
			}
			return runStackCore(args[0], exe, &o, mods)
		},
	}
	f := c.Flags()
	f.StringVar(&o.format, "format", o.format, "text, gdb (as thread apply all bt), eu (as eu-stack -m) or json")
	f.IntVarP(&o.tid, "tid", "t", 0, "only this thread")
	f.IntVar(&o.depth, "depth", 0, fmt.Sprintf("only the innermost frames of a thread, at most this many (default: the innermost %d and the outermost %d)", unwind.DefaultDepth, outermost))
	sourceFlag(c, &o.plain)
	f.BoolVar(&o.noPause, "no-pause", false, "do not stop the process: a stack that changes meanwhile may come out wrong")
	f.BoolVarP(&o.registers, "registers", "v", false, "print the registers that are known in each frame")
	f.BoolVar(&o.raw, "raw", false, "addresses and modules only, without names")
	f.BoolVar(&o.unique, "unique", false, "print threads with the same stack once")
	f.StringVar(&o.sysroot, "sysroot", "", "directory to look in first for the files of a core dump, by their paths")
	f.StringArrayVar(&o.debugDirs, "debug-dir", nil, "directory with .build-id/, for files of a core dump and for symbols (may be repeated; /usr/lib/debug is always one)")
	c.RegisterFlagCompletionFunc("format", cobra.FixedCompletions([]string{"text", "gdb", "eu", "json"}, cobra.ShellCompDirectiveNoFileComp))
	stepper = stepperFlag(c)
	return c
}

func runStackPID(pid int, o *stackOptions, mods *modules.Set) error {
	p, pause, err := running.Open(pid, running.Options{Mods: mods.Module, NoPause: o.noPause})
	if err != nil {
		return err
	}
	s := report.Stacks{Paths: ownPaths(p), Pause: pause.Total, Longest: pause.Longest}
	return writeStacks(&s, p, o, stackNamer(o, mods))
}

// ownPaths returns the paths that a running process itself has for those of its modules that lead through /proc.
func ownPaths(p *source.Process) map[string]string {
	out := map[string]string{}
	proc := fmt.Sprintf("/proc/%d/", p.PID)
	for _, m := range p.Space.Mappings() {
		path := m.Module.Path
		if in, ok := strings.CutPrefix(path, proc+"root/"); ok {
			out[path] = "/" + in
		} else if strings.HasPrefix(path, proc) {
			if to, err := os.Readlink(path); err == nil {
				out[path] = to
			}
		}
	}
	return out
}

// stackNamer returns what names the frames of stacks.
func stackNamer(o *stackOptions, mods *modules.Set) *names.Namer {
	n := newNamer(names.Options{Mods: mods})
	n.Lines = !o.plain
	return n
}

// dirs returns the directories that have .build-id.
func (o *stackOptions) dirs() []string { return append(slices.Clone(o.debugDirs), module.DebugDir) }

func runStackCore(path, exe string, o *stackOptions, mods *modules.Set) error {
	namer := stackNamer(o, mods)
	f, err := corefile.Open(path, corefile.Options{
		Mods: mods.Module,
		Image: func(img *module.Image) *unwind.Module {
			m := mods.Image(img)
			namer.SetImage(m, img)
			return m
		},
		Kept: mods.Kept, Exe: exe, Sysroot: o.sysroot, DebugDirs: o.dirs(),
	})
	if err != nil {
		return err
	}
	defer f.Close()
	s := report.Stacks{Core: path}
	return writeStacks(&s, &f.Process, o, namer)
}

// maxFrames is how many frames are kept of all threads together, other than the innermost shortDepth of each: the threads of a hostile core
// can all have the same deep stack.
const (
	maxFrames  = 1 << 20
	shortDepth = 64
)

// A stack is walked to its end, or to deepest frames: an endless recursion in 16 MiB of stack has no more. Of all stacks together,
// maxWalked frames are, before no more than what is shown is walked.
const (
	deepest   = 1 << 20
	maxWalked = 1 << 23
	outermost = 64 // frames that are shown of a stack besides the innermost
)

// writeStacks walks the threads of p and writes what comes out.
func writeStacks(s *report.Stacks, p *source.Process, o *stackOptions, namer profile.Namer) error {
	s.PID, s.Exe, s.Command, s.Machine, s.Notes = p.PID, p.Exe, p.Command, p.Machine, p.Notes
	if g := p.Signal; g != nil {
		s.Signal = &report.Signal{Number: g.Number, Code: g.Code, Addr: g.Addr, HasAddr: g.HasAddr}
	}
	w := unwind.NewWalker(cmp.Or(o.depth, deepest))
	late, frames, walked, cut := 0, 0, 0, 0
	var buf []unwind.Frame
	for i := range p.Threads {
		t := &p.Threads[i]
		if o.tid != 0 && t.TID != o.tid {
			continue
		}
		out := report.ThreadStack{TID: t.TID, Name: t.Name, Err: t.Err, Stop: unwind.NoUserStack}
		if t.Err == nil {
			switch {
			case frames > o.frames:
				if cut++; cut == 1 {
					w = unwind.NewWalker(min(shortDepth, cmp.Or(o.depth, shortDepth)))
				}
			case walked > maxWalked && walked < math.MaxInt:
				w, walked = unwind.NewWalker(o.depth), math.MaxInt
			}
			err := source.Guard(func() error { buf = walkThread(w, &t.Snapshot, &out, o, buf); return nil })
			if err != nil {
				out.Err = err
			}
			frames += len(out.Frames)
			if walked < math.MaxInt {
				walked += len(buf)
			}
		}
		if t.Late != nil && t.Late() > 0 {
			late++
		}
		s.Threads = append(s.Threads, out)
	}
	if len(s.Threads) == 0 {
		return fmt.Errorf("process %d has no thread %d", p.PID, o.tid)
	}
	if late > 0 {
		s.Notes = append(s.Notes, fmt.Sprintf("parts of the stacks of %d threads were read when they ran again: frames there may be newer than the rest", late))
	}
	if cut > 0 {
		s.Notes = append(s.Notes, fmt.Sprintf("there are more than %s frames: of the last %s threads, only the innermost %d are shown", profile.Comma(uint64(o.frames)), profile.Comma(uint64(cut)), shortDepth))
	}
	if o.unique {
		s.Threads = uniqueStacks(s.Threads)
	}
	if s.Raw = o.raw; !o.raw {
		nameStacks(s.Threads, namer)
	}
	if o.format != "json" {
		for _, n := range s.Notes {
			fmt.Fprintf(stderr, "unspool: %s\n", n)
		}
	}
	for i := range s.Threads {
		if why := s.Threads[i].Incomplete(); why != "" && o.format == "eu" { // as eu-stack, which has no place for it
			fmt.Fprintf(stderr, "unspool: TID %d: %s\n", s.Threads[i].TID, why)
		}
	}
	return report.StackFormats[o.format](io.Writer(os.Stdout), s)
}

// walkThread walks one stack. buf is room for its frames, and is returned with them.
func walkThread(w *unwind.Walker, s *unwind.Snapshot, out *report.ThreadStack, o *stackOptions, buf []unwind.Frame) []unwind.Frame {
	frames, stop := w.Walk(s, buf[:0])
	out.Stop = stop
	if stop == unwind.BadReturn {
		out.Return = w.Return
	}
	const inner = unwind.DefaultDepth
	if n := len(frames) - inner - outermost; n > 0 && o.depth == 0 {
		out.Left, out.LeftAt = n, inner
	}
	shown := func(i int) int { // where frame i is in out; -1 if it is left out
		switch {
		case out.Left == 0 || i < inner:
			return i
		case i < inner+out.Left:
			return -1
		}
		return i - out.Left
	}
	out.Frames = make([]report.StackFrame, len(frames)-out.Left)
	for i := range frames {
		if j := shown(i); j >= 0 {
			out.Frames[j] = report.StackFrame{Frame: frames[i], Trampoline: i+1 < len(frames) && frames[i+1].How.Interrupted()}
		}
	}
	if !o.registers {
		return frames
	}
	m := s.Machine
	w.Registers(s, frames, func(i int, known uint64, regs *[arch.NumSlots]uint64) {
		j := shown(i)
		if j < 0 {
			return
		}
		var list []report.Register
		for r := range arch.Reg(128) {
			if slot := m.Slot(r); slot != arch.NoSlot && known>>slot&1 != 0 {
				list = append(list, report.Register{Name: m.RegName(r), Value: regs[slot]})
			}
		}
		out.Frames[j].Regs = list
	})
	return frames
}

// uniqueStacks merges the threads that have the same stack into the first of them.
func uniqueStacks(threads []report.ThreadStack) (out []report.ThreadStack) {
	same := func(a, b *report.ThreadStack) bool {
		return a.Stop == b.Stop && a.Left == b.Left && a.Return == b.Return && (a.Err == nil) == (b.Err == nil) && slices.EqualFunc(a.Frames, b.Frames, func(x, y report.StackFrame) bool {
			return x.Frame == y.Frame
		})
	}
	byPC := map[string][]int{}
	for i := range threads {
		t := &threads[i]
		var key []byte
		for j := range t.Frames {
			key = fmt.Appendf(key, "%x ", uint64(t.Frames[j].PC))
		}
		k := string(key)
		j := slices.IndexFunc(byPC[k], func(j int) bool { return same(&out[j], t) })
		if j >= 0 {
			first := &out[byPC[k][j]]
			first.Same = append(first.Same, t.TID)
			continue
		}
		byPC[k] = append(byPC[k], len(out))
		out = append(out, *t)
	}
	return out
}

// nameStacks finds the names of all frames, of each module at once.
func nameStacks(threads []report.ThreadStack, n profile.Namer) {
	of := map[*unwind.Module][]*report.StackFrame{}
	for i := range threads {
		for j := range threads[i].Frames {
			if f := &threads[i].Frames[j]; f.Mapping != nil {
				of[f.Mapping.Module] = append(of[f.Mapping.Module], f)
			}
		}
	}
	off := func(f *report.StackFrame) uint64 { return f.Mapping.FileOff(f.Place()) }
	for m, frames := range of {
		slices.SortFunc(frames, func(a, b *report.StackFrame) int { return cmp.Compare(off(a), off(b)) })
		var offs []uint64
		for _, f := range frames {
			if o := off(f); len(offs) == 0 || o != offs[len(offs)-1] {
				offs = append(offs, o)
			}
		}
		names := make([]profile.Name, len(offs))
		n.User(m, offs, names)
		k := 0
		for _, f := range frames {
			for offs[k] != off(f) {
				k++
			}
			f.Name = names[k]
		}
	}
}
