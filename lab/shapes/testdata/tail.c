// chain [O0|gcc-O1|tcc]: s_spin s_second s_first s_outer main START
// chain [clang-O1|-O[23s]]: s_spin s_outer main START
// Calls that are jumps where the compiler makes them so: callers that have jumped are on no stack.
#include "shape.h"

FN int s_spin(int n) { SPIN; return n; }
FN int s_second(int n) { return s_spin(n + 2); }
FN int s_first(int n) { return s_second(n + 1); }

FN int s_outer(int n)
{
	int got = s_first(n);

	KEEP;
	return got * 3;
}

int main(int argc, char **argv)
{
	(void)argv;
	BEGIN;
	return s_outer(argc) == 1;
}
