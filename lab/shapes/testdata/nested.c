// chain: s_inner SIGRETURN s_raise s_handler SIGRETURN s_loop main START
// A handler, interrupted by the handler of another signal.
#include "shape.h"
#include <signal.h>
#include <string.h>

FN void s_inner(int sig)
{
	(void)sig;
	SPIN;
}

FN void s_raise(void)
{
	BREAK;
	KEEP;
}

FN void s_handler(int sig)
{
	(void)sig;
	s_raise();
	KEEP;
}

FN void s_loop(void)
{
	INVALID;
	KEEP;
}

int main(void)
{
	struct sigaction a;

	BEGIN;
	memset(&a, 0, sizeof a);
	a.sa_handler = s_handler;
	sigaction(SIGILL, &a, 0);
	a.sa_handler = s_inner;
	sigaction(SIGTRAP, &a, 0);
	s_loop();
	KEEP;
	return 0;
}
