// Functions with frames of each kind that an encoding can name, and of kinds that it cannot.
extern "C" {
int ext(int, ...);
void use(void *);
double fext(double);
int leaf(int a) { return a * 3; }
int one(int a) { return ext(a) + 1; }
int two(int a, int b) { return ext(a, b) + ext(b) + a; }
int three(int a, int b, int c) { return ext(a, b) + ext(b) + ext(c, a) + a * b; }
int four(int a, int b, int c, int d) { return ext(a, b) + ext(b) + ext(c, a) + ext(d) + a * b * c; }
int many(int a, int b, int c, int d)
{
	int x = ext(a), y = ext(b, x), z = ext(c, y), w = ext(d, z, x);
	return ext(x, y, z, w, a) + x * y * z * w + a + b;
}
int middle(int a) { char b[200]; use(b); return b[a] + ext(a); }
int large(int a) { char b[70000]; use(b); return b[a] + ext(a); }
int larger(int a, int b, int c, int d)
{
	char e[7000];
	int x = ext(a), y = ext(b, x), z = ext(c, y);
	use(e);
	return ext(x, y, z, d, a) + x * y * z + a + b + e[a];
}
int variable(int n) { char b[n]; use(b); return b[0]; }
double floating(double a, double b)
{
	double c = fext(a), d = fext(b), e = fext(c);
	return c * d * e + fext(a) * b;
}
double mixed(double a, int b)
{
	double c = fext(a), d = fext(c);
	int e = ext(b), f = ext(e);
	return fext(c * d) * ext(f) + ext(e) * c;
}
// Its instructions are for DWARF only: LLVM makes __eh_frame for arm64 if one function needs it.
int escaped(int a) { asm volatile(".cfi_escape 0x2e, 0"); return ext(a) + 1; }
#ifdef __aarch64__
// A function without a frame that saves registers makes no calls: it is judged at the nop.
int bare(int a) { asm volatile("nop" ::: "x19", "x20", "x25", "x26"); return a; }
int barer(int a) { int b[40]; asm volatile("nop" :: "r"(b) : "d8", "d9"); return a; }
#endif
}
struct S { ~S(); };
int caught(int a)
{
	S s;
	try { return ext(a); } catch (int x) { return x; }
}
