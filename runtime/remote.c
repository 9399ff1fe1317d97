/* SPDX-License-Identifier: Apache-2.0 */
/*
 * remote.c: libunwind's interface to other address spaces: what libunwind-x86_64.so.8 exports. Programs give accessors,
 * by which everything is read; modules are told apart by build ID (module.h), so what is known about one serves all
 * address spaces.
 *
 * Two modes. With UNSPOOL_STRICT=1, every answer is that of libunwind 1.6. Otherwise it differs where libunwind is
 * wrong: a program's idea of where a module lies is corrected where the instruction pointer shows that it is stale;
 * registers that a call does not preserve are lost in the caller; stored tables may know more than .eh_frame_hdr.
 */
#define _GNU_SOURCE
#include "abi.h"
#include "module.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* ---- Address spaces ---- */

/* A part of an address space in which a module's code lies, as find_proc_info said. */
struct range {
	uint64_t lo, hi, segbase;
	uint64_t bias;
	struct us_module *module; /* NULL where it cannot be told */
	_Atomic uint32_t epoch; /* of the space when it was added; 0 while it is written */
};

enum { MAX_RANGES = 1000 };

struct unw_addr_space {
	unw_accessors_t acc;
	int big;      /* byte order: other than ours */
	int strict;
	int policy;
	_Atomic uint32_t space; /* for the cache; a new one after each flush */
	_Atomic uint32_t epoch; /* counts flushes, from 1 */
	_Atomic uint32_t next;  /* ranges ever added: a ring */
	struct range range[MAX_RANGES];
};

static struct unw_addr_space local_space;
US_API struct unw_addr_space *_Ux86_64_local_addr_space = &local_space;

static int strict_mode(void)
{
	static _Atomic int known; /* 0: not asked yet, 1: no, 2: yes */
	int k = atomic_load_explicit(&known, memory_order_relaxed);

	if (k == 0) {
		const char *e = getenv("UNSPOOL_STRICT");

		k = e && *e && strcmp(e, "0") != 0 ? 2 : 1;
		atomic_store_explicit(&known, k, memory_order_relaxed);
	}
	return k == 2;
}

