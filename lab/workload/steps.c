/*
 * steps.c - times the walks of a program that unwinds with libunwind-x86_64.so.8, such as perf: gcc -O2 -shared -fPIC steps.c -ldl, LD_PRELOAD.
 * Whose libunwind it is does not matter. At exit, a line is written to the file that $STEPS names:
 *
 *	steps NUMBER NANOSECONDS walks NUMBER errors NUMBER calls NUMBER NANOSECONDS clock NANOSECONDS
 *
 * The first two are calls of unw_step, and the time in unw_init_remote and unw_step, the program's call-backs included; walks are calls of
 * unw_init_remote; errors are steps that returned less than 0. With STEPS_APART=1, call-backs are counted, and the time in them: in a
 * call-back of find_proc_info that calls unw_dwarf_search_unwind_table, the latter's time is libunwind's. One reading of the clock is taken off
 * for each time that it was read. STEPS_UNCACHED=1 asks for UNW_CACHE_NONE, whatever the program asks for.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <x86intrin.h>

typedef uint64_t word;

struct accessors {
	int (*find_proc_info)(void *, word, void *, int, void *);
	void (*put_unwind_info)(void *, void *, void *);
	int (*get_dyn_info_list_addr)(void *, word *, void *);
	int (*access_mem)(void *, word, word *, int, void *);
	int (*access_reg)(void *, int, word *, int, void *);
	void *rest[3];
};

enum owner { NOBODY, LIBRARY, PROGRAM };

static uint64_t steps, walks, errors, calls, tick0, ns0, last, pair;
static uint64_t ticks[3], reads[3];
static enum owner owner;
static int apart, uncached;
static struct accessors program;

static int (*step)(void *);
static int (*start)(void *, void *, void *);
static int (*search)(void *, word, void *, void *, int, void *);
static void *(*create)(struct accessors *, int);
static int (*set_policy)(void *, int);

static uint64_t now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

/* What passes from now on is to's; what has passed was the owner's that it returns. */
static inline enum owner pass(enum owner to)
{
	enum owner was = owner;
	uint64_t t = __rdtsc();

	ticks[was] += t - last;
	reads[was]++;
	last = t;
	owner = to;
	return was;
}

__attribute__((constructor)) static void begin(void)
{
	const char *e;

	step = (int (*)(void *))dlsym(RTLD_NEXT, "_Ux86_64_step");
	start = (int (*)(void *, void *, void *))dlsym(RTLD_NEXT, "_Ux86_64_init_remote");
	search = (int (*)(void *, word, void *, void *, int, void *))dlsym(RTLD_NEXT, "_Ux86_64_dwarf_search_unwind_table");
	create = (void *(*)(struct accessors *, int))dlsym(RTLD_NEXT, "_Ux86_64_create_addr_space");
	set_policy = (int (*)(void *, int))dlsym(RTLD_NEXT, "_Ux86_64_set_caching_policy");
	apart = (e = getenv("STEPS_APART")) != NULL && *e == '1';
	uncached = (e = getenv("STEPS_UNCACHED")) != NULL && *e == '1';
	pair = UINT64_MAX;
	for (int i = 0; i < 64; i++) { /* what a reading costs: the least of averages */
		uint64_t before;

		last = before = __rdtsc();
		for (int k = 0; k < 256; k++)
			pass(NOBODY);
		if (last - before < pair)
			pair = last - before;
	}
	memset(ticks, 0, sizeof ticks);
	memset(reads, 0, sizeof reads);
	tick0 = __rdtsc();
	ns0 = now();
}

__attribute__((destructor)) static void end(void)
{
	const char *path = getenv("STEPS");
	FILE *f = path && steps ? fopen(path, "w") : NULL;

	if (f) {
		double ns = (double)(now() - ns0) / (double)(__rdtsc() - tick0), clock = (double)pair / 256;
		double library = ((double)ticks[LIBRARY] - clock * (double)reads[LIBRARY]) * ns, own = ((double)ticks[PROGRAM] - clock * (double)reads[PROGRAM]) * ns;

		fprintf(f, "steps %lu %.0f walks %lu errors %lu calls %lu %.0f clock %.2f\n", steps, library + own, walks, errors, calls, own, clock * ns);
		fclose(f);
	}
}

int _Ux86_64_step(void *c)
{
	enum owner was = pass(LIBRARY);
	int r = step(c);

	pass(was);
	steps++;
	errors += r < 0;
	return r;
}

int _Ux86_64_init_remote(void *c, void *space, void *arg)
{
	enum owner was = pass(LIBRARY);
	int r = start(c, space, arg);

	pass(was);
	walks++;
	return r;
}

int _Ux86_64_dwarf_search_unwind_table(void *space, word ip, void *di, void *pi, int need, void *arg)
{
	enum owner was = owner;
	int r;

	if (was != PROGRAM)
		return search(space, ip, di, pi, need, arg);
	pass(LIBRARY);
	r = search(space, ip, di, pi, need, arg);
	pass(was);
	return r;
}

#define CALL(expression) \
	if (owner != LIBRARY) \
		return expression; \
	pass(PROGRAM); \
	calls++; \
	int r = expression; \
	pass(LIBRARY); \
	return r;

static int find_proc_info(void *space, word ip, void *pi, int need, void *arg) { CALL(program.find_proc_info(space, ip, pi, need, arg)) }
static int list(void *space, word *to, void *arg) { CALL(program.get_dyn_info_list_addr(space, to, arg)) }
static int access_mem(void *space, word at, word *v, int write, void *arg) { CALL(program.access_mem(space, at, v, write, arg)) }
static int access_reg(void *space, int i, word *v, int write, void *arg) { CALL(program.access_reg(space, i, v, write, arg)) }

/* A program has one table of accessors for all of its spaces. */
void *_Ux86_64_create_addr_space(struct accessors *a, int order)
{
	static struct accessors mine;

	if (!apart)
		return create(a, order);
	if (program.access_mem && memcmp(&program, a, sizeof program) != 0) {
		fprintf(stderr, "steps: address spaces differ in their accessors\n");
		abort();
	}
	program = mine = *a;
	mine.find_proc_info = find_proc_info;
	mine.get_dyn_info_list_addr = list;
	mine.access_mem = access_mem;
	mine.access_reg = access_reg;
	return create(&mine, order);
}

int _Ux86_64_set_caching_policy(void *space, int policy)
{
	return set_policy(space, uncached ? 0 : policy);
}
