/*
 * plugin.c - a shared object that works at the bottom of a recursion: gcc -shared -fPIC [-DPAD=BYTES] plugin.c
 *
 * Those of another PAD have other frames at the same addresses. dlopen.c loads it.
 */
#include <stdlib.h>
#include <time.h>

#ifndef PAD
#define PAD 40
#endif

static volatile unsigned long sum;

static int ascending(const void *a, const void *b)
{
	int x = *(const int *)a, y = *(const int *)b;

	sum++;
	return (x > y) - (x < y);
}

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
	return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

__attribute__((noinline)) static void sort(double until)
{
	int v[PAD + 200];

	do {
		for (unsigned i = 0; i < sizeof v / sizeof *v; i++)
			v[i] = rand();
		qsort(v, sizeof v / sizeof *v, sizeof *v, ascending);
	} while (now() < until);
}

__attribute__((noinline)) static void down(int depth, double until)
{
	volatile char frame[PAD];

	frame[PAD - 1] = (char)depth;
	if (depth > 0)
		down(depth - 1, until);
	else
		sort(until);
	sum += (unsigned long)frame[PAD - 1];
}

/* Works for so many milliseconds. */
void work(int depth, double ms)
{
	down(depth, now() + ms);
}
