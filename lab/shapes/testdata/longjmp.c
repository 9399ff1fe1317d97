// chain: LIB* plt? s_deep{0,3} s_try main START
// A jump out of three calls, all the time.
#include "shape.h"
#include <setjmp.h>

static jmp_buf env;

FN int s_deep(int n)
{
	int got = 1;

	if (n > 1)
		got += s_deep(n - 1);
	else
		longjmp(env, 1);
	KEEP;
	return got;
}

FN void s_try(void)
{
	READY;
	while (forever) {
		if (setjmp(env) == 0)
			s_deep(3);
		KEEP;
	}
}

int main(void)
{
	BEGIN;
	s_try();
	KEEP;
	return 0;
}
