package lab

import (
	"cmp"
	"fmt"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/emit/compact"
	"github.com/unspool/unspool/emit/native"
	"github.com/unspool/unspool/emit/orc"
	"github.com/unspool/unspool/emit/sframe"
	"github.com/unspool/unspool/format/dwarf"
	readsframe "github.com/unspool/unspool/format/sframe"
	"github.com/unspool/unspool/module"
	"github.com/unspool/unspool/rows"
)

// A rowFormat is a format of unwind information that rows are written in.
type rowFormat struct {
	name      string
	registers string // that it says how to recover
	right     string // at which program counters

	write func(t *rows.Table, bounds rows.Bounds) (emitted, error)
}

// An emitted is what the rows of a file take in a format.
type emitted struct {
	bytes   int
	says    func(p rows.Piece) bool // whether it has an answer for a piece; nil: for each
	reasons map[string]uint64       // why it has none, with bytes of code
}

const everywhere = "at each instruction"

// written are the formats that this project writes from rows of x86-64.
var written = []rowFormat{
	{"SFrame V2", "rsp, rbp, rip", everywhere, writeSFrame(2)},
	{"SFrame V3", "rsp, rbp, rip", everywhere, writeSFrame(3)},
	{"ORC", "rsp, rbp, rip", everywhere, writeORC},
	{"unspool's table", "all", everywhere, func(t *rows.Table, _ rows.Bounds) (emitted, error) {
		b, err := compact.Emit(t)
		return emitted{bytes: len(b)}, err
	}},
	{"eh_elf, page", "all", everywhere, func(t *rows.Table, _ rows.Bounds) (emitted, error) {
		b, err := native.Emit(t, native.Options{Layout: native.Page})
		return emitted{bytes: len(b)}, err
	}},
	{"frame pointers", "rsp, rbp, rip", "where code has set up a frame", func(t *rows.Table, _ rows.Bounds) (emitted, error) {
		framed := make([]bool, len(t.Sets))
		for i := range t.Sets {
			framed[i] = framePointer(&t.Sets[i], t.Machine)
		}
		return emitted{says: func(p rows.Piece) bool { return framed[p.Set] }}, nil
	}},
}

// writeSFrame writes SFrame, and reads it back to find out what it says. The reader and the writer must count the same losses.
func writeSFrame(version int) func(*rows.Table, rows.Bounds) (emitted, error) {
	return func(t *rows.Table, bounds rows.Bounds) (emitted, error) {
		s, err := sframe.Emit(t, version, t.Rows[len(t.Rows)-1].Lo+4096, bounds)
		if err != nil {
			return emitted{}, err
		}
		read, err := readsframe.New(s.Bytes, s.Addr, t.Machine)
		if err != nil {
			return emitted{}, err
		}
		got, errs := read.Rows()
		if len(errs) > 0 {
			return emitted{}, errs[0]
		}
		says := func(p rows.Piece) bool { return !got.At(p.Lo).Gap() }
		var left, want uint64
		reasons := map[string]uint64{}
		for _, l := range s.Left {
			want += l.Bytes
			reasons[l.Reason] += l.Bytes
		}
		for p := range t.Pieces(bounds) {
			if !says(p) {
				left += uint64(p.Hi - p.Lo)
			}
		}
		if left != want {
			return emitted{}, fmt.Errorf("SFrame V%d says nothing of %d bytes of code; its writer counts %d", version, left, want)
		}
		return emitted{len(s.Bytes), says, reasons}, nil
	}
}

// writeORC writes the layout of Linux 6.4 and later: 6 bytes an entry, and 4 for its address.
func writeORC(t *rows.Table, _ rows.Bounds) (emitted, error) {
	o, err := orc.Emit(t, orc.Version{Major: 6, Minor: 4})
	if err != nil {
		return emitted{}, err
	}
	refused := slices.Clone(o.Refused)
	slices.SortFunc(refused, func(a, b orc.Refusal) int { return cmp.Compare(a.Lo, b.Lo) })
	says := func(p rows.Piece) bool {
		i, found := slices.BinarySearchFunc(refused, p.Lo, func(r orc.Refusal, pc arch.Vaddr) int { return cmp.Compare(r.Lo, pc) })
		return !found && (i == 0 || p.Lo >= refused[i-1].Hi)
	}
	reasons := map[string]uint64{}
	for _, r := range refused {
		reasons[kindOf(r.Reason)] += uint64(r.Hi - r.Lo)
	}
	return emitted{len(o.Entries) + 4*len(o.Addrs), says, reasons}, nil
}

var otherRegister = regexp.MustCompile(`^the CFA is r\w+[+-]`)

// kindOf returns what refusals for ORC have in common, in the words of those for SFrame.
func kindOf(reason string) string {
	switch {
	case strings.HasPrefix(reason, "the CFA is at offset "):
		return "an offset of more than 16 bits"
	case strings.HasPrefix(reason, "the CFA is DW_OP_"):
		return "an expression"
	case otherRegister.MatchString(reason):
		return "a CFA by another register"
	}
	return reason
}

