// chain: s_spin (s_down ){300}main START
// 300 calls of one function.
#include "shape.h"

FN void s_spin(void) { SPIN; }

FN int s_down(int n)
{
	int got = 1;

	if (n > 1)
		got += s_down(n - 1);
	else
		s_spin();
	KEEP;
	return got;
}

int main(void)
{
	BEGIN;
	return s_down(300) == 300;
}
