/*
 * Asks generated code, for a test. In: u64 address and u64 size of the arena, its bytes; u64 number of program counters,
 * each u64; u64 number of questions, each a struct question and its words. Out: u32 a program counter: its rule; then a
 * struct answer a question. With STEP_ONLY, the code has gen_step alone: no rules are asked for.
 */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "eh_elf.h"

enum { SELF, CALLBACK, SLICE };

struct question {
	uint64_t pc;       /* one of the rule's */
	uint32_t rule, n_words;
	uint64_t lo, size; /* the part of the arena that is readable */
	struct unspool_state state;
};

struct answer {
	uint32_t outcome, differs; /* step's outcome or state is not apply's */
	struct unspool_state state;
};

static int read8(void *ctx, uint64_t addr, uint64_t *value)
{
	const struct unspool_slice *m = ctx;

	if (addr - m->lo < m->size && m->size - (addr - m->lo) >= 8) {
		memcpy(value, m->bytes + (addr - m->lo), 8);
		return 1;
	}
	for (uint64_t i = 0; i < m->n_words; i++)
		if (m->words[i].addr == addr) {
			*value = m->words[i].value;
			return 2;
		}
	*value = 0xbad;
	return 0;
}

static void get(void *p, size_t n)
{
	if (n > 0 && fread(p, n, 1, stdin) != 1)
		exit(2);
}

static void put(const void *p, size_t n)
{
	if (fwrite(p, n, 1, stdout) != 1)
		exit(3);
}

int main(void)
{
	static struct unspool_word words[1 << 14];
	uint64_t arena[2], n;
	unsigned char *bytes;

	get(arena, sizeof arena);
	bytes = mmap((void *)(uintptr_t)arena[0], arena[1], PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
	if (bytes != (void *)(uintptr_t)arena[0])
		return 4;
	get(bytes, arena[1]);
	for (get(&n, sizeof n); n > 0; n--) {
		uint64_t pc;

		get(&pc, sizeof pc);
#ifndef STEP_ONLY
		uint32_t rule = gen_find(pc);

		put(&rule, sizeof rule);
#endif
	}
	for (get(&n, sizeof n); n > 0; n--) {
		struct unspool_slice slice;
		struct unspool_reader reader = {read8, &slice};
		const void *mem = DEREF == SELF ? 0 : DEREF == CALLBACK ? (const void *)&reader : &slice;
		struct question q;
		struct answer a;
		struct unspool_state s;

		get(&q, sizeof q);
		if (q.n_words > sizeof words / sizeof *words)
			return 5;
		get(words, q.n_words * sizeof *words);
		slice = (struct unspool_slice){q.lo, q.size, bytes + (q.lo - arena[0]), words, q.n_words, 0};
		memset(&a, 0, sizeof a);
		s = q.state;
		a.outcome = (uint32_t)gen_step(&s, mem, q.pc);
		a.state = s;
#ifndef STEP_ONLY
		a.state = q.state;
		a.differs = a.outcome;
		a.outcome = (uint32_t)gen_apply(&a.state, mem, q.rule);
		a.differs = a.differs != a.outcome || memcmp(&a.state, &s, sizeof s) != 0;
		if (q.pc == 0)
			a.differs = 0; /* a rule that no row has */
#endif
		put(&a, sizeof a);
	}
	return 0;
}
