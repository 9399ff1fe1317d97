package compile

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
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

// windowsTriples are the machines that clang writes tables of exceptions for.
var windowsTriples = []string{"x86_64-pc-windows-msvc", "aarch64-pc-windows-msvc"}

// A windowsObject is an object file, with the text that the compiler writes for an assembler, and its labels.
type windowsObject struct {
	path   string
	lines  []string
	labels map[string]arch.Vaddr
	names  *targets
}

// windowsCompiled compiles a source. The labels are those of a second object file, which has them as symbols.
func windowsCompiled(t *testing.T, triple, source string, args ...string) *windowsObject {
	t.Helper()
	o := &windowsObject{path: filepath.Join(t.TempDir(), strings.Join(args, "")+".obj"), labels: map[string]arch.Vaddr{}}
	args = append([]string{"--target=" + triple, "-w", "-fms-extensions", "-fexceptions", "-fasynchronous-unwind-tables"}, args...)
	oracle.Run(t, "clang-19", append(slices.Clone(args), "-S", "-o", o.path+".s", source)...)
	oracle.Run(t, "clang-19", append(args, "-c", "-o", o.path, source)...)
	b, err := os.ReadFile(o.path + ".s")
	if err != nil {
		t.Fatal(err)
	}
	b = lowBits.ReplaceAll(b, []byte("$1:lo12:$2"))
	if err := os.WriteFile(o.path+".s", b, 0o600); err != nil {
		t.Fatal(err)
	}
	oracle.Run(t, "llvm-mc-19", "--triple="+triple, "-filetype=obj", "-save-temp-labels", "-o", o.path+".labels", o.path+".s")
	if !strings.HasSuffix(triple, "-gnu") { // there, the text has one section twice
		oracle.Run(t, "llvm-mc-19", "--triple="+triple, "-filetype=obj", "-o", o.path, o.path+".s")
	}
	o.lines = strings.Split(string(b), "\n")
	img, err := module.Open(o.path + ".labels")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { img.Close() })
	o.names = &targets{img: img}
	img.Symbols(func(s module.Symbol) bool { o.labels[strings.Clone(s.Name)] = s.Value; return true })
	return o
}

// lowBits are operands that clang writes for AArch64 without what its own assembler wants before them.
var lowBits = regexp.MustCompile(`(?m)^(\tadd\tx\d+, x\d+, )(\.LBB\d+_\d+)$`)

var windowsWord = regexp.MustCompile(`^\t\.(?:long|word)\t+(\S+)`)

// words returns the operands of the words behind a label, up to another directive. A label before the words of another table is another table's.
func (o *windowsObject) words(label string) (list []string) {
	i := slices.IndexFunc(o.lines, func(l string) bool { return strings.Trim(l, "\":") == label && strings.HasSuffix(l, ":") })
	for i++; i > 0 && i < len(o.lines); i++ {
		m := windowsWord.FindStringSubmatch(o.lines[i])
		if m == nil {
			break
		}
		list = append(list, m[1])
	}
	return list
}

// label returns the name in an operand such as ("$f")@IMGREL+1, and what is added.
func label(operand string) (name string, add int) {
	name, rest, _ := strings.Cut(operand, "@IMGREL")
	add, _ = strconv.Atoi(rest)
	return strings.Trim(name, `()"`), add
}

// at spells the address of an operand as the tables do.
func (o *windowsObject) at(t *testing.T, operand string) string {
	t.Helper()
	name, add := label(operand)
	v, ok := o.labels[name]
	if !ok {
		t.Fatalf("%s: no label %s", o.path, name)
	}
	return o.names.addr(v + arch.Vaddr(add))
}

// tables returns the exception tables of the object file by function.
func (o *windowsObject) tables(t *testing.T) map[string]exceptionTable {
	t.Helper()
	got := map[string]exceptionTable{}
	for _, x := range exceptionTables(t, o.path) {
		got[x.Lo] = x
	}
	return got
}

