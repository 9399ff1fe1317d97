// chain: s_spin s_co LIB
// gdb: it has no rule for where a coroutine begins
// not: musl (it has no makecontext)
// A coroutine of the C library: nothing calls its first function, which returns to a trampoline.
#include "shape.h"
#include <ucontext.h>

static char stack[65536] __attribute__((aligned(16)));
static ucontext_t first, second;

FN void s_spin(void) { SPIN; }

FN void s_co(void)
{
	s_spin();
	KEEP;
}

int main(void)
{
	BEGIN;
	getcontext(&second);
	second.uc_stack.ss_sp = stack;
	second.uc_stack.ss_size = sizeof stack;
	second.uc_link = &first;
	makecontext(&second, s_co, 0);
	swapcontext(&first, &second);
	return 0;
}
