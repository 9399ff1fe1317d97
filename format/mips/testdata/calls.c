/* Functions whose frames differ: saved registers, floating point, large frames, frame pointers, variable arguments. */
#include <stdarg.h>
int g(int, ...);
double h(double);
void use(void *, ...);

int leaf(int a) { return a * 3; }
int one(int a) { return g(a) + 1; }
int two(int a, int b) { int x = g(a); return g(b) + x; }
int many(int a, int b, int c, int d, int e, int f, int i, int j) {
	int p = g(a), q = g(b), r = g(c), s = g(d), t = g(e), u = g(f), v = g(i), w = g(j), x = g(p);
	return g(p, q, r, s, t, u, v, w, x) + g(p ^ q) + g(r ^ s) + g(t ^ u) + g(v ^ w) + x;
}
int loop(int n) { int s = 0; for (int i = 0; i < n; i++) s += g(i) * g(s); return s; }
double doubles(double a, double b, double c) { double x = h(a), y = h(b), z = h(c); return h(x) * y + h(y) * z + h(z) * x; }
double more(double a, double b, int n) {
	double p = h(a), q = h(b), r = h(p), s = h(q), t = h(r), u = h(s);
	for (int i = 0; i < n; i++) p += h(q + i) * r - g(i) * s + t * u;
	return p;
}
int middle(int n) { char b[600]; use(b); return g(n) + b[n]; }
int large(int n) { char b[4000]; use(b, n); return g(n) + b[n]; }
int larger(int n, int m) { char b[30000]; use(b, n); return g(n) + g(m) + b[n]; }
int huge(int n) { char b[100000]; use(b, n); return g(n) + b[n]; }
int dynamic(int n) { char *b = __builtin_alloca(n); use(b, n); return g(n) + b[n / 2]; }
double dynamic2(int n, double d) { char *b = __builtin_alloca(n); double x = h(d); use(b, n); return g(n) + b[n / 2] + h(x) * d; }
int variable(int n, ...) {
	va_list l;
	va_start(l, n);
	int s = 0;
	while (n-- > 0) s += g(va_arg(l, int));
	va_end(l);
	return s;
}
double variable2(int n, ...) {
	va_list l;
	va_start(l, n);
	double s = 0;
	while (n-- > 0) s += h(va_arg(l, double)) * s;
	va_end(l);
	return s;
}
int some(void) { g(1); __asm__ volatile("" : : : "$16", "$18", "$21"); return g(2); }
#ifndef __mips16 /* $17 may be its frame pointer */
int gap1(void) { g(1); __asm__ volatile("" : : : "$16", "$17", "$19", "$20", "$21", "$22", "$23"); return g(2); }
int gap2(void) { g(1); __asm__ volatile("" : : : "$16", "$17", "$20", "$21", "$22", "$23"); return g(2); }
int gap3(void) { g(1); __asm__ volatile("" : : : "$16", "$17", "$21", "$22", "$23"); return g(2); }
#endif
#ifndef __mips_soft_float
double odd(void) { g(1); __asm__ volatile("" : : : "$20", "$f22", "$f28"); return g(2); }
int all(void) {
	g(1);
	__asm__ volatile("" : : : "$16", "$17", "$18", "$19", "$20", "$21", "$22", "$23", "$f20", "$f22", "$f24", "$f26", "$f28", "$f30");
	return g(2);
}
#endif
