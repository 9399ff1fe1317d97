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
 *
 * STEPS_NOTE=FILE writes what each step reads of the program's memory, and its result, to FILE. STEPS_REPLAY=FILE does these reads instead of
 * the library's steps, by the same call-backs, and gives the same results: a library that knows everything before cannot be faster.
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
static FILE *noted;     /* of each step: how many addresses, these, its result, whether the frame is a signal's, the instruction pointer */
static word *next;      /* in what is replayed; NULL if nothing is */
static void *space, *argument; /* of the walk that is replayed */
static word read_now[256], last_ip;
static unsigned n_read;
static int last_signal;

static int (*step)(void *);
static int (*start)(void *, void *, void *);
static int (*search)(void *, word, void *, void *, int, void *);
static void *(*create)(struct accessors *, int);
static int (*set_policy)(void *, int);
static int (*get_reg)(void *, int, word *);
static int (*is_signal)(void *);

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

static void *read_file(const char *path)
{
	FILE *f = fopen(path, "r");
	uint8_t *b;
	long n;

	if (!f || fseek(f, 0, SEEK_END) != 0 || (n = ftell(f)) < 0 || !(b = malloc((size_t)n + 1)))
		abort();
	rewind(f);
	if (fread(b, 1, (size_t)n, f) != (size_t)n)
		abort();
	fclose(f);
	return b;
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
	get_reg = (int (*)(void *, int, word *))dlsym(RTLD_NEXT, "_Ux86_64_get_reg");
	is_signal = (int (*)(void *))dlsym(RTLD_NEXT, "_Ux86_64_is_signal_frame");
	if (step && (e = getenv("STEPS_NOTE")) != NULL)
		noted = fopen(e, "w");
	if (step && (e = getenv("STEPS_REPLAY")) != NULL)
		next = read_file(e);
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

/* A step that was noted. */
static int replay(void)
{
	word n = *next++, v;
	int r;

	while (n-- > 0)
		program.access_mem(space, *next++, &v, 0, argument);
	r = (int)*next++;
	last_signal = (int)*next++;
	last_ip = *next++;
	return r;
}

static void note(void *c, int r)
{
	word result[3] = {(word)(int64_t)r, (word)is_signal(c), 0}, n = n_read;

	get_reg(c, 16, &result[2]);
	fwrite(&n, sizeof n, 1, noted);
	fwrite(read_now, sizeof *read_now, n_read, noted);
	fwrite(result, sizeof *result, 3, noted);
	n_read = 0;
}

int _Ux86_64_get_reg(void *c, int i, word *to)
{
	if (!next)
		return get_reg(c, i, to);
	*to = last_ip;
	return 0;
}

int _Ux86_64_is_signal_frame(void *c)
{
	return next ? last_signal : is_signal(c);
}

int _Ux86_64_step(void *c)
{
	enum owner was = pass(LIBRARY);
	int r = next ? replay() : step(c);

	pass(was);
	if (noted)
		note(c, r);
	steps++;
	errors += r < 0;
	return r;
}

int _Ux86_64_init_remote(void *c, void *as, void *arg)
{
	enum owner was = pass(LIBRARY);
	word v;
	int r;

	if (next) {
		space = as;
		argument = arg;
		r = program.access_reg(as, 16, &v, 0, arg) | program.access_reg(as, 7, &v, 0, arg);
	} else {
		r = start(c, as, arg);
	}
	pass(was);
	walks++;
	n_read = 0;
	return r;
}

int _Ux86_64_dwarf_search_unwind_table(void *as, word ip, void *di, void *pi, int need, void *arg)
{
	enum owner was = owner;
	int r;

	if (was != PROGRAM)
		return search(as, ip, di, pi, need, arg);
	pass(LIBRARY);
	r = search(as, ip, di, pi, need, arg);
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

static int find_proc_info(void *as, word ip, void *pi, int need, void *arg) { CALL(program.find_proc_info(as, ip, pi, need, arg)) }
static int list(void *as, word *to, void *arg) { CALL(program.get_dyn_info_list_addr(as, to, arg)) }
static int note_mem(void *as, word at, word *v, int write, void *arg)
{
	if (owner == LIBRARY && n_read < sizeof read_now / sizeof *read_now)
		read_now[n_read++] = at;
	return program.access_mem(as, at, v, write, arg);
}

static int access_mem(void *as, word at, word *v, int write, void *arg) { CALL(program.access_mem(as, at, v, write, arg)) }
static int access_reg(void *as, int i, word *v, int write, void *arg) { CALL(program.access_reg(as, i, v, write, arg)) }

/* A program has one table of accessors for all of its spaces. */
void *_Ux86_64_create_addr_space(struct accessors *a, int order)
{
	static struct accessors mine;

	if (!apart && !noted && !next)
		return create(a, order);
	if (program.access_mem && memcmp(&program, a, sizeof program) != 0) {
		fprintf(stderr, "steps: address spaces differ in their accessors\n");
		abort();
	}
	program = mine = *a;
	if (noted)
		mine.access_mem = note_mem;
	if (!apart)
		return create(next ? a : &mine, order);
	mine.find_proc_info = find_proc_info;
	mine.get_dyn_info_list_addr = list;
	mine.access_mem = access_mem;
	mine.access_reg = access_reg;
	return create(&mine, order);
}

int _Ux86_64_set_caching_policy(void *as, int policy)
{
	return set_policy(as, uncached ? 0 : policy);
}
