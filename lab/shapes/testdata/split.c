// chain: s_spin (s_down LIB?){20} main START
// builds: gcc-O0 gcc-O1 gcc-O2 gcc-O3 gcc-Os gcc-O2-fp gcc-O2-stripped
// link: -fsplit-stack
// Stacks in pieces, which come from anywhere.
#include "shape.h"

FN void s_spin(char *p) { *p = 1; SPIN; }

FN int s_down(int n)
{
	char local[20000];

	local[n] = n;
	KEEP;
	if (n > 1)
		local[n] += s_down(n - 1);
	else
		s_spin(local);
	KEEP;
	return local[n];
}

int main(void)
{
	BEGIN;
	return s_down(20) == 300;
}