// TestScopeTables compares scope tables with what clang wrote for the assembler.
func TestScopeTables(t *testing.T) {
	oracle.Long(t)
	oracle.Need(t, "clang-19", "llvm-mc-19")
	scopes := 0
	for _, triple := range windowsTriples {
		for _, level := range []string{"-O0", "-O1", "-O2"} {
			for _, async := range []string{"-fno-async-exceptions", "-fasync-exceptions"} {
				o := windowsCompiled(t, triple, "testdata/seh.c", level, async)
				got, functions := o.tables(t), 0
				function := ""
				for i, line := range o.lines {
					if strings.HasPrefix(line, "\t.seh_handler ") {
						functions++
					}
					if f, ok := strings.CutPrefix(line, ".seh_proc "); ok {
						function = strings.Trim(f, `"`)
					}
					if !strings.HasPrefix(line, ".Llsda_begin") {
						continue
					}
					var want []callSite
					w := o.words(strings.TrimSuffix(line, ":"))
					for ; len(w) >= 4; w = w[4:] {
						c := callSite{Lo: o.at(t, w[0]), Hi: o.at(t, w[1])}
						switch {
						case w[3] == "0":
							c.Pad, c.Actions = o.at(t, w[2]), []action{{Kind: "finally"}}
						case w[2] == "1":
							c.Pad, c.Actions = o.at(t, w[3]), []action{{Kind: "except", Filter: "EXCEPTION_EXECUTE_HANDLER"}}
						default:
							name, _ := label(w[2])
							c.Pad, c.Actions = o.at(t, w[3]), []action{{Kind: "except", Filter: name}}
						}
						want = append(want, c)
					}
					x := got[o.at(t, function)]
					scopes += len(want)
					if x.Personality != "__C_specific_handler" || !reflect.DeepEqual(x.CallSites, want) || x.Size != 4+16*uint64(len(want)) {
						t.Errorf("%s %s: %s, line %d: %s\n got %+v\nwant %+v", triple, level, function, i+1, x.Personality, x.CallSites, want)
					}
				}
				if len(got) != functions || functions < 4 {
					t.Errorf("%s %s: %d functions, want %d", triple, level, len(got), functions)
				}
				linkedTables(t, o, "__C_specific_handler")
			}
		}
	}
	t.Logf("%d scopes", scopes)
	if scopes < 50 {
		t.Errorf("%d scopes, want 50 or more", scopes)
	}
}

// TestStates compares the tables of C++ with what clang wrote for the assembler.
func TestStates(t *testing.T) {
	oracle.Long(t)
	oracle.Need(t, "clang-19", "llvm-mc-19")
	ranges, actions := 0, 0
	for _, triple := range windowsTriples {
		for _, level := range []string{"-O0", "-O1", "-O2"} {
			o := windowsCompiled(t, triple, "testdata/states.cc", level)
			got := o.tables(t)
			handled := map[string]string{} // the FuncInfo, by function
			function := ""
			for i, line := range o.lines {
				if f, ok := strings.CutPrefix(line, ".seh_proc "); ok {
					function = strings.Trim(f, `"`)
				}
				if strings.HasPrefix(line, "\t.seh_handlerdata") {
					if m := windowsWord.FindStringSubmatch(o.lines[i+1]); m != nil {
						handled[function], _ = label(m[1])
					}
				}
			}
			for f, info := range handled {
				x := got[o.at(t, f)]
				want := o.states(t, info, x)
				ranges += len(want)
				for _, c := range want {
					actions += len(c.Actions)
				}
				if x.Personality != "__CxxFrameHandler3" || len(x.CallSites)+len(want) > 0 && !reflect.DeepEqual(x.CallSites, want) {
					t.Errorf("%s %s: %s: %s\n got %+v\nwant %+v", triple, level, f, x.Personality, x.CallSites, want)
				}
			}
			if len(got) != len(handled) || len(handled) < 8 {
				t.Errorf("%s %s: %d functions, want %d", triple, level, len(got), len(handled))
			}
			linkedTables(t, o, "__CxxFrameHandler3")
		}
	}
	t.Logf("%d ranges with %d actions", ranges, actions)
	if ranges < 100 || actions < 200 {
		t.Errorf("%d ranges, %d actions; want 100, 200 or more", ranges, actions)
	}
}

// states makes the ranges of a function out of the compiler's tables. It goes from a state to all that is around it, one state after the other.
func (o *windowsObject) states(t *testing.T, info string, x exceptionTable) []callSite {
	w := o.words(info)
	number := func(s string) int {
		n, err := strconv.Atoi(s)
		if err != nil {
			t.Fatalf("%s: %v", info, err)
		}
		return n
	}
	table := func(i int) []string {
		name, _ := label(w[i])
		return o.words(name)
	}
	undo, ips := table(2), table(6)
	var tries [][]string
	if w[4] != "0" {
		for all := table(4); len(all) >= 5; all = all[5:] {
			tries = append(tries, all[:5])
		}
	}
	lo, hi := x.Lo, x.Hi
	out := []callSite{}
	inside := func(at string) bool { // in one section, with equal digits or fewer
		a, b, _ := strings.Cut(at, "+")
		_, l, _ := strings.Cut(lo, "+")
		s, h, _ := strings.Cut(hi, "+")
		v, _ := strconv.ParseUint(b, 16, 64)
		lv, _ := strconv.ParseUint(l, 16, 64)
		hv, _ := strconv.ParseUint(h, 16, 64)
		return a == s && v >= lv && v < hv
	}
	for i := 0; i+1 < len(ips); i += 2 {
		at, state := o.at(t, ips[i]), number(ips[i+1])
		if !inside(at) || state == -1 {
			continue
		}
		c := callSite{Lo: at, Hi: hi}
		if i+2 < len(ips) {
			if next := o.at(t, ips[i+2]); inside(next) {
				c.Hi = next
			}
		}
		for s := state; s != -1; s = number(undo[2*s]) {
			for _, try := range tries {
				if number(try[0]) == s && number(try[1]) >= state {
					name, _ := label(try[4])
					for h := o.words(name)[:5*number(try[3])]; len(h) > 0; h = h[5:] {
						typ := "..."
						if h[1] != "0" {
							typ, _ = label(h[1])
							typ = strings.TrimSuffix(strings.TrimPrefix(typ, "??_R0"), "@8")
							typ = "." + typ
						}
						c.Actions = append(c.Actions, action{Kind: "catch", Types: []string{typ}, Pad: o.at(t, h[3])})
					}
				}
			}
			if a := undo[2*s+1]; a != "0" {
				c.Actions = append(c.Actions, action{Kind: "cleanup", Pad: o.at(t, a)})
			}
		}
		out = append(out, c)
	}
	return out
}

