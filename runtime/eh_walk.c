/* SPDX-License-Identifier: Apache-2.0 */
/*
 * eh_walk.c: frames as libgcc's unwinder finds them: by call frame information, by the code to which signal handlers return, and no further. What
 * is known of a program counter is kept in one direct-mapped cache for all threads, as in local_cache.h.
 */
#define _GNU_SOURCE
#include "apply.h"
#include "eh_step.h"
#include "reader.h"

#include <dlfcn.h>
#include <sys/auxv.h>

_Static_assert(offsetof(struct _Unwind_Context, by_value) == 8 * EH_COLUMNS + 72 && offsetof(struct _Unwind_Context, flags) == 8 * EH_COLUMNS + 48, "libgcc's layout");

/* ---- The cache ---- */

struct eh_slot eh_slots[1 << EH_SLOT_BITS] __attribute__((aligned(4096)));
_Atomic uint64_t eh_used[1 << (EH_SLOT_BITS - EH_PAGE_BITS - 6)] EH_DATA_SECTION;

/*
 * Where another program counter has a slot, others can serve: those whose numbers differ in the low bits, and then those in the other half of the
 * cache. A first throw writes to few pages so, and code with many calls has room.
 */
enum { NEAR = 4, WAYS = 2 * NEAR };

US_INLINE unsigned way_of(unsigned at, unsigned way)
{
	return at ^ (way & (NEAR - 1)) ^ (way < NEAR ? 0 : 1u << (EH_SLOT_BITS - 1));
}

/* The last word of a frame of registered code has the generation in its higher half. */
#define GENERATION(word) ((uint32_t)((word) >> 32))

US_INLINE int still_there(struct eh_walk *w, const struct eh_frame *f, uint32_t index, uint64_t at)
{
	if (us_likely(index == 0 || index == w->module))
		return 1;
	if (index == US_VOLATILE)
		return GENERATION(f->args) == atomic_load_explicit(&eh_generation, memory_order_acquire);
	if (!us_still_loaded(index, at, 0))
		return 0;
	w->module = index;
	return 1;
}

static void put(uint64_t key, uint64_t pc, const struct eh_frame *f, uint32_t index)
{
	unsigned first = eh_slot_of(pc), at = first;
	struct eh_slot *e;
	uint64_t w[EH_FRAME_WORDS], head = 0;

	/* The first that is free, or has it already; else the last. */
	for (unsigned way = 0; way < WAYS; way++) {
		uint64_t there;

		at = way_of(first, way);
		if (!eh_is_used(at))
			break;
		there = atomic_load_explicit(&eh_slots[at].key, memory_order_relaxed);
		if (there == 0 || there == key)
			break;
	}
	e = &eh_slots[at];
	if (eh_is_used(at))
		head = atomic_load_explicit(&e->head, memory_order_relaxed);
	else /* the page's first access is a write: a read would map a page of zeros first */
		atomic_fetch_or_explicit(&eh_used[at >> (EH_PAGE_BITS + 6)], (uint64_t)1 << (at >> EH_PAGE_BITS & 63), memory_order_relaxed);
	if (head & 1 || !atomic_compare_exchange_strong_explicit(&e->head, &head, head | 1, memory_order_acq_rel, memory_order_relaxed))
		return;
	memcpy(w, f, sizeof w);
	atomic_store_explicit(&e->key, key, memory_order_release);
	for (unsigned i = 0; i < EH_FRAME_WORDS; i++)
		atomic_store_explicit(&e->word[i], w[i], memory_order_release);
	atomic_store_explicit(&e->head, (uint32_t)(head + 2) | (uint64_t)index << 32, memory_order_release);
}

/* ---- Frames ---- */

/* Instructions of call frame information, by their operands: u and s are LEB128, b a block, 1 to 8 bytes, a an address. */
static const char *const operands[64] = {
	[0x00] = "", [0x01] = "a", [0x02] = "1", [0x03] = "2", [0x04] = "4", [0x05] = "uu", [0x06] = "u", [0x07] = "u", [0x08] = "u", [0x09] = "uu",
	[0x0a] = "", [0x0b] = "", [0x0c] = "uu", [0x0d] = "u", [0x0e] = "u", [0x0f] = "b", [0x10] = "ub", [0x11] = "us", [0x12] = "us", [0x13] = "s",
	[0x14] = "uu", [0x15] = "us", [0x16] = "ub", [0x1d] = "8", [0x2b] = "us", [0x2c] = "", [0x2d] = "", [0x2e] = "u", [0x2f] = "uu",
};

