package report

import (
	"bufio"
	"fmt"
	"io"
	"path"
	"strings"
	"time"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/internal/printable"
	"github.com/unspool/unspool/profile"
	"github.com/unspool/unspool/unwind"
)

// Stacks are the stacks of a process at one moment.
type Stacks struct {
	PID     int
	Exe     string   // may be empty
	Command []string // may be empty
	Core    string   // path of the core file; empty for a living process
	Machine *arch.Machine
	Signal  *Signal           // what ended the process; nil if nothing did
	Paths   map[string]string // how modules' paths are shown that are not the ones the process sees
	Pause   time.Duration     // for how long the process was stopped; 0: it was not
	Longest time.Duration     // for how long one thread was
	Notes   []string          // what is missing
	Raw     bool              // nobody has looked for names
	Threads []ThreadStack     // in the order in which they are shown
}

// A Signal is what the kernel says of one.
type Signal struct {
	Number  int
	Code    int
	Addr    uint64 // where HasAddr is set
	HasAddr bool
}

// A ThreadStack is the stack of a thread.
type ThreadStack struct {
	TID    int
	Name   string // may be empty
	Frames []StackFrame
	Left   int         // frames that are left out: the stack is too deep to show
	LeftAt int         // how many of Frames lie within them; the others are the outermost of the stack
	Stop   unwind.Stop // why there are no more frames
	Return uint64      // with BadReturn: the address that is in no code
	Err    error       // why there are none
	Same   []int       // other threads whose stacks are the same
}

// A StackFrame is a frame with its name.
type StackFrame struct {
	unwind.Frame
	Name profile.Name // of Place, counted as offsets in the module's file
	Regs []Register   // nil: nobody asked for them

	// Trampoline says that a signal's handler returns to this frame: nothing has called from there.
	Trampoline bool
}

// Place is the address by which the frame is named: Addr, but for a trampoline, which begins at PC.
func (f *StackFrame) Place() arch.Addr {
	if f.Trampoline {
		return f.PC
	}
	return f.Addr()
}

// A Register is a register's value in a frame.
type Register struct {
	Name  string
	Value uint64
}

// StackFormats are the reports of stacks by name: this project's own, as gdb and as eu-stack print them, and JSON.
var StackFormats = map[string]func(io.Writer, *Stacks) error{
	"text": StackText,
	"gdb":  StackGDB,
	"eu":   StackEU,
	"json": StackJSON,
}

// A line is a frame, or a call that was inlined into one, as it is printed.
type line struct {
	*StackFrame
	fn      string // "" if it has no name
	linkage string
	start   uint64 // of the function, as Name.Start; 0 if unknown
	src     *profile.Source
	inlined bool
}

// lines returns what is printed for a frame: the inlined calls first, innermost first.
func (f *StackFrame) lines() []line {
	own := line{StackFrame: f, fn: f.Name.Func, linkage: f.Name.Linkage, start: f.Name.Start}
	k := len(f.Name.Source) - 1
	if k < 0 {
		return []line{own}
	}
	out := make([]line, 0, k+1)
	for i := range k {
		s := &f.Name.Source[i]
		out = append(out, line{StackFrame: f, fn: s.Func, linkage: s.Linkage, src: s, inlined: true})
	}
	own.src = &f.Name.Source[k]
	return append(out, own)
}

// module returns the path of the module of a frame as the process sees it; "" if it is in none.
func (s *Stacks) module(f *StackFrame) string {
	if f.Mapping == nil || f.Mapping.Module == nil {
		return ""
	}
	own := f.Mapping.Module.Path
	if p, ok := s.Paths[own]; ok {
		return p
	}
	return own
}

// offset returns how far the program counter is in its function.
func (l *line) offset() (uint64, bool) {
	if l.start == 0 || l.Mapping == nil || l.inlined {
		return 0, false
	}
	return l.Mapping.FileOff(l.Place()) - l.start + uint64(l.PC-l.Place()), true
}

// place returns "file:line"; "" if it is not known.
func (l *line) place() string {
	if l.src == nil || l.src.File == "" {
		return ""
	}
	return fmt.Sprintf("%s:%d", printable.String(l.src.File), l.src.Line)
}

