/*
 * steps.c - times the steps of a program that unwinds with libunwind-x86_64.so.8, call-backs included: gcc -shared -fPIC
 * steps.c -ldl, LD_PRELOAD. At exit, "steps NUMBER NANOSECONDS" is written to the file that $STEPS names.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <x86intrin.h>

static uint64_t steps, ticks, tick0, ns0;
static int (*step)(void *);
static int (*start)(void *, void *, void *);

static uint64_t now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

__attribute__((constructor)) static void begin(void)
{
	step = (int (*)(void *))dlsym(RTLD_NEXT, "_Ux86_64_step");
	start = (int (*)(void *, void *, void *))dlsym(RTLD_NEXT, "_Ux86_64_init_remote");
	tick0 = __rdtsc();
	ns0 = now();
}

__attribute__((destructor)) static void end(void)
{
	const char *path = getenv("STEPS");
	FILE *f = path && steps ? fopen(path, "w") : NULL;

	if (f) {
		fprintf(f, "steps %lu %.0f\n", steps, (double)ticks * (double)(now() - ns0) / (double)(__rdtsc() - tick0));
		fclose(f);
	}
}

int _Ux86_64_step(void *c)
{
	uint64_t t = __rdtsc();
	int r = step(c);

	ticks += __rdtsc() - t;
	steps++;
	return r;
}

int _Ux86_64_init_remote(void *c, void *space, void *arg)
{
	uint64_t t = __rdtsc();
	int r = start(c, space, arg);

	ticks += __rdtsc() - t;
	return r;
}