// linkedTables links an object file with a handler that is imported from another DLL, and one that the image has itself. The tables are the
// object file's, at other addresses.
func linkedTables(t *testing.T, o *windowsObject, handler string) {
	t.Helper()
	oracle.Need(t, "lld-link-19", "llvm-dlltool-19")
	dir := t.TempDir()
	machine, triple := "i386:x86-64", windowsTriples[0]
	if o.names.img.Machine() == arch.WindowsARM64 {
		machine, triple = "arm64", windowsTriples[1]
	}
	write := func(name, text string) string {
		p := filepath.Join(dir, name)
		if err := os.WriteFile(p, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return p
	}
	def := write("a.def", "LIBRARY other.dll\nEXPORTS\nfirst\n"+handler+"\nlast\n")
	oracle.Run(t, "llvm-dlltool-19", "-d", def, "-l", filepath.Join(dir, "a.lib"), "-m", machine)
	oracle.Run(t, "clang-19", "--target="+triple, "-c", "-o", filepath.Join(dir, "b.obj"), write("b.c", "int "+handler+"(void) { return 1; }"))
	text := uint64(0)
	normal := func(list []exceptionTable) (out []string) {
		for _, x := range list {
			b, err := json.Marshal(x)
			if err != nil {
				t.Fatal(err)
			}
			var v any
			json.Unmarshal(b, &v)
			x := v.(map[string]any)
			delete(x, "table")
			var walk func(v any) any
			walk = func(v any) any {
				switch v := v.(type) {
				case map[string]any:
					for k := range v {
						v[k] = walk(v[k])
					}
				case []any:
					for i := range v {
						v[i] = walk(v[i])
					}
				case string:
					if n, err := strconv.ParseUint(v, 16, 64); err == nil && n >= text && text > 0 {
						return fmt.Sprintf(".text+%x", n-text)
					}
				}
				return v
			}
			walk(x)
			b, _ = json.Marshal(x)
			out = append(out, string(b))
		}
		return out
	}
	filters := regexp.MustCompile(`"filter":"[^E][^"]*"`) // by symbols: this image has none
	want := normal(exceptionTables(t, o.path))
	for _, with := range []string{"a.lib", "b.obj"} {
		image := filepath.Join(dir, with+".dll")
		args := []string{"/dll", "/noentry", "/nodefaultlib", "/force:unresolved", "/opt:noref,noicf", "/out:" + image, o.path, filepath.Join(dir, with)}
		if with == "b.obj" {
			args = append(args, "/export:"+handler)
		}
		oracle.Run(t, "lld-link-19", args...)
		list := exceptionTables(t, image)
		text = 0
		img, err := module.Open(image)
		if err != nil {
			t.Fatal(err)
		}
		for i := range img.Sections() {
			if s := &img.Sections()[i]; s.Name == ".text" {
				text = uint64(s.Addr)
			}
		}
		img.Close()
		got := normal(list)
		text = 0
		for i := range want {
			if i >= len(got) || filters.ReplaceAllString(got[i], "") != filters.ReplaceAllString(want[i], "") {
				t.Errorf("%s: function %d\n got %s\nwant %s", with, i, strings.Join(got[min(i, len(got)):min(i+1, len(got))], ""), want[i])
				return
			}
		}
		if len(got) != len(want) {
			t.Errorf("%s: %d functions, want %d", with, len(got), len(want))
		}
	}
}

var (
	clangByte = regexp.MustCompile(`^\t\.(byte|uleb128|quad|xword)[\t ]+(\S+)\s*(?:#+\s*(.*))?$`)
	clangHas  = regexp.MustCompile(`^\s+#\s+(Catch TypeInfo \d+|Cleanup|Filter TypeInfo -?\d+)$`)
)

// TestTablesOfMinGW compares the exception tables behind records of Windows with what clang wrote for the assembler.
func TestTablesOfMinGW(t *testing.T) {
	oracle.Long(t)
	oracle.Need(t, "clang-19", "llvm-mc-19")
	sites := 0
	for _, level := range []string{"-O0", "-O1", "-O2"} {
		o := windowsCompiled(t, "x86_64-w64-windows-gnu", "testdata/exceptions.cc", "-std=c++14", level)
		got := map[string]exceptionTable{}
		for _, x := range exceptionTables(t, o.path) {
			got[x.Lo] = x
		}
		tables, function := 0, ""
		for i := 0; i < len(o.lines); i++ {
			l := o.lines[i]
			if f, ok := strings.CutPrefix(l, ".seh_proc "); ok {
				function = f
			}
			if !strings.HasPrefix(l, ".Lexception") {
				continue
			}
			tables++
			var list []string // operands of call sites
			types := map[string]string{}
			has, next := map[int]string{}, map[int]int{} // of actions
			act, part := 0, "head"
			for i++; i < len(o.lines) && !strings.HasPrefix(o.lines[i], "\t.text") && !strings.HasPrefix(o.lines[i], "\t.section"); i++ {
				switch l := o.lines[i]; {
				case strings.HasPrefix(l, ".Lcst_begin"):
					part = "sites"
				case strings.HasPrefix(l, ".Lcst_end"):
					part = "actions"
				case clangHas.MatchString(l) && part == "actions":
					has[act] = clangHas.FindStringSubmatch(l)[1]
				default:
					m := clangByte.FindStringSubmatch(l)
					switch {
					case m == nil:
					case part == "sites":
						list = append(list, m[2])
					case strings.HasPrefix(m[3], ">> Action Record "):
						fmt.Sscanf(m[3], ">> Action Record %d", &act)
					case strings.HasPrefix(m[3], "Continue to action "):
						n := 0
						fmt.Sscanf(m[3], "Continue to action %d", &n)
						next[act] = n
					case strings.HasPrefix(m[3], "TypeInfo "):
						types[m[3]] = m[2]
					}
				}
			}
			i--
			want := []callSite{}
			for ; len(list) >= 4; list = list[4:] {
				a, _, _ := strings.Cut(list[0], "-")
				end, _, _ := strings.Cut(list[1], "-")
				c := callSite{Lo: o.at(t, a), Hi: o.at(t, end)}
				pad, _, ok := strings.Cut(list[2], "-")
				if ok {
					c.Pad = o.at(t, pad)
				}
				n, err := strconv.Atoi(list[3])
				if err != nil {
					t.Fatal(err)
				}
				for k := (n + 1) / 2; k > 0; k = next[k] {
					kind, typ, _ := strings.Cut(has[k], " ")
					switch kind {
					case "Catch":
						if typ = types[typ]; typ == "0" {
							typ = "..."
						}
						c.Actions = append(c.Actions, action{Kind: "catch", Types: []string{typ}})
					case "Cleanup":
						c.Actions = append(c.Actions, action{Kind: "cleanup"})
					default:
						c.Actions = append(c.Actions, action{Kind: "filter"})
					}
				}
				if ok && n == 0 {
					c.Actions = []action{{Kind: "cleanup"}}
				}
				want = append(want, c)
			}
			x := got[o.at(t, function)]
			for _, c := range x.CallSites { // the compiler's words have numbers of lists only
				for k := range c.Actions {
					if c.Actions[k].Kind == "filter" {
						c.Actions[k].Types = nil
					}
				}
			}
			sites += len(want)
			if x.Personality != "__gxx_personality_seh0" || !reflect.DeepEqual(x.CallSites, want) {
				t.Errorf("%s: %s: %s\n got %+v\nwant %+v", level, l, x.Personality, x.CallSites, want)
			}
		}
		if tables != len(got) || tables < 6 {
			t.Errorf("%s: %d tables, want %d", level, len(got), tables)
		}
	}
	t.Logf("%d call sites", sites)
	if sites < 60 {
		t.Errorf("%d call sites, want 60 or more", sites)
	}
}

// TestHandlerText: what the text and the JSON of Windows's handlers look like. A handler that is not known has its data's address only.
func TestHandlerText(t *testing.T) {
	object := "../format/pe/testdata/handlers.obj"
	for format, want := range map[string]string{"": "testdata/handlers.txt", "json": "testdata/handlers.json"} {
		var buf bytes.Buffer
		damage, err := WriteExceptions(&buf, object, format == "json")
		for _, d := range damage {
			fmt.Fprintln(&buf, "#", d)
		}
		b, rerr := os.ReadFile(want)
		if err != nil || rerr != nil || buf.String() != string(b) {
			t.Errorf("%v, %v: got\n%s\nwant\n%s", err, rerr, buf.String(), b)
		}
	}
}
