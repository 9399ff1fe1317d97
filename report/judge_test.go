package report

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	proto "github.com/google/pprof/profile"

	"github.com/unspool/unspool/profile"
	"github.com/unspool/unspool/profile/pprof"
)

// pprofText returns a pprof profile as text.
func pprofText(t testing.TB, b []byte) []byte {
	p, err := proto.Parse(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	return []byte(strings.TrimRight(p.String(), "\n") + "\n")
}

// A count is the own and the total weight of a function, each stack once.
type count struct{ self, total uint64 }

func (c count) String() string { return fmt.Sprintf("%d/%d", c.self, c.total) }

type counts map[string]*count

// add counts one stack, innermost function first.
func (c counts) add(n uint64, names []string) {
	seen := map[string]bool{}
	for i, s := range names {
		if c[s] == nil {
			c[s] = &count{}
		}
		if i == 0 {
			c[s].self += n
		}
		if !seen[s] {
			seen[s] = true
			c[s].total += n
		}
	}
}

func countsOf(p *profile.Profile) counts {
	c := counts{}
	for _, s := range p.Stacks {
		var names []string
		for _, f := range s.Frames {
			names = append(names, p.Funcs[p.Locs[f].Func].Name)
		}
		c.add(s.Count, names)
	}
	return c
}

// lines calls f with each line of b.
func lines(b []byte, f func(string)) {
	sc := bufio.NewScanner(bytes.NewReader(b))
	sc.Buffer(nil, 1<<24)
	for sc.Scan() {
		f(sc.Text())
	}
}

func countsOfFolded(t *testing.T, b []byte) counts {
	c := counts{}
	lines(b, func(s string) {
		i := strings.LastIndexByte(s, ' ')
		n, err := strconv.ParseUint(s[i+1:], 10, 64)
		if err != nil {
			t.Fatalf("%q: %v", s, err)
		}
		names := strings.Split(s[:i], ";")[1:]
		for i, j := 0, len(names)-1; i < j; i, j = i+1, j-1 {
			names[i], names[j] = names[j], names[i]
		}
		c.add(n, names)
	})
	return c
}

func countsOfTop(t *testing.T, b []byte) counts {
	c := counts{}
	row := regexp.MustCompile(`^ *[<>0-9.]+ % +([0-9,]+) +[<>0-9.]+ % +([0-9,]+)  \S+ +(.*)$`)
	lines(b, func(s string) {
		if m := row.FindStringSubmatch(s); m != nil {
			self, _ := strconv.ParseUint(strings.ReplaceAll(m[1], ",", ""), 10, 64)
			total, _ := strconv.ParseUint(strings.ReplaceAll(m[2], ",", ""), 10, 64)
			c[m[3]] = &count{self, total}
		}
	})
	return c
}

// countsOfAround reads the first line of each function's callers or callees. all turns parts of its own into samples.
func countsOfAround(t *testing.T, b []byte, all uint64) counts {
	c := counts{}
	head := regexp.MustCompile(`^(\S.*)  [<>0-9.]+ % \(([0-9,]+) samples?, ([0-9.]+) % of its own\)$`)
	lines(b, func(s string) {
		if m := head.FindStringSubmatch(s); m != nil {
			total, _ := strconv.ParseUint(strings.ReplaceAll(m[2], ",", ""), 10, 64)
			self, err := strconv.ParseFloat(m[3], 64)
			if err != nil {
				t.Fatal(err)
			}
			c[m[1]] = &count{uint64(self*float64(all)/100 + 0.5), total}
		}
	})
	return c
}

// countsOfTree counts functions in a call tree's text, by what each row has of its own: a row with a branch is called by the
// last one of less indentation, one without by the row before, and one without any indentation is a thread.
func countsOfTree(t *testing.T, b []byte, all uint64) counts {
	c := counts{}
	row := regexp.MustCompile(`^ *[<>0-9.]+ % +([<>0-9.]+) %  ([│├└─ ]*)(.*)$`)
	type open struct {
		indent int
		name   string
	}
	var path []open
	lines(b, func(s string) {
		m := row.FindStringSubmatch(s)
		if m == nil {
			return
		}
		indent := len([]rune(m[2]))
		for len(path) > 0 && (indent == 0 || strings.Contains(m[2], "─") && path[len(path)-1].indent >= indent) {
			path = path[:len(path)-1]
		}
		path = append(path, open{indent, strings.TrimSuffix(m[3], " (inlined)")})
		self, err := strconv.ParseFloat(m[1], 64)
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for i := len(path) - 1; i > 0; i-- {
			if name := path[i].name; i > 1 || name != "[truncated]" && name != "[broken]" {
				names = append(names, name)
			}
		}
		if n := uint64(self*float64(all)/100 + 0.5); n > 0 {
			c.add(n, names)
		}
	})
	return c
}

func countsOfJSON(t *testing.T, b []byte) counts {
	c := counts{}
	lines(b, func(s string) {
		var o struct {
			Count   uint64
			Summary any
			Frames  []struct{ Sym string }
		}
		if err := json.Unmarshal([]byte(s), &o); err != nil {
			t.Fatalf("%s: %v", s, err)
		}
		var names []string
		for _, f := range o.Frames {
			names = append(names, f.Sym)
		}
		c.add(o.Count, names)
	})
	return c
}

// countsOfPerf reads text of perf script as the usual scripts do: a header starts at the margin, a frame
// is an address, a name with an offset, and a module in parentheses; an empty line ends the sample. One
// sample counts as one, or as its period.
func countsOfPerf(t *testing.T, b []byte, periods bool, namer func(name, module string, off uint64) string) counts {
	c := counts{}
	header := regexp.MustCompile(`^(\S.*?)\s+(\d+)/(\d+)\s+(?:\[\d+\] )?\s*\d+\.\d{6}:\s+(\d+) (.+): $`)
	frame := regexp.MustCompile(`^\t *([0-9a-f]+) (.+) \((.*)\)$`)
	n, names := uint64(0), []string(nil)
	lines(b, func(s string) {
		if strings.HasPrefix(s, "# ") && n == 0 {
			return
		}
		if s == "" {
			c.add(n, names)
			n, names = 0, nil
			return
		}
		if m := header.FindStringSubmatch(s); m != nil {
			n = 1
			if periods {
				n, _ = strconv.ParseUint(m[4], 10, 64)
			}
			return
		}
		m := frame.FindStringSubmatch(s)
		if m == nil || n == 0 {
			t.Fatalf("neither header nor frame: %q", s)
		}
		off, _ := strconv.ParseUint(m[1], 16, 64)
		name := m[2]
		if i := strings.LastIndex(name, "+0x"); i > 0 {
			name = name[:i]
		}
		names = append(names, namer(name, m[3], off))
	})
	return c
}

func countsOfPprof(t *testing.T, b []byte) counts {
	c := counts{}
	p, err := proto.Parse(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range p.Sample {
		var names []string
		for _, l := range s.Location {
			for _, line := range l.Line {
				names = append(names, line.Function.Name)
			}
		}
		c.add(uint64(s.Value[0]), names)
	}
	return c
}

// TestSameNumbers computes each function's own and total samples from every output of Formats.
func TestSameNumbers(t *testing.T) {
	for _, path := range []string{"testdata/basic.txtar", "testdata/inlined.txtar"} {
		t.Run(filepath.Base(path), func(t *testing.T) { sameNumbers(t, path) })
	}
}

func sameNumbers(t *testing.T, path string) {
	_, r := load(t, path)
	p := r.profile()
	out := outputs(t, r)
	want := countsOf(p)
	// Text of perf knows no names for functions without a symbol.
	byPlace := map[string]string{}
	for i := range p.Locs {
		byPlace[fmt.Sprint(p.Modules[p.Locs[i].Module].Path, p.Locs[i].Off)] = p.Funcs[p.Locs[i].Func].Name
	}
	perfName := func(name, module string, off uint64) string {
		if name != profile.Unknown || module == "inlined" {
			return name
		}
		if module == profile.Unknown {
			module = ""
		}
		return byPlace[fmt.Sprint(module, off)]
	}
	back, err := pprof.Read(bytes.NewReader(out["pprof"]))
	if err != nil {
		t.Fatal(err)
	}
	same := func(name string, got counts) {
		t.Helper()
		if diff := cmp.Diff(fmt.Sprint(want), fmt.Sprint(got)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	same("pprof, read", countsOf(back))
	around := func(t *testing.T, b []byte) counts { return countsOfAround(t, b, p.Totals.Samples) }
	readers := map[string]func(*testing.T, []byte) counts{
		"folded": countsOfFolded, "top": countsOfTop, "callers": around, "callees": around, "flame": countsOfFlame, "pprof": countsOfPprof,
		"json": countsOfJSON, "jsonl": countsOfJSON, "stacks": countsOfJSON, "speedscope": countsOfSpeedscope, "firefox": countsOfFirefox,
		"tree": func(t *testing.T, b []byte) counts { return countsOfTree(t, b, p.Totals.Samples) },
		// Samples one by one have no count; stacks have one in the place of the period.
		"perf":             func(t *testing.T, b []byte) counts { return countsOfPerf(t, b, false, perfName) },
		"perf, aggregated": func(t *testing.T, b []byte) counts { return countsOfPerf(t, b, true, perfName) },
	}
	for _, f := range Formats {
		read := readers[f.Name]
		if read == nil {
			t.Errorf("%s: nothing reads its numbers back: add a reader to this list", f.Name)
			continue
		}
		if f.Stream != nil {
			var b bytes.Buffer
			st := f.Stream(&b, r, r.info, Options{Summary: true})
			for i := range r.samples {
				if err := st.Sample(&r.samples[i]); err != nil {
					t.Fatalf("%s: %v", f.Name, err)
				}
			}
			if err := st.Close(r.info.Loss); err != nil {
				t.Fatalf("%s: %v", f.Name, err)
			}
			same(f.Name, read(t, b.Bytes()))
		}
		if aggregated := readers[f.Name+", aggregated"]; aggregated != nil {
			read = aggregated
		}
		if f.Whole != nil {
			var b bytes.Buffer
			if err := f.Whole(&b, p, Options{MinShare: -1, Func: "."}); err != nil {
				t.Fatalf("%s: %v", f.Name, err)
			}
			same(f.Name+", aggregated", read(t, b.Bytes()))
		}
	}
	if back.Totals != p.Totals || back.Summary() != p.Summary() {
		t.Errorf("read back: %+v\nwant %+v", back.Totals, p.Totals)
	}
}
