package random

import (
	"fmt"
	"math/rand/v2"
	"strings"
)

const rustHead = `#![allow(warnings)]
use std::hint::black_box;
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};
static BUDGET: AtomicI64 = AtomicI64::new(0);
static SINK: AtomicI64 = AtomicI64::new(0);
#[repr(align(64))] struct Wide([u8; 64]);
struct Guard(i64);
impl Drop for Guard { #[inline(never)] fn drop(&mut self) { SINK.fetch_add(self.0, Relaxed); } }
fn spent() -> bool { BUDGET.fetch_sub(1, Relaxed) < 0 }
`

// rustSource returns the program's text in Rust.
func (p *plan) rustSource() string {
	var b strings.Builder
	r := rand.New(rand.NewPCG(p.seed, 2))
	fmt.Fprintf(&b, "// %s\n%s", p, rustHead)
	for i := range p.funcs {
		fr := rand.New(rand.NewPCG(p.seed, 100+uint64(i)))
		attr := pick(fr, []string{"#[inline(never)] ", "#[inline(never)] ", "", "#[inline(never)] #[cold] ", "#[inline(never)] extern \"C\" "})
		fmt.Fprintf(&b, "%sfn f%d(a: i64) -> i64 {\n\tif spent() { return a; }\n\tlet (mut x, mut y, mut z) = (a, black_box(a ^ 3), a.wrapping_mul(5));\n", attr, i)
		for k := range 2 + fr.IntN(5) {
			p.rustStatement(&b, rand.New(rand.NewPCG(p.seed, 1000+uint64(i)*64+uint64(k))), i)
		}
		if fr.IntN(3) == 0 && p.features.has(tail) && i+1 < p.funcs {
			fmt.Fprintf(&b, "\tf%d(x ^ y ^ z)\n}\n", i+1)
		} else {
			b.WriteString("\tx ^ y ^ z\n}\n")
		}
	}
	b.WriteString("fn main() {\n\tstd::panic::set_hook(Box::new(|_| {}));\n\tlet mut x = 1i64;\n")
	for i := range min(4, p.funcs) {
		fmt.Fprintf(&b, "\tBUDGET.store(%d, Relaxed); for i in 0..8i64 { x ^= f%d(x.wrapping_add(i)); }\n", 80+r.IntN(80), i)
	}
	b.WriteString("\tstd::process::exit((x & 63) as i32);\n}\n")
	return b.String()
}

// rustStatement writes a statement of function i.
func (p *plan) rustStatement(b *strings.Builder, r *rand.Rand, i int) {
	w := func(format string, args ...any) { fmt.Fprintf(b, "\t"+format+"\n", args...) }
	v := pick(r, []string{"x", "y", "z"})
	call := "(y ^ 9)"
	if i+1 < p.funcs {
		call = fmt.Sprintf("f%d(%s)", i+1+r.IntN(min(6, p.funcs-i-1)), pick(r, []string{"x", "x ^ y", "z.wrapping_mul(3)"}))
	}
	n := r.IntN(100)
	f := p.features
	switch kind := r.IntN(15); {
	case kind < 3:
		w("%s = %s.wrapping_add(%s);", v, v, call)
	case kind == 3 && f.has(loops):
		w("for k in 0..%d { x ^= %s; y = y.wrapping_add(k); }", 1+n%4, call)
	case kind == 4 && f.has(aligned):
		w("{ let mut p = Wide([%d; 64]); black_box(&mut p); %s ^= %s; y ^= p.0[%d] as i64; }", n, v, call, n%64)
	case kind == 5 && f.has(large):
		w("{ let mut p = [%du8; %d]; black_box(&mut p); %s ^= %s; y ^= p[%d] as i64; }", n, 5000+n*100, v, call, n)
	case kind == 6 && f.has(exceptions) && !p.has("-Cpanic=abort"):
		w("if let Err(_) = std::panic::catch_unwind(|| { if %s & 3 == %d { panic!() } }) { %s ^= %s; }", v, n%4, v, call)
	case kind == 7 && f.has(destructors):
		w("{ let g = Guard(%s); x ^= %s; black_box(&g); }", v, call)
	case kind == 8 && f.has(indirect):
		w("{ let g: Box<dyn Fn(i64) -> i64> = Box::new(move |q| q ^ y ^ %s); %s ^= black_box(&g)(x); }", call, v)
	case kind == 9 && f.has(alloca):
		w("{ let t: Vec<i64> = (0..(%s & 15)).collect(); x ^= t.iter().sum::<i64>() ^ %s; }", v, call)
	case kind == 10 && f.has(switches):
		w("match %s & 7 { 0 => x += 0, 1 => x ^= %s, 2 => y = !y, 3 => z ^= x, 5 => return x, _ => y ^= 1 }", v, call)
	case kind == 11:
		w("if %s & %d == 0 { %s ^= %s; }", v, 1+n%7, v, call)
	default:
		w("%s = %s.wrapping_mul(%d) ^ x ^ (y >> 3);", v, v, 3+n)
	}
}
