package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/unspool/unspool/compile"
	"github.com/unspool/unspool/emit/native"
	"github.com/unspool/unspool/internal/cli"
	"github.com/unspool/unspool/internal/outfile"
	"github.com/unspool/unspool/tui"
)

// A compilation is what unspool compile is asked to do.
type compilation struct {
	layout, deref string
	pid           int
	embed         bool
	shared, quiet bool

	compile.Compiler
	done compile.Tally
}

func compileCmd() *cobra.Command {
	o := compilation{layout: "page", Compiler: compile.Compiler{Emit: "table"}}
	c := &cobra.Command{
		Use:   "compile [FILE...]",
		Short: "Compile unwind tables ahead of time",
		Long: `Compile the unwind information of files, of all files in directories, or of all files that a process maps. Of
directories, object files, archives and compressed kernel modules are compiled only with -o. The output is compact
tables, machine code for x86-64 and AArch64, or C. Machine code is an eh_elf file: a shared object with functions that
step from a frame to its caller. Tables and machine code are proven equal to the unwind information.

Without -o, tables and machine code go to the cache, where report and record find them by build ID. C goes to the
current directory. With -o, compile writes BUILDID.unspool, BUILDID.eh_elf.so and BUILDID.c to DIR, and replaces files
with these names.

--emit native --embed writes a copy of one program or library to FILE, the argument of -o: the copy has its machine code
in it, and runs as before. eh_elf.h finds the code there.

--emit sframe writes a copy of one program or library for x86-64 or AArch64 to FILE, the argument of -o: the copy has an
SFrame section of version 3 besides, and runs as before. It serves readers that know SFrame only. sframe2 writes version
2, which glibc 2.42 and 2.43 read. What SFrame cannot say is left out and counted.

--emit eh_frame adds .eh_frame to a copy of one program or library that lacks it, such as a stripped Go program, for
debuggers and profilers that know only DWARF. For a PE or Mach-O file, it writes an ELF file with .eh_frame only.

--emit orc writes a copy of one object file for x86-64 with the unwind tables of Linux 7.1 and later, as objtool makes
them from code; orc-6.12 writes those of Linux 6.12. What ORC cannot say is left out and counted.

--system compiles for all users. As root, it fills /var/cache/unspool-tables with tables of all programs and libraries
that are installed, or of FILEs, and removes tables of files that have changed or gone. Files that have not changed are
not read again. A user's own cache comes first, then this directory. With -o, any user makes the tables of
FILEs for a package, which installs them in /usr/lib/unspool/tables. UNSPOOL_TABLES names other directories.

--registers keeps only the named registers. Machine code and C get smaller; callers lose the other registers. A file with
a rule that needs another register is refused, if calls preserve that register.

--deref says how machine code and C read memory. self reads their own process (the default with -o), callback calls a
function, slice reads a captured piece of stack (the default without -o, for walkers).`,
		Example: `  unspool compile /usr/lib/x86_64-linux-gnu/libc.so.6
  unspool compile -o tables /opt/app
  sudo unspool compile --system
  unspool compile --emit native -o eh_elf --pid $(pidof nginx)
  unspool compile --emit native --registers rip,rsp,rbp,rbx -o eh_elf /bin/true
  unspool compile --emit c -o . /bin/true
  unspool compile --emit native --embed -o app-with-code app
  unspool compile --emit sframe -o ls-with-sframe /bin/ls
  unspool compile --emit eh_frame -o hugo-for-gdb /usr/bin/hugo
  unspool compile --emit orc-6.12 -o with-orc.o driver.o`,
		RunE: func(c *cobra.Command, args []string) error {
			if o.shared {
				return o.system(c, args)
			}
			if o.quiet {
				return usage("--quiet goes with --system")
			}
			if compile.Copies(o.Emit) {
				return o.copy(c, args)
			}
			if err := wrong(o.Check(o.layout, o.deref, o.embed)); err != nil {
				return err
			}
			if o.embed {
				return o.copy(c, args)
			}
			files, err := elfFiles(args, o.Dir != "") // walkers look for programs and libraries in the cache
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
			if err := o.Begin(); err != nil {
				return err
			}
			err = eachFile(c.Context(), files, "compiled", o.File, o.done.Add)
			if s := o.done.Text(o.Emit); s != "" {
				fmt.Fprintln(stdout, s)
			}
			return err
		},
	}
	f := c.Flags()
	f.StringVar(&o.Emit, "emit", o.Emit, "what to make: table, native, c, or a copy of the file with sframe, sframe2, eh_frame, orc or orc-VERSION")
	f.StringVarP(&o.Dir, "output", "o", o.Dir, "directory to write to (default: the cache); with --emit sframe, eh_frame or orc, the copy")
	cli.OneOf(c, &o.layout, "layout", "how machine code and C find the rule of an address: page (native only), tree (C's default), or inline, where each row has its own code", native.Layouts...)
	cli.OneOf(c, &o.deref, "deref", "how machine code and C read memory: self, callback or slice", native.Derefs...)
	f.BoolVar(&o.Functions, "functions", o.Functions, "with -o, add to each table where functions start and who handles exceptions in them")
	f.StringSliceVar(&o.Registers, "registers", nil, "with -o, the `REGISTERS` that machine code or C recovers, such as rip,rsp,rbp,rbx (default: all)")
	f.BoolVar(&o.embed, "embed", o.embed, "with --emit native, write a copy of the file with its machine code in it")
	f.BoolVar(&o.shared, "system", o.shared, "compile for all users what is installed, or FILEs; with -o, tables for a package")
	f.BoolVarP(&o.quiet, "quiet", "q", o.quiet, "with --system, print errors only")
	f.IntVarP(&o.pid, "pid", "p", o.pid, "compile what process `PID` has mapped")
	return c
}

