/* Answers questions about tables and call frame information: for a program counter and a state, the rule and the caller. */
#include "core.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifndef STATE_SLOTS /* of what is read and written */
#define STATE_SLOTS US_SLOTS
#endif

struct state {
	uint64_t pc, cfa, known, in_mem, in_reg, val[STATE_SLOTS], snap[STATE_SLOTS], fault;
};

struct question {
	uint64_t pc, seed;
	struct state s;
};

struct answer {
	uint32_t found, outcome, signal, pad;
	struct state s;
};

struct head {
	uint64_t kind; /* 0 a table; 1 sections */
	uint64_t size, lo, hdr, eh, eh_end;
	uint64_t n;
};

static uint64_t mix(uint64_t x)
{
	x += 0x9e3779b97f4a7c15;
	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
	x = (x ^ x >> 27) * 0x94d049bb133111eb;
	return x ^ x >> 31;
}

/* Memory made of numbers that look random, a part of which cannot be read. */
static int load(void *ctx, uint64_t addr, uint64_t *to)
{
	uint64_t h = mix(addr ^ *(uint64_t *)ctx);

	if (h >> 60 == 0)
		return 0;
	*to = mix(h);
	return 1;
}

static void must(int ok, const char *what)
{
	if (!ok) {
		fprintf(stderr, "core: %s\n", what);
		exit(1);
	}
}

int main(void)
{
	static struct us_cache cache;
	struct head h;
	uint32_t space = 0;

	while (fread(&h, sizeof h, 1, stdin) == 1) {
		uint8_t *bytes = malloc(h.size ? h.size : 1); /* so that a sanitizer sees its end */
		struct us_window w = {bytes, h.lo, h.lo + h.size, NULL, NULL};
		const struct us_table *t = NULL;
		struct us_frames f = {0};

		must(bytes && fread(bytes, 1, h.size, stdin) == h.size, "the input is cut off");
		if (h.kind == 0) {
			t = us_table_open(bytes, h.size);
		} else {
			if (!h.hdr || us_frames_open(&f, &w, h.hdr) != US_FOUND)
				memset(&f, 0, sizeof f);
			f.eh_frame = h.eh;
			f.eh_end = h.eh_end;
		}
		space++;
		for (uint64_t i = 0; i < h.n; i++) {
			struct question q;
			struct answer a = {0};
			struct us_rule rule, again;
			struct us_fde fde;
			struct us_state s;
			struct us_mem m = {load, NULL, &q.seed};

			must(fread(&q, sizeof q, 1, stdin) == 1, "a question is cut off");
			if (h.kind == 0) {
				a.found = t ? us_table_rule(t, q.pc, &rule) : US_DAMAGED;
			} else {
				a.found = us_frames_find(&f, &w, q.pc, &fde);
				if (a.found == US_FOUND)
					a.found = us_fde_rule(&w, &fde, q.pc, &rule);
			}
			if (a.found == US_FOUND) {
				us_cache_put(&cache, space, q.pc, i & 1, &rule);
				must(us_cache_get(&cache, space, q.pc, i & 1, &again) && !memcmp(&rule, &again, sizeof rule), "the cache");
				memset(&s, 0, sizeof s);
				s.pc = q.s.pc;
				s.cfa = q.s.cfa;
				s.bits = q.seed & 1 && !US_RA_IS_PC ? US_MAX_BITS : US_SIGNED_BITS;
				s.known = (us_set)q.s.known;
				s.in_mem = (us_set)q.s.in_mem;
				s.in_reg = (us_set)q.s.in_reg;
				s.fault = q.s.fault;
				memcpy(s.val, q.s.val, sizeof s.val); /* no more than there is */
				memcpy(s.snap, q.s.snap, sizeof s.snap);
				a.outcome = (uint32_t)us_apply(&rule, &s, &m, US_SAVED);
				a.signal = rule.flags & US_SIGNAL;
				a.s = (struct state){.pc = s.pc, .cfa = s.cfa, .known = s.known, .in_mem = s.in_mem, .in_reg = s.in_reg, .fault = s.fault};
				memcpy(a.s.val, s.val, sizeof s.val);
				memcpy(a.s.snap, s.snap, sizeof s.snap);
			}
			must(fwrite(&a, sizeof a, 1, stdout) == 1, "output");
		}
		if (h.kind != 0)
			free(bytes);
	}
	return 0;
}
