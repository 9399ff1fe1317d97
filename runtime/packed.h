/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * packed.h: unpacks a rule of a table whose rules are packed (docs/TABLE.md), for the drop-ins and for the kernel's program. Walkers have a
 * byte for each save, relative to a base that is a multiple of UNSPOOL_BASE_UNIT below the CFA. Who includes it has unspool_table.h and machine.h.
 */
#ifndef UNSPOOL_PACKED_H
#define UNSPOOL_PACKED_H

#if MACHINE(N_RUN)

_Static_assert(MACHINE(TABLE_RULE) == 16 && MACHINE(RULE_SIZE) == 32 && sizeof(MACHINE(SAVE_SET)) == 4 && UNSPOOL_BASE_UNIT == 8 << 7,
	       "as written below");

/*
 * Save i of the unpacked rule. Those before the run and the return address, behind it, have four bits each; the run's lie one behind the other.
 * What a save is that the rule does not have, does not count.
 */
#define UNPACK_FIRST (MACHINE(N_SAVES) - 1 - MACHINE(N_RUN))
#define UNPACK_DIGIT(i) ((i) < UNPACK_FIRST ? (i) : UNPACK_FIRST)
#define UNPACK(i, slot)                                                                                      \
	rule[1 + (i) / 8] |= (uint64_t)(uint8_t)((i) < UNPACK_FIRST || (i) == MACHINE(RA_SAVE) ?             \
						 base + (int64_t)(saves >> 4 * UNPACK_DIGIT(i) & 15) :       \
						 run + ((i) - UNPACK_FIRST) * step) << 8 * ((i) % 8);

/* Writes four words of the unpacked rule. Only rules of kind REG are packed; others are as they are. */
static inline __attribute__((always_inline)) void rule_unpack(const uint64_t *packed, uint64_t *rule)
{
	uint64_t head = packed[0], saves = packed[1], mask;
	int64_t off = (int64_t)head >> 48, aux = head >> 8 & 0xff, base, run, step, n;

	rule[0] = head;
	rule[1] = rule[2] = rule[3] = 0;
	if ((head & UNSPOOL_KIND_MASK) != UNSPOOL_KIND_REG)
		return;
	base = aux & UNSPOOL_BASE_ON_REG ? 2 * (aux & ~UNSPOOL_BASE_ON_REG) - off : -2 * aux;
	n = (-UNSPOOL_MIN_RUN - 1 - base) >> 7; /* so that a byte holds each save */
	base += n * (1 << 7);
	run = (int8_t)(head >> 40);
	step = run & 1 ? -1 : 1;
	run = base + (run >> 1);
	rule[0] = (head & 0xffff00ff) | (uint64_t)(uint8_t)n << 8 | (uint64_t)(off * 8) << 32;
	MACHINE(EACH_SAVE)(UNPACK)
	mask = saves >> UNSPOOL_MASK_SHIFT;
	mask = (mask & ((1u << UNPACK_FIRST) - 1)) | (head >> 32 & 0xff) << UNPACK_FIRST | (mask >> UNPACK_FIRST & 1) << MACHINE(RA_SAVE);
	rule[3] |= mask << 32;
}

#endif /* MACHINE(N_RUN) */
#endif /* UNSPOOL_PACKED_H */
