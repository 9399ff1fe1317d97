/* SPDX-License-Identifier: Apache-2.0 */
/*
 * module.h: the modules of other processes, told apart by build ID through nothing but memory that somebody reads for
 * us. A module is known once, however many address spaces map it, and never forgotten.
 */
#ifndef UNSPOOL_MODULE_H
#define UNSPOOL_MODULE_H

#include "core.h"

/* Memory of a process: reads n bytes at addr into to and returns 1; or returns 0. */
struct us_target {
	int (*read)(void *ctx, uint64_t addr, void *to, size_t n);
	void *ctx;
};

enum { US_MAX_SEGMENTS = 8, US_MAX_ID = 64 };

/* Sizes of pages, of which mappings are made. On AArch64, Linux has some of 4, 16 and 64 KiB. */
#ifdef __aarch64__
enum { US_PAGE = 4096, US_MAX_PAGE = 65536 };
#else
enum { US_PAGE = 4096, US_MAX_PAGE = US_PAGE };
#endif

struct us_module {
	struct us_module *next;
	uint8_t id[US_MAX_ID];
	uint32_t id_size;
	uint32_t space;      /* a number of its own, for a cache of rules by link-time address */
	uint64_t first;      /* link-time address of the ELF header */
	uint64_t hdr;        /* of .eh_frame_hdr */
	uint64_t note;       /* of the build ID itself */
	uint32_t n_segments; /* executable ones */
	struct {
		uint64_t lo, hi;
	} segment[US_MAX_SEGMENTS];
	const struct us_table *table;   /* from the store; NULL for none */
	const struct us_native *native; /* the same */
	uint64_t lo, hi;              /* what there is to copy of the file, link-time addresses; none if equal */
	_Atomic uint32_t lookups;     /* until it has been copied */
	struct us_window *_Atomic image; /* the copy; NULL where the target is read instead */
	struct us_frames frames;
};

/*
 * The module whose .eh_frame_hdr is at segbase; NULL where it cannot be told. *bias: run-time minus link-time addresses.
 * strict: stored tables, which can know more than .eh_frame_hdr does, are looked at only if us_stepper says so.
 */
US_HIDDEN struct us_module *us_module_at(const struct us_target *t, uint64_t segbase, uint64_t *bias, int strict);

/* The same, with an address where the ELF header may be: if it is there, it need not be looked for. */
US_HIDDEN struct us_module *us_module_near(const struct us_target *t, uint64_t segbase, uint64_t header, uint64_t *bias, int strict);

/* Whether m is mapped with this bias: compares the ELF header's start and the build ID; quick looks at a part of the ID only. */
US_HIDDEN int us_module_is(const struct us_module *m, const struct us_target *t, uint64_t bias, int quick);

/*
 * Makes the rule at link-time address pc: from the stored table, or the file, or through t. Of a strict module, there is one only where
 * .eh_frame_hdr leads to it.
 */
US_HIDDEN int us_module_rule(struct us_module *m, const struct us_target *t, uint64_t bias, uint64_t pc, struct us_rule *r);

/* The same, by machine code if there is any for pc. */
US_HIDDEN int us_module_step(struct us_module *m, const struct us_target *t, uint64_t bias, uint64_t pc, struct us_rule *r);

/* Finds the FDE at link-time address pc. */
US_HIDDEN int us_module_fde(struct us_module *m, const struct us_target *t, uint64_t bias, uint64_t pc, struct us_fde *fde);

/* A window on t's memory, by run-time address minus bias. buf is its room. */
enum { US_WINDOW = 64 };
struct us_view {
	struct us_window w;
	const struct us_target *t;
	uint64_t bias;
	uint8_t buf[US_WINDOW];
};
US_HIDDEN void us_view(struct us_view *v, const struct us_target *t, uint64_t bias);

#endif /* UNSPOOL_MODULE_H */
