package lab

import (
	"debug/elf"
	"fmt"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/emit/compact"
	"github.com/unspool/unspool/emit/csource"
	"github.com/unspool/unspool/emit/native"
	"github.com/unspool/unspool/format/dwarf"
	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/module"
	"github.com/unspool/unspool/rows"
)

// An emission is a form that unwind information is compiled to; size emits it and returns its bytes.
type emission struct {
	name string
	size func(t *rows.Table) (int, error)
}

// emissions are in the tables of coverage, sizes, and compile times.
var emissions = []emission{
	{"compact", func(t *rows.Table) (int, error) {
		b, err := compact.Emit(t)
		return len(b), err
	}},
	{"native page", nativeSize(native.Options{Layout: native.Page})},
	{"native page, slice", nativeSize(native.Options{Layout: native.Page, Deref: native.Slice})},
	{"native tree", nativeSize(native.Options{Layout: native.Tree})},
	{"native inline", nativeSize(native.Options{Layout: native.Inline})},
}

func nativeSize(o native.Options) func(t *rows.Table) (int, error) {
	return func(t *rows.Table) (int, error) {
		b, err := native.Emit(t, o)
		return len(b), err
	}
}

// fourRegisters returns t without the rules of registers that the report leaves out.
func fourRegisters(t *rows.Table) *rows.Table {
	b := rows.NewBuilder(t.Machine)
	ids := make([]rows.SetID, len(t.Sets))
	for i, s := range t.Sets {
		s.Rules = slices.DeleteFunc(slices.Clone(s.Rules), func(r rows.Rule) bool { return !kept(r.Of) })
		ids[i] = b.Intern(s)
	}
	if len(t.Rows) == 0 {
		return t
	}
	b.Begin(t.Rows[0].Lo, t.Rows[len(t.Rows)-1].Lo)
	for _, r := range t.Rows[:len(t.Rows)-1] {
		b.Row(r.Lo, ids[r.Set])
	}
	return rows.Build(b)
}

// scopes are the registers that tables are made for.
var scopes = []struct {
	name string
	of   func(t *rows.Table) *rows.Table
}{
	{"all registers", func(t *rows.Table) *rows.Table { return t }},
	{"rip, rsp, rbp, rbx", fourRegisters},
}

// A fileSizes is what one file takes, in bytes.
type fileSizes struct {
	name         string
	file         int64
	code         int // .text and .rodata
	ehFrame, hdr int
	rows, rules  [2]int   // by scope: rows that are no gaps, and how many are distinct, which the report calls outlined
	emitted      [2][]int // by scope and emission
}

// readFile measures a file's sections, and reads its rows. It returns nil for one without .eh_frame or of a machine other
// than x86-64.
func readFile(path string) (*fileSizes, *rows.Table, error) {
	img, err := module.Open(path)
	if err != nil {
		return nil, nil, err
	}
	defer img.Close()
	f, err := dwarf.Open(img)
	if err != nil || img.Machine() != arch.AMD64 {
		return nil, nil, err
	}
	t, _ := f.Build(dwarf.EHFrame)
	if len(t.Rows) == 0 {
		return nil, nil, nil
	}
	z := &fileSizes{name: filepath.Base(path), file: img.Size()}
	of := f.Sizes()
	z.ehFrame, z.hdr = int(of.EHFrame), int(of.EHFrameHdr)
	for _, name := range []string{".text", ".rodata"} {
		if s := img.Section(name); s != nil {
			z.code += int(s.Size)
		}
	}
	return z, t, nil
}

// sizesOf measures one file and all that it is compiled to; nil as for readFile.
func sizesOf(path string) (*fileSizes, error) {
	z, t, err := readFile(path)
	if z == nil {
		return nil, err
	}
	for i, s := range scopes {
		x := s.of(t)
		for _, r := range x.Rows {
			if r.Set != rows.GapID {
				z.rows[i]++
			}
		}
		z.rules[i] = len(x.Sets) - 1 // without the gap
		for _, e := range emissions {
			n, err := e.size(x)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", e.name, err)
			}
			z.emitted[i] = append(z.emitted[i], n)
		}
	}
	return z, nil
}

