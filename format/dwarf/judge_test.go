package dwarf

import (
	"bufio"
	"bytes"
	"cmp"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/module"
	"github.com/unspool/unspool/rows"
)

const judge = "llvm-dwarfdump-19"

// Where the judge is known to be wrong, and who else says so:
//
//   - It prints AArch64's registers by the names of their low parts.
//   - An empty entry in .debug_frame, padding between two object files' contributions, ends the section for it; readelf,
//     GDB and binutils' ld read on. What lies behind it is not compared.
//   - DW_CFA_def_cfa_register after DW_CFA_def_cfa_expression gives the offset 0. libgcc, GDB and readelf, and the code
//     that has it, keep the offset that was there before the expression.
//   - DW_CFA_def_cfa_offset after DW_CFA_def_cfa_expression, which gcc writes where a function takes back SVE's registers, makes an entry damaged,
//     for us too: both name the same number of such entries. The judge then prints none of the entry's rows; we have those before the damage, which
//     TestLostCFA compares with readelf's.
//
// The last three are counted.

// judged is what the judge says of one section: its FDEs, each with rows whose text is interned.
type judged struct {
	fdes  []judgedFDE
	rows  []judgedRow
	texts []string
	ids   map[string]uint32
	spell func(*rows.Set, *arch.Machine) string // a Set as the judge prints it

	cut      bool     // the judge stopped at an empty entry
	noOffset int      // rows where it lost the offset behind an expression
	damaged  int      // entries that change the offset of an expression
	lost     []uint64 // where they begin
}

type judgedFDE struct {
	at       uint64 // in the section
	lo, hi   uint64
	first, n int
}

type judgedRow struct {
	lo   uint64
	text uint32
}

func (j *judged) intern(b []byte) uint32 {
	id, ok := j.ids[string(b)]
	if !ok {
		id = uint32(len(j.texts))
		j.texts = append(j.texts, string(b))
		j.ids[string(b)] = id
	}
	return id
}

// readJudge parses what llvm-dwarfdump prints of a section's FDEs and of their rows.
func readJudge(in io.Reader, section string) (*judged, error) {
	j := &judged{ids: map[string]uint32{}, spell: judgeText}
	r := bufio.NewReaderSize(in, 1<<20)
	here, inFDE := false, false
	for {
		line, err := r.ReadSlice('\n')
		if err == io.EOF {
			return j, nil
		}
		if err != nil {
			return nil, err
		}
		if name, ok := bytes.CutSuffix(line, []byte(" contents:\n")); ok {
			here, inFDE = string(name) == section, false
		}
		if !here {
			continue
		}
		switch {
		case bytes.HasPrefix(line, []byte("  0x")) && inFDE:
			colon := bytes.IndexByte(line, ':')
			if colon < 0 {
				return nil, fmt.Errorf("no address in %q", line)
			}
			lo, err := strconv.ParseUint(string(line[4:colon]), 16, 64)
			if err != nil {
				return nil, err
			}
			f := &j.fdes[len(j.fdes)-1]
			text := bytes.TrimSpace(line[colon+1:])
			if bytes.Contains(text, []byte("reg34=0")) || bytes.Contains(text, []byte("addrspace")) {
				text = aside.ReplaceAll(text, []byte("$1"))
			}
			if bytes.Contains(text, []byte("=DW_OP_reg")) { // a value that is a register's location: for us, a rule of the register
				text = location.ReplaceAll(text, []byte("=$1"))
			}
			j.rows = append(j.rows, judgedRow{lo, j.intern(text)})
			f.n++
		case len(line) > 8 && line[0] != ' ':
			inFDE = false
			j.cut = j.cut || section == ".debug_frame" && bytes.HasSuffix(line, []byte(" 00000000 ffffffff CIE\n"))
			if i := bytes.Index(line, []byte(" FDE cie=")); i >= 0 {
				var f judgedFDE
				pc := line[bytes.Index(line, []byte("pc="))+3:]
				dots := bytes.Index(pc, []byte("..."))
				lo, err1 := strconv.ParseUint(string(pc[:dots]), 16, 64)
				hi, err2 := strconv.ParseUint(string(bytes.TrimSpace(pc[dots+3:])), 16, 64)
				at, err3 := strconv.ParseUint(string(line[:bytes.IndexByte(line, ' ')]), 16, 64)
				if err1 != nil || err2 != nil || err3 != nil {
					return nil, fmt.Errorf("bad range in %q", line)
				}
				f.at, f.lo, f.hi, f.first = at, lo, hi, len(j.rows)
				j.fdes = append(j.fdes, f)
				inFDE = true
			}
		}
	}
}

