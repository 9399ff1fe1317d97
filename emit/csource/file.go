package csource

import (
	"bufio"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/rows"
)

// A helper is a piece of C that is written if something uses it.
type helper struct {
	name  string
	needs []string
	text  string
}

// helpers, in the order in which they are written. DONE stands for what done sets.
var helpers = []helper{
	{"get", []string{"load"}, `
/* Gives the value that a register has in this frame. */
static int get(struct unspool_state *s, const void *mem, unsigned slot, uint64_t *to)
{
	const uint64_t v = s->val[slot];

	*to = 0;
	if (!(s->known >> slot & 1))
		return LOST;
	if (s->in_mem >> slot & 1)
		return load(s, mem, v, to);
	*to = s->in_reg >> slot & 1 ? s->snap[v & 63] : v;
	return OK;
}
`}, {"place", nil, `
/* Where a register's value is: known, in_mem, in_reg, and val. */
struct place {
	unsigned known, in_mem, in_reg;
	uint64_t val;
};

static struct place place(const struct unspool_state *s, unsigned slot)
{
	const struct place p = {s->known >> slot & 1, s->in_mem >> slot & 1, s->in_reg >> slot & 1, s->val[slot]};

	return p;
}
`}, {"put", []string{"place"}, `
static void put(struct unspool_state *s, unsigned slot, struct place p)
{
	const uint64_t bit = BIT(slot);

	s->known = (s->known & ~bit) | (p.known ? bit : 0);
	s->in_mem = (s->in_mem & ~bit) | (p.in_mem ? bit : 0);
	s->in_reg = (s->in_reg & ~bit) | (p.in_reg ? bit : 0);
	s->val[slot] = p.val;
}
`}, {"finish", nil, `
/*
 * Makes s the caller's. Registers in keep stay where they are; those in mem are in memory, at s->val; the value of
 * those in val is s->val; all others are lost.
 */
static int finish(struct unspool_state *s, uint64_t cfa, uint64_t ra, uint64_t keep, uint64_t mem, uint64_t val)
{
	keep &= ~(mem | val);
	s->known = (s->known & keep) | mem | val;
	s->in_mem = (s->in_mem & keep) | mem;
	s->in_reg &= keep;
	s->pc = ra;
	s->cfa = cfa;
	return OK;
}
`}, {"done", []string{"finish"}, `
/* The same, where the stack pointer is the CFA, as nearly always. */
static int done(struct unspool_state *s, uint64_t cfa, uint64_t ra, uint64_t keep, uint64_t mem, uint64_t val)
{
DONE	return finish(s, cfa, ra, keep, mem, val);
}
`}, {"shl", nil, `
static uint64_t shl(uint64_t x, uint64_t by)
{
	return by < 64 ? x << by : 0;
}
`}, {"shr", nil, `
static uint64_t shr(uint64_t x, uint64_t by)
{
	return by < 64 ? x >> by : 0;
}
`}, {"shra", []string{"shr"}, `
static uint64_t shra(uint64_t x, uint64_t by)
{
	return x >> 63 ? ~shr(~x, by) : shr(x, by);
}
`}, {"divide", nil, `
/* Divides signed numbers; the one quotient that overflows wraps. */
static int divide(uint64_t x, uint64_t by, uint64_t *to)
{
	if (by == 0)
		return BAD_EXPR;
	*to = by + 1 == 0 ? 0 - x : (uint64_t)((int64_t)x / (int64_t)by);
	return OK;
}
`}, {"modulo", nil, `
static int modulo(uint64_t x, uint64_t by, uint64_t *to)
{
	if (by == 0)
		return BAD_EXPR;
	*to = x % by;
	return OK;
}
`},
}

