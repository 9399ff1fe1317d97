package compile

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/module"
)

// exceptionTables returns the exception tables of a file.
func exceptionTables(t *testing.T, path string) (all []exceptionTable) {
	t.Helper()
	var buf bytes.Buffer
	if damage, err := WriteExceptions(&buf, path, true); err != nil || len(damage) > 0 {
		t.Fatalf("%s: %v, %v", path, err, damage)
	}
	for d := json.NewDecoder(&buf); d.More(); {
		var x exceptionTable
		if err := d.Decode(&x); err != nil {
			t.Fatal(err)
		}
		all = append(all, x)
	}
	return all
}

// TestExceptionsOfCompiler compares exception tables with what the compiler wrote for the assembler: its labels are kept as symbols.
func TestExceptionsOfCompiler(t *testing.T) {
	oracle.Long(t)
	oracle.Need(t, "g++", "as")
	dir := t.TempDir()
	sites := 0
	for _, c := range []struct {
		name, gas string
		args      []string
	}{
		{"x86-64", "as", []string{"g++", "-std=c++14", "-O2"}},
		{"x86-64-O0", "as", []string{"g++", "-std=c++14", "-O0"}},
		{"absolute", "as", []string{"g++", "-std=c++14", "-O2", "-fno-pic"}},
		{"sections", "as", []string{"g++", "-std=c++14", "-O1", "-ffunction-sections"}},
		{"arm64", "aarch64-linux-gnu-as", []string{"aarch64-linux-gnu-g++", "-std=c++14", "-O2"}},
	} {
		if _, err := exec.LookPath(c.args[0]); err != nil {
			continue
		}
		text, object := filepath.Join(dir, c.name+".s"), filepath.Join(dir, c.name+".o")
		for _, cmd := range [][]string{append(slices.Clone(c.args), "-S", "-dA", "-w", "-o", text, "testdata/exceptions.cc"), {c.gas, "--keep-locals", "-o", object, text}} {
			oracle.Run(t, cmd[0], cmd[1:]...)
		}
		b, err := os.ReadFile(text)
		if err != nil {
			t.Fatal(err)
		}
		got := map[string][]callSite{}
		for _, x := range exceptionTables(t, object) {
			got[x.Table] = x.CallSites
		}
		want := assemblerTables(t, object, string(b))
		for table, list := range want {
			sites += len(list)
			if !reflect.DeepEqual(got[table], list) && len(got[table])+len(list) > 0 {
				t.Errorf("%s: table %s\n got %+v\nwant %+v", c.name, table, got[table], list)
			}
		}
		if len(got) != len(want) {
			t.Errorf("%s: %d tables, want %d", c.name, len(got), len(want))
		}
	}
	t.Logf("%d call sites", sites)
	if sites < 60 {
		t.Errorf("%d call sites, want 60 or more", sites)
	}
}

var (
	lsdaBegin = regexp.MustCompile(`^\.LLSDA(C?\d+):$`)
	lsdaLine  = regexp.MustCompile(`^\t\.(byte|uleb128|4byte|long|quad|xword|word)[\t ]([^\t]+)(?:\t[/#;@ ]+(.*))?$`)
)

// assemblerTables reads the exception tables in g++'s output, by table.
func assemblerTables(t *testing.T, object, text string) map[string][]callSite {
	img, err := module.Open(object)
	if err != nil {
		t.Fatal(err)
	}
	defer img.Close()
	labels := map[string]uint64{}
	img.Symbols(func(s module.Symbol) bool { labels[strings.Clone(s.Name)] = uint64(s.Value); return true })
	names := &targets{img: img}
	value := func(expr string) uint64 {
		a, b, minus := strings.Cut(expr, "-")
		if minus {
			x, ok1 := labels[a]
			y, ok2 := labels[b]
			if !ok1 || !ok2 {
				t.Fatalf("%s: no label of %s", object, expr)
			}
			return x - y
		}
		v, err := strconv.ParseUint(expr, 0, 64)
		if err != nil {
			t.Fatalf("%s: %q: %v", object, expr, err)
		}
		return v
	}
	out := map[string][]callSite{}
	lines := strings.Split(text, "\n")
	for i := 0; i < len(lines); i++ {
		m := lsdaBegin.FindStringSubmatch(lines[i])
		if m == nil {
			continue
		}
		base := uint64(0) // of the function
		var sites [][4]uint64
		var actions, specs []byte
		var types []string
		part := "head"
		for i++; i < len(lines) && part != "end"; i++ {
			switch line := lines[i]; {
			case strings.HasPrefix(line, ".LLSDACSB"):
				part = "sites"
			case strings.HasPrefix(line, ".LLSDACSE"):
				part = "actions"
			case strings.HasPrefix(line, "\t.align"), strings.HasPrefix(line, "\t.p2align"):
				part = "types"
			case strings.HasPrefix(line, ".LLSDATT"+m[1]+":"):
				part = "specs"
			case strings.HasPrefix(line, ".LLSDATTD"), line == "":
			default:
				d := lsdaLine.FindStringSubmatch(line)
				if d == nil {
					part = "end"
					i -= 2 // it may begin the next table
					break
				}
				switch part {
				case "sites":
					if k := len(sites); strings.HasPrefix(d[3], "region") {
						_, begin, _ := strings.Cut(d[2], "-")
						base = labels[begin]
						sites = append(sites, [4]uint64{value(d[2])})
					} else {
						sites[k-1][map[string]int{"length": 1, "landing pad": 2, "action": 3}[d[3]]] = value(d[2])
					}
				case "actions":
					actions = append(actions, byte(value(d[2])))
				case "types":
					name, _, _ := strings.Cut(d[2], "-")
					types = append(types, strings.TrimPrefix(name, "DW.ref."))
				case "specs":
					specs = append(specs, byte(value(d[2])))
				}
			}
		}
		typ := func(n int) string {
			if n > len(types) {
				t.Fatalf("%s: type %d of %q", object, n, types)
			}
			if name := types[len(types)-n]; name != "0" {
				return name
			}
			return "..."
		}
		list := []callSite{}
		for _, s := range sites {
			c := callSite{Lo: names.addr(arch.Vaddr(base + s[0])), Hi: names.addr(arch.Vaddr(base + s[0] + s[1]))}
			if s[2] != 0 {
				c.Pad = names.addr(arch.Vaddr(base + s[2]))
			}
			for at := int(s[3]) - 1; at >= 0; {
				filter, next := int(int8(actions[at]<<1))>>1, int(int8(actions[at+1]<<1))>>1
				switch {
				case filter > 0:
					c.Actions = append(c.Actions, action{Kind: "catch", Types: []string{typ(filter)}})
				case filter == 0:
					c.Actions = append(c.Actions, action{Kind: "cleanup"})
				default:
					a := action{Kind: "filter"}
					for k := -filter - 1; specs[k] != 0; k++ {
						a.Types = append(a.Types, typ(int(specs[k])))
					}
					c.Actions = append(c.Actions, a)
				}
				if at += 1 + next; next == 0 {
					break
				}
			}
			if s[2] != 0 && s[3] == 0 {
				c.Actions = []action{{Kind: "cleanup"}}
			}
			list = append(list, c)
		}
		section, off := img.Place(arch.Vaddr(labels[".LLSDA"+m[1]]))
		out[fmt.Sprintf("%s+%x", section, off)] = list
	}
	return out
}

