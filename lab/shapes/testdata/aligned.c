// chain: s_spin s_aligned s_more main START
// Frames that are aligned to more than the stack is, whose CFA is an expression or is found by another register.
#include "shape.h"

FN void s_spin(char *p) { *p = 1; SPIN; }

FN int s_aligned(int n)
{
	char a[64] __attribute__((aligned(64)));

	s_spin(a + n);
	KEEP;
	return a[n];
}

FN int s_more(int n, int a, int b, int c, int d, int e, int f, int g)
{
	char x[256] __attribute__((aligned(128)));
	char y[n * 10];

	y[n] = n;
	x[n] = s_aligned(n + (y[n] == 100));
	KEEP;
	return x[n] + a + b + c + d + e + f + g;
}

int main(int argc, char **argv)
{
	(void)argv;
	BEGIN;
	return s_more(argc, 1, 2, 3, 4, 5, 6, 7) == 0;
}
