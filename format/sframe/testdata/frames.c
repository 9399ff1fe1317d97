// Functions with frames of all kinds. They include nothing, so that compilers for any machine take them.
typedef unsigned long word;
int use(void *, ...);
extern int table[];

int leaf(int a) { return a * 3 + table[a & 7]; }
int twice(int a) { return leaf(a) + use(&a) + leaf(a + 1); }
void *taken(void) { return (void *)use; } // so a linker may give it a place in .plt.got
int tail(int a) { return use((void *)(word)a); }

int large(int a) {
	char b[70000];
	use(b, a);
	return b[a] + b[3];
}

int sized(int n) {
	int b[n + 1];
	use(b, n);
	return b[n] + b[0];
}

int aligned(int n) {
	int b[16] __attribute__((aligned(128)));
	int c[n + 1];
	use(b, c);
	return b[n & 15] + c[n];
}

int many(int a, int b, int c, int d, int e, int f, int g, int h, int i, int j) {
	int x = use(&a, b, c, d), y = use(&b, e, f, g), z = use(&c, h, i, j);
	for (int k = 0; k < a; k++) {
		x += use(&x, y, z, k);
		y ^= use(&y, x, z, k);
		z -= use(&z, x, y, k);
	}
	return x + y + z + a + b + c + d + e + f + g + h + i + j;
}

int choose(int a) {
	if (a < 0)
		return 0;
	switch (a) {
	case 1: return use(&a, 1);
	case 2: return use(&a, 2) + twice(a);
	case 3: return twice(a) * 2;
	case 9: return large(a);
	}
	for (int i = 0; i < a; i++)
		if (use(&i))
			return i;
	return use(table, a);
}

double floats(double a, double b) {
	double c = a * b;
	use(&c);
	return c / b + a;
}

int recurse(int n) { return n < 2 ? 1 : recurse(n - 1) + recurse(n - 2); }
_Noreturn void never(void) {
	for (;;)
		use(0);
}

__attribute__((cold)) int rare(int a) { return use(&a, a); }
__attribute__((section(".text.other"))) int other(int a) { return use(&a) ? rare(a) : a; }

// More than 255 bytes, and more than 65,535: rows with starts of 2 and of 4 bytes.
int wide(int a) {
	a += use(&a, a);
	__asm__ volatile(".skip 400");
	return a;
}
int wider(int a) {
	int b[30];
	a += use(b, a);
	__asm__ volatile(".skip 70000");
	return a + b[1];
}
