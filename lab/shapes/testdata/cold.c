// chain: s_spin s_work main START
// The part of a function that is hardly ever executed lies elsewhere.
#include "shape.h"

__attribute__((cold)) FN void s_spin(int n) { (void)n; SPIN; }

FN int s_work(int n, int *v)
{
	volatile char local[300];

	local[n] = v[0];
	if (__builtin_expect(n > 0, 0)) {
		v[0] += n * local[n];
		s_spin(n + v[1]);
		KEEP;
		return v[0] + local[n + 1];
	}
	return v[1] + local[3];
}

int main(int argc, char **argv)
{
	int v[] = {argc, 2};

	(void)argv;
	BEGIN;
	v[0] = s_work(argc, v);
	KEEP;
	return v[0];
}
