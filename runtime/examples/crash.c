/* Prints the stack of a crash from its signal handler, with nothing but async-signal-safe calls for the walk. */
#include <libunspool.h>
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

static void on_crash(int sig, siginfo_t *info, void *uc)
{
	struct unspool_frame f[64];
	enum unspool_stop stop;
	int n = unspool_backtrace_context(uc, 1, f, 64, &stop);

	(void)info;
	dprintf(2, "signal %d\n", sig);
	for (int i = 0; i < n; i++)
		dprintf(2, "#%-2d %#lx sp %#lx how %u\n", i, (unsigned long)f[i].pc, (unsigned long)f[i].sp, f[i].how);
	dprintf(2, "ended: %d\n", stop);
	_exit(n > 1 ? 0 : 1);
}

int main(void)
{
	struct sigaction a = {.sa_sigaction = on_crash, .sa_flags = SA_SIGINFO};
	void (*volatile nowhere)(void) = NULL;

	sigaction(SIGSEGV, &a, NULL);
	nowhere();
	return 1;
}
