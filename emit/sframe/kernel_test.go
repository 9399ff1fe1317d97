package sframe

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/lab/vm"
)

// TestOldKernel runs copies on Linux 5.10, which tells a program the address of its program headers by that of the first segment: programs of all
// kinds, with a C library that is a copy, too.
func TestOldKernel(t *testing.T) {
	oracle.Full(t)
	for _, m := range []struct{ arch, gcc, qemu, libs, ldso string }{
		{"amd64", "gcc", "qemu-system-x86_64", "/lib/x86_64-linux-gnu", "/lib64/ld-linux-x86-64.so.2"},
		{"arm64", "aarch64-linux-gnu-gcc", "qemu-system-aarch64", "/usr/aarch64-linux-gnu/lib", "/lib/ld-linux-aarch64.so.1"},
	} {
		oracle.Need(t, m.gcc, m.qemu)
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
		defer cancel()
		k := vm.New("bullseye", m.arch, oracle.Kernel(t, "bullseye", m.arch))
		var root vm.Root
		if err := root.Init(ctx, m.arch); err != nil {
			t.Fatal(err)
		}
		dir := t.TempDir()
		put := func(name, from string) {
			to := filepath.Join(dir, "copy")
			add(t, from, to, 3)
			if err := root.Copy(name, to); err != nil {
				t.Fatal(err)
			}
		}
		put("lib/libc.so.6", filepath.Join(m.libs, "libc.so.6"))
		if err := root.Copy(m.ldso, filepath.Join(m.libs, filepath.Base(m.ldso))); err != nil {
			t.Fatal(err)
		}
		src := filepath.Join(dir, "a.c")
		if err := os.WriteFile(src, []byte(program), 0o600); err != nil {
			t.Fatal(err)
		}
		var steps []vm.Step
		for i, kind := range [][]string{{}, {"-no-pie"}, {"-static"}, {"-static-pie"}} {
			from := filepath.Join(dir, "p")
			oracle.Run(t, m.gcc, append(slices.Clone(kind), "-O1", "-pthread", "-o", from, src)...)
			name := fmt.Sprintf("p%d", i)
			put(name, from)
			steps = append(steps, vm.Step{Name: strings.Join(append(kind, name), " "), Args: []string{"/" + name}, Seconds: 60})
		}
		results, err := k.Boot(ctx, &root, steps)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range results {
			if want := "5 3 2 6\n"; r.Exit != 7 || string(r.Stdout) != want {
				t.Errorf("Linux %s, %s: status %d, %q, %s; want 7, %q", k.Version, r.Name, r.Exit, r.Stdout, r.Stderr, want)
			}
		}
		t.Logf("Linux %s: %d programs", k.Version, len(results))
	}
}
