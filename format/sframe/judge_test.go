package sframe

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"sort"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/format/dwarf"
	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/module"
	"github.com/unspool/unspool/rows"
)

// A binutils is one release: its assembler, linker and objdump. Each release writes one version of the format.
type binutils struct {
	suite   string // of Debian; "": what this machine has
	version int
	root    string
	not     []*arch.Machine // for which its assembler cannot write the format
}

var s390 = arch.ByELF(arch.EM_S390)

func releases(t testing.TB) []*binutils {
	t.Helper()
	oracle.Need(t, "as", "ld", "objdump", "aarch64-linux-gnu-as", "aarch64-linux-gnu-ld")
	all := []*binutils{{version: 1, not: []*arch.Machine{s390}}, {suite: "trixie", version: 2, not: []*arch.Machine{s390}}, {suite: "sid", version: 3}}
	for _, b := range all[1:] {
		b.root = oracle.Debian(t, b.suite, "amd64", "binutils", "binutils", "binutils-aarch64-linux-gnu", "binutils-s390x-linux-gnu")
	}
	return all
}

// command is a tool for a machine.
func (b *binutils) command(m *arch.Machine, tool string, args ...string) *exec.Cmd {
	tool = m.Name + "-linux-gnu-" + tool
	if b.root == "" {
		return exec.Command(tool, args...)
	}
	lib := b.root + "/usr/lib/x86_64-linux-gnu"
	return exec.Command(b.root+"/lib64/ld-linux-x86-64.so.2", append([]string{"--library-path", lib, b.root + "/usr/bin/" + tool}, args...)...)
}

func (b *binutils) run(m *arch.Machine, tool string, args ...string) (stdout, stderr []byte, err error) {
	c := b.command(m, tool, args...)
	var out, errs bytes.Buffer
	c.Stdout, c.Stderr = &out, &errs
	if err = c.Run(); err != nil {
		err = fmt.Errorf("%s %s: %w\n%s", tool, strings.Join(args, " "), err, errs.Bytes())
	}
	return out.Bytes(), errs.Bytes(), err
}

// A listing is what objdump says of a file: for each function its rows.
type listing []*listed

type listed struct {
	lo, hi arch.Vaddr
	masked bool
	rows   []listedRow
}

type listedRow struct {
	at   uint64
	text string
}

var (
	listedFunc = regexp.MustCompile(`^ *func idx \[\d+\]: pc = 0x([0-9a-f]+), size = (\d+) bytes`)
	listedLine = regexp.MustCompile(`^ *([0-9a-f]{16})  (.+)$`)
	listedRule = regexp.MustCompile(`^((?:sp|fp|r\d+)[+-]\d+|\((?:sp|fp|r\d+)[+-]\d+\)) *(u|[cr][0-9]*[+-]\d+|\(.*?\)|f)[ U]*\s+(\S+)$`)
)

// list reads objdump's listing. Its columns may touch: "sp+2000000u  f".
func list(out []byte) (l listing, err error) {
	for line := range strings.Lines(string(out)) {
		line = strings.TrimRight(line, " \n")
		if at := listedFunc.FindStringSubmatch(line); at != nil {
			lo, _ := strconv.ParseUint(at[1], 16, 64)
			size, _ := strconv.ParseUint(at[2], 10, 64)
			l = append(l, &listed{lo: arch.Vaddr(lo), hi: arch.Vaddr(lo + size)})
			continue
		}
		if strings.Contains(line, "STARTPC[m]") {
			l[len(l)-1].masked = true
			continue
		}
		at := listedLine.FindStringSubmatch(line)
		if at == nil || len(l) == 0 {
			continue
		}
		pc, _ := strconv.ParseUint(at[1], 16, 64)
		text := at[2]
		if text != "RA undefined" {
			cells := listedRule.FindStringSubmatch(text)
			if cells == nil {
				return nil, fmt.Errorf("%q is no row", line)
			}
			text = strings.Join(cells[1:], " ")
		}
		f := l[len(l)-1]
		f.rows = append(f.rows, listedRow{pc, text})
	}
	return l, nil
}

