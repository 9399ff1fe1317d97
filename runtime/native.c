/* SPDX-License-Identifier: Apache-2.0 */
/*
 * native.c: frames left by machine code: eh_elf files (docs/EH_ELF.md) out of the store, of the layout page and the memory kind callback. A
 * file is mapped and checked as eh_elf_open does it; of the store's files, those of other users are refused.
 */
#define _GNU_SOURCE
#include "core.h"
#include "eh_elf_file.h"

#include <stdlib.h>

struct us_native {
	struct eh_elf f;
};

enum us_stepper us_stepper(int strict)
{
	static _Atomic int known; /* 0: not asked yet; else the stepper and 2, or 1 where none is named */
	int k = atomic_load_explicit(&known, memory_order_relaxed);

	if (k == 0) {
		const char *e = getenv("UNSPOOL_STEPPER");

		k = !e ? 1 : !strcmp(e, "rules") ? 2 + US_BY_RULES : !strcmp(e, "table") ? 2 + US_BY_TABLE : !strcmp(e, "native") ? 2 + US_BY_NATIVE : 1;
		atomic_store_explicit(&known, k, memory_order_relaxed);
	}
	return k > 1 ? (enum us_stepper)(k - 2) : strict ? US_BY_RULES : US_BY_TABLE;
}

static const void *load(int fd, const struct stat *st, const char *name)
{
	struct us_native *n;
	struct eh_elf f;
	void *b;

	if (st->st_mode & 022 || st->st_size < (off_t)sizeof(Elf64_Ehdr) || st->st_size > 1 << 30)
		return NULL;
	b = mmap(NULL, (size_t)st->st_size, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_POPULATE, fd, 0);
	if (b == MAP_FAILED)
		return NULL;
	/* The name begins with the module's build ID, and then there is a "-". */
	if (eh_elf_check(b, (uint64_t)st->st_size, &f) == 0 && f.apply && f.info.deref == EH_ELF_CALLBACK &&
	    !strncmp(name, f.id, strlen(f.id)) && name[strlen(f.id)] == '-' && (n = us_alloc(sizeof *n)) != NULL) {
		n->f = f;
		return n;
	}
	munmap(b, (size_t)st->st_size);
	return NULL;
}

const struct us_native *us_native_stored(const uint8_t *id, size_t n, const struct stat *st)
{
	char ending[40];

	snprintf(ending, sizeof ending, "page-callback.%d.eh_elf.so", EH_ELF_VERSION);
	return us_stored(id, n, st, ending, load);
}

int us_native_rule(const struct us_native *n, uint64_t pc, const struct us_rule *plain, struct us_rule *r)
{
	uint32_t id = n->f.find(pc);

	if (id == 0 || id >= n->f.info.n_rules)
		return US_NOT_FOUND;
	*r = (struct us_rule){.kind = US_KIND_NONE, .reg = US_SLOTS, .flags = US_NATIVE, .off = (int32_t)id};
	r->native = n;
	if (eh_elf_u32(n->f.base + n->f.info.rules + 4 * (uint64_t)id) >> 31)
		r->flags |= US_SIGNAL;
	if (plain && plain->flags & US_SYNC_ONLY)
		r->flags |= US_SYNC_ONLY;
	if (plain && (plain->kind == US_KIND_REG || plain->kind == US_KIND_PLT) && plain->mask >> MACHINE(RA_SAVE) & 1)
		r->reg = plain->reg;
	return US_FOUND;
}

/* Gives n the snapshot's register in which slot is, if it is in one. */
static inline int take(struct unspool_state *n, const struct us_state *s, unsigned slot, const struct us_mem *m)
{
	uint64_t i = s->val[slot];

	if (!((s->known & s->in_reg) >> slot & 1))
		return 1;
	if (i >= US_SLOTS)
		return 0;
	n->snap[i] = s->snap[i];
	return !m->reg || m->reg(m->ctx, (unsigned)i, &n->snap[i]);
}

int us_native_apply(const struct us_rule *r, struct us_state *s, const struct us_mem *m, us_set keep)
{
	struct unspool_reader rd = {.read8 = m->load, .ctx = m->ctx};
	struct unspool_state n;
	us_set known = s->known, lost;
	int o;

	n.pc = s->pc;
	n.cfa = s->cfa;
	n.known = known;
	n.in_mem = s->in_mem;
	n.in_reg = s->in_reg;
	memcpy(n.val, s->val, sizeof s->val);
	if (r->reg < US_SLOTS) {
		if (us_unlikely(!take(&n, s, r->reg, m)))
			return US_NO_RULE;
	} else {
		for (unsigned i = 0; i < US_SLOTS; i++)
			if (!take(&n, s, i, m))
				return US_NO_RULE;
	}
#ifdef __aarch64__
	rd.addresses = ((uint64_t)1 << s->bits) - 1;
#endif
	o = r->native->f.apply(&n, &rd, (uint32_t)r->off) & ~EH_ELF_SIGNAL;
	if (us_unlikely(o != EH_ELF_OK)) {
		if (o == EH_ELF_UNREADABLE)
			s->fault = n.fault;
		return o < EH_ELF_MISSING ? o : US_NO_RULE;
	}
	lost = keep & ~US_SAVED & known & ~(us_set)n.known; /* to keep, where they were */
	s->pc = n.pc;
	s->cfa = n.cfa;
	s->known = (us_set)n.known | lost;
	s->in_mem = (us_set)(n.in_mem & n.known) | (s->in_mem & lost);
	s->in_reg = (us_set)(n.in_reg & n.known) | (s->in_reg & lost);
	if (us_unlikely(lost)) {
		for (us_set set = (us_set)n.known; set; set &= set - 1)
			s->val[us_first(set)] = n.val[us_first(set)];
		return US_OK;
	}
	memcpy(s->val, n.val, sizeof s->val);
	return US_OK;
}
