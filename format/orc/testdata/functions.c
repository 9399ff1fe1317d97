// Functions whose stacks gcc lays out in different ways, compiled as a kernel is.
typedef unsigned long u64;

extern void sink(void *, u64);
extern u64 source(u64, ...);
// objtool knows by its name that it does not return.
extern void panic(void) __attribute__((noreturn));

// Without it, nothing says which layout the entries have: a module has it from the kernel's build.
__attribute__((used, section(".modinfo"))) static const char vermagic[] = "vermagic=6.1.0 SMP";

u64 leaf(u64 a, u64 b) { return a * b + (a ^ b); }
u64 tail(u64 a) { return source(a + 1); }
u64 one(u64 a) { return source(a) + 1; }
u64 saved(u64 a, u64 b, u64 c, u64 d)
{
	u64 s = 0;
	for (u64 i = 0; i < a; i++)
		s += source(i, b, c, d) * b + source(c) * d;
	return s;
}
u64 big(u64 a)
{
	char buf[9000];
	sink(buf, a);
	return buf[a % 9000];
}
u64 many(u64 a, u64 b, u64 c, u64 d, u64 e, u64 f, u64 g, u64 h)
{
	u64 x = source(a, b, c, d, e, f, g, h, a + b, c + d);
	return x + source(h, g, f, e, d, c, b, a, e + f, g + h) + a + b + c + d + e + f + g + h;
}
u64 dynamic(u64 n)
{
	char buf[n];
	sink(buf, n);
	return buf[n / 2] + source(n);
}
u64 aligned(u64 n)
{
	u64 buf[8] __attribute__((aligned(64)));
	sink(buf, n);
	return buf[n & 7] + source(n);
}
u64 aligned_dynamic(u64 n)
{
	u64 buf[8] __attribute__((aligned(64)));
	char more[n];
	sink(buf, n);
	sink(more, n);
	return buf[n & 7] + more[n / 2];
}
u64 early(u64 n)
{
	if (n < 10)
		return n;
	if (n > 1000)
		panic();
	u64 s = source(n);
	if (s == 7)
		return source(s) + n;
	return s * n + source(s, n);
}
u64 choose(u64 n, u64 m)
{
	switch (n) {
	case 0: return source(m) + n;
	case 1: sink(&m, n); return m;
	case 2: panic();
	case 3: return leaf(n, m);
	}
	return one(m) * saved(n, m, n, m);
}
__attribute__((cold)) u64 rare(u64 n) { return source(n) * 3 + source(n + 1); }