// framePointer says whether frame pointers alone lead to the caller.
func framePointer(s *rows.Set, m *arch.Machine) bool {
	fp, ok := s.Rule(m.FP)
	return s.CFA == rows.CFA{Kind: rows.CFAReg, Reg: m.FP, Off: 16} && ok && fp.Kind == rows.Offset && fp.Off == -16
}

// A said is what a format takes for files, and what it has no answer for.
type said struct {
	bytes   int
	left    counts
	reasons map[string]uint64
}

// counts are of code that has rows.
type counts struct {
	code            uint64 // bytes
	rows, functions int
}

func (c *counts) add(z counts) {
	c.code += z.code
	c.rows += z.rows
	c.functions += z.functions
}

// A compared is what one file, or many, take in each format.
type compared struct {
	name     string
	files    int
	all      counts
	standard int // .eh_frame and .eh_frame_hdr
	forms    []said
}

func (c *compared) add(z *compared) {
	c.files += z.files
	c.all.add(z.all)
	c.standard += z.standard
	for i, f := range z.forms {
		if i == len(c.forms) {
			c.forms = append(c.forms, said{reasons: map[string]uint64{}})
		}
		c.forms[i].bytes += f.bytes
		c.forms[i].left.add(f.left)
		for reason, n := range f.reasons {
			c.forms[i].reasons[reason] += n
		}
	}
}

// missing counts what a table has, and of that what a format says nothing of.
func missing(t *rows.Table, bounds rows.Bounds, says func(rows.Piece) bool) (all, left counts) {
	counted := false // this function, in left
	for p := range t.Pieces(bounds) {
		n := counts{code: uint64(p.Hi - p.Lo)}
		if p.First {
			n.rows = 1
		}
		if p.Begins {
			all.functions++
			counted = false
		}
		all.add(n)
		if says != nil && !says(p) {
			left.add(n)
			if !counted {
				left.functions++
			}
			counted = true
		}
	}
	return all, left
}

// compareRows writes rows in each format.
func compareRows(t *rows.Table, bounds rows.Bounds) (*compared, error) {
	z := &compared{files: 1}
	for _, f := range written {
		e, err := f.write(t, bounds)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", f.name, err)
		}
		var left counts
		z.all, left = missing(t, bounds, e.says)
		z.forms = append(z.forms, said{e.bytes, left, e.reasons})
	}
	return z, nil
}

// bounded returns the bounds of the functions that one kind of DWARF describes.
func bounded(f *dwarf.Frames, which dwarf.Which) rows.Bounds {
	return func(pc arch.Vaddr) (arch.Vaddr, arch.Vaddr, bool) { return f.Bounds(which, pc) }
}

// compareFile writes the rows of a file's .eh_frame in each format. It returns nil as readFile does.
func compareFile(path string) (*compared, error) {
	img, err := module.Open(path)
	if err != nil {
		return nil, err
	}
	defer img.Close()
	f, err := dwarf.Open(img)
	if err != nil || img.Machine() != arch.AMD64 {
		return nil, err
	}
	t, _ := f.Build(dwarf.EHFrame)
	if len(t.Rows) == 0 {
		return nil, nil
	}
	z, err := compareRows(t, bounded(f, dwarf.EHFrame))
	if err != nil {
		return nil, err
	}
	of := f.Sizes()
	z.name, z.standard = filepath.Base(path), int(of.EHFrame+of.EHFrameHdr)
	return z, nil
}

// portion is a share of something, "none" for 0: a document must not show zeros that nobody measured.
func portion[T int | uint64](n, of T) string {
	if n == 0 {
		return "none"
	}
	if p := 100 * float64(n) / float64(of); p < 0.0095 {
		return "< 0.01 %"
	} else {
		return fmt.Sprintf("%.2f %%", p)
	}
}

// meanings says what each format means; sizes alone mislead.
var meanings = [][]string{
	{"format", "for", "says how to recover", "right", "how it is found", "does not say"},
	{"`.eh_frame` with `.eh_frame_hdr`", "ELF", "all registers", everywhere + ", by default on x86-64", "binary search in `.eh_frame_hdr`, then a program runs", ""},
	{"SFrame V2, V3", "ELF, x86-64, AArch64, s390x", "CFA, return address, frame pointer", everywhere, "binary search, then a search through the function's rows", "other saved registers, exception tables; V2: a CFA by other registers"},
	{"ORC", "Linux's own code, x86-64, LoongArch", "stack pointer, frame pointer, return address", everywhere, "a table of blocks of 256 bytes made at boot, binary search", "other saved registers, exception tables, offsets above 16 bits"},
	{"compact unwind", "Mach-O", "all saved registers", "at calls", "binary search in two levels", "prologues, epilogues; what no encoding can say is left to DWARF"},
	{"`.pdata` with `.xdata`", "PE, x86-64", "all saved registers", everywhere + "; the reader recognises epilogues by their code", "binary search, then codes of the prologue", "what Windows' convention forbids"},
	{"EHABI: `.ARM.exidx`, `.ARM.extab`", "ELF, 32-bit Arm", "all saved registers", "at calls", "binary search, then opcodes", "prologues, epilogues"},
	{"pclntab", "Go", "stack pointer, return address", everywhere, "a table of blocks of 4 KiB, a search, then steps through the function's deltas", "frames of C"},
	{"frame pointers", "any", "stack pointer, frame pointer, return address", "between prologue and epilogue of code compiled so", "two loads", "where a function is; other saved registers"},
	{"unspool's table", "made from each table above", "all registers", everywhere + ", as far as its source is", "an array index, then a search in 256 bytes of code", "exception tables; it stands beside the file"},
	{"eh_elf, page", "made from tables that are right " + everywhere, "all registers", everywhere + ", as far as its source is", "the same, in machine code", "the same"},
}