// memory are the helpers that read memory, by Deref.
var memory = [numDerefs][]helper{
	Self: {
		{"opaque", nil, `
/* Gives x, and keeps the compiler from knowing that it is a constant. */
static uint64_t opaque(uint64_t x)
{
	const volatile uint64_t y = x;

	return y;
}
`}, {"load", nil, `
/* Reads eight bytes of the own memory. */
static int load(struct unspool_state *s, const void *mem, uint64_t addr, uint64_t *to)
{
	(void)s, (void)mem;
	memcpy(to, (const void *)(uintptr_t)addr, 8);
	return OK;
}
`}, {"load_size", nil, `
/* Reads n bytes, 1 to 8, of the own memory. */
static int load_size(struct unspool_state *s, const void *mem, uint64_t addr, unsigned n, uint64_t *to)
{
	const unsigned char *p = (const unsigned char *)(uintptr_t)addr;
	uint64_t x = 0;

	(void)s, (void)mem;
	while (n-- > 0)
		x = x << 8 | p[n];
	*to = x;
	return OK;
}
`},
	},
	Callback: {
		{"read8", nil, `
/* Reads eight bytes; 0: there are none. */
static int read8(const void *mem, uint64_t addr, uint64_t *to)
{
	const struct unspool_reader *r = mem;

	return r->read8(r->ctx, addr, to);
}
`}, loadByRead8, loadSizeByRead8,
	},
	Slice: {
		{"read8", nil, `
/* Reads eight bytes; 0: there are none. */
static int read8(const void *mem, uint64_t addr, uint64_t *to)
{
	const struct unspool_slice *m = mem;
	const uint64_t off = addr - m->lo;
	uint64_t i;

	if (off < m->size && m->size - off >= 8) {
		uint64_t x = 0;

		for (i = 8; i-- > 0;)
			x = x << 8 | m->bytes[off + i];
		*to = x;
		return 1;
	}
	for (i = 0; i < m->n_words; i++)
		if (m->words[i].addr == addr) {
			*to = m->words[i].value;
			return m->words[i].ok != 0;
		}
	return 0;
}
`}, loadByRead8, loadSizeByRead8,
	},
}

var loadByRead8 = helper{"load", []string{"read8"}, `
static int load(struct unspool_state *s, const void *mem, uint64_t addr, uint64_t *to)
{
	if (read8(mem, addr, to))
		return OK;
	*to = 0;
	s->fault = addr;
	return UNREADABLE;
}
`}

var loadSizeByRead8 = helper{"load_size", []string{"read8"}, `
/* Reads n bytes, 1 to 8. Where the eight at addr are not all there, those that end with the value are tried. */
static int load_size(struct unspool_state *s, const void *mem, uint64_t addr, unsigned n, uint64_t *to)
{
	const unsigned unused = 64 - 8 * n;
	uint64_t x;

	if (read8(mem, addr, &x)) {
		*to = x << unused >> unused;
		return OK;
	}
	if (n < 8 && read8(mem, addr - (8 - n), &x)) {
		*to = x >> unused;
		return OK;
	}
	*to = 0;
	s->fault = addr;
	return UNREADABLE;
}
`}

const types = `
#ifndef UNSPOOL_STATE_DEFINED
#define UNSPOOL_STATE_DEFINED
/* A frame's registers, by slot: bit n of a set is slot n. */
struct unspool_state {
	uint64_t pc;     /* of this frame; after a step, the return address */
	uint64_t cfa;    /* of the frame that was stepped out of */
	uint64_t known;  /* the registers that are not lost */
	uint64_t in_mem; /* those at address val[] */
	uint64_t in_reg; /* those in the snapshot's register val[]; the value of all others is val[] */
	uint64_t val[64];
	uint64_t snap[64];
	uint64_t fault;  /* the address that could not be read */
};

struct unspool_reader {
	int (*read8)(void *ctx, uint64_t addr, uint64_t *value); /* 0: there is no memory */
	void *ctx;
};

struct unspool_word {
	uint64_t addr, value;
	uint64_t ok; /* zero: it is known that it cannot be read */
};

struct unspool_slice {
	uint64_t lo, size; /* of bytes, which are looked at first */
	const unsigned char *bytes;
	const struct unspool_word *words;
	uint64_t n_words;
	uint64_t more; /* of machine code only: here a word that is in neither is unreadable */
};
#endif

enum { OK, OUTERMOST, NO_RULE, LOST, UNREADABLE, BAD_EXPR, SIGNAL = 0x100 };
`

