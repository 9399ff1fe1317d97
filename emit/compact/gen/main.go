// Command gen writes files for other languages and for people. From the constants of layout.go and from rows, it writes the compact table's
// layout: the C header runtime/unspool_table.h, and the tables of docs/TABLE.md. From arch, it writes the machines' facts for the walkers
// in C: runtime/machine.h, and a part of runtime/eh_elf.h. So nothing is written down twice. go generate runs it, in emit/compact.
package main

import (
	"bytes"
	_ "embed"
	"fmt"
	"go/ast"
	"go/constant"
	"go/parser"
	"go/token"
	"go/types"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"unicode"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/rows"
)

//go:embed unspool_table.h.in
var headerIn string

// Paths, from the repository's root.
const (
	layoutPath = "emit/compact/layout.go"
	headerPath = "runtime/unspool_table.h"
	plainPath  = "runtime/plain.h"
	docPath    = "docs/TABLE.md"
)

func main() {
	root := "../.."
	out, err := generate(root)
	if err == nil {
		for path, text := range out {
			if err = os.WriteFile(filepath.Join(root, path), text, 0o644); err != nil {
				break
			}
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "gen:", err)
		os.Exit(1)
	}
}

// generate returns the contents of the generated files, by path.
func generate(root string) (map[string][]byte, error) {
	src, err := os.ReadFile(filepath.Join(root, layoutPath))
	if err != nil {
		return nil, err
	}
	l, err := parse(src)
	if err != nil {
		return nil, err
	}
	doc, err := os.ReadFile(filepath.Join(root, docPath))
	if err != nil {
		return nil, err
	}
	text, err := l.document(string(doc))
	if err != nil {
		return nil, err
	}
	header, err := l.header()
	if err != nil {
		return nil, err
	}
	plain, err := os.ReadFile(filepath.Join(root, plainPath))
	if err != nil {
		return nil, err
	}
	_, plain, ok := bytes.Cut(plain, []byte(" */\n\n")) // what is behind its comment
	if !ok {
		return nil, fmt.Errorf("%s: no comment", plainPath)
	}
	header = bytes.Replace(header, []byte("@PLAIN@\n"), plain, 1)
	machines, err := machineHeader(root)
	if err != nil {
		return nil, err
	}
	ehELF, err := os.ReadFile(filepath.Join(root, ehELFPath))
	if err != nil {
		return nil, err
	}
	if ehELF, err = signalBlock(ehELF); err != nil {
		return nil, err
	}
	return map[string][]byte{headerPath: header, docPath: []byte(text), machinePath: machines, ehELFPath: ehELF}, nil
}

// A layout is the constants of layout.go, in the groups in which they are declared.
type layout struct {
	groups []group
	value  map[string]constant.Value
}

type group struct {
	doc    string
	consts []constDecl
}

type constDecl struct {
	name, comment string
	value         constant.Value
}

func parse(src []byte) (*layout, error) {
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, layoutPath, src, parser.ParseComments)
	if err != nil {
		return nil, err
	}
	info := types.Info{Defs: map[*ast.Ident]types.Object{}}
	if _, err := (&types.Config{}).Check("compact", fset, []*ast.File{f}, &info); err != nil {
		return nil, err
	}
	l := &layout{value: map[string]constant.Value{}}
	for _, d := range f.Decls {
		g, ok := d.(*ast.GenDecl)
		if !ok || g.Tok != token.CONST {
			continue
		}
		gr := group{doc: strings.TrimSpace(g.Doc.Text())}
		for _, s := range g.Specs {
			v := s.(*ast.ValueSpec)
			for _, n := range v.Names {
				c := constDecl{n.Name, strings.TrimSpace(v.Comment.Text()), info.Defs[n].(*types.Const).Val()}
				l.value[c.name] = c.value
				gr.consts = append(gr.consts, c)
			}
		}
		l.groups = append(l.groups, gr)
	}
	return l, nil
}

