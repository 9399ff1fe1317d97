/* signals.c - sorts numbers while timers interrupt it; the handler works long enough to be sampled.
 *
 *	signals TURNS [altstack]
 *
 * With altstack, handlers run on a stack of their own, which is not the one they interrupt. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>

static volatile unsigned long sum;

__attribute__((noinline)) static void spin(int n)
{
	for (int i = 0; i < n; i++)
		sum += (unsigned long)i;
}

static void handler(int sig)
{
	char text[1500];
	spin(30000);
	memset(text, sig, sizeof text);
	sum += (unsigned long)text[sig];
}

static int ascending(const void *a, const void *b)
{
	int x = *(const int *)a, y = *(const int *)b;
	sum++;
	return (x > y) - (x < y);
}

int main(int argc, char **argv)
{
	enum { N = 20000, ALT = 1 << 16 };
	int turns = argc > 1 ? atoi(argv[1]) : 100;
	struct sigaction act = {.sa_handler = handler, .sa_flags = SA_RESTART};
	struct itimerval often = {{0, 700}, {0, 700}};
	int *v = malloc(N * sizeof *v);
	if (!v)
		return 1;
	if (argc > 2 && !strcmp(argv[2], "altstack")) {
		stack_t alt = {.ss_sp = malloc(ALT), .ss_size = ALT};
		if (!alt.ss_sp || sigaltstack(&alt, NULL))
			return 1;
		act.sa_flags |= SA_ONSTACK;
	}
	if (sigaction(SIGALRM, &act, NULL) || setitimer(ITIMER_REAL, &often, NULL))
		return 1;
	for (int t = 0; t < turns; t++) {
		for (int i = 0; i < N; i++)
			v[i] = rand();
		qsort(v, N, sizeof *v, ascending);
	}
	return 0;
}