// copy writes a copy of a file with something besides.
func (o *compilation) copy(c *cobra.Command, args []string) error {
	if err := cli.Refuse(c, []string{"layout", "deref", "functions", "registers", "pid", "embed"}, "does not go with --emit %s", o.Emit); err != nil && !o.embed {
		return err
	}
	if len(args) != 1 || o.Dir == "" || o.pid != 0 {
		return usage("--emit %s takes one file, and -o says where its copy goes", o.Emit)
	}
	if o.Dir == "-" {
		o.Dir = "/dev/stdout"
	}
	var text string
	var err error
	if o.embed {
		text, err = compile.Embed(c.Context(), args[0], o.Dir, o.Native)
	} else {
		text, err = compile.Copy(c.Context(), args[0], o.Dir, o.Emit)
	}
	if text != "" {
		say := io.Writer(stdout)
		if outfile.IsStdout(o.Dir) {
			say = stderr
		}
		fmt.Fprintln(say, text)
	}
	return err
}

// elfFiles returns the paths, with directories and archives replaced by the files in them.
func elfFiles(paths []string, objects bool) ([]string, error) {
	out, err := compile.Files(paths, objects, reportError)
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
			reportError(err)
		}
		done(r, err)
		n++
		p.Printf("%s %d of %d files", verb, n, len(files))
	})
	p.Done()
	switch {
	case err != nil:
		return err // ctx's
	case failed:
		return &cli.Exit{Status: 1}
	}
	return nil
}

// heapLimit is how much memory compile --system takes, in bytes, before the garbage collector works harder. A large library takes more.
const heapLimit = 200 << 20

// system compiles for all users of the machine, or for a package where there is an output directory.
func (o *compilation) system(c *cobra.Command, args []string) error {
	if err := cli.Refuse(c, []string{"emit", "layout", "deref", "functions", "registers", "embed", "pid"}, "does not go with --system"); err != nil {
		return err
	}
	if o.Dir != "" && len(args) == 0 {
		return usage("--system with --output: name the files and directories of the package")
	}
	cli.LimitMemory(heapLimit)
	began, ctx := time.Now(), c.Context()
	s, files, err := compile.OpenShared(ctx, o.Dir, args, reportError)
	if err != nil {
		return err
	}
	defer s.Close()
	err = eachFile(ctx, files, "looked at", func(path string) (compile.Result, error) { return s.File(ctx, path) }, o.done.Add)
	text, ferr := s.Finish(&o.done, time.Since(began))
	if !o.quiet {
		fmt.Fprint(stdout, text)
	}
	if ferr != nil {
		return ferr
	}
	return err
}
