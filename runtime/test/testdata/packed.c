/*
 * Packed rules on AArch64: what is packed comes apart as it was, and a step by it ends in the state that us_apply_with comes to, or leaves the state as
 * it is. Prints how many rules are packed, and how many of these make a step.
 */
#include "local_walk.c"

#include <stdio.h>
#include <stdlib.h>

static uint64_t seed = 1;

static uint64_t any(void)
{
	seed ^= seed << 13;
	seed ^= seed >> 7;
	return seed ^= seed << 17;
}

static uint64_t below(uint64_t n)
{
	return any() % n;
}

static uint64_t stack[4096];

/* An address of the stack, or near it. */
static uint64_t place(void)
{
	return (uint64_t)stack - 64 + 8 * below(sizeof stack / 8 + 16) + (below(20) ? 0 : below(8));
}

static struct us_rule random_rule(void)
{
	struct us_rule r;
	uint32_t n = (uint32_t)below(20);

	memset(&r, 0, sizeof r);
	r.kind = below(10) ? US_KIND_REG : below(2) ? US_KIND_NONE : US_KIND_PLT;
	r.reg = (below(10) ? below(3) ? US_SP : US_FP : below(64)) & 63;
	r.aux = (uint8_t)(below(4) ? 0 : below(5) ? below(4) : below(256));
	r.flags = (uint16_t)(below(3) ? 0 : below(2) ? 2 : 1 << below(16));
	r.off = (int32_t)(below(8) ? 8 * below(700) : any());
	r.mask = (uint32_t)(below(10) ? 1 << MACHINE(RA_SAVE) | 1 << MACHINE(FP_SAVE) : any() >> 44);
	for (uint32_t i = 0; i < n; i++)
		r.mask |= 1u << below(MACHINE(N_SAVES));
	for (unsigned i = 0; i < MACHINE(N_SAVES); i++)
		r.saves[i] = (int8_t)any();
	return r;
}

static struct us_walk random_walk(void)
{
	struct us_walk w;
	uint64_t uc[200];

	memset(&w, 0, sizeof w);
	memset(uc, 0, sizeof uc);
	us_walk_context(&w, (uint64_t)uc, 0);
	w.s.pc = 0x400000 + 0x40 * below(8);
	w.s.cfa = any();
	w.sp = w.s.val[US_SP] = place();
	w.s.bits = (uint32_t)(48 + below(5));
	w.s.known = any() & US_ALL;
	w.s.in_mem = w.s.known & any();
	w.s.known |= US_BIT(US_SP);
	w.s.in_mem &= ~US_BIT(US_SP);
	for (unsigned i = 0; i < US_SLOTS; i++)
		if (i != US_SP)
			w.s.val[i] = below(4) ? place() : any();
	w.span = (struct us_span){(uint64_t)stack, (uint64_t)(stack + sizeof stack / 8)};
	if (below(20) == 0)
		w.span = (struct us_span){0, 0};
	w.ra_at = any();
	w.moves.low = below(2) ? 0 : place();
	w.in_handler = below(2);
	w.saved_only = below(20) == 0;
	w.exact = w.from_signal = below(20) == 0;
	w.uncached = below(5) == 0;
	w.module = (uint32_t)below(3);
	return w;
}

int main(void)
{
	int packed = 0, stepped = 0;

	for (unsigned i = 0; i < sizeof stack / 8; i++)
		stack[i] = any();
	for (int n = 0; n < 200000; n++) {
		struct us_rule r = random_rule(), back;
		struct us_walk w = random_walk(), a = w, b = w;
		uint64_t words[SLOT_WORDS];
		uint32_t index = (uint32_t)below(3), got;
		int got_to, o;

		rule_put(w.s.pc, 0, &r, index);
		if (!rule_get(w.s.pc, 0, &back, &got) || got != index)
			return puts("a rule is lost"), 1;
		for (unsigned i = 0; i < MACHINE(N_SAVES); i++)
			if (!(r.mask >> i & 1) && rule_pack(&r, words))
				back.saves[i] = r.saves[i];
		if (memcmp(&r, &back, sizeof r) != 0)
			return printf("rule %d is another one\n", n), 1;
		packed += rule_pack(&r, words);
		got_to = step_packed(&a);
		if (got_to == US_END) {
			if (memcmp(&a, &w, sizeof w) != 0)
				return printf("rule %d is not applied, and something has changed\n", n), 1;
			continue;
		}
		stepped++;
		o = apply(&b, &r);
		if (!rule_pack(&r, words) || w.exact || w.saved_only || (index != 0 && (w.uncached || index != w.module)) || o != got_to || memcmp(&a, &b, sizeof a) != 0)
			return printf("rule %d: %d, not %d, kind %u reg %u aux %u flags %#x off %d mask %#x\n", n, got_to, o, r.kind, r.reg, r.aux, r.flags, r.off, r.mask), 1;
	}
	printf("%d %d\n", packed, stepped);
	return 0;
}
