// chain: s_handler SIGRETURN s_loop main START
// A handler, which a fault called: the instruction that was interrupted is no call.
#include "shape.h"
#include <signal.h>
#include <string.h>

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

	BEGIN;
	memset(&a, 0, sizeof a);
	a.sa_handler = s_handler;
	sigaction(SIGILL, &a, 0);
	s_loop();
	KEEP;
	return 0;
}