func (l *layout) int(name string) int64 {
	v, ok := constant.Int64Val(constant.ToInt(l.value[name]))
	if !ok {
		panic("BUG: no constant " + name)
	}
	return v
}

// A record is a structure of fixed size, whose fields are the constants that start with prefix.
type record struct {
	prefix, size string // the constant with its size
	c, title     string // what C and the document call it
}

var records = []record{
	{"hdr", "headerSize", "unspool_table_header", "header"},
	{"span", "spanSize", "unspool_table_span", "span"},
	{"rule", "ruleHead", "unspool_table_rule", "rule"},
	{"packed", "packedSize", "unspool_table_packed", "packed"},
	{"wide", "wideHead", "unspool_table_wide", "wide"},
	{"wrule", "wruleSize", "unspool_table_wide_rule", "wide rule"},
	{"origin", "originSize", "unspool_table_origin", "origin"},
	{"fhdr", "fhdrSize", "unspool_functions_header", "functions"},
	{"handler", "handlerSize", "unspool_functions_handler", "handler"},
	{"range", "rangeSize", "unspool_functions_range", "range"},
}

// A field is one member of a record.
type field struct {
	name, typ, text string
	off             int64
	size, count     int64
}

var typeSize = map[string]int64{"u8": 1, "i8": 1, "u16": 2, "i16": 2, "u32": 4, "u64": 8, "i32": 4, "i64": 8}

// fields returns a record's fields. Their types are what their comments start with, and must fill the
// space up to the next one, or leave some that is padding.
func (l *layout) fields(r record) ([]field, error) {
	var fs []field
	for _, g := range l.groups {
		for _, c := range g.consts {
			rest, ok := strings.CutPrefix(c.name, r.prefix)
			if !ok || c.name == r.size || !unicode.IsUpper(rune(rest[0])) {
				continue
			}
			typ, text, ok := strings.Cut(c.comment, ": ")
			f := field{name: rest, typ: typ, text: text, off: l.int(c.name), count: 1}
			if base, n, isArray := strings.Cut(typ, "["); isArray {
				f.typ = base
				fmt.Sscanf(n, "%d", &f.count)
			}
			if f.size = typeSize[f.typ]; !ok || f.size == 0 || f.count == 0 {
				return nil, fmt.Errorf("%s: %s has no type: %q", layoutPath, c.name, c.comment)
			}
			if n := len(fs); n > 0 && f.off < fs[n-1].off+fs[n-1].size*fs[n-1].count {
				return nil, fmt.Errorf("%s: %s at %d overlaps %s", layoutPath, c.name, f.off, fs[n-1].name)
			}
			if f.off%f.size != 0 {
				return nil, fmt.Errorf("%s: %s at %d is not aligned", layoutPath, c.name, f.off)
			}
			fs = append(fs, f)
		}
	}
	if n := len(fs); n == 0 || fs[n-1].off+fs[n-1].size*fs[n-1].count > l.int(r.size) {
		return nil, fmt.Errorf("%s: %s is smaller than its fields", layoutPath, r.size)
	}
	return fs, nil
}

// snake spells a Go name in C's way: CFAKind is cfa_kind.
func snake(s string) string {
	var b strings.Builder
	rs := []rune(s)
	for i, r := range rs {
		if i > 0 && unicode.IsUpper(r) && (unicode.IsLower(rs[i-1]) || i+1 < len(rs) && unicode.IsLower(rs[i+1])) {
			b.WriteByte('_')
		}
		b.WriteRune(unicode.ToLower(r))
	}
	return b.String()
}

var cType = map[string]string{"u8": "uint8_t", "i8": "int8_t", "u16": "uint16_t", "i16": "int16_t", "u32": "uint32_t", "u64": "uint64_t", "i32": "int32_t", "i64": "int64_t"}