// at is what the listing says of an address of the function.
func (f *listed) at(pc arch.Vaddr) string {
	key := uint64(pc)
	if f.masked {
		key = uint64(pc-f.lo) % 16
	}
	i := sort.Search(len(f.rows), func(i int) bool { return f.rows[i].at > key })
	if i == 0 {
		return ""
	}
	return f.rows[i-1].text
}

// spell prints a set as objdump does.
func spell(s *rows.Set, m *arch.Machine, pc arch.Vaddr) string {
	if s.Gap() {
		return ""
	}
	if s.Outermost() {
		return "RA undefined"
	}
	reg := func(r arch.Reg) string {
		switch r {
		case m.SP:
			return "sp"
		case m.FP:
			return "fp"
		}
		return fmt.Sprintf("r%d", r)
	}
	cfa := fmt.Sprintf("%s%+d", reg(s.CFA.Reg), s.CFA.Off)
	switch s.CFA.Kind {
	case rows.CFARegDeref:
		cfa = "(" + cfa + ")"
	case rows.CFAPLT:
		off := s.CFA.Off
		if int64(pc&15) >= s.CFA.Off2 {
			off += 8
		}
		cfa = fmt.Sprintf("%s%+d", reg(s.CFA.Reg), off)
	}
	cell := func(r arch.Reg) string {
		rule, _ := s.Rule(r)
		text := fmt.Sprintf("%s%+d", reg(rule.Reg), rule.Off)
		switch rule.Kind {
		case rows.SameValue:
			return "u"
		case rows.Offset:
			return fmt.Sprintf("c%+d", rule.Off)
		case rows.RegDeref:
			return "(" + text + ")"
		case rows.Register, rows.RegOffset:
			return text
		}
		return rule.Cell(m)
	}
	ra := cell(m.RA)
	if s.Flags&rows.RASigned != 0 {
		ra += "[s]"
	}
	return cfa + " " + cell(m.FP) + " " + ra
}

// texts gives the texts of a table's sets: each is made once, unless it depends on the address.
func texts(t *rows.Table, make func(s *rows.Set, pc arch.Vaddr) string) func(pc arch.Vaddr) string {
	made := map[rows.SetID]string{}
	at := -1
	return func(pc arch.Vaddr) string {
		if at < 0 || pc < t.Rows[at].Lo || pc >= t.Hi(at) {
			at = t.Find(pc)
		}
		id := rows.GapID
		if at >= 0 {
			id = t.Rows[at].Set
		}
		s := &t.Sets[id]
		if s.CFA.Kind == rows.CFAPLT {
			return make(s, pc)
		}
		text, ok := made[id]
		if !ok {
			text = make(s, pc)
			made[id] = text
		}
		return text
	}
}

// meaning is what a row says of the CFA, the return address, the frame pointer and, where a version can say it, of the frame.
func meaning(s *rows.Set, m *arch.Machine, pc arch.Vaddr, version int) string {
	if s.Gap() {
		return "gap"
	}
	var flags rows.Flags = rows.RASigned | rows.BKey
	if version == 3 {
		flags |= rows.Signal
	}
	signal := ""
	if s.Flags&flags&rows.Signal != 0 {
		signal = " signal"
	}
	if s.Outermost() {
		return "outermost" + signal
	}
	c := s.CFA
	if c.Kind == rows.CFAPLT {
		if int64(pc&15) >= c.Off2 {
			c.Off += 8
		}
		c.Kind, c.Off2 = rows.CFAReg, 0
	}
	x := rows.Set{CFA: c, RA: s.RA, Flags: s.Flags & flags}
	cell := func(r arch.Reg) string {
		rule, ok := s.Rule(r)
		if !ok {
			return "s"
		}
		return rule.Cell(m)
	}
	return fmt.Sprintf("%s ra=%s fp=%s", x.Text(m), cell(s.RA), cell(m.FP))
}

