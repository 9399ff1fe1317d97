package random

import (
	"fmt"
	"math/rand/v2"
	"regexp"
	"strconv"
	"strings"
)

// head is before the functions of a program in C or C++.
const head = `#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#define NOINLINE __attribute__((noinline))
#define HIDE(x) __asm__ volatile("" : "+r"(x))
static volatile long budget, sink;
struct five { long v[5]; };
typedef long v4 __attribute__((vector_size(32)));
NOINLINE static long use(void *p, long n) { memset(p, (int)n & 15, n & 15); return ((volatile char *)p)[0]; }
NOINLINE static long jump(jmp_buf *b, long n) { if (n <= 0) longjmp(*b, 7); return jump(b, n - 1) + n; }
static void handler(int s) { char room[100]; sink += use(room, s); }
__attribute__((noreturn, noinline, cold)) static void die(long a) { exit((int)a & 1); }
`

// naked functions: registers and rows are right, where rows are written.
const nakedHead = `__attribute__((naked, noinline)) static long bare(long a) { __asm__("lea 1(%rdi),%rax\n\tret"); }
#ifdef __GCC_HAVE_DWARF2_CFI_ASM
#define CFI(x) x "\n\t"
#else
#define CFI(x)
#endif
__attribute__((naked, noinline)) static long bare2(long a) {
	__asm__("push %rbx\n\t" CFI(".cfi_adjust_cfa_offset 8") CFI(".cfi_rel_offset %rbx, 0") "mov %rdi,%rbx\n\tlea 7(%rbx,%rbx),%rax\n\tpop %rbx\n\t"
		CFI(".cfi_adjust_cfa_offset -8") CFI(".cfi_restore %rbx") "ret");
}
`

// A signature is how a function takes its arguments. Each takes a long, too, and returns one, or a structure that begins with it.
type signature struct{ prefix, params, result, call, value string }

var signatures = []struct {
	need feature
	signature
}{
	{0, signature{"", "long a", "long", "%s(%s)", ""}},
	{0, signature{"", "long a", "long", "%s(%s)", ""}},
	{manyArgs, signature{"", "long a, long b, long c, long d, long e, long f, long g, long h, long i", "long", "%s(%s, x, 1, y, 2, z, 3, y, x)", ""}},
	{structs, signature{"", "long a, struct five s", "struct five", "%s(%s, (struct five){{x, y, z, 1, 2}}).v[0]", "five"}},
	{variadic, signature{"", "long a, ...", "long", "%s(%s, 1.5, x, y, 2.5)", ""}},
	{vectors, signature{"", "long a, double b", "long", "%s(%s, (double)(x & 1023))", ""}},
	{foreign, signature{"__attribute__((ms_abi)) ", "long long a", "long", "%s(%s)", ""}},
	{manyArgs, signature{"", "long a, int b, char c, short d, long e, long f, char g[], struct five h", "long", "%s(%s, 1, 2, 3, x, y, (char *)&x, (struct five){{z}})", ""}},
}

// A generator writes a program in C or C++.
type generator struct {
	p    *plan
	sigs []int
	b    strings.Builder
}

// cSource returns the program's text in C or C++.
func (p *plan) cSource() string { return p.generate().b.String() }

// foreign says whether a function of a program in C or C++ has Microsoft's calling convention, by its name: f7, f7(long long), f7.part.0.
func (p *plan) foreign(name string) bool {
	m := regexp.MustCompile(`^f(\d+)(\W|$)`).FindStringSubmatch(name)
	if m == nil || p.kind != "c" && p.kind != "c++" {
		return false
	}
	i, _ := strconv.Atoi(m[1])
	sigs := p.generate().sigs
	return i < len(sigs) && signatures[sigs[i]].need == foreign
}

