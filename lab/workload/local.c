/*
 * Times a process's walks of its own stack, by whatever libunwind.so.8 it is run with: gcc -O2 local.c -lunwind -pthread
 *
 * 64 functions with frames of different layouts call each other down to a depth of 10, 50 or 200. Prints lines of a name,
 * a depth, and a number:
 *
 *	warm NAME	nanoseconds a frame, the median of batches
 *	cold NAME	microseconds of the first walk of a process that has never walked, the median of forked children
 *	faults NAME	page faults of the first walk
 *	scale NAME	how many times as much two threads do as one, at depth 50; "work" is arithmetic, and says what this
 *			machine can do
 */
#define _GNU_SOURCE
#define UNW_LOCAL_ONLY
#include <execinfo.h>
#include <libunwind.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <unwind.h>

enum { MAX = 512, BATCHES = 21, CHILDREN = 41, SCALE_ROUNDS = 15 };

typedef int method(void **pcs);

static int step(void **pcs)
{
	unw_context_t uc;
	unw_cursor_t c;
	unw_word_t ip;
	int n = 0;

	unw_getcontext(&uc);
	unw_init_local(&c, &uc);
	while (n < MAX && unw_step(&c) > 0) {
		unw_get_reg(&c, UNW_REG_IP, &ip);
		pcs[n++] = (void *)ip;
	}
	return n;
}

static int trace(void **pcs) { return unw_backtrace(pcs, MAX); }
static int glibc(void **pcs) { return backtrace(pcs, MAX); }

struct seen {
	void **pcs;
	int n;
};

static _Unwind_Reason_Code see(struct _Unwind_Context *c, void *arg)
{
	struct seen *s = arg;

	if (s->n < MAX)
		s->pcs[s->n++] = (void *)_Unwind_GetIP(c);
	return _URC_NO_REASON;
}

static int libgcc(void **pcs)
{
	struct seen s = {pcs, 0};

	_Unwind_Backtrace(see, &s);
	return s.n;
}

/* A step and the function's name for each frame, as programs do that print their stacks. */
static int names(void **pcs)
{
	unw_context_t uc;
	unw_cursor_t c;
	unw_word_t off;
	char name[256];
	int n = 0;

	(void)pcs;
	unw_getcontext(&uc);
	unw_init_local(&c, &uc);
	while (n < MAX && unw_step(&c) > 0) {
		unw_get_proc_name(&c, name, sizeof name, &off);
		n++;
	}
	return n;
}

static int work(void **pcs)
{
	uint64_t x = (uintptr_t)pcs;

	for (int i = 0; i < 1000; i++)
		__asm__ volatile("imul %0, %0" : "+r"(x));
	return 1;
}

static const struct {
	const char *name;
	method *f;
} methods[] = {
	{"unw_step", step}, {"unw_backtrace", trace}, {"step+name", names}, {"backtrace", glibc}, {"_Unwind_Backtrace", libgcc}, {"work", work},
};
enum { METHODS = sizeof methods / sizeof methods[0], WORK = METHODS - 1 };

static uint64_t now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static double median(double *v, int n)
{
	qsort(v, (size_t)n, sizeof *v, by_value);
	return v[n / 2];
}

/* ---- The stack ---- */

/* What the innermost function does. */
struct job {
	void (*f)(struct job *);
	method *m;
	int times;          /* walks in a batch */
	double took[BATCHES];
	int frames;
	_Atomic int *start; /* two threads wait for each other */
};

typedef int layout(int depth, struct job *j, volatile char *p);
static layout *layouts[64];

static int deeper(int depth, int i, struct job *j, volatile char *p)
{
	if (depth > 1)
		return layouts[(i + 1) & 63](depth - 1, j, p);
	j->f(j);
	return 0;
}

/* A frame of its own size, with some of the registers that it must save; some have a frame pointer. */
#define LAYOUT(n)                                                                                                                     \
	__attribute__((noinline)) static int layout##n(int depth, struct job *j, volatile char *p)                                   \
	{                                                                                                                            \
		volatile char local[16 + n % 9 * 24];                                                                                \
		volatile char *more = n % 8 == 5 ? __builtin_alloca((size_t)(32 + depth % 7)) : local;                               \
		local[0] = more[1] = p ? p[0] : 0;                                                                                   \
		if (n & 1)                                                                                                           \
			__asm__ volatile("" : : : "rbx", "r12");                                                                     \
		if (n & 2)                                                                                                           \
			__asm__ volatile("" : : : "r13", "r14", "r15");                                                              \
		return deeper(depth, n, j, local) + local[0] + more[1];                                                              \
	}