// The report's set, and larger files.
func reportSet() []string {
	return []string{libs + "libc.so.6", find(libs+"libpthread.so.0", libs+"libpthread.so"), libs + "ld-linux-x86-64.so.2", find("/usr/bin/hackbench")}
}

func (ev *evaluation) largeSet() []string {
	if !ev.whole {
		return []string{find(libs + "libstdc++.so.6")}
	}
	return []string{"/usr/bin/gdb", find(libs + "libstdc++.so.6"), find(libs + "libLLVM.so.19*"), find(libs+"libnode.so.*", "/usr/bin/node"),
		find("/usr/l*/gcc/x86_64-linux-gnu/*/cc1")}
}

// reportedSizes are the report's tables 2 and 4: .eh_frame, and .text of eh_elfs, first version and outlined, in KiB.
var reportedSizes = [][]string{
	{"libc-2.27.so", "1.4 MiB", "130.1", "914.9 (7.03 ×)", "313.2 (2.41 ×)"},
	{"libpthread-2.27.so", "58.1 KiB", "11.6", "70.5 (6.09 ×)", "25.4 (2.19 ×)"},
	{"ld-2.27.so", "129.6 KiB", "9.6", "71.7 (7.44 ×)", "28.6 (2.97 ×)"},
	{"hackbench", "2.9 KiB", "0.6", "2.1 (3.97 ×)", "2.8 (4.99 ×)"},
	{"total", "1.6 MiB", "151.8", "1.0 MiB (6.98 ×)", "370.0 (2.44 ×)"},
}

func kib(n int) string { return fmt.Sprintf("%.1f", float64(n)/1024) }

func times(n, of int) string {
	if of == 0 {
		return "–"
	}
	return fmt.Sprintf("%.2f", float64(n)/float64(of))
}

// sumSizes adds files up.
func sumSizes(name string, list []*fileSizes) *fileSizes {
	t := &fileSizes{name: name}
	for i := range t.emitted {
		t.emitted[i] = make([]int, len(emissions))
	}
	for _, z := range list {
		t.file += z.file
		t.code += z.code
		t.ehFrame += z.ehFrame
		t.hdr += z.hdr
		for i := range t.emitted {
			t.rows[i] += z.rows[i]
			t.rules[i] += z.rules[i]
			for k := range emissions {
				t.emitted[i][k] += z.emitted[i][k]
			}
		}
	}
	return t
}