// prelude writes all that stands before the expressions.
func (g *gen) prelude(w *bufio.Writer) {
	m := g.mach
	fmt.Fprintf(w, "/*\n * Unwinds the frames of one %s module: %d rows, %d rules. Layout %s; memory: %s.\n", m.Name, len(g.t.Rows), len(g.t.Sets)-1, g.opt.Layout, g.opt.Deref)
	w.WriteString(" * Each rule says how to find the canonical frame address (cfa) and, relative to it, the caller's registers.\n */\n")
	w.WriteString("#include <stdint.h>\n")
	all := slices.Concat(memory[g.opt.Deref], helpers)
	for i := len(all) - 1; i >= 0; i-- {
		for _, n := range all[i].needs {
			g.used[n] = g.used[n] || g.used[all[i].name]
		}
	}
	if g.opt.Deref == Self && g.used["load"] {
		w.WriteString("#include <string.h>\n")
	}
	w.WriteString(types)
	if steps(m) {
		w.WriteString("\n/* The registers. */\nenum {")
		for i, n := range g.names {
			sep := ", "
			if i == 0 {
				sep = "\n\t"
			} else if i%16 == 0 {
				sep = ",\n\t"
			}
			w.WriteString(sep + n)
		}
		w.WriteString("\n};\n\n#define BIT(slot) (UINT64_C(1) << (slot))\n")
		fmt.Fprintf(w, "#define SAVED UINT64_C(%#x) /* what a call preserves */\n#define ALL UINT64_C(%#x)\n", m.SavedSlots(), ^uint64(0))
		fmt.Fprintf(w, "#define ADDRESS UINT64_C(%#x) /* what stays of a signed address */\n", uint64(arch.AddressMask))
	}
	set := ""
	if steps(m) {
		sp, _ := g.slot(m.SP)
		set = fmt.Sprintf("\ts->val[%s] = cfa;\n", sp)
		if ra, ok := g.slot(m.RA); ok && !m.RAInReg {
			set += fmt.Sprintf("\ts->val[%s] = ra;\n", ra)
		}
	}
	for _, h := range all {
		if g.used[h.name] {
			w.WriteString(strings.Replace(h.text, "DONE", set, 1))
		}
	}
	w.WriteString("\n")
}

// partRows is how many rows one C function searches, at most: optimizers need time by the square of it, and so must
// not join them.
const partRows = 1024

// tree writes the layout Tree: a function for each rule, the search, and the exported functions. Without a
// state, a rule returns its number, so that one search serves all.
func (g *gen) tree(w *bufio.Writer, bodies []code) {
	p := g.opt.Prefix
	for id := 1; id < len(bodies); id++ {
		b := &bodies[id]
		fmt.Fprintf(w, "/* %s */\nstatic int rule_%d(struct unspool_state *s, const void *mem)\n{\n", g.comment(id), id)
		if b.locals != "" {
			w.WriteString(b.locals + "\n")
		}
		if !strings.Contains(b.text, "mem") {
			w.WriteString("\t(void)mem;\n")
		}
		fmt.Fprintf(w, "\tif (!s)\n\t\treturn %d;\n%s}\n\n", id, b.text)
	}
	n := len(g.t.Rows)
	if n > partRows {
		w.WriteString("#ifdef __GNUC__\n#define APART __attribute__((noinline))\n#else\n#define APART\n#endif\n\n")
	}
	parts := g.parts(w, 0, n, nil)
	if len(parts) != 1 {
		g.searchFunction(w, "", "search", func() { g.choose(w, parts, "\t") })
	}

	fmt.Fprintf(w, "uint32_t %s_find(uint64_t pc);\nint %s_apply(struct unspool_state *s, const void *mem, uint32_t rule);\n", p, p)
	fmt.Fprintf(w, "int %s_step(struct unspool_state *s, const void *mem, uint64_t pc);\n\n", p)
	fmt.Fprintf(w, "uint32_t %s_find(uint64_t pc)\n{\n\treturn (uint32_t)search(0, 0, pc);\n}\n\n", p)
	fmt.Fprintf(w, "int %s_apply(struct unspool_state *s, const void *mem, uint32_t rule)\n{\n\t(void)s, (void)mem;\n\tswitch (rule) {\n", p)
	for id := 1; id < len(bodies); id++ {
		fmt.Fprintf(w, "\tcase %d:\n\t\treturn rule_%d(s, mem);\n", id, id)
	}
	w.WriteString("\tdefault:\n\t\treturn NO_RULE;\n\t}\n}\n\n")
	fmt.Fprintf(w, "int %s_step(struct unspool_state *s, const void *mem, uint64_t pc)\n{\n\treturn search(s, mem, pc);\n}\n", p)
}

// A part is the rows [lo, hi), which are searched by one function.
type part struct {
	lo, hi int
	name   string
}

// parts writes the functions that search rows [lo, hi).
func (g *gen) parts(w *bufio.Writer, lo, hi int, done []part) []part {
	if hi-lo > partRows {
		mid := int(uint(lo+hi) >> 1)
		return g.parts(w, mid, hi, g.parts(w, lo, mid, done))
	}
	p := part{lo, hi, fmt.Sprintf("part_%d", len(done))}
	if hi-lo == len(g.t.Rows) {
		p.name = "search"
	}
	apart := "APART "
	if hi-lo == len(g.t.Rows) {
		apart = ""
	}
	g.searchFunction(w, apart, p.name, func() {
		seen := map[rows.SetID]bool{}
		for _, r := range g.t.Rows[lo:hi] {
			seen[r.Set] = true
		}
		none := g.first(w, lo, "\t")
		if lo < hi {
			g.among(w, lo, hi, "\t")
		}
		if none || seen[rows.GapID] {
			w.WriteString("\nnone:\n\treturn s ? NO_RULE : 0;\n")
		}
		for _, id := range slices.Sorted(maps.Keys(seen)) {
			if id != rows.GapID {
				fmt.Fprintf(w, "rule_%d:\n\treturn rule_%d(s, mem);\n", id, id)
			}
		}
	})
	return append(done, p)
}

