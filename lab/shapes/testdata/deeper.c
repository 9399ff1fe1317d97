// chain: s_spin (s_odd s_even ){500}main START
// 1,000 calls of two functions with frames of different sizes.
#include "shape.h"

FN void s_spin(void) { SPIN; }
FN int s_odd(int n);

FN int s_even(int n)
{
	volatile char local[40];
	int got;

	local[n % 40] = n;
	got = s_odd(n - 1);
	return got + local[n % 40];
}

FN int s_odd(int n)
{
	int got;

	if (n <= 1) {
		s_spin();
		KEEP;
		return 1;
	}
	got = s_even(n - 1);
	KEEP;
	return got + 1;
}

int main(void)
{
	BEGIN;
	return s_even(1000) == 7;
}
