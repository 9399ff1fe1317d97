package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/spf13/cobra"

	"github.com/unspool/unspool/emit/csource"
	"github.com/unspool/unspool/emit/native"
	"github.com/unspool/unspool/format"
	"github.com/unspool/unspool/internal/caps"
	"github.com/unspool/unspool/module"
	"github.com/unspool/unspool/profile"
	"github.com/unspool/unspool/store"
)

// A compilation is what unspool compile is asked to do.
type compilation struct {
	emit, dir     string
	layout, deref string
	pid           int

	native native.Options
	c      csource.Options
	store  *store.Store

	made, found, none   atomic.Int64
	bytes, source, done atomic.Int64
}

func compileCmd() *cobra.Command {
	o := compilation{emit: "table", layout: "page"}
	c := &cobra.Command{
		Use:   "compile [FILE...]",
		Short: "Compile unwind tables ahead of time",
		Long: `Compile the unwind information of files, of all ELF files in directories, and of all files that a process
has mapped: into compact tables, into machine code (eh_elf files, shared objects that are called to step
from a frame to its caller), or into C. Everything that is made is proven equal to the unwind information.

Without -o, tables and machine code go to the cache, where report and record find them by build ID. With -o
they are written to DIR as BUILDID.unspool, BUILDID.eh_elf.so and BUILDID.c, and replace what is there.

--deref says how machine code and C read memory: self in their own process (the default with -o), callback
through a function, slice in a captured piece of stack (the default without -o: walkers use it).`,
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
				mapped, err := mappedFiles(o.pid)
				if err != nil {
					return err
				}
				files = append(files, mapped...)
			}
			if len(files) == 0 {
				return usage("nothing to compile: name files or directories, or give --pid")
			}
			if o.dir != "" {
				if err := caps.Raised(func() error { return os.MkdirAll(o.dir, 0o777) }); err != nil {
					return err
				}
			}
			p := newProgress()
			err = eachFile(c.Context(), files, func(path string) error {
				defer func() { p.say("compiled %d of %d files", o.done.Add(1), len(files)) }()
				return o.file(path)
			})
			p.done()
			if s := o.summary(); s != "" {
				fmt.Fprintln(stdout, s)
			}
			return err
		},
	}
	f := c.Flags()
	f.StringVar(&o.emit, "emit", o.emit, "what to make: table, native or c")
	f.StringVarP(&o.dir, "output", "o", o.dir, "directory to write to (default: the cache)")
	f.StringVar(&o.layout, "layout", o.layout, "how machine code and C find the rule of an address: page (native only), tree, or inline, where each row has its own code")
	f.StringVar(&o.deref, "deref", o.deref, "how machine code and C read memory: self, callback or slice")
	f.IntVarP(&o.pid, "pid", "p", o.pid, "compile what process `PID` has mapped")
	return c
}

// resolve checks what was asked for.
func (o *compilation) resolve() (err error) {
	if o.store, err = store.Open(""); err != nil && o.dir == "" && o.emit != "c" {
		return err
	}
	if o.deref == "" {
		o.deref = "self"
		if o.dir == "" {
			o.deref = "slice"
		}
	}
	if o.native.Layout, err = native.ParseLayout(o.layout); err != nil {
		return usage("--%v", err)
	}
	if o.native.Deref, err = native.ParseDeref(o.deref); err != nil {
		return usage("--%v", err)
	}
	o.c.Deref = [...]csource.Deref{native.Self: csource.Self, native.Callback: csource.Callback, native.Slice: csource.Slice}[o.native.Deref]
	o.c.Layout = csource.Tree
	if o.native.Layout == native.Inline {
		o.c.Layout = csource.Switch
	}
	switch o.emit {
	case "table", "native":
	case "c":
		if o.dir == "" {
			o.dir = "."
		}
	default:
		return usage("--emit is table, native or c, not %q", o.emit)
	}
	return nil
}