// generate writes the program.
func (p *plan) generate() *generator {
	g := &generator{p: p}
	r := rand.New(rand.NewPCG(p.seed, 2))
	fmt.Fprintf(&g.b, "/* %s */\n%s", p, head)
	if p.features.has(naked) {
		g.b.WriteString(nakedHead)
	}
	if p.kind == "c++" {
		g.b.WriteString("struct guard { long *p; NOINLINE ~guard() { HIDE(p); *p += 3; } };\n")
	}
	if p.has("-finstrument-functions") {
		g.b.WriteString("#ifdef __cplusplus\nextern \"C\" {\n#endif\n#define NOT __attribute__((no_instrument_function))\n" +
			"NOT void __cyg_profile_func_enter(void *a, void *b) { sink++; }\nNOT void __cyg_profile_func_exit(void *a, void *b) { sink--; }\n" +
			"#ifdef __cplusplus\n}\n#endif\n")
	}
	for i := range p.funcs {
		n := r.IntN(len(signatures))
		attr := ""
		if k := r.IntN(8); k < 4 {
			attr = "NOINLINE "
		} else if k == 4 && p.features.has(cold) {
			attr = "NOINLINE __attribute__((cold)) "
		}
		if !p.features.has(signatures[n].need) {
			n = 0
		}
		g.sigs = append(g.sigs, n)
		s := signatures[n]
		fmt.Fprintf(&g.b, "static %s%s%s f%d(%s);\n", attr, s.prefix, s.result, i, s.params)
	}
	if p.features.has(indirect) {
		fmt.Fprintf(&g.b, "static long (*volatile table[4])(long);\n")
	}
	for i := range p.funcs {
		g.function(i)
	}
	fmt.Fprintf(&g.b, "int main(void) {\n\tlong x = 1, y = 2, z = 3;\n\tsignal(SIGUSR1, handler);\n")
	if p.features.has(indirect) {
		k := 0
		for i := p.funcs - 1; i > 0 && k < 4; i-- {
			if g.sigs[i] < 2 {
				fmt.Fprintf(&g.b, "\ttable[%d] = f%d;\n", k, i)
				k++
			}
		}
	}
	for i := 0; i < min(p.funcs, 4); i++ {
		body := fmt.Sprintf("budget = %d; for (long i = 0; i < 8; i++) x += %s;", 120, g.call(i, "x + i"))
		if p.kind == "c++" && p.features.has(exceptions) {
			body = "try { " + body + " } catch (long e) { x += e; }"
		}
		fmt.Fprintf(&g.b, "\t%s\n", body)
	}
	fmt.Fprintf(&g.b, "\treturn (int)(x + y + z) & 63;\n}\n")
	return g
}

// call writes a call of function j.
func (g *generator) call(j int, arg string) string {
	s := fmt.Sprintf(signatures[g.sigs[j]].call, fmt.Sprintf("f%d", j), arg)
	if g.p.kind == "c++" {
		s = strings.ReplaceAll(s, "(struct five)", "five")
	}
	return s
}

// function writes function i. It calls only those behind it, itself excepted.
func (g *generator) function(i int) {
	r := rand.New(rand.NewPCG(g.p.seed, 100+uint64(i)))
	s := signatures[g.sigs[i]]
	fmt.Fprintf(&g.b, "static %s%s f%d(%s) {\n", s.prefix, s.result, i, s.params)
	result := func(v string) string {
		if s.value != "" {
			return fmt.Sprintf("{ s.v[0] = %s; return s; }", v)
		}
		return fmt.Sprintf("return %s;", v)
	}
	early := r.IntN(3)
	if early == 0 {
		fmt.Fprintf(&g.b, "\tif (a == 77) %s\n", result("a + 1"))
	}
	fmt.Fprintf(&g.b, "\tif (--budget < 0) %s\n", result("a"))
	g.b.WriteString("\tlong x = a, y = a * 3, z = a ^ 5; HIDE(y); HIDE(z);\n")
	more := g.p.features.has(pressure) && r.IntN(2) == 0
	if more {
		g.b.WriteString("\tlong u = sink, v = x + y, w = sink * x; HIDE(u); HIDE(v); HIDE(w);\n")
	}
	if strings.Contains(s.params, "...") {
		g.b.WriteString("\tva_list ap; va_start(ap, a); x += (long)va_arg(ap, double) + va_arg(ap, long); va_end(ap);\n")
	}
	for k := range 2 + r.IntN(5) {
		g.statement(rand.New(rand.NewPCG(g.p.seed, 1000+uint64(i)*64+uint64(k))), i, "\t", 2)
	}
	if r.IntN(4) == 0 && g.p.features.has(cold) {
		g.b.WriteString("\tif (__builtin_expect(sink == 0x123456789, 0)) die(x + y);\n")
	}
	if j := g.callee(r, i); r.IntN(3) == 0 && g.p.features.has(tail) && j >= 0 && s.value == "" {
		fmt.Fprintf(&g.b, "\treturn %s;\n}\n", g.call(j, "x + y"))
		return
	}
	sum := "x + y + z"
	if more {
		sum += " + u * v - w"
	}
	fmt.Fprintf(&g.b, "\t%s\n}\n", result(sum))
}

