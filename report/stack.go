package report

import (
	"bufio"
	"fmt"
	"io"
	"strings"

	"github.com/unspool/unspool/internal/printable"
	"github.com/unspool/unspool/profile"
	"github.com/unspool/unspool/stacks"
	"github.com/unspool/unspool/unwind"
)

// StackFormats are the forms of the stacks of a process: this project's own, those of other programs, and JSON.
var StackFormats = Table{
	{Name: "text", Stacks: stackText},
	{Name: "gdb", About: "as thread apply all bt", Stacks: stackGDB},
	{Name: "eu", About: "as eu-stack -m", Stacks: stackEU},
	{Name: "json", Stacks: stackJSON},
}

// A line is a frame, or a call that was inlined into one, as it is printed.
type line struct {
	*stacks.Frame
	fn      string // "" if it has no name
	linkage string
	start   uint64 // of the function, as Name.Start; 0 if unknown
	src     *profile.Source
	inlined bool
}

// frameLines returns what is printed for a frame: the inlined calls first, innermost first.
func frameLines(f *stacks.Frame) []line {
	own := line{Frame: f, fn: f.Name.Func, linkage: f.Name.Linkage, start: f.Name.Start}
	k := len(f.Name.Source) - 1
	if k < 0 {
		return []line{own}
	}
	out := make([]line, 0, k+1)
	for i := range k {
		s := &f.Name.Source[i]
		out = append(out, line{Frame: f, fn: s.Func, linkage: s.Linkage, src: s, inlined: true})
	}
	own.src = &f.Name.Source[k]
	return append(out, own)
}

// modulePath returns the path of the module of a frame as the process sees it; "" if it is in none.
func modulePath(s *stacks.Process, f *stacks.Frame) string {
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

// stackText writes stacks with all that is known: how each frame was found where it was not by call frame information, and
// why a stack that is not whole ends.
func stackText(out io.Writer, s *stacks.Process) error {
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
			leftOut(w, t, j, &n)
			for _, l := range frameLines(&t.Frames[j]) {
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
func leftOut(w io.Writer, t *stacks.Thread, j int, n *int) {
	if t.Left > 0 && j == t.LeftAt {
		fmt.Fprintf(w, "... %s left out ...\n", profile.Count(uint64(t.Left), "frame is", "frames are"))
		*n += t.Left
	}
}

func (l *line) text(w io.Writer, s *stacks.Process) {
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
	if m := modulePath(s, l.Frame); m != "" {
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
func (l *line) unnamed(s *stacks.Process) string {
	m := modulePath(s, l.Frame)
	if m == "" {
		return profile.Unknown
	}
	base := strings.Trim((&profile.Module{Path: m}).Base(), "[]")
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

func writeRegs(w io.Writer, regs []stacks.Register) {
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

// stackGDB writes stacks as gdb's "thread apply all bt" does, in this order of threads. What gdb says of arguments and of POSIX
// threads is not there.
func stackGDB(out io.Writer, s *stacks.Process) error {
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
			leftOut(w, t, j, &n)
			if f.Trampoline {
				fmt.Fprintf(w, "#%-2d <signal handler called>\n", n)
				n++
				continue
			}
			for _, l := range frameLines(f) {
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
				} else if m := modulePath(s, l.Frame); m != "" {
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

// stackEU writes stacks as eu-stack does, with modules (-m). Calls that were inlined are not shown, as without -i. Why a stack
// is not whole is not there: see Incomplete.
func stackEU(out io.Writer, s *stacks.Process) error {
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
			leftOut(w, t, j, &n)
			for _, l := range frameLines(&t.Frames[j]) {
				if l.inlined {
					continue // as eu-stack without -i
				}
				fmt.Fprintf(w, "#%-2d 0x%016x", n, uint64(l.PC))
				n++
				if l.fn != "" {
					fmt.Fprintf(w, " %s", printable.String(l.fn))
				}
				if m := modulePath(s, l.Frame); m != "" {
					fmt.Fprintf(w, " - %s", printable.String(m))
				}
				fmt.Fprintln(w)
			}
			writeRegs(w, t.Frames[j].Regs)
		}
	}
	return w.Flush()
}