// permitted are the ways in which assemblers and linkers write rows that do not mean what their input says, and how many addresses have them:
//
//   - Those of release 2.40 and 2.44 drop .cfi_undefined of the return address: the outermost frame looks like any other.
//   - Theirs also remember too little: .cfi_remember_state behind other directives for the same address remembers what held before these, and
//     .cfi_restore_state gives this back. What is not changed afterwards stays wrong up to the function's end.
//   - They drop .cfi_same_value: registers stay where they were saved.
//   - That of release 2.40, for AArch64, takes the place of the frame pointer for the return address's where only the former is saved.
//   - The linkers of release 2.44 and 2.47 write CFA=rsp+16 for .plt.got of x86-64, whose stubs only jump: it is rsp+8.
type permitted struct{ pltGOT, outermost, remembered, sameValue, onlyFP atomic.Int64 }

// A pair is what an assembler wrote for an address, and what .eh_frame says.
type pair struct{ got, want string }

// places are where a row says that the return address and the frame pointer are.
var places = regexp.MustCompile(` ra=\S+ fp=\S+`)

// permits says whether an assembler is wrong. before are its function's rows up to there; wrong are the places that stay wrong in it.
func (p *permitted) permits(version int, x pair, before []pair, wrong map[pair]bool) bool {
	if version == 3 {
		return false
	}
	if x.want == "outermost" {
		p.outermost.Add(1)
		return true
	}
	at := pair{places.FindString(x.got), places.FindString(x.want)}
	if only := onlyFP.FindStringSubmatch(x.want); version == 1 && only != nil && at.got == " ra="+only[1]+" fp=s" {
		p.onlyFP.Add(1)
		return true
	}
	same := strings.Replace(x.got, at.got, at.want, 1) == x.want // but for the places
	if same && wrong[at] {
		p.remembered.Add(1)
		return true
	}
	for i, b := range before {
		if i > 0 && before[i-1].got == x.got && b.want == x.want {
			p.remembered.Add(1)
			wrong[at] = true
			return true
		}
	}
	if n := len(before); n > 0 && same && at.want == " ra=s fp=s" && at.got == places.FindString(before[n-1].got) {
		p.sameValue.Add(1)
		return true
	}
	return false
}

var onlyFP = regexp.MustCompile(` ra=s fp=(c-[0-9]+)$`)

// A verdict counts what was compared.
type verdict struct{ files, pcs, skipped, listed atomic.Int64 }