// callee chooses whom function i calls, or -1.
func (g *generator) callee(r *rand.Rand, i int) int {
	n := r.IntN(g.p.funcs)
	if i+1 >= g.p.funcs {
		return -1
	}
	return i + 1 + n%min(6, g.p.funcs-i-1)
}

// statement writes one of function i.
func (g *generator) statement(r *rand.Rand, i int, in string, depth int) {
	w := func(format string, args ...any) { fmt.Fprintf(&g.b, in+format+"\n", args...) }
	f := g.p.features
	j := g.callee(r, i)
	call := "(y ^ 9)"
	if j >= 0 {
		call = g.call(j, pick(r, []string{"x", "x + y", "z * 3", "y - 1"}))
	}
	v := pick(r, []string{"x", "y", "z"})
	n := r.IntN(100)
	inner := func() {
		if depth > 0 {
			g.statement(r, i, in+"\t", depth-1)
		}
	}
	kind := r.IntN(25)
	switch {
	case kind < 4:
		w("%s += %s;", v, call)
	case kind == 4:
		w("if (%s & %d) {", v, 1+n%7)
		inner()
		w("} else {")
		inner()
		w("}")
	case kind == 5 && f.has(loops):
		w("for (long k%d = 0; k%d < %d; k%d++) {", depth, depth, 1+n%4, depth)
		w("\tx += %s;", call)
		inner()
		w("}")
	case kind == 6 && f.has(alloca):
		w("{ char *p = (char *)__builtin_alloca(16 + (%s & 63)); x += use(p, y); %s += %s; y += p[0]; }", v, v, call)
	case kind == 7 && f.has(variable) && !g.p.has("-fsplit-stack"):
		w("{ long n = 1 + (%s & 31); char p[n]; x += use(p, n); %s += %s; y += p[0]; }", v, v, call)
	case kind == 8 && f.has(aligned):
		w("{ char p[%d] __attribute__((aligned(%d))); x += use(p, y); %s += %s; y += p[1]; }", 16+n, 32<<(n%4), v, call)
	case kind == 9 && f.has(large):
		w("{ char p[%d]; x += use(p + %d, y); %s += %s; y += p[%d]; }", 5000+n*130, n*7, v, call, n*7)
	case kind == 10 && f.has(vectors):
		w("{ v4 q = {x, y, z, 1}; q = q * q + %d; HIDE(%s); %s += %s; q += y; x += q[%d]; }", n, v, v, call, n%4)
	case kind == 11 && f.has(cold):
		w("if (__builtin_expect((%s & 7) == %d, 0)) { char room[64]; x += use(room, y); y += %s; }", v, n%8, call)
	case kind == 12 && f.has(signals):
		w("raise(SIGUSR1);")
	case kind == 13 && f.has(longjmp):
		w("{ jmp_buf b; if (setjmp(b) == 0) sink += jump(&b, %d); }", n%4)
	case kind == 14 && f.has(exceptions):
		w("try { x += %s; if (%s & 1) throw (long)%s; } catch (long e) { sink += e; }", call, v, v)
	case kind == 15 && f.has(exceptions) && n < 40:
		w("if ((%s & 15) == %d) throw (long)%s;", v, n%16, v)
	case kind == 16 && f.has(destructors):
		w("{ guard d = {&%s}; sink += %s;", v, call)
		inner()
		w("}")
	case kind == 17 && f.has(nested):
		w("{ long in%d(long q) { return q + x * y; } long (*volatile p)(long) = in%d; %s += p(z) + %s; }", depth, depth, v, call)
	case kind == 18 && f.has(naked):
		w("%s += bare(%s) + bare2(y);", v, v)
	case kind == 19 && f.has(indirect):
		w("if (table[%d]) %s += table[%d](%s);", n%4, v, n%4, v)
	case kind == 20 && f.has(switches):
		w("switch (%s & 7) { case 0: x += 3; break; case 1: x += %s; break; case 2: y ^= x; break; case 4: z += use(&y, 0); break; case 5: z ^= y; break; default: z--; }", v, call)
	case kind == 21 && j >= 0 && signatures[g.sigs[i]].value == "" && signatures[g.sigs[i]].params == "long a":
		w("if (%s > %d) x += f%d(y - 1);", v, n, i)
	default:
		w("%s = %s * %d + (x ^ y) - (z >> 3);", v, v, 3+n)
	}
}