/* The size of the arguments on the stack at pc. */
static uint64_t args_size(struct us_window *w, const struct us_fde *f, uint64_t pc)
{
	struct reader r = {w, f->insns, f->end, 0};
	uint64_t loc = f->lo, size = 0, v = 0;

	/* Most have none. Behind the page may be nothing, where the FDE's length is damaged. */
	if (f->insns >= f->end || ((f->insns ^ (f->end - 1)) >> 12 == 0 && !memchr((const void *)f->insns, 0x2e, f->end - f->insns)))
		return 0;
	while (r.at < r.end && loc <= pc && !r.bad) {
		uint8_t op = u8(&r);

		if (op >> 6) {
			if (op >> 6 == 1)
				loc += (op & 63) * f->caf;
			else if (op >> 6 == 2)
				uleb(&r);
			continue;
		}
		if (!operands[op])
			break;
		for (const char *c = operands[op]; *c; c++) {
			switch (*c) {
			case 'a':
				v = encoded(&r, f->enc & 0x7f, 0, f->lo);
				if (f->enc & PE_indirect)
					v = follow(&r, v);
				loc = v;
				break;
			case 's':
				v = (uint64_t)sleb(&r);
				break;
			case 'u':
				v = uleb(&r);
				break;
			case 'b':
				v = uleb(&r);
				if (v > r.end - r.at)
					return size;
				r.at += v;
				break;
			default:
				v = fixed(&r, (unsigned)(*c - '0'));
				loc += v * f->caf;
			}
		}
		if (op == 0x2e && !r.bad && loc <= pc)
			size = v;
	}
	return (uint32_t)size;
}

#ifdef __aarch64__
/* Whether the functions of a CIE sign return addresses with the second key: its augmentation has B. */
static int has_key_b(struct us_window *w, const struct us_fde *f)
{
	struct reader r = {w, f->cie, f->cie_end, 0};
	uint8_t c;

	if (fixed(&r, 4) == UINT32_MAX)
		fixed(&r, 8);
	fixed(&r, 4);
	u8(&r); /* the version */
	while ((c = u8(&r)) != 0 && !r.bad)
		if (c == 'B')
			return 1;
	return 0;
}
#endif

#ifdef __aarch64__
/*
 * DW_OP_bregx VG, 0, which reads a register that no frame keeps: the length of SVE's vectors, in words. These bytes are nothing else: as the operand of
 * another operation they would say 5,906 or 11,922, and stacks are aligned.
 */
static const uint8_t read_vg[] = {0x92, 46, 0};

static uint8_t *find_vg(const uint8_t *at, const uint8_t *end)
{
	for (; (size_t)(end - at) >= sizeof read_vg; at++)
		if (memcmp(at, read_vg, sizeof read_vg) == 0)
			return (uint8_t *)(uintptr_t)at;
	return NULL;
}

static uint8_t vector_words(void)
{
	register uint64_t n __asm__("x0") = 0;

	if (getauxval(AT_HWCAP) & 1 << 22) /* HWCAP_SVE */
		__asm__(".inst 0x04e0e3e0" : "=r"(n)); /* cntd x0 */
	return (uint8_t)n;
}

const struct us_rule *eh_scale(struct eh_scaled *s, const struct us_rule *r)
{
	uint8_t vg = vector_words(), *at = s->exprs, *end = s->exprs + r->wide->expr_size;

	memcpy(s->exprs, r->wide->exprs, r->wide->expr_size);
	while ((at = find_vg(at, end)) != NULL) {
		at[0] = 0x08; /* DW_OP_const1u */
		at[1] = vg;
		at[2] = 0x96; /* DW_OP_nop */
	}
	s->rule = *r;
	s->wides = *r->wide;
	s->wides.exprs = s->exprs;
	s->rule.wide = &s->wides;
	return &s->rule;
}
#endif

/* mov $15, %rax; syscall; or mov x8, #139; svc #0: what a signal handler returns to, where there is no information. */
static int is_sigreturn(uint64_t pc)
{
	static const uint8_t code[] = {MACHINE(RETURN_0)};
	uint8_t there[sizeof code];

	return us_peek(pc, there, sizeof there) && memcmp(there, code, sizeof code) == 0;
}