// mention spells the constants that a comment names as sp does.
func (l *layout) mention(text string, sp func(string) string) string {
	return word.ReplaceAllStringFunc(text, func(w string) string {
		if _, ok := l.value[w]; ok && w != strings.ToLower(w) {
			return sp(w)
		}
		return w
	})
}

var word = regexp.MustCompile(`[A-Za-z][A-Za-z0-9]*`)

// upper is a constant's name in C.
func (l *layout) upper(name string) string {
	if l.isField(name) {
		return "UNSPOOL_OFF_" + strings.ToUpper(snake(name))
	}
	return "UNSPOOL_" + strings.ToUpper(snake(name))
}

// header returns the C header.
func (l *layout) header() ([]byte, error) {
	var b bytes.Buffer
	fmt.Fprintf(&b, "#define UNSPOOL_TABLE_MAGIC 0x%08x /* %s, as a little-endian number */\n", magic(l), l.value["Magic"])
	fmt.Fprintf(&b, "#define UNSPOOL_TABLE_VERSION %d\n", l.int("Version"))
	for _, g := range l.groups {
		plain := g.consts[:0:0]
		for _, c := range g.consts {
			isSize := slices.ContainsFunc(records, func(r record) bool { return c.name == r.size })
			if c.value.Kind() == constant.Int && !l.isField(c.name) && !isSize && c.name != "Version" {
				plain = append(plain, c)
			}
		}
		if len(plain) == 0 {
			continue
		}
		fmt.Fprintf(&b, "\nenum {\n")
		for _, c := range plain {
			text := ""
			if c.comment != "" {
				text = " /* " + l.mention(c.comment, l.upper) + " */"
			}
			fmt.Fprintf(&b, "\tUNSPOOL_%s = %s,%s\n", strings.ToUpper(snake(c.name)), c.value, text)
		}
		fmt.Fprintf(&b, "};\n")
	}
	for _, e := range enums {
		var names []string
		for i, n := range e.names {
			if n == "" {
				continue
			}
			v := i
			if e.bits {
				v = 1 << i
			}
			names = append(names, fmt.Sprintf("UNSPOOL_%s = %d", n, v))
		}
		enumerate(&b, e.doc, names)
	}
	var asserts bytes.Buffer
	for _, r := range records {
		fs, err := l.fields(r)
		if err != nil {
			return nil, err
		}
		fmt.Fprintf(&b, "\nstruct %s {\n", r.c)
		fmt.Fprintf(&asserts, "_Static_assert(sizeof(struct %s) == %d", r.c, l.int(r.size))
		at := int64(0)
		pad := func(to int64) {
			if to > at {
				fmt.Fprintf(&b, "\tuint8_t pad%d[%d];\n", at, to-at)
			}
		}
		for i, f := range fs {
			pad(f.off)
			array := ""
			if f.count > 1 {
				array = fmt.Sprintf("[%d]", f.count)
			}
			fmt.Fprintf(&b, "\t%s %s%s; /* %s */\n", cType[f.typ], snake(f.name), array, l.mention(f.text, l.upper))
			at = f.off + f.size*f.count
			between := " "
			if i%3 == 0 {
				between = "\n\t"
			}
			fmt.Fprintf(&asserts, " &&%soffsetof(struct %s, %s) == %d", between, r.c, snake(f.name), f.off)
		}
		pad(l.int(r.size))
		fmt.Fprintf(&b, "};\n")
		names := []string{fmt.Sprintf("UNSPOOL_%s = %d", strings.ToUpper(snake(r.size)), l.int(r.size))}
		for _, f := range fs {
			names = append(names, fmt.Sprintf("UNSPOOL_OFF_%s = %d", strings.ToUpper(snake(r.prefix+f.name)), f.off))
		}
		enumerate(&b, "its size and offsets", names)
		fmt.Fprintf(&asserts, ", \"layout\");\n")
	}
	fmt.Fprintf(&b, "\nenum { UNSPOOL_NUM_SLOTS = %d };\n#define UNSPOOL_ADDRESS %#xull /* what is an address in a signed one */\n", arch.NumSlots, uint64(arch.AddressMask))
	for _, m := range arch.Machines() {
		up := strings.ToUpper(m.Name)
		enumerate(&b, m.Name+": e_machine, slots", []string{fmt.Sprintf("UNSPOOL_%s = %d", up, m.ELF),
			fmt.Sprintf("UNSPOOL_%s_SP = %d", up, m.Slot(m.SP)), fmt.Sprintf("UNSPOOL_%s_RA = %d", up, m.Slot(m.RA))})
		fmt.Fprintf(&b, "#define UNSPOOL_%s_SAVED 0x%xull /* the slots that a call preserves */\n", up, m.SavedSlots())
	}
	fmt.Fprintf(&b, "\n#if defined(__STDC_VERSION__) && __STDC_VERSION__ >= 201112L && !defined(__bpf__)\n#include <stddef.h>\n%s#endif\n", &asserts)
	return []byte(strings.Replace(headerIn, "@LAYOUT@\n", b.String(), 1)), nil
}