// judgeText prints a Set as the judge does.
func judgeText(s *rows.Set, m *arch.Machine) string {
	reg := func(r arch.Reg) string { return judgeReg(m, r) }
	var b strings.Builder
	off := func(n int64) string {
		if n == 0 {
			return ""
		}
		return fmt.Sprintf("%+d", n)
	}
	breg := func(r arch.Reg, n int64) string {
		if r < 32 {
			return fmt.Sprintf("DW_OP_breg%d %s%+d", r, reg(r), n)
		}
		return fmt.Sprintf("DW_OP_bregx %s%+d", reg(r), n)
	}
	b.WriteString("CFA=")
	switch c := s.CFA; c.Kind {
	case rows.CFANone:
		b.WriteString("unspecified")
	case rows.CFAReg:
		b.WriteString(reg(c.Reg) + off(c.Off))
	case rows.CFARegDeref:
		b.WriteString(breg(c.Reg, c.Off) + ", DW_OP_deref")
		if c.Off2 != 0 {
			fmt.Fprintf(&b, ", DW_OP_plus_uconst 0x%x", c.Off2)
		}
	case rows.CFAPLT:
		fmt.Fprintf(&b, "%s, %s, DW_OP_lit15, DW_OP_and, DW_OP_lit%d, DW_OP_ge, DW_OP_lit3, DW_OP_shl, DW_OP_plus",
			breg(c.Reg, c.Off), breg(m.PC, 0), c.Off2)
	case rows.CFAExpr:
		b.WriteString(judgeExpr(c.Expr, m))
	}
	rules := slices.Clone(s.Rules)
	if m == arch.ARM64 && s.Flags&rows.RASigned != 0 {
		rules = append(rules, rows.Rule{Of: m.RASignState, Kind: rows.NumKinds})
		slices.SortFunc(rules, func(a, b rows.Rule) int { return int(a.Of) - int(b.Of) })
	}
	for i, r := range rules {
		b.WriteString([]string{": ", ", "}[min(i, 1)] + reg(r.Of) + "=")
		switch r.Kind {
		case rows.Undefined:
			b.WriteString("undefined")
		case rows.SameValue:
			b.WriteString("same")
		case rows.Offset:
			b.WriteString("[CFA" + off(r.Off) + "]")
		case rows.ValOffset:
			b.WriteString("CFA" + off(r.Off))
		case rows.Register:
			b.WriteString(reg(r.Reg))
		case rows.RegOffset:
			b.WriteString(breg(r.Reg, r.Off))
		case rows.RegDeref:
			b.WriteString("[" + breg(r.Reg, r.Off) + "]")
		case rows.Expr:
			b.WriteString("[" + judgeExpr(r.Expr, m) + "]")
		case rows.ValExpr:
			b.WriteString(judgeExpr(r.Expr, m))
		default:
			b.WriteString("1")
		}
	}
	return b.String()
}

// judgeExpr prints an expression as the judge does.
func judgeExpr(expr string, m *arch.Machine) string {
	text := rows.ExprString(expr, m)
	if m != arch.ARM64 {
		return text
	}
	return registerOf.ReplaceAllStringFunc(text, func(s string) string {
		at := registerOf.FindStringSubmatch(s)
		r, ok := m.RegByName(strings.ToLower(at[2]))
		if !ok {
			return s
		}
		return at[1] + judgeReg(m, r)
	})
}

// registerOf matches an operation with a register, and its register.
var registerOf = regexp.MustCompile(`(DW_OP_breg(?:x|[0-9]+) )([A-Z0-9_]+)`)

// judgeReg names a register as the judge does. For AArch64 it takes the names of the registers' low parts.
func judgeReg(m *arch.Machine, r arch.Reg) string {
	switch {
	case m.Name == "riscv" && r < 32:
		return fmt.Sprintf("X%d", r)
	case m == arch.ARM64 && r < 31:
		return fmt.Sprintf("W%d", r)
	case m == arch.ARM64 && r == m.RASignState:
		return "reg34"
	case m == arch.ARM64 && r == 31:
		return "WSP"
	case m == arch.ARM64 && r >= 64 && r < 96:
		return fmt.Sprintf("B%d", r-64)
	}
	if m.ELF == arch.EM_MIPS && int(r) < len(mipsNames) {
		return mipsNames[r]
	}
	n := m.RegName(r)
	if n == fmt.Sprintf("r%d", r) && m != arch.AMD64 {
		return fmt.Sprintf("reg%d", r)
	}
	return strings.ToUpper(n)
}

