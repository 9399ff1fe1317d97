package unspool

import (
	"bytes"
	"flag"
	"fmt"
	"go/ast"
	"go/build"
	"go/parser"
	"go/printer"
	"go/token"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "rewrite testdata/api.txt")

// library are the packages that doc.go calls stable.
var library = []string{
	"arch", "format", "module", "modules", "names", "profile", "record", "report", "rows", "source/corefile", "source/live", "source/perfdata", "stacks", "store", "unwind",
}

// declared returns the type of the i-th name of a declaration, with a space before it; nothing where its value does not show the type.
func declared(s *ast.ValueSpec, i int, show func(any) string) string {
	if s.Type != nil {
		return " " + show(s.Type)
	}
	if i < len(s.Values) {
		if lit, ok := s.Values[i].(*ast.CompositeLit); ok && lit.Type != nil {
			return " " + show(lit.Type)
		}
	}
	return ""
}

// surface returns a line for each exported name of a package, for x86-64: constants, variables, types, functions, fields and methods, without
// values.
func surface(t *testing.T, pkg string) (lines []string) {
	t.Helper()
	ctx := build.Default
	ctx.GOOS, ctx.GOARCH = "linux", "amd64"
	files, err := os.ReadDir(pkg)
	if err != nil {
		t.Fatal(err)
	}
	fset := token.NewFileSet()
	show := func(n any) string {
		var b bytes.Buffer
		if err := printer.Fprint(&b, fset, n); err != nil {
			t.Fatal(err)
		}
		return strings.Join(strings.Fields(b.String()), " ")
	}
	add := func(format string, args ...any) { lines = append(lines, pkg+": "+fmt.Sprintf(format, args...)) }
	for _, e := range files {
		if ok, err := ctx.MatchFile(pkg, e.Name()); err != nil || !ok || !strings.HasSuffix(e.Name(), ".go") || strings.HasSuffix(e.Name(), "_test.go") {
			continue
		}
		f, err := parser.ParseFile(fset, path.Join(pkg, e.Name()), nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		ast.FileExports(f)
		for _, d := range f.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				d.Body = nil
				add("%s", show(d))
			case *ast.GenDecl:
				for _, s := range d.Specs {
					switch s := s.(type) {
					case *ast.ValueSpec:
						for i, n := range s.Names {
							add("%v %s%s", d.Tok, n.Name, declared(s, i, show))
						}
					case *ast.TypeSpec:
						st, ok := s.Type.(*ast.StructType)
						if !ok {
							add("type %s", show(s))
							continue
						}
						add("type %s struct", s.Name.Name)
						for _, field := range st.Fields.List {
							for _, n := range field.Names {
								add("%s.%s %s", s.Name.Name, n.Name, show(field.Type))
							}
							if field.Names == nil {
								add("%s embeds %s", s.Name.Name, show(field.Type))
							}
						}
					}
				}
			}
		}
	}
	slices.Sort(lines)
	return lines
}

// named says whether doc links to a package, or to a name of it.
func named(doc, pkg string) bool {
	return regexp.MustCompile(`\[` + regexp.QuoteMeta(modulePath+pkg) + `[].]`).MatchString(doc)
}

// TestAPI: what testdata/api.txt lists is there, and doc.go names its packages.
func TestAPI(t *testing.T) {
	doc, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	var now []string
	for _, pkg := range library {
		if !named(string(doc), pkg) {
			t.Errorf("doc.go does not name %s", pkg)
		}
		lines := surface(t, pkg)
		if len(lines) == 0 {
			t.Errorf("%s exports nothing", pkg)
		}
		now = append(now, lines...)
	}
	const list = "testdata/api.txt"
	if *update {
		if err := os.WriteFile(list, []byte(strings.Join(now, "\n")+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	b, err := os.ReadFile(list)
	if err != nil {
		t.Fatal(err)
	}
	there := map[string]bool{}
	for _, l := range now {
		there[l] = true
	}
	for l := range strings.Lines(string(b)) {
		if l = strings.TrimSuffix(l, "\n"); !there[l] {
			t.Errorf("gone or changed: %s\nPrograms that use it break. If they must, say in the commit what takes its place, and run go test -run TestAPI . -update", l)
		}
	}
}