// formats compares all formats on the same code.
func (ev *evaluation) formats(t testing.TB) string {
	var b strings.Builder
	say := func(format string, args ...any) { fmt.Fprintf(&b, format, args...) }
	say("Published sizes of unwind formats come from different programs, compilers and machines. In each table below, all formats describe one set of code. A size means little without what the format says:\n\n%s\n", markdown(meanings))
	say("All sizes are in bytes. Exception tables (`.gcc_except_table`, LSDA) count for no format.\n\n### The machine's files\n\n" +
		"This project's writers make each format from the rows of a file's `.eh_frame`, so the machine code is the same in all columns. × is relative to `.eh_frame` with `.eh_frame_hdr`. " +
		"The tests of `emit/sframe`, `format/sframe` and `format/orc` judge the writers by binutils, elfutils and the kernel's objtool. ORC has the layout of Linux 6.4 and later: 6 bytes for an entry, and 4 for its address. " +
		"*frame pointers* has no table: its line says where frame pointers alone do not lead to the caller, in code that was mostly compiled without them. " +
		"*code* is the code that `.eh_frame` describes.\n\n")

	var list []*compared
	for _, path := range append(reportSet(), ev.largeSet()...) {
		z, err := compareFile(path)
		if z == nil || err != nil {
			ev.lacks(t, "%q, which is compared: %v", path, err)
			continue
		}
		list = append(list, z)
	}
	all := &compared{}
	var mu sync.Mutex
	eachFile(t, ev.paths, func(path string) error {
		z, err := compareFile(path)
		if z != nil {
			mu.Lock()
			defer mu.Unlock()
			all.add(z)
		}
		return err
	})
	if all.files == 0 {
		t.Errorf("none of %d files has .eh_frame: %.500q", len(ev.paths), fmt.Sprint(ev.paths))
		return ""
	}
	all.name = fmt.Sprintf("all %d files", all.files)

	head := []string{"file", "code", "`.eh_frame` + hdr"}
	for _, f := range written[:len(written)-1] {
		head = append(head, f.name)
	}
	byFile := [][]string{head}
	for _, z := range append(list, all) {
		line := []string{z.name, fmt.Sprint(z.all.code), fmt.Sprint(z.standard)}
		for _, f := range z.forms[:len(written)-1] {
			line = append(line, fmt.Sprintf("%d (%s ×)", f.bytes, times(f.bytes, z.standard)))
		}
		byFile = append(byFile, line)
	}
	say("%s\nBy format, of all %d files, with %d functions:\n\n%s\n", markdown(byFile), all.files, all.all.functions, markdown(all.byForm("`.eh_frame` + hdr")))
	if reasons := all.byReason(); len(reasons) > 1 {
		say("Why there is no answer:\n\n%s\n", markdown(reasons))
	}
	say("[DWARF's own data, outlined](#dwarfs-own-data-outlined) has `.eh_frame` in shorter forms, and compressed.\n\n")
	ev.compiled(t, say)
	return b.String()
}

// byForm has a line for each format that rows were written in.
func (c *compared) byForm(standard string) [][]string {
	cells := [][]string{{"format", "bytes", "×", "registers", "right", "code without an answer", "rows without an answer", "functions with such rows"},
		{standard, fmt.Sprint(c.standard), "1.00", "all", everywhere, "none", "none", "none"}}
	for i, f := range written {
		x := c.forms[i]
		n, ratio := fmt.Sprint(x.bytes), times(x.bytes, c.standard)
		if x.bytes == 0 {
			n, ratio = "", ""
		}
		cells = append(cells, []string{f.name, n, ratio, f.registers, f.right, portion(x.left.code, c.all.code), portion(x.left.rows, c.all.rows), portion(x.left.functions, c.all.functions)})
	}
	return cells
}

// byReason has a line for each reason why formats have no answer.
func (c *compared) byReason() [][]string {
	cells := [][]string{{"format", "reason", "bytes of code", "of all code"}}
	for i, f := range written {
		reasons := c.forms[i].reasons
		list := slices.SortedFunc(maps.Keys(reasons), func(a, b string) int { return cmp.Or(cmp.Compare(reasons[b], reasons[a]), cmp.Compare(a, b)) })
		for _, r := range list {
			cells = append(cells, []string{f.name, r, fmt.Sprint(reasons[r]), portion(reasons[r], c.all.code)})
		}
	}
	return cells
}
