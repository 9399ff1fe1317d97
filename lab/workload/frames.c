/*
 * frames.c - frames that a compiler seldom makes: with an aligned stack (whose CFA is an expression, DRAP), of variable
 * size, and of 100 KB: frames MS
 */
#include <alloca.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static volatile unsigned long sum;

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
	return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

static int ascending(const void *a, const void *b)
{
	_Alignas(64) volatile int x[32];

	x[0] = *(const int *)a;
	x[1] = *(const int *)b;
	sum++;
	return (x[0] > x[1]) - (x[0] < x[1]);
}

__attribute__((noinline)) static void aligned(int depth);

__attribute__((noinline)) static void large(int depth)
{
	volatile char frame[100000];

	memset((void *)frame, depth, sizeof frame);
	aligned(depth - 1);
	sum += (unsigned long)frame[depth];
}

__attribute__((noinline)) static void variable(int depth)
{
	volatile char *frame = alloca((size_t)depth * 37 % 1000 + 16);

	frame[15] = (char)depth;
	if (depth == 20)
		large(depth);
	else
		aligned(depth - 1);
	sum += (unsigned long)frame[15];
}

/* Both at once: the CFA is in memory that a register points to. */
__attribute__((noinline)) static void aligned(int depth)
{
	_Alignas(128) volatile char frame[256];
	volatile char *more = alloca((size_t)depth * 13 + 16);
	int v[400];

	frame[0] = more[1] = (char)depth;
	if (depth > 0) {
		variable(depth);
	} else {
		for (int i = 0; i < 400; i++)
			v[i] = rand();
		qsort(v, 400, sizeof *v, ascending);
	}
	sum += (unsigned long)(frame[0] + more[1]);
}

int main(int argc, char **argv)
{
	double until = now() + (argc > 1 ? atof(argv[1]) : 1000);

	for (int turn = 0; now() < until; turn++)
		aligned(turn % 4 ? 19 : 22); /* which has a large frame, too */
	return 0;
}
