package main

import (
	"cmp"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/unspool/unspool/dropin"
	"github.com/unspool/unspool/internal/cli"
)

func runCmd() *cobra.Command {
	which := false
	var o dropin.Options
	c := &cobra.Command{
		Use:   "run [--strict] [--stepper STEPPER] [--exceptions] [--which] -- COMMAND [ARG...]",
		Short: "Run a program that uses libunwind or libdw on compiled tables",
		Long: `Run a program with unspool's libunwind in place of the system's. Stock perf script and perf report then unwind by
compiled tables; the program itself is not changed. If the cache lacks tables, run compiles them first: for the program,
and for the files with samples in a perf.data file among the arguments.

A program linked with LLVM's libunwind.so.1 gets unspool's in its place, too: it throws, catches and walks by the same rules.

Some programs, such as eu-stack and perf built without libunwind, are linked with elfutils' libdw, or need a library
that is. For such a program, run preloads a library in front of libdw. With --which, run says which of these libraries
the program is linked with, and does not start the program. --which --exceptions also looks for libgcc's unwinder.

The library comes with a release; in the sources, make runtime builds it. run looks for it in --runtime, in $UNSPOOL_RUNTIME,
beside this program (../lib/unspool, runtime/build), and in /usr/local/lib/unspool.

The library walks some stacks right that stock libunwind gets wrong, such as stacks of processes after fork and exec.
With --strict, all stacks equal stock libunwind's, to the byte.

--stepper says what leaves a frame: rules made from .eh_frame, a table, or native, which is machine code. The stacks are the same.

With --exceptions, a library in front of libgcc's unwinder is preloaded: C++ exceptions, Rust panics, _Unwind_Backtrace and
backtrace of the program walk by it. It works with any program that is linked with libgcc_s.so.1.`,
		Example: "  unspool run -- perf script -i perf.data\n  unspool run --strict -- perf report --stdio",
		Args:    cobra.MinimumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			path, err := exec.LookPath(args[0])
			if err != nil {
				return err
			}
			if which {
				_, err := fmt.Fprintln(c.OutOrStdout(), cmp.Or(strings.Join(dropin.Walkers(path, o.Exceptions), " "), "none"))
				return err
			}
			env, err := dropin.Prepare(path, args[1:], o)
			if err != nil {
				return err
			}
			return fmt.Errorf("%s: %w", path, syscall.Exec(path, args, append(os.Environ(), env...)))
		},
	}
	f := c.Flags()
	f.SetInterspersed(false) // what follows the command is the command's
	f.BoolVar(&o.Strict, "strict", false, "walk the same stacks as the stock library, wrong stacks included")
	f.BoolVar(&o.Exceptions, "exceptions", false, "throw and catch exceptions by unspool's rules, in any program")
	f.BoolVar(&which, "which", false, "say which library the program walks with, and do not run it")
	cli.OneOf(c, &o.Stepper, "stepper", "what leaves a frame: rules, table or native (default: table; with --strict, rules)", dropin.Steppers...)
	f.StringVar(&o.Dir, "runtime", "", "directory of the library")
	return c
}