// TestExceptionsRun runs a program that prints where each exception goes on, and in which handler: the tables say the same.
func TestExceptionsRun(t *testing.T) {
	oracle.Long(t)
	oracle.Need(t, "g++")
	program := filepath.Join(t.TempDir(), "program")
	oracle.Run(t, "g++", "-std=c++14", "-O2", "-w", "-DRUN", "-rdynamic", "-pie", "-fPIE", "-o", program, "testdata/exceptions.cc")
	out := oracle.Run(t, program)
	tables := exceptionTables(t, program)
	hex := func(s string) uint64 {
		v, err := strconv.ParseUint(s, 16, 64)
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	pads, handlers := 0, 0
	var last *callSite
	for line := range strings.Lines(string(out)) {
		f := strings.Fields(line)
		if f[0] == "caught" {
			handlers++
			if last == nil || !slices.ContainsFunc(last.Actions, func(a action) bool { return a.Kind == "catch" && a.Types[0] == f[1] }) {
				t.Errorf("%s was caught, by %+v", f[1], last)
			}
			continue
		}
		pads++
		call := hex(f[1]) - 1
		last = nil
		for i := range tables {
			for k := range tables[i].CallSites {
				if s := &tables[i].CallSites[k]; call >= hex(s.Lo) && call < hex(s.Hi) && call >= hex(tables[i].Lo) && call < hex(tables[i].Hi) {
					last = s
				}
			}
		}
		if last == nil || last.Pad != f[2] {
			t.Errorf("the exception of the call at %#x goes on at %s, want %+v", call, f[2], last)
		}
	}
	t.Logf("%d landing pads, %d handlers", pads, handlers)
	if pads < 20 || handlers < 20 {
		t.Errorf("%s", out)
	}
}

// TestNoExceptions: a file without tables is an error, and so is one that is not there.
func TestNoExceptions(t *testing.T) {
	var buf bytes.Buffer
	if _, err := WriteExceptions(&buf, spin, false); err == nil || !strings.HasSuffix(err.Error(), "no exception tables") || buf.Len() > 0 {
		t.Errorf("%v, %s", err, buf.String())
	}
	if _, err := WriteExceptions(&buf, "none", false); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%v", err)
	}
}

// TestExceptionsOfMachO: the tables of a Mach-O object name the types that other files define.
func TestExceptionsOfMachO(t *testing.T) {
	oracle.Need(t, "clang-19")
	object := filepath.Join(t.TempDir(), "x.o")
	oracle.Run(t, "clang-19", "--target=x86_64-apple-macos12", "-std=c++14", "-w", "-c", "-o", object, "testdata/exceptions.cc")
	var buf bytes.Buffer
	damage, err := WriteExceptions(&buf, object, false)
	for _, want := range []string{"function __TEXT,__text+0 ", "personality __gxx_personality_v0\n", "  catch _ZTIi  catch _ZTI1Y  catch ...\n", "  catch _ZTIl  catch _ZTIP1X  cleanup\n", "  catch _ZTIPi  cleanup\n"} {
		if err != nil || len(damage) > 0 || !strings.Contains(buf.String(), want) {
			t.Errorf("%v, %v: no %q in\n%s", err, damage, want, buf.String())
		}
	}
}
