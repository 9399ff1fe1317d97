// chain: vdso* LIB* plt? s_clock main START
// The time, which is asked for in code of the kernel's own.
#include "shape.h"
#include <time.h>

FN void s_clock(void)
{
	struct timespec t;

	READY;
	while (forever) {
		clock_gettime(CLOCK_MONOTONIC, &t);
		KEEP;
	}
}

int main(void)
{
	BEGIN;
	s_clock();
	KEEP;
	return 0;
}
