/*
 * The walk that runs in the kernel, compiled for user space. Reads cases like core.c's: of kind 0, a compact table and
 * questions about single steps, in lo how many bits addresses have; of kind 2, the ranges of an address space, in n the same, to be followed by stacks; of kind 4, code, and of
 * kind 5, where in the address space that is.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef uint8_t u8;
typedef uint16_t u16;
typedef uint32_t u32;
typedef uint64_t u64;
typedef int8_t s8;
typedef int16_t s16;
typedef int32_t s32;
typedef int64_t s64;

#define PART static __attribute__((noinline))
#ifndef __always_inline
#define __always_inline inline __attribute__((always_inline))
#endif

#include "unspool_table.h"

struct walk;
struct range_block;
static struct walk *walk_state(void);
static int walk_registers(struct walk *w);
static const void *walk_table(u32 table);
static const u8 *walk_part(const void *t, u32 k);
static const u8 *walk_value(u32 table, u32 k);
static const struct range_block *walk_block(u32 space, u32 k);
static int walk_read(void *to, u32 n, u64 addr);
static void walk_used(u32 table, u64 time)
{
	(void)table, (void)time;
}

static struct cache *walk_cache(void);

#include "../c/walk.h"

enum { MAX_TABLES = 1 << 16 };

static struct walk state;
static struct table {
	u8 *values; /* as the kernel has them: each with the start of the next */
	u32 n;
} tables[MAX_TABLES];
static u32 n_tables = 1; /* 0 is none */
static struct range_block *blocks;
static u32 n_ranges, address_bits, space; /* a new number for each space: the cache knows them by that */
static struct cache cache;

/* What walk_read reads. */
static u64 seed; /* not 0: numbers that look random */
static const u8 *stack;
static u64 stack_lo, stack_size;

static struct text {
	u8 *bytes;
	u64 size;
} texts[MAX_TABLES];
static struct mapped {
	u64 lo, hi, text, off;
} *mapped;
static u64 n_texts, n_mapped;

static u64 begun[REGS]; /* the registers of the stack at hand */

static struct walk *walk_state(void) { return &state; }
static struct cache *walk_cache(void) { return &cache; }

static int walk_registers(struct walk *w)
{
	memcpy(w->val, begun, sizeof begun);
	return 1;
}

static const void *walk_table(u32 table)
{
	return table < n_tables ? &tables[table] : NULL;
}

static const u8 *walk_part(const void *t, u32 k)
{
	const struct table *of = t;

	return k < of->n ? of->values + (size_t)k * VALUE_SIZE : NULL;
}

static const u8 *walk_value(u32 table, u32 k)
{
	const void *t = walk_table(table);

	return t ? walk_part(t, k) : NULL;
}

static const struct range_block *walk_block(u32 of, u32 k)
{
	(void)of;
	return k < (n_ranges + RANGES - 1) / RANGES ? &blocks[k] : NULL;
}

static u64 mixed(u64 x)
{
	x += 0x9e3779b97f4a7c15;
	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
	x = (x ^ x >> 27) * 0x94d049bb133111eb;
	return x ^ x >> 31;
}

static int walk_read(void *to, u32 n, u64 addr)
{
	u64 h;

	if (seed) {
		/* Eight bytes are one number wherever they are, so no window can be made of them. */
		h = mixed(addr ^ seed);
		if (n != 8 || h >> 60 == 0)
			return -1;
		h = mixed(h);
		memcpy(to, &h, 8);
		return 0;
	}
	for (u64 i = 0; i < n_mapped; i++) {
		struct mapped *m = &mapped[i];
		u64 at = addr - m->lo + m->off;

		if (addr < m->lo || addr >= m->hi)
			continue;
		if (m->hi - addr < n || m->text >= n_texts || at > texts[m->text].size || texts[m->text].size - at < n)
			return -1;
		memcpy(to, texts[m->text].bytes + at, n);
		return 0;
	}
	if (addr < stack_lo || addr - stack_lo > stack_size || stack_size - (addr - stack_lo) < n)
		return -1;
	memcpy(to, stack + (addr - stack_lo), n);
	return 0;
}

static void must(int ok, const char *what)
{
	if (!ok) {
		fprintf(stderr, "user: %s\n", what);
		exit(1);
	}
}

static void take(void *to, size_t n)
{
	must(n == 0 || fread(to, n, 1, stdin) == 1, "the input is cut off");
}

static u32 add_table(u64 size)
{
	struct table *t = &tables[n_tables];
	u8 *bytes = calloc(1, size + VALUE_SIZE);

	must(bytes && n_tables < MAX_TABLES, "too many tables");
	take(bytes, size);
	t->n = (u32)((size + VALUE_BYTES - 1) / VALUE_BYTES);
	t->values = malloc((size_t)t->n * VALUE_SIZE + 1);
	for (u32 i = 0; i < t->n; i++)
		memcpy(t->values + (size_t)i * VALUE_SIZE, bytes + (size_t)i * VALUE_BYTES, VALUE_SIZE);
	free(bytes);
	return n_tables++;
}

