package lab

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/unspool/unspool/internal/oracle"
)

// An evaluation is the report's, made again: over paths, with its figures in dir.
type evaluation struct {
	dir    string
	paths  []string
	rounds int
	whole  bool // look at the largest files, too

	refused map[refusal]bool // by compileTimes, for coverage; nil until then
}

func (ev *evaluation) bars(t testing.TB, name, title, unit string, qs []quantity) {
	bars(t, filepath.Join(ev.dir, name), title, unit, qs)
}

// lacks says what file is not here, or is of no use. A whole evaluation fails without it.
func (ev *evaluation) lacks(t testing.TB, format string, args ...any) {
	t.Helper()
	say := t.Logf
	if ev.whole {
		say = t.Errorf
	}
	say("this machine lacks "+format, args...)
}

func (ev *evaluation) coverage(t testing.TB) string {
	if ev.refused == nil {
		t.Fatal("coverage takes what no form could say from the section on compile time, which has not run")
	}
	return measureCoverage(t, ev.paths, ev.refused).says(t, ev.dir)
}

func (ev *evaluation) speed(t testing.TB) string {
	file := hackbench(t)
	if file == "" {
		oracle.Lacks(t, "a recording of hackbench")
	}
	inside, chart, ratios := insidePerf(t, perfFiles(t), ev.rounds)
	cells, loop, loopRatios := table3(t, file, ev.rounds)
	chart, ratios = append(chart, loop...), append(ratios, loopRatios...)
	ev.bars(t, "speedup.svg", "Times as fast as libunwind cached in the same run, hackbench", "×", ratios)
	ev.bars(t, "speed.svg", "Time a frame, hackbench", "ns", chart)
	return "### Inside perf: the report's experiment\n\n" + fmt.Sprintf("`perf script` of Debian, unchanged, unwinds recordings with copies of 8 KiB by libunwind 1.6.2 and by the drop-in (docs/DROPIN.md), whose frames are left by rules made of `.eh_frame`, by stored tables, or by the code of eh_elf files. "+
		"A library between perf and either measures what perf waits for, `unw_init_remote` and `unw_step`, in %d rounds in turns; the least of them counts, because other programs only add time. It takes off the time of its own clock. "+
		"All registers are recovered. A round measures call-backs (`find_proc_info`, `access_mem`, `access_reg`) apart, in another run, because their clock takes time, too. perf's part is the same with all libraries, for each call: libunwind makes more calls. "+
		"What a library does once for a process or a module is in the times: the fewer samples, the more it is. Errors are steps that return less than 0. "+
		"Uncached is `UNW_CACHE_NONE`, tuned a cache of 32,768 entries instead of 128 and no `sigprocmask`. "+
		"*The reads alone* is no library: each step makes only those calls of `access_mem` that it has made by tables in another run, at addresses that are known before. No library is faster in this perf.\n\n", ev.rounds) + markdown(inside) +
		"\nThe report: libunwind cached 16,320 ns a frame, eh_elfs 631: 25.9 ×.\n\n### A loop over recorded stacks: another protocol\n\n" +
		fmt.Sprintf("All user stacks of one recording of hackbench, copies of 8 KiB, unwound by each walker in the same run: %d rounds, each with fresh walkers, in turns over batches of 2,000 stacks. Each eight are read, untimed, before they are unwound, so that they are in the processor's caches. perf does not do so: it maps the file, and a walk is the first to read a stack. "+
			"Times are medians: of the batches' first passes, and of the rounds' later ones (warm); the total is of all frames at the first. Modules are opened, and compiled, before. ", ev.rounds) +
		"A stack is whole if it reaches the outermost frame through all frames that the reference interpreter finds; the report counts errors that libunwind returned, mostly truncated copies.\n\n" +
		"*eh_elf, from C* is not the report's protocol: perf is not in it. It is a C program that opens eh_elf files by dlopen and calls them for each frame. It only follows rules, so that it does not leave code without any. " +
		"*compact*, *native* and *rows* (the reference interpreter) are our walker in Go. It follows plain rules with two registers and without the stepper; *all registers* hides what allows that, so that each frame's rule is applied to all registers, as the peers do it. " +
		"Uncached is `UNW_CACHE_NONE`; tuned is a cache of 32,768 entries instead of 128 and no `sigprocmask`.\n\n" +
		markdown(cells) + "\n![Time a frame](speed.svg)\n\n![Ratios](speedup.svg)\n\nIn the plots, what is not of this run is in another colour.\n"
}