// judgeFile compares the rows of a file with objdump's listing of the section, and with its .eh_frame, at every address.
func (b *binutils) judgeFile(path string, m *arch.Machine, warnings []byte, v *verdict, p *permitted) error {
	img, err := module.Open(path)
	if err != nil {
		return err
	}
	defer img.Close()
	tab, err := Open(img)
	if err != nil || tab == nil {
		return fmt.Errorf("no table: %v", err)
	}
	if got := int(tab.sections[0].version); got != b.version {
		return fmt.Errorf("version %d, want %d", got, b.version)
	}
	got, errs := tab.Rows()
	if len(errs) > 0 {
		return errs[0]
	}
	if img.Linked() { // in other files, objdump's addresses are those of sections
		if err := b.judgeListing(path, tab, got, v); err != nil {
			return err
		}
	}

	d, err := dwarf.Open(img)
	if err != nil {
		return err
	}
	want, damage := d.Build(dwarf.EHFrame)
	if len(damage) > 0 {
		return damage[0]
	}
	lo, hi := arch.Vaddr(0), arch.Vaddr(0)
	if n := len(want.Rows); n > 0 {
		lo, hi = want.Rows[0].Lo, want.Rows[n-1].Lo
	}
	if n := len(got.Rows); n > 0 {
		lo, hi = min(lo, got.Rows[0].Lo), max(hi, got.Rows[n-1].Lo)
	}
	missing := map[arch.Vaddr]bool{} // functions without rows
	means := func(s *rows.Set, pc arch.Vaddr) string { return meaning(s, m, pc, b.version) }
	var function arch.Vaddr // the function at hand,
	var before []pair
	var wrong map[pair]bool // and what stays wrong in it
	gots, wants := texts(got, means), texts(want, means)
	var starts []arch.Vaddr // of the rows of both
	for _, t := range []*rows.Table{got, want} {
		for _, r := range t.Rows {
			starts = append(starts, r.Lo)
		}
	}
	slices.Sort(starts)
	var plt module.Section
	if s := img.Section(".plt.got"); s != nil {
		plt = *s
	}
	for pc := lo; pc < hi; pc++ {
		g, w := gots(pc), wants(pc)
		switch {
		case g == w:
			if g != "gap" {
				v.pcs.Add(1)
			}
		case g == "gap":
			start, _, _ := d.Bounds(dwarf.EHFrame, pc)
			missing[start] = true
		case b.version > 1 && pc-plt.Addr < arch.Vaddr(plt.Size) && g == strings.Replace(w, "rsp+8 ", "rsp+16 ", 1):
			p.pltGOT.Add(1)
		default:
			start, _, _ := d.Bounds(dwarf.EHFrame, pc)
			if start != function {
				function, before, wrong = start, nil, map[pair]bool{}
			}
			// Its rows in front of the one at hand.
			lo := max(start, want.Rows[want.Find(pc)].Lo, got.Rows[got.Find(pc)].Lo)
			for _, a := range starts {
				if a >= start && a < lo {
					before = append(before, pair{gots(a), wants(a)})
				}
			}
			if p.permits(b.version, pair{g, w}, before, wrong) {
				before = nil
				continue
			}
			return fmt.Errorf(".eh_frame at %#x\n got %s\nwant %s", uint64(pc), g, w)
		}
	}
	// The assembler names each function that it leaves out, from release 2.41 on.
	if n := len(regexp.MustCompile(`skipping SFrame FDE|no SFrame FDE emitted`).FindAll(warnings, -1)); n != len(missing) && b.version > 1 {
		return fmt.Errorf("%d functions without rows, of which the assembler names %d\n%s", len(missing), n, warnings)
	}
	v.skipped.Add(int64(len(missing)))
	v.files.Add(1)
	return nil
}

// judgeListing compares the rows of a linked file with objdump's listing.
func (b *binutils) judgeListing(path string, tab *Table, got *rows.Table, v *verdict) error {
	m := got.Machine
	out, _, err := b.run(m, "objdump", "--sframe", path)
	if err != nil {
		return err
	}
	l, err := list(out)
	if err != nil {
		return err
	}
	if len(l) != tab.sections[0].count {
		return fmt.Errorf("objdump lists %d functions of %d", len(l), tab.sections[0].count)
	}
	in, last := 0, arch.Vaddr(0) // addresses of functions
	spelled := texts(got, func(s *rows.Set, pc arch.Vaddr) string { return spell(s, m, pc) })
	for _, f := range l {
		if f.lo < last {
			return fmt.Errorf("a function at %#x, before %#x", uint64(f.lo), uint64(last))
		}
		last = f.hi
		for pc := f.lo; pc < f.hi; pc++ {
			want, have := f.at(pc), spelled(pc)
			if want != "" {
				in++
			}
			// A return address that no row has is at the place that the header gives, or in its register. Release 2.40 says u of the former, too.
			if n := len(want) - 2; n > 0 && want[n] == ' ' && strings.ContainsAny(want[n+1:], "fuU") {
				want = want[:n]
				have = strings.TrimSuffix(strings.TrimSuffix(have, " u"), " c-8")
			}
			if have != want {
				return fmt.Errorf("objdump at %#x\n got %s\nwant %s", uint64(pc), have, want)
			}
			v.listed.Add(1)
		}
		if lo, hi, ok := tab.Bounds(f.lo); f.lo < f.hi && (!ok || lo != f.lo || hi != f.hi) {
			return fmt.Errorf("Bounds(%#x) = %#x, %#x, %v; want %#x", uint64(f.lo), uint64(lo), uint64(hi), ok, uint64(f.hi))
		}
	}
	for i, r := range got.Rows {
		if r.Set != rows.GapID {
			in -= int(got.Hi(i) - r.Lo)
		}
	}
	if in != 0 {
		return fmt.Errorf("objdump has rows for %+d addresses more", in)
	}
	return nil
}

