/*
 * A process to be walked from outside: deep in calls of many shapes ("deep"), in a signal handler ("signal"), or in a
 * system call ("syscall"). It says "ready" and then stays at one instruction; an alarm ends it.
 */
#define _GNU_SOURCE
#include <alloca.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#define FUNC __attribute__((noinline, noipa))

static const char *mode;
static volatile long sink;

FUNC static void stay(void)
{
	printf("ready\n");
	fflush(stdout);
	if (!strcmp(mode, "syscall"))
		for (;;)
			pause();
	__asm__ volatile("1: jmp 1b");
}

FUNC static void handler(int sig, siginfo_t *info, void *uc)
{
	(void)info;
	(void)uc;
	sink += sig;
	stay();
	sink++;
}

FUNC static void leaf(void)
{
	if (!strcmp(mode, "signal"))
		raise(SIGUSR1);
	else
		stay();
	sink++;
}

FUNC static long with_alloca(long n)
{
	char *p = alloca((size_t)n * 16);

	memset(p, 1, (size_t)n * 16);
	leaf();
	return p[n];
}

FUNC static long many_registers(long a, long b, long c, long d, long e, long f)
{
	long r = with_alloca(a & 7);

	return r + a * b + c * d + e * f + sink;
}

FUNC static int compare(const void *a, const void *b)
{
	if (sink++ == 3)
		sink += many_registers(1, 2, 3, 4, 5, 6);
	return *(const int *)a - *(const int *)b;
}

FUNC static long sorted(void)
{
	int x[8] = {5, 3, 8, 1, 9, 2, 7, 4};

	qsort(x, 8, sizeof x[0], compare);
	return x[0];
}

FUNC static long recurse(long n)
{
	volatile long pad[3] = {n, n + 1, n + 2};

	if (n == 0)
		return sorted() + pad[0];
	return recurse(n - 1) + pad[1];
}

int main(int argc, char **argv)
{
	struct sigaction sa = {.sa_sigaction = handler, .sa_flags = SA_SIGINFO | SA_ONSTACK};
	stack_t st = {.ss_sp = malloc(1 << 16), .ss_size = 1 << 16};

	mode = argc > 1 ? argv[1] : "deep";
	alarm(60);
	prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);
	if (argc > 2)
		sigaltstack(&st, NULL);
	sigaction(SIGUSR1, &sa, NULL);
	return (int)recurse(20) & 1;
}