func (ev *evaluation) sizes(t testing.TB) string {
	var b strings.Builder
	say := func(format string, args ...any) { fmt.Fprintf(&b, format, args...) }
	say("Sizes in KiB, and × `.eh_frame`. The report counts `.text` of its eh_elfs, which hold rip, rsp, rbp and rbx; here it is whole files, and both those four and all registers. " +
		"So three things differ between a figure here and one of the report: whole file or `.text`, registers, and how a row is found. Its 2.44 × (table 4) is a search in code; the same shape here is *native tree* of four registers. *native page* is smaller because its search is an index, not code. " +
		"Its libpthread is a part of libc today, so that `libpthread.so.0` is all but empty.\n\n" +
		"*native* is machine code: *page* has the compact table's index and each rule once, *tree* a binary search in code and each rule once, as the report's outlined version (table 4), *inline* each row's code " +
		"in the search's leaves, as its first (table 2). Memory is read with plain loads, or (*slice*) in a captured stack.\n\n### The report's tables 2 and 4\n\n")
	say("%s\n", markdown(append([][]string{{"file", ".text + .rodata", "`.eh_frame`", "eh_elf, first (table 2)", "eh_elf, outlined (table 4)"}}, reportedSizes...)))

	var small, large []*fileSizes
	for i, paths := range [][]string{reportSet(), ev.largeSet()} {
		for _, path := range paths {
			z, err := sizesOf(path)
			if z == nil || err != nil {
				ev.lacks(t, "%q, which has sizes: %v", path, err)
				continue
			}
			if i == 0 {
				small = append(small, z)
			} else {
				large = append(large, z)
			}
		}
	}
	list := append(append(small, sumSizes("total of these", small)), large...)
	head := []string{"file", "size", ".text + .rodata", "`.eh_frame`", "`.eh_frame_hdr`"}
	for i, s := range scopes {
		cells := [][]string{slices.Clone(head)}
		for _, e := range emissions {
			cells[0] = append(cells[0], e.name)
		}
		cells[0] = append(cells[0], "rows", "distinct rules")
		for _, z := range list {
			line := []string{z.name, kib(int(z.file)), kib(z.code), kib(z.ehFrame), kib(z.hdr)}
			for k := range emissions {
				line = append(line, fmt.Sprintf("%s (%s ×)", kib(z.emitted[i][k]), times(z.emitted[i][k], z.ehFrame)))
			}
			cells = append(cells, append(line, fmt.Sprint(z.rows[i]), fmt.Sprint(z.rules[i])))
		}
		say("### Here, %s\n\n%s\n", s.name, markdown(cells))
	}
	say("### Here, the report's way: C, compiled by gcc\n\nThe code alone, `.text`, and the time of the compiler. *tree* is a search in code and each rule once, of all registers, as table 4; "+
		"*switch* is one `switch` over ranges of addresses, with each row's code in its case, of rip, rsp, rbp and rbx, as table 2. It is not made of libc: that is 10 MB of C. "+
		"Unlike the report's, our code also keeps which registers are known, and where.\n\n%s\n", markdown(ev.compiledC(t)))
	say("The report's libc has 20,827 rows, of which 302 distinct, of four registers.\n\n")

	var all []*fileSizes
	var mu sync.Mutex
	eachFile(t, ev.paths, func(path string) error {
		z, err := sizesOf(path)
		mu.Lock()
		defer mu.Unlock()
		if z != nil {
			all = append(all, z)
		}
		return err
	})
	total := sumSizes("", all)
	cells := [][]string{{"form", "registers", "bytes", "× `.eh_frame`", "median of files", "worst of files with 64 KiB of it", "most above `.eh_frame` of the smaller ones, bytes"}}
	chart := []quantity{{"report, first version, 4 registers", 6.98, true}, {"report, outlined, 4 registers", 2.44, true}}
	for k, e := range emissions {
		for i, s := range scopes {
			var ratios []float64
			worst, above := 0.0, 0
			for _, z := range all {
				if z.ehFrame == 0 {
					continue
				}
				r := float64(z.emitted[i][k]) / float64(z.ehFrame)
				ratios = append(ratios, r)
				if z.ehFrame >= 64<<10 {
					worst = max(worst, r)
				} else {
					above = max(above, z.emitted[i][k]-z.ehFrame)
				}
			}
			n := total.emitted[i][k]
			cells = append(cells, []string{e.name, s.name, fmt.Sprint(n), times(n, total.ehFrame), fmt.Sprintf("%.2f", median(ratios)), fmt.Sprintf("%.2f", worst), fmt.Sprint(above)})
			chart = append(chart, quantity{e.name + ", " + s.name, float64(n) / float64(max(total.ehFrame, 1)), false})
		}
	}
	ev.bars(t, "sizes.svg", "Size, × .eh_frame", "×", chart)
	say("### All %d files\n\n%d bytes of `.eh_frame`, %d of `.eh_frame_hdr`.\n\n%s\n![Sizes](sizes.svg)\n", len(all), total.ehFrame, total.hdr, markdown(cells))
	return b.String()
}

