/* SPDX-License-Identifier: Apache-2.0 */
/* space.h: an address space, of which programs know the name only, and the rules of the code in it. */
#ifndef UNSPOOL_SPACE_H
#define UNSPOOL_SPACE_H

#include "abi.h"
#include "module.h"

/* A part of an address space in which a module's code lies, as find_proc_info said. */
struct us_range {
	uint64_t lo, hi, segbase;
	uint64_t bias;
	struct us_module *module; /* NULL where it cannot be told */
};

enum { US_MAX_RANGES = 512, US_RANGE_WORDS = sizeof(struct us_range) / 8 };

/* A range as it is kept: seq is odd while it is written; epoch is the space's when it was added. */
struct us_kept_range {
	_Atomic uint32_t seq, epoch;
	_Atomic uint64_t words[US_RANGE_WORDS];
};

struct unw_addr_space {
	unw_accessors_t acc;
	int strict;
	int policy;
	_Atomic uint32_t space; /* for the cache of rules; a new one after each flush */
	_Atomic uint32_t epoch; /* counts flushes, from 1 */
	_Atomic uint32_t next;  /* counts ranges added, which are a ring */
	struct us_kept_range range[US_MAX_RANGES];
};

extern US_HIDDEN struct unw_addr_space us_local_space;

/*
 * Asks the accessors of a space, or what is known from before, for the rule at instruction pointer ip, which is not a
 * return address. Returns 0, or what is wrong: -UNW_ENOINFO where there is none, or the error of an accessor.
 */
US_HIDDEN int us_space_rule(unw_addr_space_t as, void *arg, uint64_t ip, struct us_rule *rule);

#endif /* UNSPOOL_SPACE_H */