// mipsNames are the judge's names for MIPS's registers, by number: for all conventions those of registers of 64 bits.
var mipsNames = func() (list []string) {
	for _, name := range strings.Fields("ZERO AT V0 V1 A0 A1 A2 A3 T0 T1 T2 T3 T4 T5 T6 T7 S0 S1 S2 S3 S4 S5 S6 S7 T8 T9 K0 K1 GP SP FP RA") {
		list = append(list, name+"_64")
	}
	for i := range 32 {
		list = append(list, fmt.Sprintf("D%d_64", i))
	}
	return append(list, "HI0", "LO0")
}()

// aside matches what the judge says and a Set does not: that a return address is not signed any more, and in which
// address space the stack is.
var aside = regexp.MustCompile(`(: )reg34=0, |[:,] reg34=0| in addrspace[0-9]+`)

// location matches an expression that is a register's location.
var location = regexp.MustCompile(`=DW_OP_reg[0-9]+ ([A-Z0-9_]+)\b`)

// noOffset matches a CFA of a register and an offset.
var noOffset = regexp.MustCompile(`^(CFA=[A-Z0-9]+)\+[0-9]+`)

// place gives the judge's FDEs of a file that is not linked the addresses that sections have here. For the judge, each section begins at 0: its
// addresses must be the offsets in the sections.
func (j *judged) place(img *module.Image, f *Frames, which Which) (errs []error) {
	ours := map[uint64]FDE{}
	f.Entries(which, func(e Entry) bool {
		if e.IsFDE {
			ours[e.Off] = e.FDE
		}
		return true
	})
	for i := range j.fdes {
		d := &j.fdes[i]
		o, ok := ours[d.at]
		section, off := img.Place(o.Lo)
		if !ok || o.Hi-o.Lo != arch.Vaddr(d.hi-d.lo) || !o.Dead && (off != d.lo || section == "") {
			errs = append(errs, fmt.Errorf("%s: FDE +%#x: %+v is %s+%#x, want [%#x, %#x)", img.Name(), d.at, o, section, off, d.lo, d.hi))
		}
		if o.Dead {
			d.lo, d.hi = 0, 0
			continue
		}
		for k := range d.n {
			j.rows[d.first+k].lo += uint64(o.Lo) - d.lo
		}
		d.lo, d.hi = uint64(o.Lo), uint64(o.Hi)
		delete(ours, d.at)
	}
	for at, o := range ours {
		if !o.Dead {
			errs = append(errs, fmt.Errorf("%s: FDE +%#x: %+v: the judge has none there", img.Name(), at, o))
		}
	}
	return errs
}

// A difference is one range of addresses where the table and the judge disagree.
type difference struct {
	lo, hi    uint64
	got, want string
}

