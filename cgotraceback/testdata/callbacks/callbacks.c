/* Chains of calls that are known. No function is inlined, and none leaves by a jump to another. */
#define _GNU_SOURCE
#include "callbacks.h"
#include "_cgo_export.h"

#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <time.h>
#include <ucontext.h>
#include <unwind.h>

#define FUNCTION __attribute__((noinline, noclone))

static volatile unsigned sink;

FUNCTION void c_leaf(int n)
{
	unsigned x = sink;

	for (int i = 0; i < n; i++)
		x = x * 31 + (unsigned)i;
	sink = x;
}

FUNCTION void c_inner(int n)
{
	c_leaf(n);
	sink++;
}

FUNCTION void c_call(int what, int n)
{
	goCallback(what, n);
	sink++;
}

static FUNCTION void c_recurse(int what, int n, int depth)
{
	char room[depth * 64 + 1]; /* its frame needs another register than the stack pointer */

	room[depth] = 1;
	__asm__ volatile("" : : "r"(room) : "memory");
	if (depth > 1)
		c_recurse(what, n, depth - 1);
	else
		c_call(what, n);
	sink += (unsigned)room[depth];
}

FUNCTION void c_outer(int what, int n, int depth)
{
	c_recurse(what, n, depth);
	sink++;
}

/* ---- Through the C library ---- */

static _Thread_local int now, how_much;

FUNCTION int c_compare(const void *a, const void *b)
{
	if (now >= 0)
		c_call(now, how_much);
	now = -1;
	return *(const int *)a - *(const int *)b;
}

FUNCTION void c_sorted(int what, int n)
{
	int list[] = {2, 1};

	now = what;
	how_much = n;
	qsort(list, 2, sizeof list[0], c_compare);
	sink += (unsigned)list[0];
}

/* ---- Ends ---- */

FUNCTION void c_crash(int *at)
{
	*(volatile int *)at = 1;
	sink++;
}

FUNCTION void c_abort(void)
{
	abort();
}

FUNCTION void c_null(void)
{
	void (*volatile nowhere)(void) = NULL;

	nowhere();
	sink++;
}

/* ---- Threads that Go does not know ---- */

static pthread_t threads[16];
static int n_threads;

FUNCTION void *c_thread(void *n)
{
	c_inner((int)(intptr_t)n);
	sink++;
	return NULL;
}

void c_start(int count, int n)
{
	for (n_threads = 0; n_threads < count; n_threads++)
		pthread_create(&threads[n_threads], NULL, c_thread, (void *)(intptr_t)n);
}

void c_join(void)
{
	for (int i = 0; i < n_threads; i++)
		pthread_join(threads[i], NULL);
}

/* ---- Signals ---- */

static pthread_t targets[16];
static _Atomic int n_targets;

void c_target(void)
{
	targets[atomic_fetch_add(&n_targets, 1)] = pthread_self();
}

/* Sends a signal that Go has a handler for to the targets in turns; a thread has at most one pending. */
int c_signals(int n)
{
	const struct timespec shortly = {0, 5000};
	int i;

	for (i = 0; i < n; i++) {
		int count = atomic_load(&n_targets);

		if (count == 0) {
			nanosleep(&shortly, NULL);
			i--;
		} else if (pthread_kill(targets[i % count], i % 2 ? SIGURG : SIGPROF) != 0) {
			return -1;
		} else if (i % 4 == 0) {
			nanosleep(&shortly, NULL);
		}
	}
	return i;
}

void c_allocate(int n)
{
	for (int i = 0; i < n; i++) {
		void *p = malloc((size_t)i * 100);

		__asm__ volatile("" : : "r"(p) : "memory");
		free(p);
	}
}

/* Loads a library and unloads it. */
void c_load(void)
{
	void *l = dlopen("libm.so.6", RTLD_NOW | RTLD_LOCAL);

	if (l)
		dlclose(l);
}

/* ---- Costs ---- */

void c_calls(int what, int n)
{
	for (int i = 0; i < n; i++)
		goCallback(what, 0);
}

struct arg {
	uintptr_t context, signal, *pcs, max;
};
extern void us_go_traceback(struct arg *) __attribute__((weak));

static _Unwind_Reason_Code one(struct _Unwind_Context *c, void *a)
{
	struct arg *arg = a;

	if (arg->max == 32)
		return _URC_END_OF_STACK;
	arg->pcs[arg->max++] = _Unwind_GetIP(c);
	return _URC_NO_REASON;
}

FUNCTION int c_walk(int by_libgcc, int depth, int n)
{
	uintptr_t pcs[32];
	int frames = 0;

	if (depth > 1) {
		frames = c_walk(by_libgcc, depth - 1, n);
		sink++;
		return frames;
	}
	for (int i = 0; i < n; i++) {
		if (by_libgcc) {
			struct arg a = {0, 0, pcs, 0};

			_Unwind_Backtrace(one, &a);
			frames = (int)a.max;
		} else if (us_go_traceback) {
			struct arg a = {0, 0, pcs, 32};

			us_go_traceback(&a);
			for (frames = 0; frames < 32 && pcs[frames]; frames++)
				;
		}
	}
	return frames;
}

int c_walks(int by_libgcc, int depth, int n)
{
	return c_walk(by_libgcc, depth, n);
}
