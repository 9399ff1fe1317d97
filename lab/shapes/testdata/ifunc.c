// chain: s_spin s_chosen s_caller main START
// not: musl (it has no indirect functions)
// not: tcc
// A function that is chosen when the program is loaded.
#include "shape.h"

FN void s_spin(void) { SPIN; }

FN int s_chosen(int n)
{
	s_spin();
	KEEP;
	return n;
}

static int (*s_choose(void))(int) { return s_chosen; }
int indirect(int n) __attribute__((ifunc("s_choose")));

FN int s_caller(int n)
{
	n = indirect(n);
	KEEP;
	return n + 1;
}

int main(int argc, char **argv)
{
	(void)argv;
	BEGIN;
	argc = s_caller(argc);
	KEEP;
	return argc;
}