#define EIGHT(f, n) f(n##0) f(n##1) f(n##2) f(n##3) f(n##4) f(n##5) f(n##6) f(n##7)
#define ALL(f) EIGHT(f, 0) EIGHT(f, 01) EIGHT(f, 02) EIGHT(f, 03) EIGHT(f, 04) EIGHT(f, 05) EIGHT(f, 06) EIGHT(f, 07)
ALL(LAYOUT)
#define NAME(n) layout##n,
static layout *layouts[64] = {ALL(NAME)};

static void descend(int depth, struct job *j)
{
	layouts[0](depth, j, NULL);
}

/* ---- Measurements ---- */

static void *pcs[MAX];

static void batches(struct job *j)
{
	j->frames = j->m(pcs);
	for (int b = 0; b < BATCHES; b++) {
		uint64_t t = now();

		for (int i = 0; i < j->times; i++)
			j->m(pcs);
		j->took[b] = (double)(now() - t) / j->times / j->frames;
	}
}

static void first(struct job *j)
{
	struct rusage before, after;
	uint64_t t;

	getrusage(RUSAGE_SELF, &before);
	t = now();
	j->frames = j->m(pcs);
	j->took[0] = (double)(now() - t) / 1e3;
	getrusage(RUSAGE_SELF, &after);
	j->took[1] = (double)(after.ru_minflt - before.ru_minflt);
}

/* Walks until a fixed time is over, and counts. */
static void race(struct job *j)
{
	void *mine[MAX];
	uint64_t end;

	j->m(mine);
	atomic_fetch_sub(j->start, 1);
	while (atomic_load(j->start) > 0)
		;
	end = now() + 10000000;
	for (j->times = 0; now() < end; j->times++)
		for (int i = 0; i < 20; i++)
			j->m(mine);
}

static void *race_deep(void *arg)
{
	descend(50, arg);
	return NULL;
}

/* Runs f in a child; what it writes to the job is seen here. */
static void in_child(int depth, struct job *j)
{
	pid_t pid = fork();

	if (pid == 0) {
		descend(depth, j);
		_exit(0);
	}
	waitpid(pid, NULL, 0);
}

static int races(method *m, int threads)
{
	_Atomic int start = threads;
	struct job j[2];
	pthread_t t[2];
	int sum = 0;

	for (int i = 0; i < threads; i++) {
		j[i] = (struct job){.f = race, .m = m, .start = &start};
		pthread_create(&t[i], NULL, race_deep, &j[i]);
	}
	for (int i = 0; i < threads; i++) {
		pthread_join(t[i], NULL);
		sum += j[i].times;
	}
	return sum;
}

int main(void)
{
	static const int depths[] = {10, 50, 200};
	struct job *j = mmap(NULL, sizeof *j, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	double took[CHILDREN], faults[CHILDREN], scale[METHODS][SCALE_ROUNDS];

	/* First of all: no child may find anything warm. */
	for (int m = 0; m < WORK; m++) {
		for (int d = 0; d < 3; d++) {
			for (int i = 0; i < CHILDREN; i++) {
				*j = (struct job){.f = first, .m = methods[m].f};
				in_child(depths[d], j);
				took[i] = j->took[0];
				faults[i] = j->took[1];
			}
			printf("cold %s\t%d\t%.1f\n", methods[m].name, depths[d], median(took, CHILDREN));
			printf("faults %s\t%d\t%.0f\n", methods[m].name, depths[d], median(faults, CHILDREN));
		}
	}
	for (int m = 0; m < WORK; m++) {
		for (int d = 0; d < 3; d++) {
			*j = (struct job){.f = batches, .m = methods[m].f, .times = m == 2 ? 10 : 2000 / depths[d]};
			in_child(depths[d], j);
			printf("warm %s\t%d\t%.2f\n", methods[m].name, depths[d], median(j->took, BATCHES));
		}
	}
	for (int r = 0; r < SCALE_ROUNDS; r++)
		for (int m = 0; m < METHODS; m++)
			if (m != 2)
				scale[m][r] = (double)races(methods[m].f, 2) / races(methods[m].f, 1);
	for (int m = 0; m < METHODS; m++)
		if (m != 2)
			printf("scale %s\t50\t%.2f\n", methods[m].name, median(scale[m], SCALE_ROUNDS));
	return 0;
}
