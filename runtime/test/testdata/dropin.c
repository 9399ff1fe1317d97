/*
 * The drop-ins' walks, on stacks that are given: with -DLOCAL that of the own process (local_walk.c), else that of another (remote.c).
 * Their rules come from a compact table. Reads code with its table, and stacks on it; writes the program counters of each walk.
 */
#define _GNU_SOURCE
#include "local.h"
#include "space.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

struct head {
	uint64_t at, text, table, n; /* where the code is; bytes of it, and of its table; stacks */
};

struct stack {
	uint64_t reg[64], lo, size; /* by slot, more than any machine has; the memory follows */
};

enum { MAX = 1024 };

static struct head h;
static struct stack k;
static uint8_t *text, *stack;
static const struct us_table *table;

static void must(int ok, const char *what)
{
	if (!ok) {
		fprintf(stderr, "dropin: %s\n", what);
		exit(1);
	}
}

static void take(void *to, size_t n)
{
	must(n == 0 || fread(to, n, 1, stdin) == 1, "the input is cut off");
}

static int rule(uint64_t pc, struct us_rule *r)
{
	return pc - h.at < h.text ? us_table_rule(table, pc - h.at, r) : US_NOT_FOUND;
}

#ifdef LOCAL

int us_local_rule(uint64_t pc, int in_handler, struct us_rule *r, unsigned *index)
{
	(void)in_handler;
	*index = 0;
	return rule(pc, r);
}

int us_local_code(uint64_t pc) { return pc - h.at < h.text; }
int us_local_bytes(uint64_t pc, void *to, size_t n) { return us_peek(pc, to, n); }

int us_still_loaded(unsigned index, uint64_t pc, int careful)
{
	(void)index, (void)pc, (void)careful;
	return 1;
}

/* The code and the stack are where they are said to be. */
static uint8_t *memory_at(uint64_t at, size_t size)
{
	void *p = mmap((void *)at, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);

	must(p == (void *)at, "no memory there");
	return p;
}

static uint64_t walk(uint64_t *pcs)
{
	static uint8_t uc[8192]; /* AArch64's has room for more registers, and says of none that it has them */
	struct us_walk w;
	uint64_t n = 0;

	for (unsigned i = 0; i < US_SLOTS; i++)
		if (us_greg[i])
			memcpy(uc + us_greg[i], &k.reg[i], 8);
	us_walk_context(&w, (uint64_t)uc, 1);
	w.saved_only = 1;
	do
		pcs[n++] = w.s.pc;
	while (n < MAX && us_walk_step(&w, NULL) > 0 && (w.s.pc || w.exact));
	return n;
}

#else

int U(init_remote)(unw_cursor_t *c, unw_addr_space_t as, void *arg);
int U(step)(unw_cursor_t *c);
int U(get_reg)(unw_cursor_t *c, int n, unw_word_t *to);

struct unw_addr_space us_local_space;

int us_space_rule(unw_addr_space_t as, void *arg, uint64_t ip, struct us_seen *seen, struct us_rule *r)
{
	(void)as, (void)arg, (void)seen;
	return rule(ip, r) == US_FOUND ? 0 : -UNW_ENOINFO;
}

int us_space_step(unw_addr_space_t as, void *arg, uint64_t ip, struct us_seen *seen, struct us_rule *r)
{
	return us_space_rule(as, arg, ip, seen, r);
}

int us_native_apply(const struct us_rule *r, struct us_state *s, const struct us_mem *m, us_set keep)
{
	(void)r, (void)s, (void)m, (void)keep;
	return US_NO_RULE;
}

int us_space_code(unw_addr_space_t as, void *arg, uint64_t ip)
{
	(void)as, (void)arg;
	return ip - h.at < h.text;
}

/* What no step asks. */
int us_space_info(unw_addr_space_t as, void *arg, uint64_t ip, unw_proc_info_t *pi)
{
	(void)as, (void)arg, (void)ip, (void)pi;
	abort();
}

int us_space_name(unw_addr_space_t as, void *arg, uint64_t ip, char *to, size_t size, unw_word_t *off)
{
	(void)as, (void)arg, (void)ip, (void)to, (void)size, (void)off;
	abort();
}

int us_space_states(unw_addr_space_t as, void *arg, uint64_t ip, us_states_callback callback, void *token)
{
	(void)as, (void)arg, (void)ip, (void)callback, (void)token;
	abort();
}

static uint8_t *memory_at(uint64_t at, size_t size)
{
	(void)at;
	return malloc(size);
}

static int access_mem(unw_addr_space_t as, unw_word_t addr, unw_word_t *to, int write, void *arg)
{
	(void)as, (void)arg;
	must(!write, "nothing is to be written");
	if (addr - k.lo < k.size && k.size - (addr - k.lo) >= 8)
		memcpy(to, stack + (addr - k.lo), 8);
	else if (addr - h.at < h.text && h.text - (addr - h.at) >= 8)
		memcpy(to, text + (addr - h.at), 8);
	else
		return -1;
	return 0;
}

static int access_reg(unw_addr_space_t as, unw_regnum_t i, unw_word_t *to, int write, void *arg)
{
	(void)as, (void)arg;
	must(!write && i >= 0 && i < UNW_NUM_REGS, "registers are read only");
	*to = k.reg[i];
	return 0;
}

static struct unw_addr_space space = {.acc = {.access_mem = access_mem, .access_reg = access_reg}, .cached = 1, .keep = US_SAVED};

static uint64_t walk(uint64_t *pcs)
{
	unw_cursor_t c;
	uint64_t n = 0;

	must(U(init_remote)(&c, &space, NULL) == 0, "init_remote");
	do
		U(get_reg)(&c, UNW_PC, &pcs[n++]);
	while (n < MAX && U(step)(&c) > 0);
	return n;
}

#endif

int main(void)
{
	static uint64_t pcs[MAX + 1];
	uint8_t *bytes;

	while (fread(&h, sizeof h, 1, stdin) == 1) {
		text = memory_at(h.at, h.text);
		bytes = malloc(h.table);
		take(text, h.text);
		take(bytes, h.table);
		table = us_table_open(bytes, h.table);
		must(table != NULL, "no table");
#ifdef LOCAL
		us_local_flush();
#else
		atomic_store(&space.space, us_new_space());
#endif
		for (uint64_t i = 0; i < h.n; i++) {
			take(&k, sizeof k);
			stack = memory_at(k.lo, k.size);
			take(stack, k.size);
			pcs[0] = walk(pcs + 1);
			must(fwrite(pcs, 8, pcs[0] + 1, stdout) == pcs[0] + 1, "output");
#ifndef LOCAL
			free(stack);
#endif
		}
#ifndef LOCAL
		free(text);
#endif
		fflush(stdout);
	}
	return 0;
}
