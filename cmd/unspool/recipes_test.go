package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	pprof "github.com/google/pprof/profile"

	"github.com/unspool/unspool/internal/oracle"
)

// A recipe is files laid over the repository's, as its author would write and change them.
type recipe struct {
	t     *testing.T
	root  string
	dir   string
	files map[string]string // by path in the repository: where the text is
}

func newRecipe(t *testing.T) *recipe {
	t.Helper()
	oracle.Need(t, "go")
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	return &recipe{t, root, t.TempDir(), map[string]string{}}
}

// add writes a file of the recipe.
func (r *recipe) add(path, text string) {
	r.t.Helper()
	to := filepath.Join(r.dir, strings.ReplaceAll(path, "/", "!"))
	if err := os.WriteFile(to, []byte(text), 0o600); err != nil {
		r.t.Fatal(err)
	}
	r.files[filepath.Join(r.root, path)] = to
}

// insert puts text behind the first occurrence of a place in a file of the repository, or before it.
func (r *recipe) insert(path, place, text string, before bool) {
	r.t.Helper()
	from := filepath.Join(r.root, path)
	if to := r.files[from]; to != "" {
		from = to
	}
	b, err := os.ReadFile(from)
	if err != nil {
		r.t.Fatalf("the place that CONTRIBUTING.md names: %v", err)
	}
	head, tail, ok := strings.Cut(string(b), place)
	if !ok {
		r.t.Fatalf("%s has no %q, where CONTRIBUTING.md says that one adds to it", path, place)
	}
	if before {
		r.add(path, head+text+place+tail)
	} else {
		r.add(path, head+place+text+tail)
	}
}

// run calls go with the files of the recipe.
func (r *recipe) run(verb string, args ...string) (string, error) {
	r.t.Helper()
	b, err := json.Marshal(map[string]any{"Replace": r.files})
	if err != nil {
		r.t.Fatal(err)
	}
	overlay := filepath.Join(r.dir, "overlay.json")
	if err := os.WriteFile(overlay, b, 0o600); err != nil {
		r.t.Fatal(err)
	}
	c := exec.Command("go", append([]string{verb, "-overlay", overlay}, args...)...)
	c.Dir, c.Env = r.root, append(os.Environ(), "GOFLAGS=-trimpath", "CGO_ENABLED=0")
	out, err := c.CombinedOutput()
	return string(out), err
}

// generated returns a file that go generate ./emit/compact writes, in a copy of what it reads.
func (r *recipe) generated(path string) string {
	r.t.Helper()
	gen := filepath.Join(r.dir, "gen")
	if out, err := r.run("build", "-o", gen, "./emit/compact/gen"); err != nil {
		r.t.Fatalf("go build ./emit/compact/gen: %v\n%s", err, out)
	}
	dir := r.t.TempDir()
	for _, sub := range []string{"arch", "docs", "emit/compact", "format/dwarf", "rows", "runtime"} {
		if err := os.CopyFS(filepath.Join(dir, sub), os.DirFS(filepath.Join(r.root, sub))); err != nil {
			r.t.Fatal(err)
		}
	}
	c := exec.Command(gen)
	c.Dir = filepath.Join(dir, "emit/compact")
	if out, err := c.CombinedOutput(); err != nil {
		r.t.Fatalf("gen: %v\n%s", err, out)
	}
	b, err := os.ReadFile(filepath.Join(dir, path))
	if err != nil {
		r.t.Fatal(err)
	}
	return string(b)
}

// passes runs tests, each of which must have run.
func (r *recipe) passes(pkg string, tests ...string) {
	r.t.Helper()
	out, err := r.run("test", "-vet=off", "-v", "-run", "^("+strings.Join(tests, "|")+")$", pkg)
	for _, name := range tests {
		if err != nil || !strings.Contains(out, "--- PASS: "+name+" ") {
			r.t.Errorf("go test -run %s %s: %v\n%s", name, pkg, err, out)
			return
		}
	}
}

// fails runs a test that is to say what is still missing.
func (r *recipe) fails(pkg, test, message string) {
	r.t.Helper()
	out, err := r.run("test", "-vet=off", "-run", "^"+test+"$", pkg)
	if err == nil || !strings.Contains(out, message) {
		r.t.Errorf("go test -run %s %s: %v, and not %q\n%s", test, pkg, err, message, out)
	}
}

// TestRecipes follows CONTRIBUTING.md to add a machine, a format and an output.
func TestRecipes(t *testing.T) {
	oracle.Long(t)
	t.Run("architecture", recipeMachine)
	t.Run("origin", recipeOrigin)
	t.Run("format and output", recipeOutput)
}

