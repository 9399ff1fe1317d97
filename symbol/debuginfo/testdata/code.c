/* Inlined calls, nested functions, and cold parts. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static inline int mix(int a, int b) { return (a * 31) ^ (b >> 3); }
static inline int twice(int a, int b) { return mix(a, b) + mix(b, a); }

static int __attribute__((noinline)) compare(const void *a, const void *b) {
	return twice(*(const int *)a, 1) - twice(*(const int *)b, 1);
}

__attribute__((cold, noinline)) static void complain(const char *s) {
	fprintf(stderr, "%s\n", s);
	exit(1);
}

#ifndef __clang__
int nested(int n) {
	int __attribute__((noinline)) inside(int k) { return twice(n, k) + n; }
	int (*volatile f)(int) = inside;
	return f(n) + f(n + 1);
}
#else
int nested(int n) { return n; }
#endif

#line 1000 "generated/table.y"
int folded(char **argv, int n) {
	for (int i = 0; i < n; i++) {
		if (strlen(argv[i]) > 1000)
			complain(argv[i]);
		n += twice(i, argv[i][0]);
	}
	return n;
}
#line 40 "code.c"

int main(int argc, char **argv) {
	int v[64];
	for (int i = 0; i < 64; i++) v[i] = mix(i, argc);
	qsort(v, 64, sizeof *v, compare);
	printf("%d %d\n", folded(argv, argc), nested(v[0]));
	return v[argc & 63] == 12345;
}
