package main

import (
	"cmp"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/internal/cli"
	"github.com/unspool/unspool/modules"
	"github.com/unspool/unspool/names"
	"github.com/unspool/unspool/profile"
	"github.com/unspool/unspool/report"
	"github.com/unspool/unspool/source"
	"github.com/unspool/unspool/source/corefile"
	running "github.com/unspool/unspool/source/live" // live is the profiler's
	"github.com/unspool/unspool/source/minidump"
	"github.com/unspool/unspool/stacks"
	"github.com/unspool/unspool/unwind"
)

// stackOptions are the flags of stack.
type stackOptions struct {
	walk    stacks.Options
	format  string
	noPause bool
	raw     bool
	unique  bool
	plain   bool // no lines and inlined calls
}

func stackCmd() *cobra.Command {
	o := stackOptions{format: "text"}
	var stepper func() (*modules.Set, error)
	c := &cobra.Command{
		Use:   "stack PID | CORE [EXE] | FILE.dmp",
		Short: "Print the stacks of a running process, a core dump or a minidump",
		Long: `Print the stacks of all threads of a running process, or of a process in a core dump. A running process stops for as
short a time as possible. A number is a PID; ./1234 is a file.

In a core dump, the thread with the signal comes first. stack reads the mapped files at their paths, or in .build-id/
in the directories of --debug-dir. EXE replaces the executable's path. A file is used only if its build ID is the one
in the core. Standard error names missing files.

A minidump is of Windows, macOS, Android or Linux. stack reads its modules' files (PE, Mach-O, ELF) at their paths, below
--sysroot and --debug-dir by their names, and as symbol servers keep them: NAME/ID/NAME.

A mark says how a frame was found; frames by call frame information have none. [signal]: a signal interrupted the
frame. [plt]: found by the shape of the code. [fp]: found by the frame pointer. [inlined]: a call without a frame of
its own. A stack that is not whole says why. docs/STACK.md describes the JSON.`,
		Example: `  unspool stack 1234
  unspool stack core ./program
  unspool stack --unique --format json 1234 | jq '.threads[].frames[0].function'`,
		Args: cobra.RangeArgs(1, 2),
		RunE: func(c *cobra.Command, args []string) error {
			// Nothing is left behind, not even a thread that is stopped: Ctrl-C ends at once, wherever this is.
			signal.Reset(os.Interrupt, syscall.SIGTERM)
			if o.walk.Depth < 0 || o.walk.TID < 0 {
				return usage("--depth and --tid are positive")
			}
			mods, err := stepper()
			if err != nil {
				return err
			}
			defer mods.Close()
			if pid, err := strconv.Atoi(args[0]); err == nil {
				if len(args) > 1 {
					return usage("EXE needs a core file, and %d is a PID; the file with this name is ./%d", pid, pid)
				}
				mods.Files.Sysroot = "" // its files are not those of a process of this machine
				return runStackPID(pid, &o, mods)
			}
			if o.noPause {
				return usage("--no-pause needs a PID")
			}
			exe := ""
			if len(args) > 1 {
				exe = args[1]
			}
			if minidump.IsFile(args[0]) {
				if exe != "" {
					return usage("a minidump names its modules: it goes without EXE")
				}
				return runStackMinidump(args[0], &o, mods)
			}
			return runStackCore(args[0], exe, &o, mods)
		},
	}
	f := c.Flags()
	cli.OneOf(c, &o.format, "format", "text, gdb (as thread apply all bt), eu (as eu-stack -m) or json", "text", "gdb", "eu", "json")
	f.IntVarP(&o.walk.TID, "tid", "t", 0, "only this thread")
	f.IntVar(&o.walk.Depth, "depth", 0, fmt.Sprintf("only the innermost frames of a thread, at most this many (default: the innermost %d and the outermost %d)", stacks.Inner, stacks.Outer))
	sourceFlag(c, &o.plain)
	f.BoolVar(&o.noPause, "no-pause", false, "do not stop the process: a stack that changes during the walk may be wrong")
	f.BoolVarP(&o.walk.Registers, "registers", "v", false, "print the known registers of each frame")
	f.BoolVar(&o.raw, "raw", false, "addresses and modules only, without names")
	f.BoolVar(&o.unique, "unique", false, "print threads with the same stack once")
	stepper = lookingFlag(c)
	return c
}

func runStackPID(pid int, o *stackOptions, mods *modules.Set) error {
	namer := stackNamer(o, mods)
	defer namer.Close()
	p, pause, err := running.Open(pid, running.Options{Mods: mods.Module, Made: mods.Made(arch.Host()), Image: namer.Image, Files: mods.Files, NoPause: o.noPause})
	if err != nil {
		return err
	}
	paths := running.Paths(p)
	for _, m := range p.Space.Mappings() {
		namer.Mapped(int32(p.PID), cmp.Or(paths[m.Module.Path], m.Module.Path))
	}
	return writeStacks(p, o, namer, func(s *stacks.Process) {
		s.Paths, s.Pause, s.Longest = paths, pause.Total, pause.Longest
	})
}

// stackNamer returns what names the frames of stacks.
func stackNamer(o *stackOptions, mods *modules.Set) *names.Namer {
	n := newNamer(names.Options{Mods: mods})
	n.Lines = !o.plain
	return n
}

func runStackCore(path, exe string, o *stackOptions, mods *modules.Set) error {
	namer := stackNamer(o, mods)
	defer namer.Close()
	f, err := corefile.Open(path, corefile.Options{
		Mods: mods.Module, Image: namer.Image, Kept: mods.Kept, Exe: exe, Files: mods.Files,
	})
	if err != nil {
		return err
	}
	defer f.Close()
	return writeStacks(&f.Process, o, namer, func(s *stacks.Process) { s.Core = path })
}

func runStackMinidump(path string, o *stackOptions, mods *modules.Set) error {
	namer := stackNamer(o, mods)
	defer namer.Close()
	f, err := minidump.Open(path, minidump.Options{Mods: mods.Module, Image: namer.Image, Files: mods.Files})
	if err != nil {
		return err
	}
	defer f.Close()
	return writeStacks(&f.Process, o, namer, func(s *stacks.Process) {
		s.Core = path
		shown := map[*unwind.Module]bool{}
		for _, t := range s.Threads {
			for _, f := range t.Frames {
				if f.Mapping != nil {
					shown[f.Mapping.Module] = true
				}
			}
		}
		s.Notes = append(s.Notes, f.Missing(func(m *unwind.Module) bool { return shown[m] })...)
	})
}

// writeStacks walks the threads of p and writes what comes out. add adds what else is known.
func writeStacks(p *source.Process, o *stackOptions, namer profile.Namer, add func(*stacks.Process)) error {
	s, err := stacks.Walk(p, o.walk)
	if err != nil {
		return err
	}
	add(s)
	if o.unique {
		s.Merge()
	}
	if !o.raw {
		s.Name(namer)
	}
	if o.format != "json" {
		say(s.Notes)
	}
	for i := range s.Threads {
		if why := s.Threads[i].Incomplete(); why != "" && o.format == "eu" { // as eu-stack, which has no place for it
			fmt.Fprintf(stderr, "unspool: TID %d: %s\n", s.Threads[i].TID, why)
		}
	}
	return report.StackFormats[o.format](os.Stdout, s)
}