// A compiler makes assembly of a source, for a machine.
type compiler struct {
	m    *arch.Machine
	args []string
	any  bool // it has headers: it compiles any program
}

func compilers() []compiler {
	clang := func(target string, more ...string) []string {
		return append([]string{"clang-19", "--target=" + target, "-fno-addrsig", "-Wno-everything"}, more...)
	}
	return []compiler{
		{arch.AMD64, []string{"gcc"}, true},
		{arch.AMD64, clang("x86_64-linux-gnu"), true},
		{arch.ARM64, []string{"aarch64-linux-gnu-gcc", "-mbranch-protection=standard"}, true},
		{arch.ARM64, clang("aarch64-linux-gnu", "-isystem", "/usr/aarch64-linux-gnu/include"), true},
		{s390, clang("s390x-linux-gnu", "-mbackchain"), false},
		{s390, clang("s390x-linux-gnu"), false},
	}
}

// sources are C programs of this project. Some are for one machine, or need what not every machine has: a compiler may refuse them.
func sources(t testing.TB) []string {
	t.Helper()
	var all []string
	for _, p := range []string{"../../lab/shapes/testdata/*.c", "../../lab/shapes/testdata/*.cc", "../../runtime/*.c", "../../internal/oracle/c/*.c"} {
		list, err := filepath.Glob(p)
		if err != nil || len(list) == 0 {
			t.Fatalf("%s: no files, %v", p, err)
		}
		all = append(all, list...)
	}
	return all
}

