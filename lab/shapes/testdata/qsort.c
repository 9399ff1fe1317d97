// chain: s_spin s_compare LIB+ s_sort main START
// A callback that the C library calls.
#include "shape.h"
#include <stdlib.h>

FN void s_spin(void) { SPIN; }

FN int s_compare(const void *a, const void *b)
{
	int x = *(const int *)a, y = *(const int *)b;

	if (x + y == 7)
		s_spin();
	KEEP;
	return x - y;
}

FN void s_sort(int *v, int n)
{
	qsort(v, n, sizeof *v, s_compare);
	KEEP;
}

int main(void)
{
	int v[] = {9, 4, 3, 8, 1, 6};

	BEGIN;
	s_sort(v, 6);
	KEEP;
	return v[0];
}
