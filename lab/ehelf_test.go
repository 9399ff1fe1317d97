package lab

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/unspool/unspool/emit/csource"
	"github.com/unspool/unspool/emit/native"
	"github.com/unspool/unspool/format/dwarf"
	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/module"
	"github.com/unspool/unspool/modules"
	"github.com/unspool/unspool/rows"
	"github.com/unspool/unspool/unwind"
)

// modulesOf returns the files that a recording maps, as the drivers see them.
func modulesOf(t testing.TB, file string) (paths []string) {
	seen := map[string]bool{}
	batches(t, file, 2000, func(_ []oracle.Snapshot, in []*oracle.Space) {
		for _, s := range in {
			for _, m := range s.Maps {
				path := m.Path
				if path == "[vdso]" {
					path = oracle.VDSO()
				}
				if !seen[path] {
					seen[path] = true
					paths = append(paths, path)
				}
			}
		}
	})
	return paths
}

// ehElfs compiles the modules of a recording with make, which returns a shared object, and returns the path of the list
// that the driver over eh_elf files reads.
func ehElfs(t testing.TB, file string, make func(to string, ref *rows.Table) error) string {
	dir := t.TempDir()
	var list strings.Builder
	for i, path := range modulesOf(t, file) {
		img, err := module.OpenMapped(path)
		if img == nil || err != nil {
			continue // no file of a program
		}
		f, err := dwarf.Open(img)
		if err != nil {
			t.Errorf("%s: %v", path, err)
			continue
		}
		ref, _ := f.Build(dwarf.Both)
		img.Close()
		if len(ref.Rows) == 0 {
			continue
		}
		so := filepath.Join(dir, fmt.Sprintf("%d.eh_elf.so", i))
		if err := make(so, ref); err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		fmt.Fprintf(&list, "%s\t%s\n", path, so)
	}
	out := filepath.Join(dir, "list")
	if err := os.WriteFile(out, []byte(list.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	return out
}

// emitNative makes eh_elf files of a layout.
func emitNative(l native.Layout) func(string, *rows.Table) error {
	return func(to string, ref *rows.Table) error {
		b, err := native.Emit(ref, native.Options{Layout: l, Deref: native.Slice})
		if err != nil {
			return err
		}
		return os.WriteFile(to, b, 0o600)
	}
}

// rowsOf returns how many rows the modules of a recording have.
func rowsOf(t testing.TB, file string) (n int) {
	ehElfs(t, file, func(_ string, ref *rows.Table) error { n += len(ref.Rows); return nil })
	return n
}

// maxCRows is of how many rows C source is compiled: 50,000 take gcc eight seconds.
const maxCRows = 50_000

// emitC makes shared objects with the same entry points of C source, compiled with an option of optimization.
func emitC(level string) func(string, *rows.Table) error {
	return compiledBy(level, csource.Options{Deref: csource.Slice})
}

// compiledBy does so with any options of the source.
func compiledBy(level string, o csource.Options) func(string, *rows.Table) error {
	return func(to string, ref *rows.Table) error {
		var src bytes.Buffer
		if err := csource.Emit(&src, ref, o); err != nil {
			return err
		}
		std := "-std=c11"
		if o.Layout == csource.Switch {
			std = "-std=gnu11" // for ranges of cases
		}
		cmd := exec.Command("gcc", std, level, "-shared", "-fPIC", "-x", "c", "-", "-o", to)
		cmd.Stdin = &src
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%w\n%s", err, out)
		}
		return nil
	}
}

// TestSteppersAgree walks each recording with every form of its modules' rules: our walker with tables, machine code and
// rows, and a C program with machine code and with C source, where gcc compiles that in reasonable time. All find the same frames.
func TestSteppersAgree(t *testing.T) {
	oracle.Need(t, "gcc")
	for _, file := range recordings(t) {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".data"), func(t *testing.T) {
			type mine struct {
				name   string
				spaces *spaces
				walker *unwind.Walker
			}
			ref := mine{"the reference", newSpaces(modules.Interpreted()), unwind.NewWalker(0)}
			var ours []mine
			for _, s := range steppings {
				ours = append(ours, mine{s.name, steppingSpaces(t, s, true), unwind.NewWalker(0)})
			}
			drivers := []*oracle.Walker{
				oracle.EhElf(t, "eh_elf page, from C", ehElfs(t, file, emitNative(native.Page))),
				oracle.EhElf(t, "eh_elf tree, from C", ehElfs(t, file, emitNative(native.Tree))),
			}
			if rowsOf(t, file) <= maxCRows {
				drivers = append(drivers, oracle.EhElf(t, "C source", ehElfs(t, file, emitC("-O0"))))
			}
			var known []told
			for range drivers {
				known = append(known, told{})
			}
			stacks, frames, byRule := 0, 0, 0
			var want, got []unwind.Frame
			batches(t, file, 2000, func(snaps []oracle.Snapshot, in []*oracle.Space) {
				var chains [][]oracle.Chain
				for i, d := range drivers {
					known[i].tell(t, d, in)
					c, err := d.Walk(snaps)
					if err != nil {
						t.Fatal(err)
					}
					chains = append(chains, c)
				}
				for i := range snaps {
					u := snapshot(&snaps[i], ref.spaces.space(in[i]))
					var stop, other unwind.Stop
					want, stop = ref.walker.Walk(&u, want[:0])
					stacks++
					frames += len(want)
					rulesOnly := stop == unwind.Outermost
					for _, f := range want {
						rulesOnly = rulesOnly && (f.How == unwind.HowStart || f.How == unwind.HowCFI || f.How == unwind.HowSignal)
					}
					for _, m := range ours {
						u := snapshot(&snaps[i], m.spaces.space(in[i]))
						got, other = m.walker.Walk(&u, got[:0])
						same := other == stop && len(got) == len(want)
						for k := range got {
							same = same && got[k].PC == want[k].PC && got[k].How == want[k].How && got[k].Exact == want[k].Exact
						}
						if !same {
							t.Fatalf("stack %d\n got  %d frames, %v (%s)\n want %d frames, %v", stacks, len(got), other, m.name, len(want), stop)
						}
					}
					if !rulesOnly {
						continue // the C program only follows rules
					}
					byRule++
					for d := range drivers {
						c := &chains[d][i]
						same := len(c.PC) == len(want)
						for k := 0; same && k < len(want); k++ {
							returned := k+1 < len(want) && want[k+1].How == unwind.HowSignal // to by a handler: a place, of which rules know nothing
							same = c.PC[k] == uint64(want[k].PC) && (c.Exact[k] == want[k].Exact || returned && want[k].Exact)
						}
						if !same {
							t.Fatalf("stack %d\n got  %d frames, %s (%s)\n want %d frames, %v", stacks, len(c.PC), c.Stop, drivers[d].Name, len(want), stop)
						}
					}
				}
			})
			t.Logf("%d stacks, %d frames; %d stacks by rules alone", stacks, frames, byRule)
			// How much of its time a program spends in code without rules is not the steppers' affair, if only there is something to compare.
			if byRule < min(stacks/2, 100) {
				t.Errorf("%d of %d stacks were found by rules alone: too few to compare", byRule, stacks)
			}
		})
	}
}