// compare returns where t differs from the judge, up to max differences, and how many rows it compared.
// Where FDEs overlap, the one with the greatest start that contains a PC holds; of several with that
// start the first in the section.
func (j *judged) compare(t *rows.Table, max int) (n int, ds []difference) {
	m := t.Machine
	texts := make([]uint32, len(t.Sets))
	for i := range t.Sets {
		texts[i] = j.intern([]byte(j.spell(&t.Sets[i], m)))
	}
	fdes := slices.DeleteFunc(slices.Clone(j.fdes), func(f judgedFDE) bool { return f.lo >= f.hi || f.lo == 0 })
	slices.SortStableFunc(fdes, func(a, b judgedFDE) int { return cmp.Compare(a.lo, b.lo) })

	covered := uint64(0)
	at := 0      // index of the table's row that holds at the lowest address still of interest
	before := "" // the text of the row before, in the same FDE
	check := func(lo, hi uint64, text uint32) {
		covered += hi - lo
		i := at
		if i >= len(t.Rows) || uint64(t.Rows[i].Lo) > lo {
			i = t.Find(arch.Vaddr(lo))
		}
		for i+1 < len(t.Rows) && i >= 0 && uint64(t.Rows[i+1].Lo) <= lo {
			i++
		}
		for n++; lo < hi; i++ {
			end := hi
			if i+1 < len(t.Rows) {
				end = min(hi, uint64(t.Rows[max0(i+1)].Lo))
			}
			got, same := "nothing", false
			if i >= 0 && t.Rows[i].Set != rows.GapID {
				got, same = j.texts[texts[t.Rows[i].Set]], texts[t.Rows[i].Set] == text
			} else if strings.HasPrefix(j.texts[text], "CFA=unspecified") && !strings.Contains(j.texts[text], ": ") {
				same = true
				covered -= end - lo
			}
			if !same && noOffset.MatchString(got) && noOffset.ReplaceAllString(got, "$1") == j.texts[text] && strings.HasPrefix(before, "CFA=DW_OP_") {
				same = true
				j.noOffset++
			}
			if !same && len(ds) < max {
				ds = append(ds, difference{lo, end, got, j.texts[text]})
			}
			lo, at = end, max0(i)
		}
	}
	var taken []judgedFDE // what covers parts of the FDE at hand
	done := uint64(0)     // of several with one start: how far those before went
	for k, f := range fdes {
		if k > 0 && fdes[k-1].lo == f.lo {
			done = maxU(done, fdes[k-1].hi)
		} else {
			done = 0
		}
		taken = taken[:0]
		for _, o := range fdes[k+1:] {
			if o.lo >= f.hi {
				break
			}
			if o.lo > f.lo {
				taken = append(taken, o)
			}
		}
		rs := j.rows[f.first : f.first+f.n]
		before = ""
		for r := range rs {
			if r > 0 {
				before = j.texts[rs[r-1].text]
			}
			lo, hi := maxU(rs[r].lo, f.lo), f.hi
			if r+1 < len(rs) {
				hi = min(hi, rs[r+1].lo)
			}
			lo = maxU(lo, done)
			for _, o := range taken { // sorted by start
				if lo < hi && o.lo < hi && o.hi > lo {
					if o.lo > lo {
						check(lo, o.lo, rs[r].text)
					}
					lo = maxU(lo, o.hi)
				}
			}
			if lo < hi {
				check(lo, hi, rs[r].text)
			}
		}
	}
	has := uint64(0)
	for i, r := range t.Rows {
		lost := slices.ContainsFunc(fdes, func(f judgedFDE) bool {
			return f.n == 0 && f.lo <= uint64(r.Lo) && uint64(r.Lo) < f.hi && slices.Contains(j.lost, f.lo)
		})
		if r.Set != rows.GapID && !lost {
			has += uint64(t.Hi(i) - r.Lo)
		}
	}
	if has != covered && !j.cut && len(ds) < max {
		ds = append(ds, difference{0, 0, fmt.Sprintf("%d bytes with rows", has), fmt.Sprintf("%d bytes", covered)})
	}
	return n, ds
}

func max0(i int) int          { return max(i, 0) }
func maxU(a, b uint64) uint64 { return max(a, b) }

// askJudge runs the judge over one kind of section of a file.
func askJudge(path string, which Which) (*judged, error) {
	flag := "--eh-frame"
	if which == DebugFrame {
		flag = "--debug-frame"
	}
	c := exec.Command(judge, flag, path)
	out, err := c.StdoutPipe()
	if err != nil {
		return nil, err
	}
	var stderr bytes.Buffer
	c.Stderr = &stderr
	if err := c.Start(); err != nil {
		return nil, err
	}
	j, err := readJudge(out, map[Which]string{EHFrame: ".eh_frame", DebugFrame: ".debug_frame"}[which])
	io.Copy(io.Discard, out)
	werr := c.Wait()
	if err != nil {
		return nil, err
	}
	j.damaged = strings.Count(stderr.String(), noRows)
	if left := strings.ReplaceAll(stderr.String(), noRows, ""); werr != nil && (j.damaged == 0 || left != "") {
		err = fmt.Errorf("%v: %s", werr, bytes.TrimSpace(stderr.Bytes()))
	}
	return j, err
}

// noRows is what the judge says of an entry that changes the offset of an expression.
const noRows = "error: decoding the FDE opcodes into rows failed\nerror: DW_CFA_def_cfa_offset found when CFA rule was not RegPlusOffset\n"

// rowsSigned are the flags of a row whose return address is signed.
const rowsSigned = rows.RASigned | rows.RASignPC

