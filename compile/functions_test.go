package compile

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/emit/compact"
	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/rows"
)

// TestFunctions holds the functions behind a table against what llvm-dwarfdump says of .eh_frame: of libstdc++, and of a program that throws.
func TestFunctions(t *testing.T) {
	oracle.Long(t)
	oracle.Need(t, "llvm-dwarfdump-19", "g++")
	dir := t.TempDir()
	source, prog := filepath.Join(dir, "throw.cc"), filepath.Join(dir, "throw")
	if err := os.WriteFile(source, []byte("#include <string>\nint main(int n, char **v)\n{\n\tstd::string s(v[0]);\n\ttry { if (n) throw s; } catch (std::string &x) { return x.size() == 0; }\n\treturn 1;\n}\n"), 0o666); err != nil {
		t.Fatal(err)
	}
	oracle.Run(t, "g++", "-O2", "-o", prog, source)
	files := []string{prog}
	if all, _ := filepath.Glob("/usr/lib/*-linux-gnu/libstdc++.so.6"); len(all) > 0 {
		files = append(files, all[0])
	}
	for _, path := range files {
		out := t.TempDir()
		if _, err := (&Compiler{Emit: "table", Dir: out, Functions: true}).File(path); err != nil {
			t.Fatal(err)
		}
		made, _ := filepath.Glob(filepath.Join(out, "*.unspool"))
		if len(made) != 1 {
			t.Fatalf("%s: made %v", path, made)
		}
		b, err := os.ReadFile(made[0])
		if err != nil {
			t.Fatal(err)
		}
		if _, err := compact.Load(b); err != nil {
			t.Fatal(err)
		}
		have, err := compact.LoadFunctions(b)
		if err != nil || have == nil {
			t.Fatalf("%s: %v, %v", path, have, err)
		}
		want, handled := dwarfdump(t, path)
		if have.Len() != len(want) || handled == 0 {
			t.Errorf("%s: %d functions, want %d, of which %d have handlers", path, have.Len(), len(want), handled)
		}
		for _, w := range want {
			got, ok := have.Find(w.Lo)
			got.Indirect = false // llvm-dwarfdump does not tell
			if !ok || got != w {
				t.Fatalf("%s: the function at %#x\n got %+v\nwant %+v", path, uint64(w.Lo), got, w)
			}
		}
		t.Logf("%s: %d functions, %d with handlers", path, len(want), handled)
	}
}

// dwarfdump returns the functions of a file, and how many of them have a handler.
func dwarfdump(t *testing.T, path string) (list []rows.Function, handled int) {
	text := oracle.Run(t, "llvm-dwarfdump-19", "--eh-frame", path)
	handlers := map[string]arch.Vaddr{} // by the CIE's offset
	cie, fde := "", false
	for line := range strings.Lines(string(text)) {
		cells := strings.Fields(line)
		number := func(s string) (x arch.Vaddr) { fmt.Sscanf(s, "%x", &x); return x }
		switch {
		case len(cells) == 4 && cells[3] == "CIE":
			cie, fde = cells[0], false
		case len(cells) == 6 && cells[3] == "FDE":
			fde = true
			lo, hi, _ := strings.Cut(strings.TrimPrefix(cells[5], "pc="), "...")
			f := rows.Function{Lo: number(lo), Hi: number(hi), Personality: handlers[strings.TrimPrefix(cells[4], "cie=")]}
			if list = append(list, f); f.Personality != 0 {
				handled++
			}
		case !fde && len(cells) == 3 && strings.HasPrefix(line, "  Personality Address:"):
			handlers[cie] = number(cells[2])
		case fde && len(cells) == 3 && strings.HasPrefix(line, "  LSDA Address:"):
			f := &list[len(list)-1]
			f.LSDA, f.HasLSDA = number(cells[2]), true
		}
	}
	return list, handled
}
