package main

import (
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/unspool/unspool/internal/cli"
	"github.com/unspool/unspool/modules"
	"github.com/unspool/unspool/names"
	"github.com/unspool/unspool/report"
	"github.com/unspool/unspool/stacks"
	"github.com/unspool/unspool/stacks/sources"
)

func stackCmd() *cobra.Command {
	var o sources.Options
	format, plain, pid := "text", false, 0
	var stepper func() (*modules.Set, error)
	named := func(args []string) []string { // -p PID, as eu-stack has it
		if pid != 0 {
			args = slices.Insert(args, 0, strconv.Itoa(pid))
		}
		return args
	}
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
frame. [sigreturn]: the kernel's frame of a signal. [plt]: by the shape of the code. [call]: by the call that led there.
[fp]: by the frame pointer. [sync]: by rules for calls only. [inlined]: a call without a frame. docs/STACK.md: the JSON.`,
		Example: `  unspool stack 1234
  unspool stack core ./program
  unspool stack --unique --format json 1234 | jq '.threads[].frames[0].function'`,
		Args: func(c *cobra.Command, args []string) error { return cobra.RangeArgs(1, 2)(c, named(args)) },
		RunE: func(c *cobra.Command, args []string) error {
			// Nothing is left behind, not even a thread that is stopped: Ctrl-C ends at once, wherever this is.
			signal.Reset(os.Interrupt, syscall.SIGTERM)
			if o.Depth < 0 || o.TID < 0 {
				return usage("--depth and --tid are positive")
			}
			args = append(named(args), "")
			walk, err := sources.Of(args[0], args[1], o.NoPause)
			if err != nil {
				return usage("%w", err)
			}
			if o.Mods, err = stepper(); err != nil {
				return err
			}
			defer o.Mods.Close()
			o.Namer = newNamer(names.Options{Mods: o.Mods}, plain)
			defer o.Namer.Close()
			o.Write = func(s *stacks.Process) error { return writeStacks(s, format) }
			return walk(o)
		},
	}
	f := c.Flags()
	cli.OneOf(c, &format, "format", report.StackFormats.Described(), report.StackFormats.Names()...)
	f.IntVarP(&pid, "pid", "p", 0, "the process; -p may be left out")
	f.IntVarP(&o.TID, "tid", "t", 0, "only this thread")
	f.IntVar(&o.Depth, "depth", 0, fmt.Sprintf("only the innermost frames of a thread, at most this many (default: the innermost %d and the outermost %d)", stacks.Inner, stacks.Outer))
	sourceFlag(c, &plain)
	f.BoolVar(&o.NoPause, "no-pause", false, "do not stop the process: a stack that changes during the walk may be wrong")
	f.BoolVarP(&o.Registers, "registers", "v", false, "print the known registers of each frame")
	f.BoolVar(&o.Raw, "raw", false, "addresses and modules only, without names")
	f.BoolVar(&o.Merge, "unique", false, "print threads with the same stack once")
	stepper = lookingFlag(c)
	return c
}

// writeStacks writes stacks, and what its format has no place for to standard error.
func writeStacks(s *stacks.Process, format string) error {
	if format != "json" {
		notify(s.Notes)
	}
	for i := range s.Threads {
		if why := s.Threads[i].Incomplete(); why != "" && format == "eu" { // as eu-stack, which has no place for it
			fmt.Fprintf(stderr, "unspool: TID %d: %s\n", s.Threads[i].TID, why)
		}
	}
	return report.StackFormats.Named(format).Stacks(os.Stdout, s)
}