/* Modules that have been seen to have no build ID, by where they are: nobody can tell whether one is still there, so their frames are not kept. */
enum { PLACES = 256 };
static _Atomic uint64_t without_id[PLACES] EH_DATA_SECTION;

/* No module's index: what is found must not be kept. */
enum { UNKEPT = US_VOLATILE - 1 };

/* What the cache must ask for before it takes a frame of the module at pc, which begins at lo. */
static unsigned index_of(uint64_t pc, uint64_t lo)
{
	_Atomic uint64_t *p = &without_id[(lo >> 12) % PLACES];
	struct us_loaded *m;

	if (atomic_load_explicit(p, memory_order_relaxed) == lo)
		return UNKEPT;
	m = us_loaded_at(pc);
	if (!m || m->lo != lo)
		return UNKEPT;
	if (m->permanent)
		return 0;
	if (m->id_at)
		return m->index;
	atomic_store_explicit(p, lo, memory_order_relaxed);
	return UNKEPT;
}

/* Finds the FDE of the code at pc. Call frame information is read as libgcc reads it: modules with code on the stack stay. */
static int find_fde(uint64_t pc, struct us_window *w, struct us_fde *fde, unsigned *index, struct eh_bases *b)
{
	uint64_t at = eh_registered(pc, b);
	struct dl_find_object o;
	struct us_frames frames;

	eh_all_memory(w);
	*index = US_VOLATILE;
	if (us_unlikely(at))
		return us_fde_open(w, at, fde);
	if (_dl_find_object((void *)pc, &o) != 0 || !o.dlfo_eh_frame)
		return US_NOT_FOUND;
	b->tbase = b->dbase = NULL;
	if (us_frames_open(&frames, w, (uint64_t)o.dlfo_eh_frame) != US_FOUND)
		return US_NOT_FOUND;
	*index = index_of(pc, (uint64_t)o.dlfo_map_start);
	return us_frames_find(&frames, w, pc, fde);
}

static US_COLD int make(struct _Unwind_Context *c, struct eh_walk *w, struct eh_frame *f)
{
	int exact = c->flags & EH_EXACT ? 1 : 0, o;
	uint64_t pc = c->ra - !exact;
	uint32_t generation = atomic_load_explicit(&eh_generation, memory_order_acquire);
	struct eh_bases b = {NULL, NULL, NULL};
	struct us_window win;
	struct us_fde fde;
	unsigned index;

	memset(f, 0, sizeof *f);
	o = find_fde(pc, &win, &fde, &index, &b);
	if (o != US_FOUND) {
		if (o != US_NOT_FOUND)
			return EH_FATAL_PHASE1;
		if (!is_sigreturn(c->ra))
			return EH_END_OF_STACK;
		f->rule.flags = US_SIGNAL; /* of kind NONE: the registers are where the kernel put them */
		f->start = c->func;
		return EH_NO_REASON;
	}
	if (us_fde_rule(&win, &fde, pc, &f->rule) != US_FOUND)
		return EH_FATAL_PHASE1;
#ifdef __aarch64__
	if (f->rule.flags & UNSPOOL_RA_SIGNED && has_key_b(&win, &fde))
		f->rule.flags |= UNSPOOL_B_KEY;
	if (f->rule.kind == US_KIND_WIDE && f->rule.wide->expr_size <= sizeof((struct eh_scaled *)0)->exprs &&
	    find_vg(f->rule.wide->exprs, f->rule.wide->exprs + f->rule.wide->expr_size))
		f->rule.flags |= EH_SCALED;
#endif
	f->start = fde.lo;
	f->personality = fde.handler && fde.handler_indirect ? us_word(fde.handler) : fde.handler;
	f->lsda = fde.lsda && fde.lsda_indirect ? us_word(fde.lsda) : fde.lsda;
	f->args = args_size(&win, &fde, pc);
	c->tbase = (uint64_t)b.tbase;
	c->dbase = (uint64_t)b.dbase;
	if (!us_is_user(c->ra) || c->tbase || c->dbase || index == UNKEPT)
		return EH_NO_REASON;
	if (index == US_VOLATILE)
		f->args |= (uint64_t)generation << 32;
	else if (index)
		w->module = index;
	put(eh_key(c->ra, (uint64_t)exact), c->ra, f, index);
	return EH_NO_REASON;
}

