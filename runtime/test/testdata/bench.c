/* Times steps with an eh_elf file of the kind self: bench FILE ADDRESSES, where the latter holds link-time addresses. */
#include "eh_elf.h"

#include <setjmp.h>
#include <signal.h>
#include <stdlib.h>
#include <time.h>

enum { ROUNDS = 401, CALLS = 8192, MAX = 1 << 16, ARENA = 1 << 20 }; /* short rounds: others disturb few of them */

static struct eh_elf f;
static uint64_t pcs[MAX], rules[MAX], n;
static uint64_t arena[ARENA / 8];
static struct unspool_state s;
static sigjmp_buf fault;

static void segv(int sig)
{
	(void)sig;
	siglongjmp(fault, 1);
}

/* What each step starts from: registers that lead into the arena, which is full of numbers that do so too. */
static inline void reset(uint64_t mid)
{
	s.known = (1 << 17) - 1;
	s.in_mem = 0;
	s.in_reg = 0;
	s.val[3] = mid;
	s.val[6] = mid;
	s.val[7] = mid;
	s.val[10] = mid;
	s.val[12] = mid;
}

static int empty(struct unspool_state *st, const void *mem, uint64_t pc)
{
	(void)st;
	(void)mem;
	__asm__ volatile("" : : "r"(pc));
	return 0;
}

static uint32_t empty_find(uint64_t pc)
{
	__asm__ volatile("" : : "r"(pc));
	return 0;
}

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return 1e9 * (double)t.tv_sec + (double)t.tv_nsec;
}

static int by_size(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return x < y ? -1 : x > y;
}

enum what { STEP, STEP_SAME, STEP_CHAINED, FIND, FIND_SAME, APPLY, APPLY_SAME };

/* Nanoseconds for each call, the median of many rounds, each at other addresses. */
static double measure(enum what what, const struct eh_elf *e)
{
	eh_elf_step_fn *step = e->step;
	eh_elf_apply_fn *apply = e->apply;
	eh_elf_find_fn *find = e->find;
	uint64_t mid = arena[0], zero = 0;
	static double took[ROUNDS];

	for (uint64_t r = 0; r < ROUNDS; r++) {
		const uint64_t *many = pcs + r * CALLS % (n - CALLS), *many_rules = rules + r * CALLS % (n - CALLS);
		uint64_t pc = pcs[r * 977 % n], rule = rules[r * 977 % n];
		double start = now();

		for (int i = 0; i < CALLS; i++) {
			switch (what) {
			case STEP: reset(mid); step(&s, NULL, many[i]); break;
			case STEP_SAME: reset(mid); step(&s, NULL, pc); break;
			case STEP_CHAINED: /* as in a walk: where to go on is known only when the step is done */
				reset(mid + zero);
				step(&s, NULL, pc + zero);
				zero = s.pc;
				__asm__ volatile("andq $0, %0" : "+r"(zero));
				break;
			case FIND: find(many[i]); break;
			case FIND_SAME: find(pc); break;
			case APPLY: reset(mid); apply(&s, NULL, (uint32_t)many_rules[i]); break;
			case APPLY_SAME: reset(mid); apply(&s, NULL, (uint32_t)rule); break;
			}
		}
		took[r] = (now() - start) / CALLS;
	}
	qsort(took, ROUNDS, sizeof took[0], by_size);
	return took[ROUNDS / 2];
}

static void say(const char *name, double ns) { printf("%s %.2f\n", name, ns); }

int main(int argc, char **argv)
{
	static const struct eh_elf none = {.step = empty, .find = empty_find};
	volatile uint64_t kept = 0;
	FILE *in;
	int e;

	if (argc < 3 || (e = eh_elf_open(argv[1], &f)) != 0) {
		fprintf(stderr, "%s\n", argc < 3 ? "usage" : eh_elf_strerror(e));
		return 1;
	}
	in = fopen(argv[2], "r");
	if (in == NULL || (n = fread(pcs, 8, MAX, in)) == 0)
		return 1;
	for (size_t i = 0; i < ARENA / 8; i++)
		arena[i] = (uint64_t)(uintptr_t)&arena[ARENA / 16];
	signal(SIGSEGV, segv);
	for (volatile uint64_t i = 0; i < n; i++) { /* leave out what reads elsewhere: expressions */
		reset(arena[0]);
		for (int k = 0; k < 16; k++)
			s.val[k] = arena[0];
		if (sigsetjmp(fault, 1) != 0 || (f.step(&s, NULL, pcs[i]) & 0xff) != EH_ELF_OK)
			continue;
		rules[kept] = f.find ? f.find(pcs[i]) : 0;
		pcs[kept++] = pcs[i];
	}
	signal(SIGSEGV, SIG_DFL);
	say("addresses", (double)n);
	say("kept", (double)kept);
	n = kept;

	if (n <= CALLS)
		return 1;
	say("empty", measure(STEP_SAME, &none));
	say("step-same", measure(STEP_SAME, &f));
	say("step-chained", measure(STEP_CHAINED, &f));
	say("step-random", measure(STEP, &f));
	if (f.find != NULL) {
		say("empty-find", measure(FIND_SAME, &none));
		say("find-same", measure(FIND_SAME, &f));
		say("find-random", measure(FIND, &f));
		say("apply-same", measure(APPLY_SAME, &f));
		say("apply-random", measure(APPLY, &f));
	}
	return 0;
}
