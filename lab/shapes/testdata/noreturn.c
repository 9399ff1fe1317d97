// chain: s_spin s_die s_caller main START
// A call that does not return is the last instruction of its function: the return address is in what follows, or in nothing.
#include "shape.h"

FN void s_spin(void) { SPIN; }

FN __attribute__((noreturn)) void s_die(void)
{
	for (;;) {
		s_spin();
		KEEP;
	}
}

FN void s_caller(int n)
{
	if (n)
		s_die();
	KEEP;
	s_die();
}

int main(int argc, char **argv)
{
	(void)argv;
	BEGIN;
	s_caller(argc - 1);
	KEEP;
	return 0;
}
