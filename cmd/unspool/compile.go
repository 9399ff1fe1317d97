package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/spf13/cobra"

	"github.com/unspool/unspool/emit/compact"
	"github.com/unspool/unspool/format/dwarf"
	"github.com/unspool/unspool/module"
	"github.com/unspool/unspool/store"
)

func compileCmd() *cobra.Command {
	emit, dir := "table", ""
	c := &cobra.Command{
		Use:   "compile FILE...",
		Short: "Compile unwind tables ahead of time",
		Long: `Compile the unwind information of files, and of all ELF files in directories, into compact tables.

Without -o the tables go to the cache, where report and record find them by build ID. With -o each
table is written to DIR as BUILDID.unspool.`,
		Example: "  unspool compile /usr/lib/x86_64-linux-gnu/libc.so.6\n  unspool compile -o tables /opt/app",
		Args:    cobra.MinimumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if emit != "table" {
				return usage("--emit is table, not %q", emit)
			}
			if dir != "" {
				if err := os.MkdirAll(dir, 0o777); err != nil {
					return err
				}
			}
			st, err := store.Open("")
			if err != nil && dir == "" {
				return err
			}
			files, err := elfFiles(args)
			if err != nil {
				return err
			}
			var bytes, source, done, built atomic.Int64
			p := newProgress()
			err = eachFile(c.Context(), files, func(path string) error {
				defer func() { p.say("compiled %d of %d files", done.Add(1), len(files)) }()
				img, err := module.Open(path)
				if err != nil {
					return err
				}
				defer img.Close()
				n := 0
				if dir != "" {
					n, err = compileTo(img, dir)
				} else {
					var t *compact.Table
					if t, _, err = st.Table(img); err == nil {
						n = t.Stats().Bytes
					}
				}
				if err == nil && n > 0 {
					built.Add(1)
					bytes.Add(int64(n))
					if f, ferr := dwarf.Open(img); ferr == nil {
						source.Add(int64(f.Sizes().EHFrame))
					}
				}
				return err
			})
			p.done()
			if built.Load() > 0 {
				fmt.Printf("%d files, %s of tables from %s of .eh_frame\n", built.Load(), size(bytes.Load()), size(source.Load()))
			}
			return err
		},
	}
	c.Flags().StringVar(&emit, "emit", emit, "what to make: table")
	c.Flags().StringVarP(&dir, "output", "o", dir, "directory to write to (default: the cache)")
	return c
}

// compileTo writes img's table into dir, and returns its size.
func compileTo(img *module.Image, dir string) (int, error) {
	f, err := dwarf.Open(img)
	if err != nil {
		return 0, err
	}
	ref, _ := f.Build(dwarf.Both)
	b, err := compact.Emit(ref)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", img.Name(), err)
	}
	t, err := compact.Load(b)
	if err == nil {
		err = compact.Verify(t, ref, 1)
	}
	if err != nil {
		return 0, fmt.Errorf("%s: %w", img.Name(), err)
	}
	return len(b), os.WriteFile(filepath.Join(dir, img.ID()+".unspool"), b, 0o666)
}

// elfFiles returns the paths, with directories replaced by the ELF executables and shared objects below
// them.
func elfFiles(paths []string) ([]string, error) {
	var out []string
	for _, root := range paths {
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
				fmt.Fprintf(os.Stderr, "unspool: %v\n", err)
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
					fmt.Fprintf(os.Stderr, "unspool: %v\n", err)
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