// verdict is how a file's rows compare with the judge's.
type verdict struct {
	rows, signed, noOffset, cut, damaged int
	unnamed                              int // 1 for a file of a machine whose registers have numbers here, and names in the judge's output
	errs                                 []error
}

func judgeFile(path string) (v verdict) {
	img, err := module.Open(path)
	if err != nil {
		return verdict{errs: []error{err}}
	}
	defer img.Close()
	return judgeImage(path, img, func(which Which) (*judged, error) { return askJudge(path, which) })
}

// judgeImage compares the rows of an image with what ask returns.
func judgeImage(path string, img *module.Image, ask func(Which) (*judged, error)) (v verdict) {
	if img.Machine().Numbered || img.Format() == "COFF" && img.Machine() == arch.I386 { // whose relative relocations the judge does not apply
		return verdict{unnamed: 1}
	}
	f, err := Open(img)
	if err != nil {
		return verdict{errs: []error{err}}
	}
	for _, which := range []Which{EHFrame, DebugFrame} {
		if len(f.sections(which)) == 0 {
			continue
		}
		table, damage := f.Build(which)
		j, err := ask(which)
		if err != nil {
			v.errs = append(v.errs, fmt.Errorf("%s: %s: %w", path, judge, err))
			continue
		}
		damage = slices.DeleteFunc(damage, func(d Damage) bool {
			if !strings.HasSuffix(d.Error(), "the CFA is no register and offset") {
				return false
			}
			v.damaged++
			j.damaged--
			j.lost = append(j.lost, uint64(d.PC))
			return true
		})
		if j.damaged != 0 {
			v.errs = append(v.errs, fmt.Errorf("%s: the judge has %+d entries more that change the offset of an expression", path, j.damaged))
		}
		for _, d := range damage[:min(5, len(damage))] {
			v.errs = append(v.errs, fmt.Errorf("%s: %w", path, d))
		}
		if !img.Linked() {
			v.errs = append(v.errs, j.place(img, f, which)...)
		}
		rows, ds := j.compare(table, 5)
		for _, d := range ds {
			v.errs = append(v.errs, fmt.Errorf("%s: rows of [%#x, %#x)\n got %s\nwant %s", path, d.lo, d.hi, d.got, d.want))
		}
		v.rows += rows
		for _, r := range table.Rows {
			if signs := &table.Sets[r.Set]; signs.Flags&rowsSigned != 0 {
				v.signed++
			}
		}
		v.noOffset += j.noOffset
		if j.cut {
			v.cut++
		}
	}
	return v
}

// TestJudgeCorpus compares every row of binaries of this machine with the judge's: of 250 that are spread evenly
// over what it has, those that the judge reads in seconds; of all of them with UNSPOOL_CORPUS=all.
func TestJudgeCorpus(t *testing.T) {
	oracle.Long(t)
	oracle.Need(t, judge)
	paths := oracle.Binaries(t)
	if os.Getenv("UNSPOOL_CORPUS") != "all" {
		paths = slices.DeleteFunc(paths, func(p string) bool {
			st, err := os.Stat(p)
			return err != nil || st.Size() > 1<<20
		})
		if len(paths) < 200 {
			oracle.Lacks(t, "200 binaries")
		}
		paths = oracle.Spread(paths, 250)
	}
	var next, rows, signed, with, noOffset, cut, damaged, unnamed atomic.Int64
	var wg sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for i := int(next.Add(1)) - 1; i < len(paths); i = int(next.Add(1)) - 1 {
				v := judgeFile(paths[i])
				for _, err := range v.errs {
					t.Error(err)
				}
				rows.Add(int64(v.rows))
				signed.Add(int64(v.signed))
				noOffset.Add(int64(v.noOffset))
				cut.Add(int64(v.cut))
				damaged.Add(int64(v.damaged))
				unnamed.Add(int64(v.unnamed))
				if v.rows > 0 {
					with.Add(1)
				}
			}
		})
	}
	wg.Wait()
	t.Logf("%d rows, %d of them signed, of %d files, of %d looked at; permitted: %d rows without the offset behind an expression, %d sections cut short, %d entries damaged for both; %d files of machines whose registers have names for the judge only, or whose relocations it does not apply",
		rows.Load(), signed.Load(), with.Load(), len(paths), noOffset.Load(), cut.Load(), damaged.Load(), unnamed.Load())
	if with.Load() == 0 {
		t.Errorf("none of %d files has any rows, of %q and others", len(paths), paths[:min(3, len(paths))])
	}
}