struct asked {
	u64 kind, size, lo, hdr, eh, eh_end, n;
};

struct regs {
	u64 pc, cfa, known, in_mem, in_reg, val[SLOTS], snap[SLOTS], fault;
};

struct question {
	u64 pc, seed;
	struct regs s;
};

struct answer {
	u32 found, outcome, signal, pad;
	struct regs s;
};

static void step(u32 table, u64 bits)
{
	struct question q;
	struct answer a = {0};
	struct walk *w = &state;

	take(&q, sizeof q);
	seed = q.seed | 1;
	w->win_len = 0;
	w->win_next = WINDOW;
	w->e_left = ~0u;
	w->address = bits ? ((u64)1 << bits) - 1 : UNSPOOL_ADDRESS;
	w->pc = q.s.pc;
	w->cfa = q.s.cfa;
	w->known = (slots)q.s.known;
	w->in_mem = (slots)q.s.in_mem;
	w->fault = q.s.fault;
	memcpy(w->val, q.s.val, sizeof q.s.val);
	a.found = find(table, q.pc) == 0;
	if (!a.found) {
		a.signal = RULE_FLAGS(&w->rule) & UNSPOOL_SIGNAL;
		a.outcome = (u32)apply(w);
		a.s = (struct regs){.pc = w->pc, .cfa = w->cfa, .known = w->known, .in_mem = w->in_mem, .fault = w->fault};
		memcpy(a.s.val, w->val, sizeof a.s.val);
		memcpy(a.s.snap, q.s.snap, sizeof a.s.snap);
	}
	must(fwrite(&a, sizeof a, 1, stdout) == 1, "output");
}

/* Walks the stack that was walked last with all registers from the start: that must come to the same. */
static void again(void)
{
	static u64 words[MAX_FRAMES];
	u64 id = state.id;
	u32 n = state.n, stop = state.stop, missing = state.missing;

	memcpy(words, state.words, n * sizeof words[0]);
	walk_registers(&state);
	begin(&state, 0);
	for (u32 i = 0; i <= MAX_FRAMES; i++)
		if (walk_on())
			break;
	must(state.n == n && state.stop == stop && state.missing == missing && state.id == id, "without all registers, a stack is another");
	must(memcmp(words, state.words, n * sizeof words[0]) == 0, "without all registers, a stack's words are others");
}

/* A stack: registers, the memory's address and size, the memory. The answer: whether something was missing, stop, frames, and a word for each. */
static void whole(void)
{
	u64 head[2], n;
	u8 *b;

	take(begun, sizeof begun);
	walk_registers(&state);
	take(head, sizeof head);
	b = malloc(head[1] + 1);
	must(b != NULL, "no memory");
	take(b, head[1]);
	seed = 0;
	stack = b;
	stack_lo = head[0];
	stack_size = head[1];
	walk(&state, space, n_ranges | address_bits << NUM_RANGES_BITS);
	again();
	n = state.n | (u64)state.stop << 32 | (u64)(state.missing != 0) << 40;
	must(fwrite(&n, 8, 1, stdout) == 1 && fwrite(state.words, 8, state.n, stdout) == state.n, "output");
	free(b);
}

int main(void)
{
	struct asked h;

	while (fread(&h, sizeof h, 1, stdin) == 1) {
		switch (h.kind) {
		case 0: { /* a table, and n questions */
			u32 t = add_table(h.size);

			for (u64 i = 0; i < h.n; i++)
				step(t, h.lo);
			break;
		}
		case 1: /* a table: the next number */
			add_table(h.size);
			break;
		case 2: /* ranges */
			free(blocks);
			space++;
			n_ranges = (u32)(h.size / sizeof(struct range));
			address_bits = (u32)h.n;
			blocks = malloc(h.size + sizeof *blocks);
			memset(blocks, 0xff, h.size + sizeof *blocks);
			take(blocks, h.size);
			break;
		case 4: { /* code: the next number */
			struct text *x = &texts[n_texts++];

			must(n_texts < MAX_TABLES, "too much code");
			x->size = (h.size + 4095) & ~(u64)4095; /* whole pages are mapped */
			x->bytes = calloc(1, x->size + 1);
			take(x->bytes, h.size);
			break;
		}
		case 5: /* where code is */
			free(mapped);
			n_mapped = h.size / sizeof *mapped;
			mapped = malloc(h.size + 1);
			take(mapped, h.size);
			break;
		case 3:
			for (u64 i = 0; i < h.n; i++)
				whole();
			fflush(stdout);
			break;
		default:
			must(0, "what is this?");
		}
	}
	return 0;
}
