/* Functions whose prologues and epilogues differ, for execution step by step: they end for all arguments. */
typedef unsigned long long u64;
#define EXPORT __declspec(dllexport) __attribute__((noinline))
#define KEEP(x) __asm__ volatile("" : "+r"(x))
#define KEEPX(x) __asm__ volatile("" : "+x"(x))

#ifdef __clang__
/* Probes the stack for frames of more than a page (rax: bytes), without a frame of its own. */
__asm__(".globl __chkstk\n.globl ___chkstk_ms\n__chkstk:\n___chkstk_ms:\nret\n");
#endif
int _fltused;

EXPORT u64 leaf(u64 a, u64 b) { return a * 3 + b; }

EXPORT u64 many(u64 a, u64 b, u64 c, u64 d, u64 e, u64 f) {
	u64 g = a + b, h = c - d, i = e ^ f, j = a - c, k = b + d, l = e + a;
	for (int n = 0; n < 3; n++) {
		KEEP(g); KEEP(h); KEEP(i); KEEP(j); KEEP(k); KEEP(l);
		g += leaf(h, i); h ^= leaf(j, k); i -= leaf(l, g); j += h; k ^= i; l += j;
	}
	return g + h + i + j + k + l;
}

EXPORT double vectors(double a, double b, double c, double d) {
	double e = a + b, f = c - d, g = a * c, h = b / (d + 1), i = a - d, j = b * c;
	for (int n = 0; n < 3; n++) {
		KEEPX(e); KEEPX(f); KEEPX(g); KEEPX(h); KEEPX(i); KEEPX(j);
		e += (double)(int)leaf((u64)n, 2); f *= e; g -= f; h += g; i *= 0.5; j -= i;
	}
	return e + f + g + h + i + j;
}

EXPORT u64 large(u64 a) {
	volatile unsigned char room[70000];
	room[a % sizeof room] = 1;
	room[0] = (unsigned char)leaf(a, 2);
	return room[a % sizeof room] + room[0];
}

EXPORT u64 page(u64 a) {
	volatile u64 room[600];
	room[a % 600] = a;
	return leaf(room[a % 600], a);
}

EXPORT u64 changing(u64 n, u64 a) {
	n = n % 300 + 1;
	unsigned char *p = __builtin_alloca(n);
	for (u64 i = 0; i < n; i++)
		p[i] = (unsigned char)(a >> (i & 7));
	KEEP(p);
	return leaf(p[n - 1], p[0]);
}

EXPORT u64 aligned(u64 a) {
	struct { _Alignas(64) volatile u64 w[8]; } s;
	s.w[a & 7] = a;
	return leaf(s.w[a & 7], (u64)&s & 63);
}

EXPORT u64 recursive(u64 n) {
	n %= 6;
	u64 m = n;
	KEEP(m);
	return n == 0 ? 1 : recursive(n - 1) + leaf(m, n);
}

EXPORT u64 tail(u64 a, u64 b) { return a & 1 ? leaf(b, a) : many(a, b, a, b, a, b); }

static u64 (*volatile to)(u64, u64);
EXPORT u64 indirect(u64 a, u64 b) {
	to = a & 1 ? leaf : tail;
	return to(a + 1, b);
}

EXPORT u64 early(u64 a, u64 b) {
	if (a % 3 == 0)
		return b;
	u64 c = leaf(a, b), d = a;
	KEEP(c); KEEP(d);
	if (a % 3 == 1)
		return c + leaf(c, d);
	return many(c, d, a, b, c, d) + d;
}

EXPORT u64 choose(u64 a, u64 b) {
	switch (a % 9) {
	case 0: return leaf(a, b);
	case 1: return leaf(b, a) + 1;
	case 2: return recursive(b);
	case 3: return page(a) - 1;
	case 4: return early(b, a);
	case 5: return tail(a, b) * 5;
	case 6: return changing(a, b);
	case 7: return many(a, b, 1, 2, 3, 4);
	}
	return 7;
}

EXPORT u64 sum(int n, ...) {
	__builtin_ms_va_list l;
	__builtin_ms_va_start(l, n);
	u64 s = 0;
	for (int i = 0; i < 3; i++)
		s += __builtin_va_arg(l, u64);
	__builtin_ms_va_end(l);
	return s + leaf(s, 1);
}

EXPORT u64 all(u64 a, u64 b) {
	return many(a, b, a, b, a, b) + large(a) + page(b) + changing(a, b) + aligned(a) + recursive(b) + tail(a, b) + indirect(a, b) + early(a, b) +
	       choose(a, b) + choose(b, a) + sum(3, a, b, a) + (u64)(int)vectors(1, 2, 3, (double)(int)(a & 15));
}
