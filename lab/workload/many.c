/*
 * many.c - loads many shared objects (module.c) and works below a chain of calls through so many of them that ends at each of
 * them in turn: many MS CHAIN FILE...
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

typedef void step(void *const *all, int n, int i, int left, void (*work)(void));

static volatile unsigned long sum;

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
	return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

static void work(void)
{
	for (int i = 0; i < 100000; i++)
		sum += (unsigned long)i;
}

int main(int argc, char **argv)
{
	int n = argc - 3, chain = atoi(argv[2]);
	void **all = malloc((size_t)n * sizeof *all);
	double until;

	for (int i = 0; i < n; i++) {
		void *so = dlopen(argv[3 + i], RTLD_NOW | RTLD_LOCAL);

		all[i] = so ? dlsym(so, "next") : NULL;
		if (!all[i])
			return fputs(dlerror(), stderr), 1;
	}
	until = now() + atof(argv[1]);
	for (int i = 0; now() < until; i = (i + 1) % n)
		((step *)all[i])(all, n, i, chain - 1, work);
	return 0;
}
