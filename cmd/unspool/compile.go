package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/unspool/unspool/compile"
	"github.com/unspool/unspool/emit/native"
	"github.com/unspool/unspool/internal/caps"
	"github.com/unspool/unspool/internal/cli"
	"github.com/unspool/unspool/profile"
	"github.com/unspool/unspool/store"
	"github.com/unspool/unspool/tui"
)

// A compilation is what unspool compile is asked to do.
type compilation struct {
	layout, deref string
	pid           int

	compile.Compiler
	done compile.Tally
}

func compileCmd() *cobra.Command {
	o := compilation{layout: "page", Compiler: compile.Compiler{Emit: "table"}}
	c := &cobra.Command{
		Use:   "compile [FILE...]",
		Short: "Compile unwind tables ahead of time",
		Long: `Compile the unwind information of files, of all ELF files in directories, or of all files that a process maps. The
output is compact tables, machine code for x86-64 and AArch64, or C. Machine code is an eh_elf file: a shared object with functions
that step from a frame to its caller. Every output is proven equal to the unwind information.

Without -o, tables and machine code go to the cache, where report and record find them by build ID. C goes to the
current directory. With -o, compile writes BUILDID.unspool, BUILDID.eh_elf.so and BUILDID.c to DIR, and replaces files
with these names.

--deref says how machine code and C read memory. self reads their own process (the default with -o), callback calls a
function, slice reads a captured piece of stack (the default without -o, for walkers).`,
		Example: `  unspool compile /usr/lib/x86_64-linux-gnu/libc.so.6
  unspool compile -o tables /opt/app
  unspool compile --emit native -o eh_elf --pid $(pidof nginx)
  unspool compile --emit c -o . /bin/true`,
		RunE: func(c *cobra.Command, args []string) error {
			if err := o.resolve(); err != nil {
				return err
			}
			files, err := elfFiles(args)
			if err != nil {
				return err
			}
			if o.pid != 0 {
				mapped, err := compile.Mapped(o.pid)
				if err != nil {
					return err
				}
				files = append(files, mapped...)
			}
			if len(files) == 0 {
				return usage("nothing to compile: name files or directories, or give --pid")
			}
			if o.Dir != "" {
				if err := caps.Raised(func() error { return os.MkdirAll(o.Dir, 0o777) }); err != nil {
					return err
				}
			}
			err = eachFile(c.Context(), files, "compiled", o.File, o.done.Add)
			if s := o.summary(); s != "" {
				fmt.Fprintln(stdout, s)
			}
			return err
		},
	}
	f := c.Flags()
	f.StringVar(&o.Emit, "emit", o.Emit, "what to make: table, native or c")
	f.StringVarP(&o.Dir, "output", "o", o.Dir, "directory to write to (default: the cache)")
	f.StringVar(&o.layout, "layout", o.layout, "how machine code and C find the rule of an address: page (native only), tree, or inline, where each row has its own code")
	f.StringVar(&o.deref, "deref", o.deref, "how machine code and C read memory: self, callback or slice")
	f.BoolVar(&o.Functions, "functions", o.Functions, "with -o, add to each table where functions start and who handles exceptions in them")
	f.IntVarP(&o.pid, "pid", "p", o.pid, "compile what process `PID` has mapped")
	return c
}

// resolve checks what was asked for.
func (o *compilation) resolve() (err error) {
	if o.Store, err = store.Open(""); err != nil && o.Dir == "" && o.Emit != "c" {
		return err
	}
	if o.deref == "" {
		o.deref = "self"
		if o.Dir == "" {
			o.deref = "slice"
		}
	}
	if o.Native.Layout, err = native.ParseLayout(o.layout); err != nil {
		return usage("--%v", err)
	}
	if o.Native.Deref, err = native.ParseDeref(o.deref); err != nil {
		return usage("--%v", err)
	}
	if o.Functions && (o.Emit != "table" || o.Dir == "") {
		return usage("--functions is for tables that -o writes")
	}
	switch o.Emit {
	case "table", "native":
	case "c":
		if o.Dir == "" {
			o.Dir = "."
		}
	default:
		return usage("--emit is table, native or c, not %q", o.Emit)
	}
	return nil
}

// summary says what was done; "" where all files were errors.
func (o *compilation) summary() string {
	compiled, found, none := o.done.Made+o.done.Found, o.done.Found, o.done.None
	if compiled+none == 0 {
		return ""
	}
	out := profile.Count(uint64(compiled), "file", "files") + " compiled"
	if compiled > 0 {
		what := map[string]string{"table": "tables", "native": "machine code", "c": "C"}[o.Emit]
		out += fmt.Sprintf(": %s of %s from %s of .eh_frame", profile.Bytes(o.done.Size), what, profile.Bytes(o.done.Source))
	}
	if found > 0 {
		out += fmt.Sprintf("; %d were there already", found)
	}
	if none > 0 {
		out += fmt.Sprintf("; %d without unwind information", none)
	}
	return out
}

// elfFiles returns the paths, with directories replaced by the ELF executables and shared objects below them.
func elfFiles(paths []string) ([]string, error) {
	out, err := compile.Files(paths, func(err error) { fmt.Fprintf(stderr, "unspool: %v\n", err) })
	if err == nil && len(out) == 0 && len(paths) > 0 {
		err = &cli.Exit{Status: 1}
	}
	return out, err
}

// eachFile works on files, and says on a terminal how many were read, compiled, or what verb says. Every error is printed, but that there is
// no unwind information; what comes back says that there were some.
func eachFile[R any](ctx context.Context, files []string, verb string, work func(path string) (R, error), done func(R, error)) error {
	p := tui.NewProgress()
	n, failed := 0, false
	err := compile.Each(ctx, files, work, func(r R, err error) {
		if err != nil && !errors.Is(err, compile.ErrNoRows) {
			failed = true
			fmt.Fprintf(stderr, "unspool: %v\n", err)
		}
		done(r, err)
		n++
		p.Say("%s %d of %d files", verb, n, len(files))
	})
	p.Done()
	switch {
	case err != nil:
		return errors.New("interrupted")
	case failed:
		return &cli.Exit{Status: 1}
	}
	return nil
}