// TestJudge compares the rows of files that three releases of binutils assemble and link, for three machines, with objdump of the same release
// and with the .eh_frame of the same file, at every address.
func TestJudge(t *testing.T) {
	oracle.Long(t)
	oracle.Need(t, "gcc", "clang-19", "aarch64-linux-gnu-gcc")
	all := releases(t)
	type job struct {
		c    compiler
		src  string
		opts []string
	}
	var jobs []job
	add := func(c compiler, src string, opts ...string) {
		jobs = append(jobs, job{c: c, src: src, opts: opts})
	}
	cs := compilers()
	for i, c := range cs {
		for k, opt := range [][]string{{"-O2"}, {"-O0"}, {"-Os", "-fno-omit-frame-pointer"}, {"-O3", "-fno-omit-frame-pointer", "-ffunction-sections"}} {
			if k < oracle.Few(1, 4) {
				add(c, "testdata/frames.c", opt...)
			}
		}
		if i%2 == 0 {
			add(c, "testdata/"+c.m.Name+".s")
		}
	}
	for i, src := range oracle.Spread(sources(t), oracle.Few(4, 1000)) {
		for k, c := range cs {
			if c.any && (oracle.Few(0, 1) == 1 || i%4 == k) {
				add(c, src, "-O2")
				if oracle.Few(0, 1) == 1 {
					add(c, src, "-O0")
				}
			}
		}
	}
	var v verdict
	var p permitted
	var refused, next atomic.Int64
	dir := t.TempDir()
	var wg sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for i := int(next.Add(1)) - 1; i < len(jobs); i = int(next.Add(1)) - 1 {
				j := jobs[i]
				asm := filepath.Join(dir, fmt.Sprint(i, ".s"))
				if filepath.Ext(j.src) == ".s" {
					asm = j.src
				} else {
					args := append(append(j.c.args[1:len(j.c.args):len(j.c.args)], "-S", "-fPIC", "-w", "-D_GNU_SOURCE", "-fasynchronous-unwind-tables", "-o", asm), j.opts...)
					if out, err := exec.Command(j.c.args[0], append(args, j.src)...).CombinedOutput(); err != nil {
						if j.src == "testdata/frames.c" {
							t.Errorf("%v: %v\n%s", j.c.args, err, out)
						}
						refused.Add(1)
						continue
					}
				}
				if asm != j.src { // a linker refuses hidden symbols of other sources
					b, err := os.ReadFile(asm)
					if err == nil {
						err = os.WriteFile(asm, hidden.ReplaceAll(b, nil), 0o600)
					}
					if err != nil {
						t.Error(err)
					}
					if _, _, err := all[2].run(j.c.m, "as", "-o", os.DevNull, asm); err != nil { // it has another machine's instructions
						refused.Add(1)
						continue
					}
				}
				for _, b := range all {
					path := filepath.Join(dir, fmt.Sprintf("%d.v%d", i, b.version))
					if err := b.build(j.c.m, asm, path, func(path string, warnings []byte) error {
						return b.judgeFile(path, j.c.m, warnings, &v, &p)
					}); err != nil {
						t.Errorf("%s, %v %v, version %d: %v", j.src, j.c.args, j.opts, b.version, err)
					}
					os.Remove(path)
				}
			}
		})
	}
	wg.Wait()
	for name, n := range map[string]int64{"pltGOT": p.pltGOT.Load(), "outermost": p.outermost.Load(), "remembered": p.remembered.Load(), "sameValue": p.sameValue.Load(), "onlyFP": p.onlyFP.Load()} {
		if n == 0 {
			t.Errorf("no assembler needs the permission %s: take it off the list", name)
		}
	}
	if want := oracle.Few(20, 200); v.files.Load() < int64(want) {
		t.Errorf("%d files, want %d", v.files.Load(), want)
	}
	t.Logf("%d files: %d addresses equal to objdump's, %d to .eh_frame's; %d functions that assemblers left out; compilers refused %d sources; permitted: %d addresses in .plt.got, %d of outermost frames, %d behind .cfi_restore_state, %d behind .cfi_same_value, %d with the frame pointer's place",
		v.files.Load(), v.listed.Load(), v.pcs.Load(), v.skipped.Load(), refused.Load(), p.pltGOT.Load(), p.outermost.Load(), p.remembered.Load(), p.sameValue.Load(), p.onlyFP.Load())
}

var hidden = regexp.MustCompile(`(?m)^\s*\.hidden.*$`)

// build assembles a file and links a shared library of it, unless the release cannot for the machine, and gives both to judge, with what the
// assembler says.
func (b *binutils) build(m *arch.Machine, asm, path string, judge func(path string, warnings []byte) error) error {
	for _, not := range b.not {
		if m == not {
			return nil
		}
	}
	defer os.Remove(path + ".o")
	_, warnings, err := b.run(m, "as", "--gsframe", "-o", path+".o", asm)
	if err != nil {
		return err
	}
	if err := judge(path+".o", warnings); err != nil {
		return fmt.Errorf("before it is linked: %w", err)
	}
	if _, _, err = b.run(m, "ld", "-shared", "-Bsymbolic", "--eh-frame-hdr", "-o", path, path+".o"); err != nil { // it needs a symbol of the compiler's own library
		_, _, err = b.run(m, "ld", "-static", "-e", "0", "--unresolved-symbols=ignore-all", "--eh-frame-hdr", "-o", path, path+".o")
	}
	if err != nil {
		return err
	}
	return judge(path, warnings)
}