US_API unw_addr_space_t _Ux86_64_create_addr_space(unw_accessors_t *a, int byte_order)
{
	struct unw_addr_space *as;

	if (byte_order != 0 && byte_order != 1234) /* x86-64 has one */
		return NULL;
	as = mmap(NULL, sizeof *as, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (as == MAP_FAILED)
		return NULL;
	as->acc = *a;
	as->strict = strict_mode();
	as->policy = UNW_CACHE_NONE;
	atomic_init(&as->space, us_new_space());
	atomic_init(&as->epoch, 1);
	return as;
}

US_API void _Ux86_64_destroy_addr_space(unw_addr_space_t as)
{
	if (as && as != &local_space)
		munmap(as, sizeof *as);
}

US_API unw_accessors_t *_Ux86_64_get_accessors(unw_addr_space_t as)
{
	return &as->acc;
}

static void flush(unw_addr_space_t as)
{
	atomic_store_explicit(&as->space, us_new_space(), memory_order_relaxed);
	atomic_fetch_add_explicit(&as->epoch, 1, memory_order_relaxed);
}

/* Everything is forgotten, whatever the range: as in libunwind. */
US_API void _Ux86_64_flush_cache(unw_addr_space_t as, unw_word_t lo, unw_word_t hi)
{
	(void)lo;
	(void)hi;
	flush(as);
}

US_API int _Ux86_64_set_caching_policy(unw_addr_space_t as, int policy)
{
	if (policy != UNW_CACHE_NONE && policy != UNW_CACHE_GLOBAL && policy != UNW_CACHE_PER_THREAD)
		return -UNW_EINVAL;
	if (policy != as->policy) {
		as->policy = policy;
		flush(as);
	}
	return 0;
}

/* The cache is for all address spaces, and of one size. */
US_API int _Ux86_64_set_cache_size(unw_addr_space_t as, size_t size, int flag)
{
	if (flag != 0)
		return -UNW_EINVAL;
	(void)size;
	flush(as);
	return 0;
}

/* ---- Cursors ---- */

struct cursor {
	struct unw_addr_space *as;
	void *arg;
	struct us_state s;
	uint64_t cfa;        /* what the stack pointer is */
	uint64_t sp;         /* strict: the stack pointer's location, by sp_kind */
	uint8_t sp_kind;
	uint8_t exact;       /* the program counter is not a return address */
	uint8_t from_signal; /* the last step left a signal frame */
};

/*
 * libunwind keeps a location for the stack pointer beside the CFA, which stands for its value. Steps do not change it,
 * except where a rule says so; it matters after a bad instruction pointer only.
 */
enum { SP_LOST, SP_REG, SP_MEM, SP_VALUE };
_Static_assert(sizeof(struct cursor) <= sizeof(unw_cursor_t), "it must fit");

static struct cursor *cursor(unw_cursor_t *c)
{
	return (struct cursor *)(void *)c;
}

US_INLINE int load(void *ctx, uint64_t addr, uint64_t *to)
{
	struct cursor *c = ctx;
	unw_word_t v = 0;
	int r = c->as->acc.access_mem(c->as, addr, &v, 0, c->arg);

	/* perf says 1, and 0 for the value, of what lies in no file. libunwind takes that for success. */
	if (us_unlikely(r != 0) && (r < 0 || !c->as->strict))
		return 0;
	*to = v;
	return 1;
}

/*
 * Reads an address of the program, also where memory ends with it: perf does not give the last word of a copied stack,
 * but all of its bytes except the highest, which is 0 in the addresses of programs.
 */
static int load_address(void *ctx, uint64_t addr, uint64_t *to)
{
	uint64_t v;

	if (load(ctx, addr, to))
		return 1;
	if (!load(ctx, addr - 1, &v) || v >> 8 >= (uint64_t)1 << 47)
		return 0;
	*to = v >> 8;
	return 1;
}

US_INLINE int reg(void *ctx, unsigned i, uint64_t *to)
{
	struct cursor *c = ctx;
	unw_word_t v;

	if (c->as->acc.access_reg(c->as, (int)i, &v, 0, c->arg) < 0)
		return 0;
	*to = v;
	return 1;
}

/* A target that is read by a space's accessors. */
struct reader {
	unw_addr_space_t as;
	void *arg;
};

static int read_target(void *ctx, uint64_t addr, void *to, size_t n)
{
	struct reader *r = ctx;
	uint8_t *b = to;
	unw_word_t v;

	for (; n >= 8; n -= 8, addr += 8, b += 8) {
		if (r->as->acc.access_mem(r->as, addr, &v, 0, r->arg) != 0)
			return 0;
		memcpy(b, &v, 8);
	}
	if (n) {
		/* A word that crosses no more than must be read: the one that ends with the value, if the one that starts with it is not there. */
		if (r->as->acc.access_mem(r->as, addr, &v, 0, r->arg) != 0) {
			if (r->as->acc.access_mem(r->as, addr + n - 8, &v, 0, r->arg) != 0)
				return 0;
			v >>= 64 - 8 * n;
		}
		memcpy(b, &v, n);
	}
	return 1;
}

US_API int _Ux86_64_init_remote(unw_cursor_t *cur, unw_addr_space_t as, void *arg)
{
	struct cursor *c = cursor(cur);
	unw_word_t ip, sp;
	int r;

	if (as == &local_space)
		return -UNW_EINVAL;
	c->as = as;
	c->arg = arg;
	r = as->acc.access_reg(as, US_RA, &ip, 0, arg);
	if (r < 0)
		return r;
	r = as->acc.access_reg(as, US_RSP, &sp, 0, arg);
	if (r < 0)
		return r;
	us_start(&c->s, ip, US_ALL);
	c->cfa = c->s.cfa = sp;
	c->s.val[US_RSP] = sp;
	c->s.in_reg &= ~(1u << US_RSP);
	c->sp = US_RSP;
	c->sp_kind = SP_REG;
	c->exact = 1;
	c->from_signal = 0;
	return 0;
}

US_API int _Ux86_64_init_local(unw_cursor_t *c, void *uc)
{
	(void)c;
	(void)uc;
	return -UNW_EINVAL;
}

US_API int _Ux86_64_init_local2(unw_cursor_t *c, void *uc, int flag)
{
	(void)c;
	(void)uc;
	(void)flag;
	return -UNW_EINVAL;
}

/* ---- From an instruction pointer to a rule ---- */

/* What a step wants of find_proc_info, which finds its way to dwarf_search_unwind_table with it. */
struct request {
	struct request *outer;
	unw_addr_space_t as;
	uint64_t ip;
	int found; /* US_FOUND: rule is set */
	int asked;
	struct us_rule rule;
};

static _Thread_local struct request *_Atomic request __attribute__((tls_model("initial-exec")));

/* The range that ip is in, among those that were added since the last flush; the newest first. */
static struct range *find_range(unw_addr_space_t as, uint64_t ip)
{
	uint32_t n = atomic_load_explicit(&as->next, memory_order_acquire), epoch = atomic_load_explicit(&as->epoch, memory_order_relaxed);

	for (uint32_t i = n; i-- > 0 && n - i <= MAX_RANGES;) {
		struct range *r = &as->range[i % MAX_RANGES];

		if (atomic_load_explicit(&r->epoch, memory_order_acquire) != epoch)
			continue;
		if (ip - r->lo < r->hi - r->lo)
			return r;
	}
	return NULL;
}

static void add_range(unw_addr_space_t as, const unw_dyn_info_t *di, struct us_module *m, uint64_t bias)
{
	uint32_t i = atomic_load_explicit(&as->next, memory_order_relaxed);
	struct range *r;

	if (i >= MAX_RANGES)
		return; /* slower, but right: a range that is in use is not written over */
	i = atomic_fetch_add_explicit(&as->next, 1, memory_order_acq_rel);
	if (i >= MAX_RANGES) {
		atomic_store_explicit(&as->next, MAX_RANGES, memory_order_relaxed);
		return;
	}
	r = &as->range[i];
	r->lo = di->start_ip;
	r->hi = di->end_ip;
	r->segbase = di->u.rti.segbase;
	r->bias = bias;
	r->module = m;
	atomic_store_explicit(&r->epoch, atomic_load_explicit(&as->epoch, memory_order_relaxed), memory_order_release);
}

/* Whether the code of m reaches over link-time address v. */
static int in_code(const struct us_module *m, uint64_t v)
{
	for (unsigned i = 0; i < m->n_segments; i++)
		if (v - m->segment[i].lo < m->segment[i].hi - m->segment[i].lo)
			return 1;
	return 0;
}

/*
 * The module in which di says that ip is, and where it lies. A program may name the place of another mapping of the same
 * file, such as one that is gone since exec: then ip is not in the code that would be there. It is in the mapping that
 * di describes, so that is where the module's executable segment lies, if the module's ELF header can be found from
 * there.
 */
static struct us_module *module_of(unw_addr_space_t as, uint64_t ip, const unw_dyn_info_t *di, const struct us_target *t, uint64_t *bias)
{
	struct us_module *m = us_module_at(t, di->u.rti.segbase, bias, as->strict);

	if (!m || as->strict || (in_code(m, ip - *bias) && in_code(m, di->start_ip - *bias)))
		return m;
	for (unsigned i = 0; i < m->n_segments; i++) {
		uint64_t b = di->start_ip - m->segment[i].lo;

		if (di->end_ip - di->start_ip <= m->segment[i].hi - m->segment[i].lo && us_module_is(m, t, b, 0)) {
			*bias = b;
			return m;
		}
	}
	return m;
}

static int is_remote_table(const unw_dyn_info_t *di)
{
	return di->format == UNW_INFO_FORMAT_REMOTE_TABLE || di->format == UNW_INFO_FORMAT_IP_OFFSET;
}

/* Finds the FDE of ip by di's own table, read by the accessors: for modules that cannot be told. Addresses are run-time ones. */
static int search_table(unw_addr_space_t as, uint64_t ip, const unw_dyn_info_t *di, void *arg, struct us_view *v, struct us_target *t,
			struct reader *r, struct us_fde *fde)
{
	struct us_frames f = {
		.hdr = di->u.rti.segbase,
		.table = di->u.rti.table_data,
		.n = di->u.rti.table_len * sizeof(unw_word_t) / 8,
	};

	*r = (struct reader){as, arg};
	*t = (struct us_target){read_target, r};
	us_view(v, t, 0);
	return f.n ? us_frames_find(&f, &v->w, ip, fde) : US_NOT_FOUND;
}

/* libunwind finds nothing for a function whose personality routine it cannot read. */
static int unreadable_handler(unw_addr_space_t as, const struct us_fde *fde, uint64_t bias, void *arg)
{
	unw_word_t v;

	return fde->handler && fde->handler_indirect ? as->acc.access_mem(as, fde->handler + bias, &v, 0, arg) : 0;
}

static void fill_info(unw_proc_info_t *pi, const struct us_fde *fde, uint64_t bias, const struct us_target *t)
{
	memset(pi, 0, sizeof *pi);
	pi->start_ip = fde->lo + bias;
	pi->end_ip = fde->hi + bias;
	pi->lsda = fde->lsda ? fde->lsda + bias : 0;
	pi->handler = fde->handler ? fde->handler + bias : 0;
	if (pi->handler && fde->handler_indirect)
		t->read(t->ctx, pi->handler, &pi->handler, 8);
	if (pi->lsda && fde->lsda_indirect)
		t->read(t->ctx, pi->lsda, &pi->lsda, 8);
	pi->format = UNW_INFO_FORMAT_TABLE;
}

/*
 * Finds unwind information for ip in the table that di describes. pi->unwind_info stays NULL: it is for libunwind's own
 * use, and this one needs none.
 */
US_API int _Ux86_64_dwarf_search_unwind_table(unw_addr_space_t as, unw_word_t ip, unw_dyn_info_t *di, unw_proc_info_t *pi,
					      int need_unwind_info, void *arg)
{
	struct request *q = atomic_load_explicit(&request, memory_order_relaxed);
	struct reader rd = {as, arg};
	struct us_target t = {read_target, &rd};
	struct us_module *m;
	struct us_fde fde = {0};
	struct range *r;
	uint64_t bias = 0;
	int mine = q && q->as == as && q->ip == ip && need_unwind_info && !q->asked, found;

	if (!is_remote_table(di) && di->format != UNW_INFO_FORMAT_TABLE)
		return -UNW_ENOINFO;
	r = find_range(as, ip);
	if (r && r->lo == di->start_ip && r->hi == di->end_ip && r->segbase == di->u.rti.segbase &&
	    (!r->module || us_module_is(r->module, &t, r->bias, 1))) {
		m = r->module;
		bias = r->bias;
	} else {
		m = module_of(as, ip, di, &t, &bias);
		add_range(as, di, m, bias); /* also that it cannot be told: to find that out takes long */
	}
	if (mine) {
		q->asked = 1;
		if (m && as->strict && us_module_fde(m, &t, bias, ip - bias, &fde) != US_DAMAGED) {
			found = unreadable_handler(as, &fde, bias, arg); /* also of a function that ends before ip */
			if (found < 0)
				return found;
		}
		if (m) {
			found = us_module_rule(m, &t, bias, ip - bias, &q->rule);
		} else {
			struct us_view v;

			found = search_table(as, ip, di, arg, &v, &t, &rd, &fde);
			if (found == US_FOUND)
				found = us_fde_rule(&v.w, &fde, ip, &q->rule);
		}
		q->found = found == US_FOUND;
		memset(pi, 0, sizeof *pi);
		pi->start_ip = di->start_ip;
		pi->end_ip = di->end_ip;
		pi->format = UNW_INFO_FORMAT_TABLE;
		return found == US_FOUND ? 0 : -UNW_ENOINFO;
	}
	if (m) {
		found = us_module_fde(m, &t, bias, ip - bias, &fde);
	} else {
		struct us_view v;

		found = search_table(as, ip, di, arg, &v, &t, &rd, &fde);
	}
	if (found != US_FOUND)
		return -UNW_ENOINFO;
	fill_info(pi, &fde, bias, &t);
	return 0;
}

/* Gets the rule at the cursor from the accessors. Returns 0, or what is wrong. */
static US_COLD int miss(struct cursor *c, struct us_rule *rule)
{
	unw_addr_space_t as = c->as;
	uint64_t ip = c->s.pc - !c->exact;
	struct request q = {.as = as, .ip = ip};
	unw_proc_info_t pi;
	struct range *r;
	int ret;

	/* Known code, if it is still there. */
	r = as->strict || as->policy == UNW_CACHE_NONE ? NULL : find_range(as, ip);
	if (r && r->module) {
		struct reader rd = {as, c->arg};
		struct us_target t = {read_target, &rd};

		if (us_module_is(r->module, &t, r->bias, 1) && us_module_rule(r->module, &t, r->bias, ip - r->bias, rule) == US_FOUND)
			goto keep;
	}
	memset(&pi, 0, sizeof pi);
	q.outer = atomic_load_explicit(&request, memory_order_relaxed);
	atomic_store_explicit(&request, &q, memory_order_relaxed);
	ret = as->acc.find_proc_info(as, ip, &pi, 1, c->arg);
	atomic_store_explicit(&request, q.outer, memory_order_relaxed);
	if (ret < 0)
		return ret;
	if (!q.found)
		return -UNW_ENOINFO;
	*rule = q.rule;
keep:
	if (as->policy != UNW_CACHE_NONE)
		us_cache_put(&us_cache, atomic_load_explicit(&as->space, memory_order_relaxed), c->s.pc, c->exact, rule);
	return 0;
}

/* ---- Steps ---- */

/* Writes a register's location: a value. */
static void set_value(struct us_state *s, unsigned slot, uint64_t v)
{
	s->known |= 1u << slot;
	s->in_mem &= ~(1u << slot);
	s->in_reg &= ~(1u << slot);
	s->val[slot] = v;
}

/* A stub of the procedure linkage table: jmp *x(%rip); push $n; jmp. */
static int is_plt(struct cursor *c)
{
	uint64_t a, b;

	if (!load(c, c->s.pc, &a) || !load(c, c->s.pc + 8, &b))
		return 0;
	return ((a & 0xffff) == 0x25ff && (a >> 48 & 0xff) == 0x68 && (b >> 24 & 0xff) == 0xe9);
}

/* The stack pointer. */
static int stack_pointer(struct cursor *c, uint64_t *to)
{
	*to = c->as->strict ? c->sp : c->cfa;
	if (!c->as->strict || c->sp_kind == SP_VALUE)
		return 1;
	if (c->sp_kind == SP_REG)
		return reg(c, (unsigned)c->sp, to);
	return c->sp_kind == SP_MEM && load(c, c->sp, to);
}

/* After a step in strict mode: the stack pointer's location, where a rule has said it, is set apart; its value is the CFA. */
static US_COLD void keep_stack_pointer(struct cursor *c)
{
	struct us_state *s = &c->s;

	if (!(s->known >> US_RSP & 1)) {
		c->sp_kind = SP_LOST;
	} else if (s->in_mem >> US_RSP & 1) {
		c->sp_kind = SP_MEM;
		c->sp = s->val[US_RSP];
	} else if (s->in_reg >> US_RSP & 1) {
		c->sp_kind = SP_REG;
		c->sp = s->val[US_RSP];
	} else if (s->val[US_RSP] != s->cfa) {
		c->sp_kind = SP_VALUE;
		c->sp = s->val[US_RSP];
	} else {
		return;
	}
	set_value(s, US_RSP, s->cfa);
}

/* How far above the CFA a frame pointer may lead. */
enum { MAX_FRAME = 0x4000 };

/*
 * A step where there is no unwind information, as libunwind takes it: a stub of the linkage table has pushed nothing but
 * the return address; a frame whose instruction pointer is not in readable memory was called through a bad pointer, and
 * its return address is on top of the stack; else the frame pointer leads on, if it leads up the stack and not far.
 */
static US_COLD int step_blind(struct cursor *c)
{
	struct us_state *s = &c->s;
	uint64_t ip = s->pc, cfa = c->cfa, rbp, sp, ra, v;
	int o, valid, at;

	c->from_signal = 0;
	if (is_plt(c)) {
		if (!load(c, cfa, &ra))
			return -UNW_EINVAL;
		c->cfa = s->cfa = cfa + 8;
		set_value(s, US_RSP, c->cfa);
		set_value(s, US_RA, ra);
		s->pc = ra;
		/* exact stays: libunwind does not change it here */
		return ra == ip && c->cfa == cfa ? -UNW_EBADFRAME : 1;
	}
	if (!(s->known >> US_RBP & 1))
		return 0;
	o = us_get_with(s, US_RBP, load, reg, c, &rbp);
	if (o != US_OK)
		return -UNW_EINVAL;
	valid = load(c, ip, &v);
	if (valid) {
		if (rbp == 0) {
			s->known = 1u << US_RSP;
			return 0;
		}
	} else if (stack_pointer(c, &sp) && load(c, sp, &ra) && load(c, ra, &v)) {
		/* The frame pointer is still the caller's. libunwind takes it to be saved where it points to. */
		uint64_t val = c->as->strict ? rbp : s->val[US_RBP];
		uint32_t bit = 1u << US_RBP, mem = c->as->strict ? bit : s->in_mem & bit, in = c->as->strict ? 0 : s->in_reg & bit;

		c->cfa = s->cfa = cfa + 8;
		s->known = c->as->strict && rbp == 0 ? 0 : bit;
		s->in_mem = mem;
		s->in_reg = in;
		s->val[US_RBP] = val;
		set_value(s, US_RSP, c->cfa);
		set_value(s, US_RA, ra);
		s->pc = ra;
		c->sp = sp; /* and of the stack pointer, in the same way */
		c->sp_kind = SP_MEM;
		c->exact = 0;
		return 1;
	}
	at = load(c, rbp, &v);
	if (!at && !valid && c->as->strict)
		return rbp ? -UNW_EINVAL : -UNW_EBADREG;
	if (!at || rbp < cfa || rbp - cfa > MAX_FRAME) {
		s->known = 1u << US_RSP;
		return 0;
	}
	if (!load(c, rbp + 8, &ra))
		return -UNW_EINVAL;
	s->known = 1u << US_RBP;
	s->in_mem = 1u << US_RBP;
	s->in_reg = 0;
	s->val[US_RBP] = rbp;
	/* libunwind takes the frame to be as large as its two words. */
	c->cfa = s->cfa = c->as->strict ? cfa + 16 : rbp + 16;
	set_value(s, US_RSP, c->cfa);
	set_value(s, US_RA, ra);
	s->pc = ra;
	c->sp_kind = SP_LOST;
	c->exact = 0;
	return ra == ip && c->cfa == cfa ? -UNW_EBADFRAME : 1;
}

static US_COLD int failed(struct cursor *c, int outcome)
{
	switch (outcome) {
	case US_OUTERMOST:
		c->s.pc = 0;
		return 0;
	case US_LOST_REGISTER:
		return -UNW_EBADREG;
	case US_UNREADABLE:
		if (c->as->strict && c->s.fault == 0) { /* to libunwind, what is saved at 0 is not saved */
			c->s.pc = 0;
			return 0;
		}
		return -UNW_EINVAL;
	}
	return -UNW_EBADFRAME;
}

US_API int _Ux86_64_step(unw_cursor_t *cur)
{
	struct cursor *c = cursor(cur);
	unw_addr_space_t as = c->as;
	uint32_t space = atomic_load_explicit(&as->space, memory_order_relaxed);
	uint64_t ip = c->s.pc, cfa = c->cfa;
	struct us_rule rule;
	int o;

	if (us_unlikely(as->policy == UNW_CACHE_NONE) || us_unlikely(!us_cache_get(&us_cache, space, ip, c->exact, &rule))) {
		o = miss(c, &rule);
		if (o == -UNW_ENOINFO)
			return step_blind(c);
		if (o < 0)
			return o;
	}
	o = us_apply_with(&rule, &c->s, load, reg, c, as->strict ? US_ALL : US_SAVED);
	if (us_unlikely(o != US_OK)) {
		if (o == US_UNREADABLE && !as->strict) {
			struct us_mem m = {load_address, reg, c};

			o = us_apply(&rule, &c->s, &m, US_SAVED);
		}
		if (o != US_OK)
			return failed(c, o);
	}
	c->cfa = c->s.cfa;
	if (us_unlikely(as->strict))
		keep_stack_pointer(c);
	c->exact = c->from_signal = rule.flags & US_SIGNAL;
	us_cache_fetch(&us_cache, space, c->s.pc, c->exact); /* the caller is about to ask for registers: time enough */
	if (us_unlikely(c->s.pc == ip && c->cfa == cfa))
		return -UNW_EBADFRAME;
	/* A thread's first function is called from nowhere. To libunwind the end is where the frame pointer is lost. */
	return as->strict ? (int)(c->s.known >> US_RBP & 1) : c->s.pc != 0;
}

US_API int _Ux86_64_is_signal_frame(unw_cursor_t *c)
{
	return cursor(c)->from_signal;
}

/* ---- Registers ---- */

static int error_of(int outcome)
{
	return outcome == US_OK ? 0 : outcome == US_UNREADABLE ? -UNW_EINVAL : -UNW_EBADREG;
}

US_API int _Ux86_64_get_reg(unw_cursor_t *cur, int n, unw_word_t *to)
{
	struct cursor *c = cursor(cur);

	if (us_likely(n == UNW_X86_64_RIP)) {
		*to = c->s.pc;
		return 0;
	}
	if (n == US_RSP || n == UNW_X86_64_CFA) {
		*to = c->cfa;
		return 0;
	}
	if (n < 0 || n >= UNW_NUM_REGS)
		return -UNW_EBADREG;
	return error_of(us_get_with(&c->s, (unsigned)n, load, reg, c, to));
}

US_API int _Ux86_64_set_reg(unw_cursor_t *cur, int n, unw_word_t v)
{
	struct cursor *c = cursor(cur);
	unw_addr_space_t as = c->as;
	struct us_state *s = &c->s;

	if (n == US_RSP || n == UNW_X86_64_CFA)
		return -UNW_EREADONLYREG;
	if (n < 0 || n >= UNW_NUM_REGS || !(s->known >> n & 1))
		return -UNW_EBADREG;
	if (n == UNW_X86_64_RIP)
		s->pc = v;
	if (s->in_mem >> n & 1)
		return as->acc.access_mem(as, s->val[n], &v, 1, c->arg);
	if (s->in_reg >> n & 1)
		return as->acc.access_reg(as, (int)s->val[n], &v, 1, c->arg);
	s->val[n] = v;
	return n == UNW_X86_64_RIP ? 0 : -UNW_EREADONLYREG;
}

US_API int _Ux86_64_get_save_loc(unw_cursor_t *cur, int n, unw_save_loc_t *to)
{
	struct us_state *s = &cursor(cur)->s;

	memset(to, 0, sizeof *to);
	if (n < 0 || n >= UNW_NUM_REGS || !(s->known >> n & 1))
		return 0;
	if (s->in_mem >> n & 1) {
		to->type = UNW_SLT_MEMORY;
		to->u.addr = s->val[n];
	} else if (s->in_reg >> n & 1) {
		to->type = UNW_SLT_REG;
		to->u.regnum = (int)s->val[n];
	}
	return 0;
}

US_API int _Ux86_64_is_fpreg(int n)
{
	(void)n;
	return 0;
}

US_API int _Ux86_64_get_fpreg(unw_cursor_t *c, int n, unw_fpreg_t *to)
{
	(void)c;
	(void)n;
	(void)to;
	return -UNW_EBADREG;
}

US_API int _Ux86_64_set_fpreg(unw_cursor_t *c, int n, unw_fpreg_t v)
{
	(void)c;
	(void)n;
	(void)v;
	return -UNW_EBADREG;
}

US_API const char *_Ux86_64_regname(int n)
{
	static const char *const names[] = {
		"RAX", "RDX", "RCX", "RBX", "RSI", "RDI", "RBP", "RSP", "R8",
		"R9", "R10", "R11", "R12", "R13", "R14", "R15", "RIP",
	};

	return n >= 0 && n < UNW_NUM_REGS ? names[n] : "???";
}

US_API const char *_Ux86_64_strerror(int e)
{
	static const char *const names[] = {
		"no error", "unspecified (general) error", "out of memory", "bad register number",
		"attempt to write read-only register", "stop unwinding", "invalid IP", "bad frame",
		"unsupported operation or bad value", "unwind info has unsupported version", "no unwind info found",
	};

	if (e < 0)
		e = -e;
	return e <= UNW_ENOINFO ? names[e] : "invalid error code";
}

US_API int _Ux86_64_resume(unw_cursor_t *cur)
{
	struct cursor *c = cursor(cur);

	return c->as->acc.resume ? c->as->acc.resume(c->as, cur, c->arg) : -UNW_EINVAL;
}

/* ---- Procedures ---- */

US_API int _Ux86_64_get_proc_info_by_ip(unw_addr_space_t as, unw_word_t ip, unw_proc_info_t *pi, void *arg)
{
	return as->acc.find_proc_info(as, ip, pi, 0, arg);
}

US_API int _Ux86_64_get_proc_info(unw_cursor_t *cur, unw_proc_info_t *pi)
{
	struct cursor *c = cursor(cur);
	int r = c->as->acc.find_proc_info(c->as, c->s.pc - !c->exact, pi, 0, c->arg);

	if (r < 0) {
		/* Code without information: all that is known is where it starts from here. */
		memset(pi, 0, sizeof *pi);
		pi->start_ip = c->s.pc;
		pi->end_ip = c->s.pc + 1;
		return 0;
	}
	return 0;
}

US_API int _Ux86_64_get_proc_name(unw_cursor_t *cur, char *buf, size_t size, unw_word_t *off)
{
	struct cursor *c = cursor(cur);
	int r;

	if (!c->as->acc.get_proc_name)
		return -UNW_ENOINFO;
	r = c->as->acc.get_proc_name(c->as, c->s.pc - !c->exact, buf, size, off, c->arg);
	if (r >= 0 && off && !c->exact)
		(*off)++;
	return r;
}

/* ---- What is not there ---- */

US_API int _Ux86_64_reg_states_iterate(unw_cursor_t *c, void *callback, void *token)
{
	(void)c;
	(void)callback;
	(void)token;
	return -UNW_ENOINFO;
}

US_API int _Ux86_64_apply_reg_state(unw_cursor_t *c, void *data)
{
	(void)c;
	(void)data;
	return -UNW_EINVAL;
}