int eh_miss(struct _Unwind_Context *c, struct eh_walk *w, struct eh_frame *f)
{
	uint64_t exact = c->flags >> 63, key = eh_key(c->ra, exact);
	unsigned at = eh_slot_of(c->ra);
	uint32_t index;
	int o;

	c->lsda = c->args_size = 0; /* all else stays from the frame before where nothing is found */
	if (c->ra == 0)
		return EH_END_OF_STACK;
	for (unsigned way = 0;; way++) {
		if (way == WAYS || !eh_is_used(way_of(at, way))) {
			o = make(c, w, f);
			if (o != EH_NO_REASON)
				return o;
			break;
		}
		if (eh_read(&eh_slots[way_of(at, way)], key, f, &index) && still_there(w, f, index, c->ra - !exact)) {
			c->tbase = c->dbase = 0;
			break;
		}
	}
	c->args_size = (uint32_t)f->args;
	c->lsda = f->lsda;
	c->func = f->start;
	return EH_NO_REASON;
}

/* ---- Steps ---- */

static int load(void *ctx, uint64_t addr, uint64_t *to)
{
	(void)ctx;
	*to = us_word(addr);
	return 1;
}

#ifdef __aarch64__
/* Finds v0 to v31 of a signal's frame: a record among others behind its general registers (asm/sigcontext.h). */
static void signal_vectors(struct _Unwind_Context *c, uint64_t uc)
{
	enum { RECORDS = 464, ROOM = 4096, FPSIMD = 0x46508001, SIZE = 528, VREGS = 16 };
	uint64_t at = uc + RECORDS, end = at + ROOM;

	while (end - at >= 8) {
		uint64_t head = us_word(at), size = head >> 32;

		if ((uint32_t)head == 0 || size < 8 || size & 7 || size > end - at)
			return;
		for (unsigned i = 0; i < 32 && (uint32_t)head == FPSIMD && size >= SIZE; i++) {
			c->reg[64 + i] = at + VREGS + 16 * i;
			c->by_value[64 + i] = 0;
		}
		at += size;
	}
}
#endif

/* Out of a signal's frame that has no information. */
static US_COLD int step_signal(struct _Unwind_Context *c)
{
	uint64_t uc = eh_value(c, US_SP) + MACHINE(FRAME_CONTEXT);

	for (unsigned i = 0; i < US_SLOTS; i++) {
		if (us_greg[i] == 0 || (i == US_PC && !US_RA_IS_PC))
			continue;
		c->reg[eh_column(i)] = uc + us_greg[i];
		c->by_value[eh_column(i)] = 0;
	}
#ifdef __aarch64__
	signal_vectors(c, uc);
#endif
#ifdef __aarch64__
	c->cfa = uc + 176; /* libgcc's frame ends at the kernel's struct sigcontext, and the stack pointer is a register of it */
#else
	c->cfa = us_word(uc + us_greg[US_SP]);
	c->reg[US_SP] = 0;
#endif
	c->ra = us_word(uc + us_greg[US_PC]);
	c->flags |= EH_EXACT;
	return 1;
}

