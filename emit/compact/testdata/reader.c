/*
 * Reads tables by runtime/unspool_table.h and answers questions, for a test. In: u32 bytes of a table, the table, u32
 * number of questions, and so on until the end. A question: u64 pc to look up, u64 seed of the memory, a state. The
 * answer: u32 rule, u32 outcome, the state.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

static uint64_t mix(uint64_t x)
{
	x += 0x9e3779b97f4a7c15;
	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
	x = (x ^ x >> 27) * 0x94d049bb133111eb;
	return x ^ x >> 31;
}

static int load(void *ctx, uint64_t addr, uint64_t *to)
{
	uint64_t h = mix(addr ^ *(uint64_t *)ctx);

	*to = mix(h);
	return h >> 60 >= 1;
}

#define UNSPOOL_LOAD(ctx, addr, to) load(ctx, addr, to)
#include "unspool_table.h"

struct question {
	uint64_t pc, seed;
	struct unspool_state state;
};

struct answer {
	uint32_t rule, outcome, signal, pad;
	struct unspool_state state;
};

int main(void)
{
	uint32_t size, n;

	while (fread(&size, 4, 1, stdin) == 1) {
		struct unspool_table t;
		struct question q;
		uint8_t *bytes = malloc(size);

		if (!bytes || fread(bytes, 1, size, stdin) != size || fread(&n, 4, 1, stdin) != 1)
			return 1;
		if (unspool_table_open(&t, bytes, size) != 0)
			return 2;
		for (; n > 0; n--) {
			struct answer a = {0};

			if (fread(&q, sizeof q, 1, stdin) != 1)
				return 1;
			a.rule = unspool_table_find(&t, q.pc);
			a.signal = (uint32_t)unspool_table_signal(&t, a.rule);
			a.outcome = (uint32_t)unspool_table_apply(&t, a.rule, &q.state, &q.seed);
			if ((a.outcome == UNSPOOL_IS_WIDE) != (unspool_table_wide_at(&t, a.rule) != 0))
				return 3;
			a.state = q.state;
			if (fwrite(&a, sizeof a, 1, stdout) != 1)
				return 1;
		}
		free(bytes);
	}
	return 0;
}
