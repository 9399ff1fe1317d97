/* heap_bench.c: what malloc and free take: "few" looks at none of the allocations, "deep N" asks from N frames. Prints ns for a pair. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static void *volatile sink;

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static double pairs(long n, size_t size)
{
	double start = now();

	for (long i = 0; i < n; i++) {
		sink = malloc(size);
		free(sink);
	}
	return (now() - start) / (double)n;
}

__attribute__((noinline)) static double deep(int depth, long n, size_t size)
{
	double r = depth > 1 ? deep(depth - 1, n, size) : pairs(n, size);

	__asm__ volatile("" ::: "memory");
	return r;
}

int main(int argc, char **argv)
{
	int depth = argc > 1 ? atoi(argv[1]) : 1;
	long n = argc > 2 ? atol(argv[2]) : 20000000;
	double best = 1e18;

	for (int i = 0; i < 9; i++) {
		double t = deep(depth, n / 9, 64);

		best = t < best ? t : best;
	}
	printf("%.2f\n", best);
	return 0;
}
