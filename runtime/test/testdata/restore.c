/*
 * A step of eh_elf.h from a frame that has called nobody, whose rule says that registers are below the stack pointer: they have been taken
 * back, unless they are in the red zone, or a signal has put them there.
 */
#include "eh_elf.h"

#include <stdio.h>
#include <string.h>

static uint64_t stack[128];

enum { SP = 64 }; /* the word that the stack pointer is at */

/* The rule of a function at its ret: rbx in the red zone, rbp, r12 and r13 below. */
static int step(struct unspool_state *s, const void *mem, uint64_t pc)
{
	static const struct {
		unsigned char slot, at;
	} saved[] = {{3, SP - 2}, {6, SP - 20}, {12, SP - 30}, {13, SP - 40}};

	(void)mem, (void)pc;
	for (unsigned i = 0; i < 4; i++) {
		s->known |= (uint64_t)1 << saved[i].slot;
		s->in_mem |= (uint64_t)1 << saved[i].slot;
		s->val[saved[i].slot] = (uint64_t)(stack + saved[i].at);
	}
	s->val[EH_ELF_SP] = s->cfa = (uint64_t)(stack + SP + 1);
	s->pc = 0x1001;
	return EH_ELF_OK;
}

int main(void)
{
	struct eh_elf_module m;
	struct eh_elf_map map;
	struct eh_elf_cursor c;
	uint64_t want[4] = {100 + SP - 2, 6, 12, 100 + SP - 40}, v;
	static const uint32_t slot[4] = {3, 6, 12, 13};
	int bad = 0;

	memset(&m, 0, sizeof m);
	memset(&c, 0, sizeof c);
	m.start = 0x1000;
	m.end = 0x2000;
	m.file.step = step;
	eh_elf_map_init(&map, &m, 1, EH_ELF_SELF);
	map.n = 1;
	for (unsigned i = 0; i < 128; i++)
		stack[i] = 100 + i;
	for (int exact = 1; exact >= 0; exact--) {
		c.state.pc = 0x1010;
		c.state.known = ((uint64_t)1 << EH_ELF_NUM_SLOTS) - 1;
		c.state.in_mem = (uint64_t)1 << 13; /* a signal has put it there */
		for (unsigned i = 0; i < EH_ELF_NUM_SLOTS; i++)
			c.state.val[i] = i;
		c.state.val[13] = (uint64_t)(stack + SP - 40);
		c.state.val[EH_ELF_SP] = (uint64_t)(stack + SP);
		eh_elf_begin(&c, &map, NULL);
		c.exact = exact;
		if (!exact) { /* a caller's are where they are said to be */
			want[1] = 100 + SP - 20;
			want[2] = 100 + SP - 30;
		}
		if (eh_elf_next(&c) != EH_ELF_OK)
			return 2;
		for (unsigned i = 0; i < 4; i++) {
			if (eh_elf_get(&c, slot[i], &v) != EH_ELF_OK || v != want[i]) {
				printf("exact %d: register %u is %llu, not %llu\n", exact, slot[i], (unsigned long long)v, (unsigned long long)want[i]);
				bad = 1;
			}
		}
	}
	return bad;
}