static US_COLD int step_other(struct _Unwind_Context *c, const struct us_rule *r)
{
	struct us_state s;
	int o;

	if (r->kind == US_KIND_NONE && r->flags == US_SIGNAL)
		return step_signal(c);
	s.pc = c->ra;
	s.cfa = c->cfa;
	s.known = s.in_mem = s.in_reg = 0;
	s.bits = us_own_bits();
	s.fault = 0;
	for (unsigned i = 0; i < US_SLOTS; i++) {
		unsigned k = eh_column(i);

		s.val[i] = c->reg[k];
		if (c->reg[k] || c->by_value[k])
			s.known |= US_BIT(i);
		if (c->reg[k] && !c->by_value[k])
			s.in_mem |= US_BIT(i);
	}
	s.val[US_SP] = eh_value(c, US_SP);
	s.known |= US_BIT(US_SP);
	s.in_mem &= ~US_BIT(US_SP);
	o = us_apply_with(r, &s, load, NULL, NULL, US_ALL);
	if (o == US_OUTERMOST) {
		if (r->kind == US_KIND_REG) {
			c->cfa = eh_value(c, eh_column(r->reg)) + (uint64_t)(int64_t)r->off;
			c->reg[US_SP] = 0;
		}
		c->ra = 0;
		c->flags &= ~EH_EXACT;
		return 1;
	}
	if (o != US_OK)
		return 0;
	for (unsigned i = 0; i < US_SLOTS; i++) {
		unsigned k = eh_column(i);

		if (i == US_SP || !(s.known >> i & 1)) /* what is undefined stays, as with libgcc */
			continue;
		c->reg[k] = s.val[i];
		c->by_value[k] = !(s.in_mem >> i & 1);
	}
	c->by_value[US_SP] = 0;
	c->reg[US_SP] = 0;
	c->cfa = s.cfa;
	if (s.known >> US_SP & 1 && s.in_mem >> US_SP & 1)
		c->reg[US_SP] = s.val[US_SP];
	else if (s.known >> US_SP & 1 && s.val[US_SP] != s.cfa) {
		c->reg[US_SP] = s.val[US_SP];
		c->by_value[US_SP] = 1;
	}
	c->ra = s.pc;
	if ((r->flags & US_SIGNED) == UNSPOOL_RA_SIGNED)
		c->ra = eh_authenticated(eh_value(c, US_RA), s.cfa, r->flags);
	c->flags = r->flags & US_SIGNAL ? c->flags | EH_EXACT : c->flags & ~EH_EXACT;
	return 1;
}

#ifdef __aarch64__
static US_COLD int step_scaled(struct _Unwind_Context *c, const struct us_rule *r)
{
	struct eh_scaled s;

	return step_other(c, eh_scale(&s, r));
}
#endif

int eh_step_other(struct _Unwind_Context *c, const struct us_rule *r)
{
#ifdef __aarch64__
	if (r->flags & EH_SCALED)
		return step_scaled(c, r);
#endif
	return step_other(c, r);
}

/* ---- What else is asked about code ---- */

EH_API const void *_Unwind_Find_FDE(void *pc, struct eh_bases *b)
{
	struct us_window win;
	struct us_fde fde;
	unsigned index;

	if (find_fde((uint64_t)pc, &win, &fde, &index, b) != US_FOUND)
		return NULL;
	b->func = (void *)fde.lo;
	return (const void *)fde.at;
}

EH_API void *_Unwind_FindEnclosingFunction(void *pc)
{
	struct eh_bases b;

	return _Unwind_Find_FDE((char *)pc - 1, &b) ? b.func : NULL;
}

/* ---- Contexts ---- */

EH_API uint64_t _Unwind_GetGR(struct _Unwind_Context *c, int n)
{
	return n < 0 || n >= EH_COLUMNS ? 0 : eh_value(c, (unsigned)n);
}

EH_API void _Unwind_SetGR(struct _Unwind_Context *c, int n, uint64_t v)
{
	if (n < 0 || n >= EH_COLUMNS)
		return;
	if (c->by_value[n] || !c->reg[n]) {
		c->reg[n] = v;
		c->by_value[n] = 1;
	} else {
		*(uint64_t *)c->reg[n] = v;
	}
}

EH_API uint64_t _Unwind_GetIP(struct _Unwind_Context *c)
{
	return c->ra;
}

EH_API uint64_t _Unwind_GetIPInfo(struct _Unwind_Context *c, int *before)
{
	*before = c->flags & EH_EXACT ? 1 : 0;
	return c->ra;
}

EH_API void _Unwind_SetIP(struct _Unwind_Context *c, uint64_t v)
{
	c->ra = v;
}

EH_API uint64_t _Unwind_GetCFA(struct _Unwind_Context *c)
{
	return c->cfa;
}

EH_API void *_Unwind_GetLanguageSpecificData(struct _Unwind_Context *c)
{
	return (void *)c->lsda;
}

EH_API uint64_t _Unwind_GetRegionStart(struct _Unwind_Context *c)
{
	return c->func;
}

EH_API uint64_t _Unwind_GetDataRelBase(struct _Unwind_Context *c)
{
	return c->dbase;
}

EH_API uint64_t _Unwind_GetTextRelBase(struct _Unwind_Context *c)
{
	return c->tbase;
}
