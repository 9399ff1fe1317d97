package unspool

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// A tree is the files of this repository.
type tree struct {
	text     map[string]string          // by path; "" where it is of no interest
	dirs     map[string][]string        // the files in each directory
	declared map[string]map[string]bool // what the Go files in each directory declare at their top, and the fields
}

var declaration = regexp.MustCompile(`(?m)^(?:func (?:\([^)]*\) )?|type |var |const |\t)(\w+)`)

func readTree(t *testing.T) *tree {
	t.Helper()
	f := &tree{map[string]string{}, map[string][]string{}, map[string]map[string]bool{}}
	err := filepath.WalkDir(".", func(p string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == ".git" || d.Name() == "recordings"):
			return filepath.SkipDir
		case d.IsDir():
			f.dirs[p] = nil
			return nil
		case !d.Type().IsRegular():
			return nil
		}
		dir := path.Dir(p)
		f.text[p], f.dirs[dir] = "", append(f.dirs[dir], p)
		if e := path.Ext(p); !slices.Contains([]string{".go", ".c", ".h", ".md", ".cc", ".rs"}, e) && d.Name() != "Makefile" {
			return nil
		}
		b, err := os.ReadFile(p)
		if err != nil {
			return err
		}
		f.text[p] = string(b)
		if strings.HasSuffix(p, ".go") {
			if f.declared[dir] == nil {
				f.declared[dir] = map[string]bool{}
			}
			for _, m := range declaration.FindAllSubmatch(b, -1) {
				f.declared[dir][string(m[1])] = true
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// has returns the directory that a path names, or that its file is in; a pattern names files.
func (f *tree) has(p string) (dir string, ok bool) {
	if _, ok := f.dirs[p]; ok {
		return p, true
	}
	if _, ok := f.text[p]; ok {
		return path.Dir(p), true
	}
	if strings.Contains(p, "*") {
		for _, name := range f.dirs[path.Dir(p)] {
			if ok, err := path.Match(p, name); err == nil && ok {
				return path.Dir(p), true
			}
		}
	}
	return "", false
}

// place returns the directory of a word that is a path, from the root or from one of the places that were named before it.
func (f *tree) place(word string, places []string) (dir string, ok bool) {
	for _, at := range append([]string{"."}, places...) {
		if dir, ok := f.has(path.Join(at, word)); ok {
			return dir, true
		}
	}
	return "", false
}

// missing says what is wrong with a word in backquotes, or is empty. places are the directories that its paragraph names.
func (f *tree) missing(word string, places []string) string {
	if target, ok := strings.CutPrefix(word, "make "); ok {
		if !strings.Contains("\n"+f.text["Makefile"], "\n"+target+":") {
			return "no such target in Makefile"
		}
		return ""
	}
	if strings.ContainsAny(word, " =") { // a command: the packages that it names
		for _, arg := range strings.Fields(word) {
			if p, ok := strings.CutPrefix(arg, "./"); ok {
				if _, ok := f.has(p); !ok {
					return arg + " is not there"
				}
			}
		}
		return ""
	}
	if strings.HasPrefix(word, "-") {
		return ""
	}
	if _, ok := f.place(word, places); ok {
		return ""
	}
	if strings.Contains(word, "/") || slices.Contains([]string{".go", ".c", ".h", ".md", ".js"}, path.Ext(word)) {
		return "no such file or directory"
	}
	if pkg, name, ok := strings.Cut(word, "."); ok {
		name, _, _ = strings.Cut(name, "(")
		for dir, names := range f.declared {
			if path.Base(dir) == pkg && names[name] {
				return ""
			}
		}
		return "package " + pkg + " declares no " + name
	}
	for _, dir := range places {
		for _, p := range f.dirs[dir] {
			if strings.Contains(f.text[p], word) {
				return ""
			}
		}
	}
	for _, names := range f.declared {
		if len(places) == 0 && names[word] {
			return ""
		}
	}
	return "not in the directories that the paragraph names; if it names none, declared nowhere"
}

var (
	quoted = regexp.MustCompile("`([^`]+)`")
	linked = regexp.MustCompile(`\]\(([^)#:]+)\)`)
	item   = regexp.MustCompile(`(?m)^(\d+\.|-) |^\| |\n\n`)
)

// wrong returns what documents name that is not there: in CONTRIBUTING all words in backquotes, in ARCHITECTURE those of the table of
// places; in all of them, links.
func (f *tree) wrong(docs map[string]string) (out []string) {
	for doc, text := range docs {
		for _, l := range linked.FindAllStringSubmatch(text, -1) {
			if _, ok := f.text[l[1]]; !ok {
				out = append(out, doc+": a link to "+l[1]+", which is not there")
			}
		}
		switch doc {
		case "ARCHITECTURE.md":
			_, text, _ = strings.Cut(text, "## Where is")
			text, _, _ = strings.Cut(text, "## Invariants")
		case "README.md":
			continue
		}
		for _, part := range item.Split(text, -1) {
			var places []string
			words := quoted.FindAllStringSubmatch(part, -1)
			for _, m := range words {
				if dir, ok := f.place(m[1], places); ok {
					places = append(places, dir)
				}
			}
			for _, m := range words {
				if why := f.missing(m[1], places); why != "" {
					out = append(out, doc+": `"+m[1]+"`: "+why)
				}
			}
		}
	}
	return out
}

// TestPlaces: what documents send a reader to is there.
func TestPlaces(t *testing.T) {
	f := readTree(t)
	docs := map[string]string{}
	for _, doc := range []string{"README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"} {
		docs[doc] = f.text[doc]
	}
	for _, msg := range f.wrong(docs) {
		t.Error(msg)
	}
	// The test itself: it sees what is gone.
	for _, gone := range [][2]string{
		{"report.Formats", "report.Formatz"}, {"arch/linux.go", "arch/linus.go"}, {"`others`", "`uthers`"}, {"`TestWhole`", "`TestHole`"}, {"make fuzz", "make fizz"},
		{"./emit/compact", "./emit/compatc"}, {"`sums`", "`summs`"}, {"rows.Builder", "rows.Bilder"}, {"lab/shapes/testdata", "lab/shapes/tastdata"},
	} {
		changed := strings.Replace(docs["CONTRIBUTING.md"], gone[0], gone[1], 1)
		if changed == docs["CONTRIBUTING.md"] {
			t.Errorf("CONTRIBUTING.md does not name %s", gone[0])
		} else if got := f.wrong(map[string]string{"CONTRIBUTING.md": changed}); len(got) == 0 {
			t.Errorf("%s instead of %s: %q", gone[1], gone[0], got)
		}
	}
	if got := f.wrong(map[string]string{"ARCHITECTURE.md": strings.Replace(docs["ARCHITECTURE.md"], "`places.h`", "`palaces.h`", 1)}); len(got) != 1 {
		t.Errorf("palaces.h: %q", got)
	}
}

// A lone argument of one of these names needs no words: an error says for itself what failed, and msg and diff are words that were put together
// before. So err, werr, err2, plain.err and ctx.Err() are fine; r.stderr is not.
var speaks = regexp.MustCompile(`^\w?err\d*$|Err\d*$|^(msg|diff)$`)

// name returns the last name of a variable, a field or a function that is called, or nothing.
func name(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name
	case *ast.SelectorExpr:
		return e.Sel.Name
	case *ast.CallExpr:
		return name(e.Fun)
	}
	return ""
}

// wordless returns a source's calls of Error and Fatal, of t, tb, b and f, that print values and no words: in their arguments, no string is written.
func wordless(path string, text []byte) (out []string, err error) {
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, path, text, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	ast.Inspect(file, func(n ast.Node) bool {
		call, _ := n.(*ast.CallExpr)
		if call == nil || len(call.Args) == 0 || len(call.Args) == 1 && speaks.MatchString(name(call.Args[0])) {
			return true
		}
		method, _ := call.Fun.(*ast.SelectorExpr)
		if method == nil || method.Sel.Name != "Error" && method.Sel.Name != "Fatal" {
			return true
		}
		if on, _ := method.X.(*ast.Ident); on == nil || !slices.Contains([]string{"t", "tb", "b", "f"}, on.Name) {
			return true
		}
		words := false
		for _, arg := range call.Args {
			ast.Inspect(arg, func(n ast.Node) bool {
				lit, _ := n.(*ast.BasicLit)
				words = words || lit != nil && lit.Kind == token.STRING
				return !words
			})
		}
		if !words {
			from, to := files.Position(call.Pos()), files.Position(call.End())
			out = append(out, path+":"+strconv.Itoa(from.Line)+": "+strings.Join(strings.Fields(string(text[from.Offset:to.Offset])), " "))
		}
		return true
	})
	return out, nil
}

// TestMessages: who reads that a test has failed reads what was called, too, and what was expected. A test that fails with mere values, as in
// t.Error(got, ok), does not say it. This form is what the test finds; words that say nothing, it does not. All files that import testing are looked at: tests, and the packages that help them.
func TestMessages(t *testing.T) {
	looked := 0
	err := filepath.WalkDir(".", func(p string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (strings.HasPrefix(d.Name(), ".") && p != "." || d.Name() == "testdata" || d.Name() == "recordings"):
			return filepath.SkipDir
		case d.IsDir() || !strings.HasSuffix(p, ".go"):
			return nil
		}
		text, err := os.ReadFile(p)
		if err != nil || !bytes.Contains(text, []byte(`"testing"`)) {
			return err
		}
		looked++
		list, err := wordless(p, text)
		for _, call := range list {
			t.Errorf("%s prints values only, want Errorf or Fatalf with the call, the result and the expected result", call)
		}
		return err
	})
	if err != nil || looked < 100 {
		t.Fatalf("WalkDir finds %d files that import testing, %v, want hundreds", looked, err)
	}
	// The test itself: it sees what has no words, and nothing else.
	got, err := wordless("x.go", []byte(`package x

func x() {
	t.Error(got, ok)
	b.Fatal(len(list))
	tb.Fatal(r.stderr)
	f.Fatal(fmt.Sprint(n), err)
	t.Error(all[0],
		err)
	t.Error("no rows")
	t.Error(fmt.Sprint("rows: ", n))
	t.Error(err)
	t.Fatal(err2)
	t.Fatal(plain.err)
	t.Fatal(ctx.Err())
	t.Error(diff)
	t.Errorf(format, got)
	log.Fatal(n)
	_ = t.Error()
}
`))
	want := []string{
		"x.go:4: t.Error(got, ok)", "x.go:5: b.Fatal(len(list))", "x.go:6: tb.Fatal(r.stderr)", "x.go:7: f.Fatal(fmt.Sprint(n), err)",
		"x.go:8: t.Error(all[0], err)",
	}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("wordless = %q, %v, want %q", got, err, want)
	}
}
