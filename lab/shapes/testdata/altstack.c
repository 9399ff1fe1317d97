// chain: s_handler SIGRETURN s_loop main START
// A handler on a stack of its own, which lies in the data segment below all others.
#include "shape.h"
#include <signal.h>
#include <string.h>

static char other[65536];

FN void s_handler(int sig)
{
	(void)sig;
	SPIN;
}

FN void s_loop(void)
{
	INVALID;
	KEEP;
}

int main(void)
{
	struct sigaction a;
	stack_t s;

	BEGIN;
	memset(&s, 0, sizeof s);
	s.ss_sp = other;
	s.ss_size = sizeof other;
	sigaltstack(&s, 0);
	memset(&a, 0, sizeof a);
	a.sa_handler = s_handler;
	a.sa_flags = SA_ONSTACK;
	sigaction(SIGILL, &a, 0);
	s_loop();
	KEEP;
	return 0;
}