// StackText writes stacks with all that is known: how each frame was found where it was not by call frame information, and
// why a stack that is not whole ends.
func StackText(out io.Writer, s *Stacks) error {
	w := bufio.NewWriter(out)
	fmt.Fprintf(w, "PID %d", s.PID)
	if len(s.Command) > 0 {
		fmt.Fprintf(w, ": %s", printable.String(strings.Join(s.Command, " ")))
	} else if s.Exe != "" {
		fmt.Fprintf(w, ": %s", printable.String(s.Exe))
	}
	if s.Core != "" {
		fmt.Fprintf(w, " (from %s)", printable.String(s.Core))
	} else if s.Pause > 0 {
		fmt.Fprintf(w, " (stopped for %s, no thread for more than %s)", seconds(s.Pause), seconds(s.Longest))
	}
	fmt.Fprintln(w)
	if s.Signal != nil {
		fmt.Fprintln(w, s.Signal)
	}
	for i := range s.Threads {
		t := &s.Threads[i]
		fmt.Fprintf(w, "\nTID %d", t.TID)
		if t.Name != "" {
			fmt.Fprintf(w, " %q", t.Name)
		}
		if n := len(t.Same); n > 0 {
			fmt.Fprintf(w, " and %d more:%s", n, listTIDs(t.Same))
		}
		fmt.Fprintln(w)
		n := 0
		for j := range t.Frames {
			t.leftOut(w, j, &n)
			for _, l := range t.Frames[j].lines() {
				fmt.Fprintf(w, "#%-2d 0x%016x", n, uint64(l.PC))
				n++
				l.text(w, s)
			}
			writeRegs(w, t.Frames[j].Regs)
		}
		if why := t.Incomplete(); why != "" {
			fmt.Fprintf(w, "  %s\n", why)
		}
	}
	return w.Flush()
}

// leftOut says before frame j that others are left out, and counts them.
func (t *ThreadStack) leftOut(w io.Writer, j int, n *int) {
	if t.Left > 0 && j == t.LeftAt {
		fmt.Fprintf(w, "... %s frames are left out ...\n", profile.Comma(uint64(t.Left)))
		*n += t.Left
	}
}

// Incomplete says why a stack is not whole; "" if it is.
func (t *ThreadStack) Incomplete() string {
	switch {
	case t.Err != nil:
		return fmt.Sprintf("no registers: %v", t.Err)
	case t.Stop == unwind.BadReturn:
		return fmt.Sprintf("not whole, %s: the return address %#x is not in code", t.Stop, t.Return)
	case t.Stop != unwind.Outermost:
		return fmt.Sprintf("not whole, %s: %s", t.Stop, stopText[t.Stop])
	}
	return ""
}

// stopText says what a reason to stop means.
var stopText = [unwind.NumStops]string{
	unwind.Outermost:   "whole",
	unwind.NoInfo:      "there is no unwind information at the last frame, and no frame pointer to follow",
	unwind.BadCFA:      "the caller's frame is not above the last one, or needs a register that is lost",
	unwind.Truncated:   "the captured stack ends before the last frame does",
	unwind.BadMemory:   "memory that the last frame's caller is found by cannot be read",
	unwind.DepthLimit:  "the limit of frames",
	unwind.NoUserStack: "there is nothing to walk",
}

func (l *line) text(w io.Writer, s *Stacks) {
	switch off, ok := l.offset(); {
	case l.fn != "" && ok:
		fmt.Fprintf(w, " in %s+0x%x", printable.String(l.fn), off)
	case l.fn != "":
		fmt.Fprintf(w, " in %s", printable.String(l.fn))
	case !s.Raw:
		fmt.Fprintf(w, " in %s", l.unnamed(s))
	}
	if p := l.place(); p != "" {
		fmt.Fprintf(w, " (%s)", p)
	}
	if m := s.module(l.StackFrame); m != "" {
		fmt.Fprintf(w, " from %s", printable.String(m))
		if s.Raw {
			fmt.Fprintf(w, "+0x%x", l.Mapping.FileOff(l.PC))
		}
	}
	switch {
	case l.inlined:
		fmt.Fprint(w, " [inlined]")
	case l.How != unwind.HowStart && l.How != unwind.HowCFI:
		fmt.Fprintf(w, " [%s]", l.How)
	}
	fmt.Fprintln(w)
}