// enumerate writes a C enumeration whose members need no comments, as many as fit a line.
func enumerate(b *bytes.Buffer, doc string, members []string) {
	fmt.Fprintf(b, "\nenum { /* %s */", doc)
	room := 0
	for _, m := range members {
		if room -= len(m) + 2; room < 0 {
			b.WriteString("\n\t")
			room = 130 - len(m)
		} else {
			b.WriteByte(' ')
		}
		b.WriteString(m + ",")
	}
	b.WriteString("\n};\n")
}

func magic(l *layout) uint32 {
	m := constant.StringVal(l.value["Magic"])
	return uint32(m[0]) | uint32(m[1])<<8 | uint32(m[2])<<16 | uint32(m[3])<<24
}

func (l *layout) isField(name string) bool {
	for _, r := range records {
		rest, ok := strings.CutPrefix(name, r.prefix)
		if ok && name != r.size && unicode.IsUpper(rune(rest[0])) {
			return true
		}
	}
	return false
}

// An enum is numbers of package rows, named for C. An empty name is left out.
type enum struct {
	title, doc string
	bits       bool
	names      []string
}

var enums = []enum{
	{"Flags", "flags of a rule (rows.Flags)", true, indexed(map[int]string{
		bit(rows.Signal): "SIGNAL", bit(rows.RASigned): "RA_SIGNED", bit(rows.RASignPC): "RA_SIGN_PC",
		bit(rows.BKey): "B_KEY", bit(rows.Tagged): "TAGGED", bit(rows.SyncOnly): "SYNC_ONLY", bit(rows.Partial): "PARTIAL",
	})},
	{"CFA kinds", "how a wide finds its CFA (rows.CFAKind)", false, indexed(map[int]string{
		int(rows.CFANone): "CFA_NONE", int(rows.CFAReg): "CFA_REG", int(rows.CFARegDeref): "CFA_REG_DEREF",
		int(rows.CFAPLT): "CFA_PLT", int(rows.CFAExpr): "CFA_EXPR",
	})},
	{"Rule kinds", "how a wide's rule finds its register (rows.Kind)", false, indexed(map[int]string{
		int(rows.Undefined): "UNDEFINED", int(rows.SameValue): "SAME_VALUE", int(rows.Offset): "OFFSET",
		int(rows.ValOffset): "VAL_OFFSET", int(rows.Register): "REGISTER", int(rows.RegOffset): "REG_OFFSET",
		int(rows.RegDeref): "REG_DEREF", int(rows.Expr): "EXPR", int(rows.ValExpr): "VAL_EXPR",
	})},
	{"Origins", "what rows were made from (rows.Origin)", false, indexed(map[int]string{
		int(rows.Unknown): "FROM_UNKNOWN", int(rows.FromEHFrame): "FROM_EH_FRAME", int(rows.FromDebugFrame): "FROM_DEBUG_FRAME",
		int(rows.FromPCLNTab): "FROM_PCLNTAB", int(rows.FromSFrame): "FROM_SFRAME", int(rows.Synthesised): "SYNTHESISED",
		int(rows.FromORC): "FROM_ORC", int(rows.FromCompactUnwind): "FROM_COMPACT_UNWIND", int(rows.FromEHABI): "FROM_EHABI",
		int(rows.FromWindows): "FROM_WINDOWS", int(rows.FromMIPS): "FROM_MIPS",
	})},
	{"Outcomes", "what a step comes to (rows.Outcome)", false, indexed(map[int]string{
		int(rows.OK): "OK", int(rows.Outermost): "OUTERMOST", int(rows.NoRule): "NO_RULE",
		int(rows.LostRegister): "LOST_REGISTER", int(rows.Unreadable): "UNREADABLE", int(rows.BadExpr): "BAD_EXPR",
		int(rows.BadExpr) + 1: "IS_WIDE",
	})},
}

