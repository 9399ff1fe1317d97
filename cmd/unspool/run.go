package main

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/unspool/unspool/compile"
	"github.com/unspool/unspool/doctor"
	"github.com/unspool/unspool/emit/native"
	"github.com/unspool/unspool/internal/cli"
	"github.com/unspool/unspool/module"
	"github.com/unspool/unspool/record"
	"github.com/unspool/unspool/store"
)

func runCmd() *cobra.Command {
	strict, which, exceptions, dir, stepper := false, false, false, "", ""
	c := &cobra.Command{
		Use:   "run [--strict] [--stepper STEPPER] [--exceptions] [--which] -- COMMAND [ARG...]",
		Short: "Run a program that uses libunwind or libdw on compiled tables",
		Long: `Run a program with unspool's libunwind in place of the system's. Stock perf script and perf report then unwind by
compiled tables; the program itself is not changed. If the cache lacks tables, run compiles them first: for the program,
and for all files mapped in a perf.data file among the arguments.

If the program, or a library that it needs, is linked with elfutils' libdw, such as eu-stack and perf built without
libunwind, a library in front of libdw is preloaded. With --which, run says which of these libraries the program is linked
with, and does not start it.

The library comes with a release; in the sources, make runtime builds it. run looks for it in --runtime, in $UNSPOOL_RUNTIME,
beside this program (../lib/unspool, runtime/build), and in /usr/local/lib/unspool.

The library walks some stacks right that stock libunwind gets wrong, such as stacks of processes after fork and exec.
With --strict, all stacks equal stock libunwind's, to the byte.

--stepper says what leaves a frame: rules made from .eh_frame, a table, or native, which is machine code. The stacks are the same.

With --exceptions, a library in front of libgcc's unwinder is preloaded: C++ exceptions, Rust panics, _Unwind_Backtrace and
backtrace of the program walk by it. It works with any program on x86-64 that is linked with libgcc_s.so.1.`,
		Example: "  unspool run -- perf script -i perf.data\n  unspool run --strict -- perf report --stdio",
		Args:    cobra.MinimumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			path, err := exec.LookPath(args[0])
			if err != nil {
				return err
			}
			walkers := walkingLibraries(path)
			if which {
				_, err := fmt.Fprintln(c.OutOrStdout(), cmp.Or(strings.Join(walkers, " "), "none"))
				return err
			}
			lib, err := doctor.FindDropin(dir)
			if err != nil {
				return err
			}
			preload, err := preloaded(lib, walkers)
			if err != nil {
				return err
			}
			if exceptions {
				eh, err := doctor.FindExceptions(dir)
				if err != nil {
					return err
				}
				preload = strings.TrimPrefix(preload+":"+eh, ":")
			}
			if !exceptions || len(walkers) > 0 {
				prepare(path, args[1:], stepper)
			}
			env := append(os.Environ(), "LD_LIBRARY_PATH="+strings.TrimSuffix(lib+":"+os.Getenv("LD_LIBRARY_PATH"), ":"))
			if preload != "" {
				env = append(env, "LD_PRELOAD="+strings.TrimSuffix(preload+":"+os.Getenv("LD_PRELOAD"), ":"))
			}
			if strict {
				env = append(env, "UNSPOOL_STRICT=1")
			}
			if stepper != "" {
				env = append(env, "UNSPOOL_STEPPER="+stepper)
			}
			return fmt.Errorf("%s: %w", path, syscall.Exec(path, args, env))
		},
	}
	f := c.Flags()
	f.SetInterspersed(false) // what follows the command is the command's
	f.BoolVar(&strict, "strict", false, "walk the same stacks as the stock library, wrong stacks included")
	f.BoolVar(&exceptions, "exceptions", false, "throw and catch exceptions by unspool's rules, in any program")
	f.BoolVar(&which, "which", false, "say which library the program walks with, and do not run it")
	cli.OneOf(c, &stepper, "stepper", "what leaves a frame: rules, table or native (default: table; with --strict, rules)", "rules", "table", "native")
	f.StringVar(&dir, "runtime", "", "directory of the library")
	return c
}

// frontOfLibdw is the library in front of libdw. It is built where libdw's headers are.
const frontOfLibdw = "libunspool-dw.so"

// preloaded returns the library in a directory to preload for a program that is linked with some walking libraries, "" for none. It is an error to
// have none for a program that has no other.
func preloaded(dir string, walkers []string) (string, error) {
	at := slices.IndexFunc(walkers, func(name string) bool { return strings.HasPrefix(name, "libdw.so.") })
	if at < 0 {
		return "", nil
	}
	path := filepath.Join(dir, frontOfLibdw)
	_, err := os.Stat(path)
	if err == nil && strings.ContainsAny(path, ": ") {
		err = fmt.Errorf("%s: LD_PRELOAD cannot have a path with blanks or colons", path)
	}
	if err == nil {
		return path, nil
	}
	if len(walkers) > 1 {
		return "", nil
	}
	return "", fmt.Errorf("the program walks with %s: %w: in unspool's sources, make runtime builds it where libdw-dev is installed", walkers[at], err)
}

// prepare compiles the tables that a program on the drop-in will want: its own, and those of the files that a recording
// among its arguments says it has samples of; and machine code, if that is to step. What cannot be compiled now is built on the way.
func prepare(program string, args []string, stepper string) {
	st, err := store.Open("")
	if err != nil {
		return
	}
	files := []string{program}
	for _, a := range args {
		files = append(files, record.SampledFiles(a)...)
	}
	if len(args) > 0 && len(files) == 1 && strings.HasPrefix(filepath.Base(program), "perf") {
		files = append(files, record.SampledFiles("perf.data")...)
	}
	files = slices.DeleteFunc(files, func(path string) bool { return !module.IsLinked(path) })
	emits := []string{"table"}
	switch stepper {
	case "rules":
		return
	case "native":
		emits = append(emits, "native")
	}
	for _, emit := range emits {
		c := compile.Compiler{Emit: emit, Store: st, Native: native.Options{Layout: native.Page, Deref: native.Callback}}
		compile.Each(context.Background(), files, c.File, func(compile.Result, error) {})
	}
}