// compiledC has the sizes of the report's set as C that gcc compiles: libc takes a quarter of a minute, and only a whole evaluation.
func (ev *evaluation) compiledC(t testing.TB) [][]string {
	oracle.Need(t, "gcc")
	tree := csource.Options{Deref: csource.Slice}
	first := csource.Options{Deref: csource.Self, Layout: csource.Switch}
	builds := []struct {
		name, level string
		o           csource.Options
		of          func(t *rows.Table) *rows.Table
	}{
		{"tree, gcc -O2", "-O2", tree, scopes[0].of},
		{"tree, gcc -Os", "-Os", tree, scopes[0].of},
		{"`switch` of four registers, gcc -O2", "-O2", first, fourRegisters},
	}
	cells := [][]string{{"file", "`.eh_frame`"}}
	for _, x := range builds {
		cells[0] = append(cells[0], x.name, "s")
	}
	for i, path := range reportSet() {
		if i == 0 && !ev.whole {
			continue
		}
		z, ref, err := readFile(path)
		if err != nil || z == nil {
			ev.lacks(t, "%q, which gcc compiles: %v", path, err)
			continue
		}
		line := []string{filepath.Base(path), kib(z.ehFrame)}
		for _, x := range builds {
			if i == 0 && x.o.Layout == csource.Switch {
				line = append(line, "", "") // 10 MB of C
				continue
			}
			to := filepath.Join(t.TempDir(), "c.so")
			start := time.Now()
			if err := compiledBy(x.level, x.o)(to, x.of(ref)); err != nil {
				t.Error(err)
				continue
			}
			took := time.Since(start)
			f, err := elf.Open(to)
			if err != nil {
				t.Fatal(err)
			}
			n := int(f.Section(".text").Size)
			f.Close()
			line = append(line, fmt.Sprintf("%s (%s ×)", kib(n), times(n, z.ehFrame)), fmt.Sprintf("%.2f", took.Seconds()))
		}
		cells = append(cells, line)
	}
	return cells
}

// compileFile takes a file from disk to an emission, in memory.
func compileFile(path string, e emission) error {
	img, err := module.Open(path)
	if err != nil {
		return err
	}
	defer img.Close()
	f, err := dwarf.Open(img)
	if err != nil {
		return err
	}
	t, _ := f.Build(dwarf.EHFrame)
	if len(t.Rows) == 0 || t.Machine != arch.AMD64 {
		return nil
	}
	_, err = e.size(t)
	return err
}

func (ev *evaluation) compileTimes(t testing.TB) string {
	ev.refused = map[refusal]bool{}
	set := slices.DeleteFunc(reportSet(), func(p string) bool { return p == "" })
	cells := [][]string{{"form", "the report's set, one core, ms", "all cores, ms", "all files, s", "all files, processor s"}}
	cells = append(cells, []string{"report: C, compiled by gcc -O2", "25280", "", "", ""})
	chart := []quantity{{"report: C by gcc -O2", 25280, true}}
	for _, e := range emissions {
		serial := func() {
			defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
			for _, p := range set {
				if err := compileFile(p, e); err != nil {
					t.Error(err)
				}
			}
		}
		took := timed(11, serial, func() { eachFile(t, set, func(p string) error { return compileFile(p, e) }) })
		start, cpu := time.Now(), oracle.CPUTime()
		var mu sync.Mutex
		eachFile(t, ev.paths, func(p string) error {
			err := compileFile(p, e)
			if err != nil {
				mu.Lock()
				ev.refused[refusal{e.name, p}] = true
				mu.Unlock()
			}
			return err
		})
		cells = append(cells, []string{e.name, fmt.Sprintf("%.2f", took[0].Seconds()*1e3), fmt.Sprintf("%.2f", took[1].Seconds()*1e3),
			fmt.Sprintf("%.1f", time.Since(start).Seconds()), fmt.Sprintf("%.1f", (oracle.CPUTime() - cpu).Seconds())})
		chart = append(chart, quantity{e.name, took[0].Seconds() * 1e3, false})
	}
	ev.bars(t, "compile.svg", "Compiling the report's set, one core", "ms", chart)
	return fmt.Sprintf("From files in the page cache to the emitted bytes in memory, without validation: hackbench, libc, ld.so and libpthread, and all %d ELF files of the machine.\n\n", len(ev.paths)) +
		markdown(cells) + "\n![Compile time](compile.svg)\n"
}
