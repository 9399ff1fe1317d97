package unspool

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const modulePath = "github.com/unspool/unspool/"

// arrows says which packages of this module each may import. A pattern ending in /* stands for every
// package below; internal packages may be imported by all, and import none but themselves and arch.
var arrows = []struct {
	pkg string
	may []string
}{
	{".", nil},
	{"arch", nil},
	{"rows", []string{"arch"}},
	{"rows/rowstest", []string{"rows", "arch"}},
	{"module", []string{"arch"}},
	{"format", []string{"format/*", "rows", "module", "arch"}},
	{"format/jit", []string{"format/dwarf", "rows", "arch"}},
	{"format/*", []string{"rows", "module", "arch"}},
	{"emit/native", []string{"emit/native/amd64", "emit/native/arm64", "emit/compact", "rows", "arch"}},
	{"emit/native/amd64", nil},
	{"emit/native/arm64", nil},
	{"emit/*", []string{"rows", "arch"}},
	{"store", []string{"emit/*", "format", "module", "rows", "arch"}},
	{"compile", []string{"store", "emit/*", "format", "module", "rows", "arch"}},
	{"unwind", []string{"rows", "module", "arch"}},
	{"modules", []string{"store", "emit/*", "unwind", "format", "format/jit", "symbol/jit", "module", "rows", "arch"}},
	{"source", []string{"unwind", "rows", "arch"}},
	{"source/corefile", []string{"source", "source/gdbjit", "source/libgcc", "unwind", "module", "rows", "arch"}},
	{"source/gdbjit", []string{"unwind", "module", "arch"}},
	{"source/libgcc", []string{"source/gdbjit", "format/dwarf", "unwind", "module", "rows", "arch"}},
	{"source/live", []string{"source", "source/gdbjit", "source/libgcc", "unwind", "module", "rows", "arch"}},
	{"source/minidump", []string{"source", "unwind", "module", "rows", "arch"}},
	{"source/ebpf", []string{"source", "source/usdt", "unwind", "module", "emit/compact", "rows", "arch"}},
	{"source/heap", nil},
	{"source/usdt", []string{"module", "arch"}},
	{"source/*", []string{"source", "unwind", "rows", "arch"}},
	{"symbol", []string{"symbol/*", "module", "arch"}},
	{"symbol/gosym", []string{"format/pclntab", "module", "arch"}},
	{"symbol/*", []string{"module", "arch"}},
	{"shadow", []string{"modules", "unwind", "format", "module", "symbol", "rows", "arch"}},
	{"profile", []string{"unwind", "symbol", "arch"}},
	{"profile/pprof", []string{"profile", "unwind"}},
	{"names", []string{"symbol", "symbol/*", "modules", "profile", "source", "format", "unwind", "module", "arch"}},
	{"stacks", []string{"source", "profile", "unwind", "arch"}},
	{"stacks/sources", []string{"stacks", "names", "modules", "source", "source/*", "unwind", "arch"}},
	{"report", []string{"stacks", "profile", "profile/pprof", "unwind", "arch"}},
	{"serve", []string{"report", "profile", "profile/pprof", "unwind"}},
	{"serve/files", []string{"serve", "record", "profile"}},
	{"report/annotate", []string{"profile", "symbol", "module", "arch"}},
	{"tui", nil},
	{"tui/tuitest", []string{"profile", "unwind", "arch"}},
	{"tui/*", []string{"tui", "record", "profile", "unwind"}},
	{"record/heap", []string{"record", "doctor", "names", "modules", "profile", "source/heap", "source/ebpf", "source/perfevent", "unwind", "arch"}},
	{"record", []string{"names", "modules", "profile", "profile/pprof", "source", "source/*", "unwind", "arch"}},
	{"agent", []string{"agent/*", "profile", "unwind"}},
	{"agent/export", []string{"profile", "profile/pprof"}},
	{"agent/daemon", []string{"agent", "agent/*", "record", "serve", "names", "modules", "profile", "module"}},
	{"agent/debuginfo", []string{"agent/export", "module", "profile"}},
	{"agent/stdout", []string{"agent/export", "report", "profile", "unwind"}},
	{"agent/*", []string{"agent/export", "profile", "unwind"}},
	{"doctor", []string{"record", "names", "module", "modules", "profile", "source/*", "symbol"}},
	{"dropin", []string{"doctor", "record", "compile", "store", "emit/native", "module"}},
	{"cgotraceback", []string{"runtime"}}, // for its C
	{"runtime", nil},
	{"internal/*", []string{"arch", "internal/*"}},
	{"cmd/*", []string{"*"}},
	{"lab", []string{"*"}},
	{"lab/*", []string{"*"}},
}

// binaries are the packages that know how binary files begin, or use Go's readers of them. For all others a binary is a module.Image, whatever
// its format.
var binaries = map[string]string{
	"module":           "reads them",
	"agent/debuginfo":  "gives a debug file the headers of its program",
	"emit/ehframe":     "writes ELF",
	"emit/native":      "writes ELF, and reads what it wrote",
	"emit/orc":         "copies object files; an image has no place for a new section's relocations",
	"internal/elfcopy": "copies ELF files below module, for emitters, which take bytes",
	"internal/elfnote": "reads notes below module: of a file without mapping it, too",
	"internal/oracle":  "picks the ELF files of a machine for tests, by their first bytes",
	"internal/release": "says which packages its drop-ins need",
	"source/corefile":  "a core is no binary image",
}