func recipeMachine(t *testing.T) {
	r := newRecipe(t)
	r.add("arch/dummy.go", `package arch

// Dummy is AArch64 by another name.
var Dummy = func() *Machine {
	m := *ARM64
	m.Name, m.GoArch, m.ELF = "dummy", "dummy", 0x4242
	return &m
}()
`)
	r.insert("arch/linux.go", "var machines = []*Machine{", "Dummy, ", false)
	r.insert("arch/arch.go", "var others = map[uint16]*Machine{\n", "\t0x4243: finish(&Machine{Name: \"printed\", ELF: 0x4243, SP: 2, FP: 8, PC: 64, RA: 1, RAName: \"ra\"}, 0, nil),\n", false)
	r.add("emit/compact/dummy_test.go", `package compact_test

import (
	"testing"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/emit/compact"
	"github.com/unspool/unspool/rows"
)

func TestDummy(t *testing.T) {
	m := arch.ByELF(0x4242)
	if m != arch.Dummy || arch.ByName("dummy") != m {
		t.Fatalf("%+v", m)
	}
	if other := arch.ByELF(0x4243); other.Name != "printed" || other.Numbered || other.StepKnown {
		t.Fatalf("%+v", other)
	}
	b := rows.NewBuilder(m)
	s, err := rows.ParseSet("cfa=sp+32  x19=c-16  ra=c-8", m)
	if err != nil {
		t.Fatal(err)
	}
	b.Range(0x1000, 0x1040, []rows.Row{{Lo: 0x1000, Set: b.Intern(s)}})
	table := rows.Build(b)
	text, err := compact.Emit(table)
	if err != nil {
		t.Fatal(err)
	}
	c, err := compact.Load(text)
	if err != nil {
		t.Fatal(err)
	}
	if err := compact.Verify(c, table, 1); err != nil {
		t.Errorf("Verify: %v", err)
	}
	if _, ok := c.Find(0x1010); !ok {
		t.Errorf("Find(0x1010) finds no rule in\n%v", table)
	}
}
`)
	r.passes("./arch", "TestWhole")
	r.passes("./emit/compact", "TestDummy")
	r.fails("./emit/compact/gen", "TestUpToDate", "runtime/machine.h is not what Go says")
	if machine := r.generated("runtime/machine.h"); !strings.Contains(machine, "UNSPOOL_DUMMY_") || !strings.Contains(machine, "defined(__dummy__)") {
		t.Errorf("go generate ./emit/compact leaves the machine out of runtime/machine.h:\n%s", machine)
	}
	recipeInstructions(r)
	r.passes("./report/annotate", "TestDummy")
	r.passes("./emit/native", "TestDummy")
	r.fails("./emit/native", "TestInstructions", "disassemblers and mnemonics do not have dummy")
	r.passes("./shadow", "TestDummy")

	// A machine that is described by half.
	r.add("arch/dummy.go", `package arch

var Dummy = func() *Machine {
	m := *ARM64
	m.Name, m.GoArch, m.ELF, m.Perf = "dummy", "dummy", 0x4242, nil
	return &m
}()
`)
	r.fails("./arch", "TestWhole", "dummy: Perf")
}

// recipeInstructions adds what reads and writes the machine's instructions.
func recipeInstructions(r *recipe) {
	r.insert("report/annotate/disasm.go", "\tcase arch.ARM64:\n", "\t\treturn arm64{syntax}\n\tcase arch.Dummy:\n", false)
	r.add("report/annotate/dummy_test.go", `package annotate

import (
	"testing"

	"github.com/unspool/unspool/arch"
)

func TestDummy(t *testing.T) {
	if x, ok := newDecoder(arch.Dummy, "gnu").decode([]byte{0xc0, 0x03, 0x5f, 0xd6}, 0x1000); !ok || x.text != "ret" {
		t.Errorf("ret: %+v, %v", x, ok)
	}
}
`)
	r.insert("emit/native/native.go", "var targets = map[*arch.Machine]target{\n", "\tarch.Dummy: {lower: func(g *generator) lowering { return newArm(g) }, page: 64 << 10, interpreted: true},\n", false)
	r.add("emit/native/dummy_test.go", `package native

import (
	"math/rand/v2"
	"testing"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/rows/rowstest"
)

func TestDummy(t *testing.T) {
	for d := range numDerefs {
		prove(t, rowstest.Table(rand.New(rand.NewPCG(1, 2)), arch.Dummy, 20), Options{Deref: d})
	}
}
`)
	r.insert("shadow/machine.go", "var machines = []*machine{\n", "\t{Machine: arch.Dummy, decode: decodeARM64, disassemble: disassembleARM64, longest: 4},\n", false)
	r.add("shadow/dummy_test.go", `package shadow

import (
	"testing"

	"github.com/unspool/unspool/arch"
)

func TestDummy(t *testing.T) {
	if host == nil || host.Machine != arch.Host() {
		t.Errorf("host is %+v, want %s", host, arch.Host().Name)
	}
}
`)
}

