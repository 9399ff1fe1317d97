package test

import (
	"bytes"
	"path/filepath"
	"strings"
	"testing"

	"github.com/unspool/unspool/internal/oracle"
)

// TestLocalNames: names of functions are those of Debian's library, in a program and a shared object with symbols, with
// exported ones only, and with none; where there are symbols, they are the right ones.
func TestLocalNames(t *testing.T) {
	oracle.Need(t, "strip")
	lib := localLib(t, "gcc")
	stock := stockLib(t, lib)
	for _, c := range []struct {
		name  string
		flags []string
		strip []string
		named []string // the program's functions that have their names
	}{
		{"symbols", nil, nil, []string{"hidden_function", "global_function", "weak_function", "main", "plugin"}},
		{"without debug information", nil, []string{"-g"}, []string{"hidden_function", "global_function", "weak_function", "main", "plugin"}},
		{"exported", []string{"-rdynamic"}, []string{"-s"}, []string{"global_function", "weak_function", "main", "plugin"}},
		{"stripped", nil, []string{"-s"}, []string{"plugin"}},
		{"not relocated", []string{"-no-pie", "-fno-pie"}, nil, []string{"hidden_function", "global_function", "weak_function", "main", "plugin"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			prog, plugin := localProgram(t, "gcc", "names.c", c.flags...), plugins(t)[0]
			if c.strip != nil {
				for _, path := range []*string{&prog, &plugin} {
					to := filepath.Join(t.TempDir(), filepath.Base(*path))
					oracle.Run(t, "strip", append(c.strip, "-o", to, *path)...)
					*path = to
				}
			}
			want, err := runWith(stock, nil, prog, plugin)
			if err != nil {
				t.Fatalf("with Debian's: %v", err)
			}
			got, err := runWith(lib, nil, prog, plugin)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(got, want) {
				t.Errorf("got\n%s\n want\n%s", got, want)
			}
			for _, name := range append(c.named, "qsort", "malloc", "dlopen") {
				if line := name + "+0 exact: 0 " + name + "+0\n"; !strings.Contains(string(got), line) {
					t.Errorf("no %q in\n%s", line, got)
				}
			}
		})
	}
	// Debian's library has no names there.
	if out, err := runWith(lib, nil, localProgram(t, "gcc", "names.c"), "-vdso"); err != nil {
		t.Errorf("in the vDSO: %v\n%s", err, out)
	}
}