// file compiles one file.
func (o *compilation) file(path string) error {
	img, f, err := openFrames(path)
	if err != nil {
		return err
	}
	defer img.Close()
	n, was, err := o.compile(img, f)
	switch {
	case n == 0 && err != nil:
	case n == 0:
		o.none.Add(1)
	case was:
		o.found.Add(1)
	default:
		o.made.Add(1)
	}
	o.bytes.Add(int64(n))
	if n > 0 {
		o.source.Add(int64(f.Size(format.EHFrame)))
	}
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

// compile returns the size of what it made, or found in the cache. Files in a directory are made anew: a build ID does not say that they
// are of this file.
func (o *compilation) compile(img *module.Image, f *format.Unwind) (size int, found bool, err error) {
	to := func(ending string) string { return filepath.Join(o.dir, img.ID()+ending) }
	o2 := o.native
	o2.ID = img.ID()
	var b []byte
	switch {
	case o.emit == "c":
		ref, _ := f.Rows()
		if len(ref.Rows) == 0 {
			return 0, false, nil
		}
		var buf bytes.Buffer
		if err = csource.Emit(&buf, ref, o.c); err != nil {
			return 0, false, err
		}
		return buf.Len(), false, writeFile(to(".c"), buf.Bytes())
	case o.emit == "table" && o.dir == "":
		t, from, err := o.store.Table(img)
		if t != nil {
			size = len(t.Bytes())
		}
		return size, from != store.Built, errors.Join(err, o.store.Err())
	case o.emit == "native" && o.dir == "":
		c, from, err := o.store.Native(img, o.native)
		if c != nil {
			size = len(c.Bytes())
		}
		return size, from != store.Built, errors.Join(err, o.store.Err())
	case o.emit == "table":
		b, _, err = store.Build(f)
		if b == nil {
			return 0, false, err
		}
		return len(b), false, errors.Join(err, writeFile(to(".unspool"), b))
	}
	b, c, err := store.BuildNative(f, o2)
	if b == nil {
		return 0, false, err
	}
	defer c.Close()
	return len(b), false, errors.Join(err, writeFile(to(".eh_elf.so"), b))
}

// summary says what was done; "" where all files were errors.
func (o *compilation) summary() string {
	compiled, found, none := o.made.Load()+o.found.Load(), o.found.Load(), o.none.Load()
	if compiled+none == 0 {
		return ""
	}
	out := profile.Count(uint64(compiled), "file", "files") + " compiled"
	if compiled > 0 {
		what := map[string]string{"table": "tables", "native": "machine code", "c": "C"}[o.emit]
		out += fmt.Sprintf(": %s of %s from %s of .eh_frame", size(o.bytes.Load()), what, size(o.source.Load()))
	}
	if found > 0 {
		out += fmt.Sprintf("; %d were there already", found)
	}
	if none > 0 {
		out += fmt.Sprintf("; %d without unwind information", none)
	}
	return out
}

// mappedFiles returns the files whose code a process has mapped.
func mappedFiles(pid int) ([]string, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		return nil, fmt.Errorf("process %d: %w", pid, err)
	}
	seen := map[string]bool{}
	var out []string
	for line := range strings.Lines(string(b)) {
		// lo-hi perms offset dev inode path (proc_pid_maps(5)); the path may have spaces.
		f := strings.SplitN(strings.TrimSuffix(line, "\n"), "/", 2)
		if len(f) < 2 || len(strings.Fields(f[0])) < 5 || !strings.Contains(strings.Fields(f[0])[1], "x") {
			continue
		}
		if path := "/" + f[1]; !seen[path] {
			seen[path] = true
			if module.IsLinked(path) {
				out = append(out, path)
			}
		}
	}
	return out, nil
}

// elfFiles returns the paths, with directories replaced by the ELF executables and shared objects below
// them.
func elfFiles(paths []string) ([]string, error) {
	var out []string
	for _, root := range paths {
		before := len(out)
		st, err := os.Stat(root)
		if err != nil {
			return nil, err
		}
		if !st.IsDir() {
			out = append(out, root)
			continue
		}
		err = filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
			if err != nil {
				fmt.Fprintf(stderr, "unspool: %v\n", err)
				if d != nil && d.IsDir() {
					return fs.SkipDir
				}
				return nil
			}
			if d.Type().IsRegular() && module.IsLinked(p) {
				out = append(out, p)
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
		if len(out) == before {
			fmt.Fprintf(stderr, "unspool: %s: no ELF executables or shared objects\n", root)
		}
	}
	if len(out) == 0 && len(paths) > 0 {
		return nil, &exitError{status: 1}
	}
	return out, nil
}

// eachFile calls f for each file, as many at a time as there are processors. A file may shrink meanwhile. Every error is printed;
// what comes back says how many there were.
func eachFile(ctx context.Context, files []string, f func(path string) error) error {
	var next, failed atomic.Int64
	var wg sync.WaitGroup
	for range min(runtime.GOMAXPROCS(0), len(files)) {
		wg.Go(func() {
			for ctx.Err() == nil {
				i := int(next.Add(1)) - 1
				if i >= len(files) {
					return
				}
				if err := module.Guard(func() error { return f(files[i]) }); err != nil {
					failed.Add(1)
					fmt.Fprintf(stderr, "unspool: %v\n", err)
				}
			}
		})
	}
	wg.Wait()
	if err := ctx.Err(); err != nil {
		return errors.New("interrupted")
	}
	if n := failed.Load(); n > 0 {
		return &exitError{status: 1}
	}
	return nil
}

// size prints a number of bytes for people.
func size(n int64) string {
	f := float64(n)
	for _, unit := range []string{"B", "KiB", "MiB"} {
		if f < 1024 {
			if unit == "B" {
				return fmt.Sprintf("%d B", n)
			}
			return fmt.Sprintf("%.1f %s", f, unit)
		}
		f /= 1024
	}
	return fmt.Sprintf("%.1f GiB", f)
}