// unnamed stands for a function without a name: its module and where it begins there, or where the frame is if that is not known.
func (l *line) unnamed(s *Stacks) string {
	m := s.module(l.StackFrame)
	if m == "" {
		return profile.Unknown
	}
	base := strings.Trim(path.Base(m), "[]")
	if off, ok := l.offset(); ok {
		return fmt.Sprintf("[%s+0x%x]+0x%x", printable.String(base), l.start, off)
	}
	return fmt.Sprintf("[%s+0x%x]", printable.String(base), l.Mapping.FileOff(l.PC))
}

// maxTIDs is how many threads with the same stack are listed.
const maxTIDs = 16

func listTIDs(tids []int) string {
	var b strings.Builder
	for i, t := range tids {
		if i == maxTIDs {
			b.WriteString(" …")
			break
		}
		fmt.Fprintf(&b, " %d", t)
	}
	return b.String()
}

func writeRegs(w io.Writer, regs []Register) {
	for i, r := range regs {
		sep := "  "
		if i%4 == 0 {
			sep = "      "
		}
		fmt.Fprintf(w, "%s%-3s 0x%016x", sep, r.Name, r.Value)
		if i%4 == 3 || i == len(regs)-1 {
			fmt.Fprintln(w)
		}
	}
}

// StackGDB writes stacks as gdb's "thread apply all bt" does, in this order of threads. What gdb says of arguments and of POSIX
// threads is not there.
func StackGDB(out io.Writer, s *Stacks) error {
	w := bufio.NewWriter(out)
	for i := range s.Threads {
		t := &s.Threads[i]
		fmt.Fprintf(w, "\nThread %d (LWP %d", i+1, t.TID)
		if t.Name != "" {
			fmt.Fprintf(w, " %q", t.Name)
		}
		fmt.Fprintln(w, "):")
		n := 0
		for j := range t.Frames {
			f := &t.Frames[j]
			t.leftOut(w, j, &n)
			if f.Trampoline {
				fmt.Fprintf(w, "#%-2d <signal handler called>\n", n)
				n++
				continue
			}
			for _, l := range f.lines() {
				name := "??"
				if l.fn != "" {
					name = printable.String(l.fn)
				}
				fmt.Fprintf(w, "#%-2d ", n)
				n++
				if !l.inlined {
					fmt.Fprintf(w, "0x%016x in ", uint64(l.PC))
				}
				fmt.Fprintf(w, "%s ()", name)
				if p := l.place(); p != "" {
					fmt.Fprintf(w, " at %s", p)
				} else if m := s.module(l.StackFrame); m != "" {
					fmt.Fprintf(w, " from %s", printable.String(m))
				}
				fmt.Fprintln(w)
			}
			writeRegs(w, f.Regs)
		}
		if why := t.Incomplete(); why != "" {
			fmt.Fprintf(w, "Backtrace stopped: %s\n", why)
		}
	}
	return w.Flush()
}

// StackEU writes stacks as eu-stack does, with modules (-m). Calls that were inlined are not shown, as without -i. Why a stack
// is not whole is not there: see Incomplete.
func StackEU(out io.Writer, s *Stacks) error {
	w := bufio.NewWriter(out)
	kind := "process"
	if s.Core != "" {
		kind = "core"
	}
	fmt.Fprintf(w, "PID %d - %s\n", s.PID, kind)
	for i := range s.Threads {
		t := &s.Threads[i]
		fmt.Fprintf(w, "TID %d:\n", t.TID)
		n := 0
		for j := range t.Frames {
			t.leftOut(w, j, &n)
			for _, l := range t.Frames[j].lines() {
				if l.inlined {
					continue // as eu-stack without -i
				}
				fmt.Fprintf(w, "#%-2d 0x%016x", n, uint64(l.PC))
				n++
				if l.fn != "" {
					fmt.Fprintf(w, " %s", printable.String(l.fn))
				}
				if m := s.module(l.StackFrame); m != "" {
					fmt.Fprintf(w, " - %s", printable.String(m))
				}
				fmt.Fprintln(w)
			}
			writeRegs(w, t.Frames[j].Regs)
		}
	}
	return w.Flush()
}