func (g *gen) searchFunction(w *bufio.Writer, apart, name string, body func()) {
	fmt.Fprintf(w, "%sstatic int %s(struct unspool_state *s, const void *mem, uint64_t pc)\n{\n\t(void)mem, (void)pc;\n", apart, name)
	body()
	w.WriteString("}\n\n")
}

// choose writes the search among parts.
func (g *gen) choose(w *bufio.Writer, parts []part, tabs string) {
	for len(parts) > 1 {
		mid := len(parts) / 2
		fmt.Fprintf(w, "%sif (pc < %#x) {\n", tabs, uint64(g.t.Rows[parts[mid].lo].Lo))
		g.choose(w, parts[:mid], tabs+"\t")
		fmt.Fprintf(w, "%s}\n", tabs)
		parts = parts[mid:]
	}
	fmt.Fprintf(w, "%sreturn %s(s, mem, pc);\n", tabs, parts[0].name)
}

// first sends what lies before all rows to none, if lo is the first row.
func (g *gen) first(w *bufio.Writer, lo int, tabs string) bool {
	switch {
	case len(g.t.Rows) == 0:
		fmt.Fprintf(w, "%sgoto none;\n", tabs)
	case lo == 0 && g.t.Rows[0].Lo > 0:
		fmt.Fprintf(w, "%sif (pc < %#x) {\n%s\tgoto none;\n%s}\n", tabs, uint64(g.t.Rows[0].Lo), tabs, tabs)
	default:
		return false
	}
	return true
}

// among writes the search among rows [lo, hi), one of which holds. The braces around a single goto save gcc from
// looking for misleading indentation, for which it reads the source again at each.
func (g *gen) among(w *bufio.Writer, lo, hi int, tabs string) {
	for hi-lo > 1 {
		mid := int(uint(lo+hi) >> 1)
		fmt.Fprintf(w, "%sif (pc < %#x) {\n", tabs, uint64(g.t.Rows[mid].Lo))
		g.among(w, lo, mid, tabs+"\t")
		fmt.Fprintf(w, "%s}\n", tabs)
		lo = mid
	}
	fmt.Fprintf(w, "%sgoto %s;\n", tabs, label(g.t.Rows[lo].Set))
}

func label(id rows.SetID) string {
	if id == rows.GapID {
		return "none"
	}
	return fmt.Sprintf("rule_%d", id)
}

// monolith writes the layout Switch.
func (g *gen) monolith(w *bufio.Writer, bodies []code) {
	p := g.opt.Prefix
	fmt.Fprintf(w, "int %s_step(struct unspool_state *s, const void *mem, uint64_t pc);\n\n", p)
	fmt.Fprintf(w, "int %s_step(struct unspool_state *s, const void *mem, uint64_t pc)\n{\n", p)
	w.WriteString("\t(void)s, (void)mem;\n\tswitch (pc) {\n")
	inner := make([]string, len(bodies))
	for i, r := range g.t.Rows {
		if r.Set == rows.GapID {
			continue
		}
		last := ^arch.Vaddr(0)
		if i+1 < len(g.t.Rows) {
			last = g.t.Rows[i+1].Lo - 1
		}
		if inner[r.Set] == "" {
			b := &bodies[r.Set]
			inner[r.Set] = fmt.Sprintf(" { /* %s */\n%s\t}\n", g.comment(int(r.Set)), indent(b.locals+b.text))
		}
		fmt.Fprintf(w, "\tcase %#x ... %#x:%s", uint64(r.Lo), uint64(last), inner[r.Set])
	}
	w.WriteString("\tdefault:\n\t\treturn NO_RULE;\n\t}\n}\n")
}

// indent sets statements in by one tab more.
func indent(s string) string {
	lines := strings.SplitAfter(s, "\n")
	for i, l := range lines {
		if strings.TrimSpace(l) != "" {
			lines[i] = "\t" + l
		}
	}
	return strings.Join(lines, "")
}

// steps says whether code for a machine steps: its words are the reader's own.
func steps(m *arch.Machine) bool { return m.StepKnown && m.Plain() }
