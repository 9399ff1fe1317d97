// chain: s_spin s_before LIB+ _start
// not: tcc (it has no constructors)
// A constructor, before main.
#include "shape.h"

FN void s_spin(void) { SPIN; }

__attribute__((constructor)) FN void s_before(void)
{
	BEGIN;
	s_spin();
	KEEP;
}

int main(void) { return 0; }