// readers are Go's readers of binary files.
var readers = []string{"debug/elf", "debug/macho", "debug/pe"}

// knows returns what a file has of binaries: readers, and the first bytes of ELF and of Windows's files.
func knows(f *ast.File) (out []string) {
	for _, im := range f.Imports {
		if s, _ := strconv.Unquote(im.Path.Value); slices.Contains(readers, s) {
			out = append(out, s)
		}
	}
	ast.Inspect(f, func(n ast.Node) bool {
		var bytes []ast.Expr // one by one
		switch n := n.(type) {
		case *ast.BasicLit:
			if s, err := strconv.Unquote(n.Value); n.Kind == token.STRING && err == nil && magic(s) {
				out = append(out, n.Value)
			}
		case *ast.CompositeLit:
			bytes = n.Elts
		case *ast.CallExpr: // append
			bytes = n.Args[min(1, len(n.Args)):]
		}
		var s []byte
		for _, e := range bytes {
			lit, _ := e.(*ast.BasicLit)
			if lit == nil {
				break
			}
			if c, err := strconv.Unquote(lit.Value); lit.Kind == token.CHAR && err == nil {
				s = append(s, c...)
			} else if i, err := strconv.ParseUint(lit.Value, 0, 8); err == nil {
				s = append(s, byte(i))
			}
		}
		if magic(string(s)) {
			out = append(out, strconv.Quote(string(s)))
		}
		return true
	})
	return out
}

func magic(s string) bool { return strings.HasPrefix(s, "\x7fELF") || s == "MZ" }

// TestKnows: what TestArrows looks for is found in each form.
func TestKnows(t *testing.T) {
	f, err := parser.ParseFile(token.NewFileSet(), "x.go", `package x

import (
	"go/ast"
	"debug/pe"
	"debug/dwarf"
)

// MZ, "\x7fELF"
var a, b, c, d, e = "\x7fELF\x02", "MZ", []byte{0x7f, 'E', 'L', 'F'}, append(c, 'M', 'Z'), "MZxMm"
`, 0)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := knows(f), []string{"debug/pe", `"\x7fELF\x02"`, `"MZ"`, `"\x7fELF"`, `"MZ"`}; !slices.Equal(got, want) {
		t.Errorf("knows: %q, want %q", got, want)
	}
}

func matches(pattern, pkg string) bool {
	if pattern == "*" || pattern == pkg {
		return true
	}
	dir, ok := strings.CutSuffix(pattern, "/*")
	return ok && strings.HasPrefix(pkg, dir+"/")
}

// TestArrows holds the imports of all files, tests apart, against the list, and where binary files are read against binaries.
func TestArrows(t *testing.T) {
	used, known := map[string]bool{}, map[string]bool{}
	err := filepath.WalkDir(".", func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			if d != nil && d.IsDir() && (strings.HasPrefix(d.Name(), ".") && p != "." || d.Name() == "testdata" || d.Name() == "tools") {
				return filepath.SkipDir
			}
			return err
		}
		if !strings.HasSuffix(p, ".go") || strings.HasSuffix(p, "_test.go") {
			return nil
		}
		f, err := parser.ParseFile(token.NewFileSet(), p, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		pkg := path.Dir(filepath.ToSlash(p))
		i := slices.IndexFunc(arrows, func(a struct {
			pkg string
			may []string
		}) bool {
			return matches(a.pkg, pkg)
		})
		if i < 0 {
			t.Errorf("%s: package %s is not in the list", p, pkg)
			return nil
		}
		used[arrows[i].pkg] = true
		for _, what := range knows(f) {
			if known[pkg] = true; binaries[pkg] == "" {
				t.Errorf("%s: package %s must not have %s: module reads binaries", p, pkg, what)
			}
		}
		for _, im := range f.Imports {
			s, _ := strconv.Unquote(im.Path.Value)
			s, ours := strings.CutPrefix(s, modulePath)
			if !ours || strings.HasPrefix(s, "internal/") {
				continue
			}
			if !slices.ContainsFunc(arrows[i].may, func(m string) bool { return matches(m, s) }) {
				t.Errorf("%s: %s must not import %s", p, pkg, s)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for pkg, why := range binaries {
		if !known[pkg] {
			t.Errorf("%s knows nothing of binary files (%s): take it off the list", pkg, why)
		}
	}
	for _, a := range arrows {
		if !used[a.pkg] {
			t.Errorf("no package matches %q: take it off the list", a.pkg)
		}
	}
}

// commandLines bounds the lines of Go in cmd/unspool, tests apart: verbs, flags and help. Before it is raised, see what can go to a package below.
const commandLines = 2600

// TestCommand holds the size of the command.
func TestCommand(t *testing.T) {
	files, err := filepath.Glob("cmd/unspool/*.go")
	if err != nil || len(files) == 0 {
		t.Fatalf("cmd/unspool has %d files: %v", len(files), err)
	}
	lines, largest, most := 0, "", 0
	for _, f := range files {
		if strings.HasSuffix(f, "_test.go") {
			continue
		}
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		n := strings.Count(string(b), "\n")
		if lines += n; n > most {
			largest, most = f, n
		}
	}
	if lines > commandLines {
		t.Errorf("cmd/unspool has %d lines without tests, and may have %d: verbs, flags and help. Its largest file is %s, %d lines: what chooses, computes or builds goes below", lines, commandLines, largest, most)
	}
}
