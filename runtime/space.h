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
	int cached;    /* whether steps look into the cache by program counter */
	us_set keep; /* what a call frame leaves in place, as us_apply takes it */
	_Atomic uint32_t space; /* for the cache of rules; a new one after each flush */
	_Atomic uint32_t epoch; /* counts flushes, from 1 */
	_Atomic uint32_t next;  /* counts ranges added, which are a ring */
	struct us_kept_range range[US_MAX_RANGES];
};

/* The own process (own.c). */
extern US_HIDDEN struct unw_addr_space us_local_space;

/* The ucontext_t of the signal frame that a step left last; 0 for none. */
US_HIDDEN uint64_t us_signal_context(const unw_cursor_t *c);

US_HIDDEN int us_strict_mode(void);

/* The module that a walk has last seen to be where it was; NULL at first. */
struct us_seen {
	const struct us_module *module;
	uint64_t bias;
};

/*
 * Asks the accessors of a space, or what is known from before, for the rule at instruction pointer ip, which is not a
 * return address. Returns 0, or what is wrong: -UNW_ENOINFO where there is none, or the error of an accessor.
 */
US_HIDDEN int us_space_rule(unw_addr_space_t as, void *arg, uint64_t ip, struct us_seen *seen, struct us_rule *rule);

/* The same, or what machine code knows (US_NATIVE). */
US_HIDDEN int us_space_step(unw_addr_space_t as, void *arg, uint64_t ip, struct us_seen *seen, struct us_rule *rule);

/* Whether there may be code at ip: accessors do not say what can be executed, nor need they be able to read it. */
US_HIDDEN int us_space_code(unw_addr_space_t as, void *arg, uint64_t ip);

/* What find_proc_info says, or the space's list of registered code. */
US_HIDDEN int us_space_info(unw_addr_space_t as, void *arg, uint64_t ip, unw_proc_info_t *pi);

/* The name of registered code, as unw_get_proc_name gives names. */
US_HIDDEN int us_space_name(unw_addr_space_t as, void *arg, uint64_t ip, char *to, size_t size, unw_word_t *off);

typedef int (*us_states_callback)(void *token, void *data, size_t size, unw_word_t start, unw_word_t end);

/*
 * Calls back with a struct us_rule for each range of ip's procedure that has one rule. Returns what the last call
 * returned, or an error: -UNW_EINVAL for a procedure of more than 64 KiB. Not async-signal-safe.
 */
US_HIDDEN int us_space_states(unw_addr_space_t as, void *arg, uint64_t ip, us_states_callback callback, void *token);

#endif /* UNSPOOL_SPACE_H */