// recipeOrigin gives a format a number.
func recipeOrigin(t *testing.T) {
	r := newRecipe(t)
	r.insert("rows/origin.go", "// MIPS compact tables, in .eh_frame_hdr\n", "\tFromDummy\n", false)
	r.insert("rows/origin.go", `"mips-compact"`, `, "dummy"`, false)
	r.fails("./emit/compact/gen", "TestOrigins", "(dummy): listed false, want true")
	r.insert("emit/compact/gen/main.go", `int(rows.FromMIPS): "FROM_MIPS"`, `, int(rows.FromDummy): "FROM_DUMMY"`, false)
	r.passes("./emit/compact/gen", "TestOrigins")
	for _, path := range []string{"runtime/unspool_table.h", "docs/TABLE.md"} {
		r.fails("./emit/compact/gen", "TestUpToDate", path+" is not what Go says")
		if text := r.generated(path); !strings.Contains(text, "FROM_DUMMY") {
			t.Errorf("go generate ./emit/compact leaves the origin out of %s:\n%s", path, text)
		}
	}
}

func recipeOutput(t *testing.T) {
	r := newRecipe(t)
	r.add("format/dummy/dummy.go", `// Package dummy gives all executable code of an image one row.
package dummy

import (
	"io"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/module"
	"github.com/unspool/unspool/rows"
)

// Rows returns the table.
func Rows(img *module.Image) *rows.Table {
	b := rows.NewBuilder(img.Machine())
	m := img.Machine()
	set := b.Intern(rows.Set{CFA: rows.CFA{Kind: rows.CFAReg, Reg: m.SP, Off: 424240}, RA: m.RA, Rules: []rows.Rule{{Of: m.RA, Kind: rows.Offset, Off: -8}}})
	for _, s := range img.Segments() {
		if s.Perm&module.Exec != 0 {
			lo := s.Vaddr
			b.Range(lo, lo+arch.Vaddr(s.Size), []rows.Row{{Lo: lo, Set: set}})
		}
	}
	return rows.Build(b)
}

// Sum writes what the rows are made of.
func Sum(w io.Writer) { io.WriteString(w, "dummy") }
`)
	r.insert("format/format.go", "import (\n", "\t\"github.com/unspool/unspool/format/dummy\"\n", false)
	r.insert("format/format.go", "\treturn u, err\n}\n", `	u.sums = append(u.sums, dummy.Sum)
	u.Sources = append(u.Sources, Source{Name: "dummy", Rows: func() (*rows.Table, []error) { return dummy.Rows(img), nil }})
`, true)
	r.add("report/dummy.go", `package report

import (
	"fmt"
	"io"

	"github.com/unspool/unspool/profile"
)

// Dummy writes how many samples there are.
func Dummy(w io.Writer, p *profile.Profile, o Options) error {
	_, err := fmt.Fprintf(w, "%d samples in all\n", p.Totals.Samples)
	return err
}
`)
	r.insert("report/formats.go", "var Formats = Table{\n", "\t{Name: \"dummy\", Endings: []string{\".dummy\"}, About: \"as CONTRIBUTING says\", Whole: Dummy},\n", false)
	r.passes("./report", "TestFormats")
	r.fails("./report", "TestSameNumbers", "dummy: nothing reads its numbers back")

	exe := filepath.Join(r.dir, "unspool")
	if out, err := r.run("build", "-o", exe, "./cmd/unspool"); err != nil {
		t.Fatalf("nothing above format and report need change: %v\n%s", err, out)
	}
	in := filepath.Join(r.dir, "in.pb.gz")
	f, err := os.Create(in)
	if err != nil {
		t.Fatal(err)
	}
	fn := &pprof.Function{ID: 1, Name: "hash"}
	loc := &pprof.Location{ID: 1, Line: []pprof.Line{{Function: fn}}}
	p := &pprof.Profile{
		SampleType: []*pprof.ValueType{{Type: "samples", Unit: "count"}}, Function: []*pprof.Function{fn}, Location: []*pprof.Location{loc},
		Sample: []*pprof.Sample{{Location: []*pprof.Location{loc}, Value: []int64{7}}},
	}
	if err := p.Write(f); err != nil {
		t.Fatal(err)
	}
	f.Close()
	for _, c := range []struct {
		args, want string
	}{
		{"report " + in + " -o out.dummy", ""},
		{"report " + in + " --format dummy", "7 samples in all\n"},
		{"record --help", "  as CONTRIBUTING says\n"},
		{"report --help", "dummy, top, tree"},
		{"__complete report --format du", "dummy\n"},
		{"dump " + exe, "424240"},
	} {
		cmd := exec.Command(exe, strings.Fields(c.args)...)
		cmd.Dir, cmd.Env = r.dir, append(os.Environ(), "UNSPOOL_CACHE="+r.dir)
		out, err := cmd.Output()
		if err != nil || !strings.Contains(string(out), c.want) {
			t.Errorf("unspool %s: %v, and not %q\n%.2000s", c.args, err, c.want, out)
		}
	}
	if b, err := os.ReadFile(filepath.Join(r.dir, "out.dummy")); string(b) != "7 samples in all\n" {
		t.Errorf("out.dummy: %q, %v", b, err)
	}
}
