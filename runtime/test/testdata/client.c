/*
 * A program to be profiled: it takes processor time in a recursion of 20 calls, in one that qsort calls, and in a thread;
 * and memory in the same places. It says on standard error which libunwind it has.
 *
 *	client SECONDS
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define NOINLINE __attribute__((noinline))

static double seconds;
void *volatile kept[3];

NOINLINE uint64_t spin(void)
{
	clock_t end = clock() + (clock_t)(seconds * CLOCKS_PER_SEC);
	volatile uint64_t x = 0;

	while (clock() < end)
		for (unsigned i = 0; i < 100000; i++)
			x += i;
	return x;
}

NOINLINE uint64_t take(unsigned which)
{
	kept[which] = malloc(54321 + which);
	return spin() + (kept[which] != NULL);
}

NOINLINE uint64_t recurse(unsigned n, unsigned which)
{
	volatile char room[32 + n];

	room[0] = 0;
	return (n > 1 ? recurse(n - 1, which) : take(which)) + (uint64_t)room[0];
}

static int order(const void *a, const void *b)
{
	static int times;

	if (times++ == 0)
		recurse(10, 1);
	return *(const int *)a - *(const int *)b;
}

NOINLINE void *thread(void *p)
{
	return recurse(5, 2) ? p : NULL;
}

int main(int argc, char **argv)
{
	void *f = dlsym(RTLD_DEFAULT, "_ULx86_64_step");
	int v[] = {2, 1};
	pthread_t t;
	Dl_info i;

	if (f && dladdr(f, &i))
		fprintf(stderr, "libunwind: %s\n", i.dli_fname);
	seconds = argc > 1 ? atof(argv[1]) : 0;
	recurse(20, 0);
	qsort(v, 2, sizeof v[0], order);
	if (pthread_create(&t, NULL, thread, NULL) != 0)
		return 1;
	return pthread_join(t, NULL);
}