// parts are the sections of the document, in its order.
func (ev *evaluation) parts() []docPart {
	return []docPart{
		{"Time (table 3)", ev.speed},
		{"Size (tables 2 and 4)", ev.sizes},
		{"Compile time", ev.compileTimes},
		{"Coverage (tables 5 and 6, figure 2)", ev.coverage},
		{"DWARF's own data, outlined", ev.outlining},
		{"All formats, on the same code", ev.formats},
	}
}

// TestResultsEvaluation makes the evaluation of T. Bastian, "Speeding up stack unwinding by compiling DWARF debugging
// data" (2018), again on this machine, and with -update writes docs/results/evaluation.md and its figures. Without, as part of make full,
// it looks at a few files. Where -run names some sections only, the document keeps the text of all others; it must be of this machine then.
func TestResultsEvaluation(t *testing.T) {
	if *update {
		measures(t)
	} else {
		oracle.Full(t)
	}
	ev := &evaluation{dir: "../docs/results", rounds: 7, whole: *update}
	if !*update {
		ev.dir, ev.rounds = t.TempDir(), 1
	}
	if ev.paths = oracle.Binaries(t); !*update {
		ev.paths = oracle.Spread(ev.paths, 40)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "# The report's evaluation, made again\n\n`make results` writes this file. It was measured on %s.\n\n"+
		"The report is T. Bastian, *Speeding up stack unwinding by compiling DWARF debugging data* (2018), measured on an Intel Xeon E3-1505M v6 at 3.0 GHz, 8 cores. "+
		"Its figures stand beside ours; times of different machines do not compare, ratios within one run do.\n", machine())
	writeParts(t, &b, "evaluation.md", ev.parts(), *update)
	if *update {
		publish(t, "evaluation.md", b.String())
	}
}

// A docPart is a section of a document of docs/results.
type docPart struct {
	title string
	says  func(testing.TB) string
}

// writeParts adds the sections of a document to its text, each measured by a test of its own. With whole, sections whose tests are not run keep the
// text that they have in the document.
func writeParts(t *testing.T, b *strings.Builder, name string, parts []docPart, whole bool) {
	before, err := os.ReadFile(filepath.Join("../docs/results", name))
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range parts {
		ran := false
		t.Run(s.title, func(t *testing.T) {
			ran = true
			start := time.Now()
			text := s.says(t)
			fmt.Fprintf(b, "\n## %s\n\n%s", s.title, text)
			t.Logf("%.0f s\n%s", time.Since(start).Seconds(), text)
		})
		if whole && !ran {
			text, ok := standing(string(before), b.String(), s.title)
			if !ok {
				t.Fatalf("%q was not measured, and the document has it not, or of another machine", s.title)
			}
			b.WriteString(text)
		}
	}
}

// standing returns a section of a document that is to stay as it is; false if there is none, or if the document does not begin as the new one.
func standing(document, begin, title string) (text string, ok bool) {
	head, _, _ := strings.Cut(begin, "\n## ")
	was, _, _ := strings.Cut(document, "\n## ")
	_, text, ok = strings.Cut(document, "\n## "+title+"\n")
	text, _, _ = strings.Cut(text, "\n## ")
	return "\n## " + title + "\n" + text, ok && head == was
}

// TestStanding: a section that is not measured anew keeps its text, and only a document of the same machine has such.
func TestStanding(t *testing.T) {
	const document = "# Title\n\nMachine.\n\n## One\n\nText.\n\n### Part\n\nMore.\n\n## Two\n\nLast.\n"
	for _, x := range []struct {
		begin, title, want string
		ok                 bool
	}{
		{"# Title\n\nMachine.\n", "One", "\n## One\n\nText.\n\n### Part\n\nMore.\n", true},
		{"# Title\n\nMachine.\n\n## One\n\nNew.\n", "Two", "\n## Two\n\nLast.\n", true},
		{"# Title\n\nOther.\n", "One", "", false},
		{"# Title\n\nMachine.\n", "Three", "", false},
	} {
		if got, ok := standing(document, x.begin, x.title); ok != x.ok || ok && got != x.want {
			t.Errorf("standing(%q, %q)\n got %q, %v\nwant %q, %v", x.begin, x.title, got, ok, x.want, x.ok)
		}
	}
}