func bit(f rows.Flags) int {
	n := 0
	for f > 1 {
		f >>= 1
		n++
	}
	return n
}

func indexed(m map[int]string) []string {
	out := make([]string, len(m))
	for i, n := range m {
		out[i] = n
	}
	return out
}

// document returns doc with the text between "<!-- layout: NAME -->" and "<!-- end -->" made anew.
func (l *layout) document(doc string) (string, error) {
	var out strings.Builder
	for {
		before, rest, ok := strings.Cut(doc, "<!-- layout: ")
		out.WriteString(before)
		if !ok {
			return out.String(), nil
		}
		name, rest, ok := strings.Cut(rest, " -->\n")
		_, after, ok2 := strings.Cut(rest, "<!-- end -->")
		if !ok || !ok2 {
			return "", fmt.Errorf("%s: the part %q has no end", docPath, name)
		}
		text, err := l.part(name)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(&out, "<!-- layout: %s -->\n%s<!-- end -->", name, text)
		doc = after
	}
}

// code is a constant's name in the document.
func code(name string) string { return "`" + snake(name) + "`" }

// part returns a table of the document: a record's fields, or a group of constants by its first one's name.
func (l *layout) part(name string) (string, error) {
	var b strings.Builder
	for _, r := range records {
		if r.title != name {
			continue
		}
		fs, err := l.fields(r)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(&b, "| offset | type | field | |\n|---:|---|---|---|\n")
		for _, f := range fs {
			typ := f.typ
			if f.count > 1 {
				typ = fmt.Sprintf("%s[%d]", typ, f.count)
			}
			fmt.Fprintf(&b, "| %d | %s | `%s` | %s |\n", f.off, typ, snake(f.name), l.mention(f.text, code))
		}
		fmt.Fprintf(&b, "| %d | | | end |\n", l.int(r.size))
		return b.String(), nil
	}
	for _, e := range enums {
		if e.title != name {
			continue
		}
		fmt.Fprintf(&b, "| value | name |\n|---:|---|\n")
		for i, n := range e.names {
			v := i
			if e.bits {
				v = 1 << i
			}
			if n != "IS_WIDE" {
				fmt.Fprintf(&b, "| %d | `%s` |\n", v, n)
			}
		}
		return b.String(), nil
	}
	for _, g := range l.groups {
		if g.consts[0].name != name {
			continue
		}
		fmt.Fprintf(&b, "| value | name | |\n|---:|---|---|\n")
		for _, c := range g.consts {
			if l.isField(c.name) || strings.HasPrefix(c.name, "num") {
				continue
			}
			fmt.Fprintf(&b, "| %s | `%s` | %s |\n", c.value, snake(c.name), l.mention(c.comment, code))
		}
		return b.String(), nil
	}
	return "", fmt.Errorf("%s: no part %q", docPath, name)
}
