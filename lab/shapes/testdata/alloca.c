// chain: s_spin s_array s_alloca main START
// Frames of variable size.
#include "shape.h"
#include <alloca.h>

FN void s_spin(char *p) { *p = 1; SPIN; }

FN int s_array(int n)
{
	char a[n * 100];

	s_spin(a + n);
	KEEP;
	return a[n];
}

FN int s_alloca(int n)
{
	char *p = alloca(n * 1000);
	int got = 0;

	for (int i = 0; i < n; i++) {
		char *q = alloca(i * 50 + 16);

		q[0] = i;
		KEEP;
		got += q[0];
	}
	p[n] = s_array(n);
	KEEP;
	return p[n] + got;
}

int main(int argc, char **argv)
{
	(void)argv;
	BEGIN;
	return s_alloca(argc + 6) == 0;
}
