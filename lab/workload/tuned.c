/*
 * tuned.c - makes stock libunwind under perf as fast as it gets unchanged: gcc -shared -fPIC tuned.c -ldl, LD_PRELOAD
 *
 * The cache has 32,768 entries instead of 128, and sigprocmask, which libunwind calls four times a step, does nothing.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>

int sigprocmask(int how, const void *set, void *old)
{
	(void)how;
	(void)set;
	(void)old;
	return 0;
}

int _Ux86_64_set_caching_policy(void *space, int policy)
{
	int (*set_policy)(void *, int) = (int (*)(void *, int))dlsym(RTLD_NEXT, "_Ux86_64_set_caching_policy");
	int (*set_size)(void *, size_t, int) = (int (*)(void *, size_t, int))dlsym(RTLD_NEXT, "_Ux86_64_set_cache_size");
	int r = set_policy(space, policy);

	/* The first call on a cache that was never used makes it, at its usual size. */
	if (set_size)
		for (int i = 0; i < 2; i++)
			set_size(space, 32768, 0);
	return r;
}
