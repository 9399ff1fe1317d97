/* SPDX-License-Identifier: Apache-2.0 */
/* space.c: address spaces, and finding what is where in them. See space.h. */
#define _GNU_SOURCE
#include "space.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

int us_strict_mode(void)
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

US_API unw_addr_space_t U(create_addr_space)(unw_accessors_t *a, int byte_order)
{
	struct unw_addr_space *as;

	if (byte_order != 0 && byte_order != 1234) /* both machines have one */
		return NULL;
	as = mmap(NULL, sizeof *as, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (as == MAP_FAILED)
		return NULL;
	as->acc = *a;
	as->strict = us_strict_mode();
	as->policy = UNW_CACHE_NONE;
	as->keep = as->strict ? US_ALL : US_SAVED;
	atomic_init(&as->space, us_new_space());
	atomic_init(&as->epoch, 1);
	return as;
}

US_API void U(destroy_addr_space)(unw_addr_space_t as)
{
	if (as && as != &us_local_space)
		munmap(as, sizeof *as);
}

US_API unw_accessors_t *U(get_accessors)(unw_addr_space_t as)
{
	return &as->acc;
}

static void flush(unw_addr_space_t as)
{
	atomic_store_explicit(&as->space, us_new_space(), memory_order_relaxed);
	atomic_fetch_add_explicit(&as->epoch, 1, memory_order_relaxed);
}

/* Everything is forgotten, whatever the range: as in libunwind. */
US_API void U(flush_cache)(unw_addr_space_t as, unw_word_t lo, unw_word_t hi)
{
	(void)lo;
	(void)hi;
	flush(as);
}

US_API int U(set_caching_policy)(unw_addr_space_t as, int policy)
{
	if (policy != UNW_CACHE_NONE && policy != UNW_CACHE_GLOBAL && policy != UNW_CACHE_PER_THREAD)
		return -UNW_EINVAL;
	if (policy != as->policy) {
		as->policy = policy;
		/* Modules of the own process come and go without a flush: they are looked at each time. */
		as->cached = policy != UNW_CACHE_NONE && as != &us_local_space;
		flush(as);
	}
	return 0;
}

/* The cache is for all address spaces, and of one size. */
US_API int U(set_cache_size)(unw_addr_space_t as, size_t size, int flag)
{
	if (flag != 0)
		return -UNW_EINVAL;
	(void)size;
	flush(as);
	return 0;
}

/* ---- Memory ---- */

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

/* ---- From an instruction pointer to a rule ---- */

/* What a step wants of find_proc_info, which finds its way to dwarf_search_unwind_table with it. */
struct request {
	struct request *outer;
	unw_addr_space_t as;
	uint64_t ip;
	int found;
	int asked;
	int native; /* machine code will do, too */
	struct us_rule rule;
	us_states_callback callback; /* or NULL: then all rules of the procedure are wanted */
	void *token;
	int ret;
};

static _Thread_local struct request *_Atomic request __attribute__((tls_model("initial-exec")));

/* The range that ip is in, among those that were added since the last flush; the newest first. 0: none. */
static int find_range(unw_addr_space_t as, uint64_t ip, struct us_range *to)
{
	uint32_t n = atomic_load_explicit(&as->next, memory_order_acquire), epoch = atomic_load_explicit(&as->epoch, memory_order_relaxed);
	uint64_t w[US_RANGE_WORDS];

	for (uint32_t i = n; i-- > 0 && n - i <= US_MAX_RANGES;) {
		struct us_kept_range *r = &as->range[i % US_MAX_RANGES];
		uint32_t seq = atomic_load_explicit(&r->seq, memory_order_acquire);

		if (seq & 1 || atomic_load_explicit(&r->epoch, memory_order_relaxed) != epoch)
			continue;
		for (unsigned k = 0; k < US_RANGE_WORDS; k++)
			w[k] = atomic_load_explicit(&r->words[k], memory_order_relaxed);
		atomic_thread_fence(memory_order_acquire);
		if (atomic_load_explicit(&r->seq, memory_order_relaxed) != seq)
			continue;
		memcpy(to, w, sizeof w);
		if (ip - to->lo < to->hi - to->lo)
			return 1;
	}
	return 0;
}

/* Adds a range in the place of the oldest. If another thread is writing there, it is not added: that costs time only. */
static void add_range(unw_addr_space_t as, const struct us_range *x)
{
	uint32_t i = atomic_fetch_add_explicit(&as->next, 1, memory_order_relaxed);
	struct us_kept_range *r = &as->range[i % US_MAX_RANGES];
	uint32_t seq = atomic_load_explicit(&r->seq, memory_order_relaxed);
	uint64_t w[US_RANGE_WORDS];

	if (seq & 1 || !atomic_compare_exchange_strong_explicit(&r->seq, &seq, seq + 1, memory_order_acq_rel, memory_order_relaxed))
		return;
	atomic_thread_fence(memory_order_release);
	memcpy(w, x, sizeof w);
	for (unsigned k = 0; k < US_RANGE_WORDS; k++)
		atomic_store_explicit(&r->words[k], w[k], memory_order_relaxed);
	atomic_store_explicit(&r->epoch, atomic_load_explicit(&as->epoch, memory_order_relaxed), memory_order_relaxed);
	atomic_store_explicit(&r->seq, seq + 2, memory_order_release);
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
	struct us_module *m = us_module_near(t, di->u.rti.segbase, di->start_ip, bias, as->strict);

	if (!m || as->strict || (in_code(m, ip - *bias) && in_code(m, di->start_ip - *bias)))
		return m;
	for (unsigned i = 0; i < m->n_segments; i++)
		for (uint64_t page = US_PAGE; page <= US_MAX_PAGE; page *= 4) {
			uint64_t lo = m->segment[i].lo & -page, hi = (m->segment[i].hi + page - 1) & -page, b = di->start_ip - lo;

			if (di->end_ip - di->start_ip <= hi - lo && us_module_is(m, t, b, 0)) {
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

/* Where there is unwind information: in a module that is known, or in a table that is read by the accessors. */
struct place {
	struct reader rd;
	struct us_target t;
	struct us_module *m; /* or NULL: then addresses are run-time ones, and bias is 0 */
	uint64_t bias;
	struct us_frames table;
	struct us_view view;
};

static void no_place(struct place *p, unw_addr_space_t as, void *arg)
{
	p->rd = (struct reader){as, arg};
	p->t = (struct us_target){read_target, &p->rd};
	p->m = NULL;
	p->bias = 0;
}

static void table_place(struct place *p, const unw_dyn_info_t *di, int strict)
{
	p->table = (struct us_frames){
		.hdr = di->format == UNW_INFO_FORMAT_IP_OFFSET ? di->start_ip : di->u.rti.segbase,
		.table = di->u.rti.table_data,
		.n = di->u.rti.table_len * sizeof(unw_word_t) / 8,
		.strict = strict,
	};
	us_view(&p->view, &p->t, 0);
}

/* Finds the FDE of ip. Its addresses lack the place's bias. */
static int find_fde(struct place *p, uint64_t ip, struct us_fde *fde)
{
	if (p->m)
		return us_module_fde(p->m, &p->t, p->bias, ip - p->bias, fde);
	return p->table.n ? us_frames_find(&p->table, &p->view.w, ip, fde) : US_NOT_FOUND;
}

static int find_rule(struct place *p, uint64_t ip, struct us_rule *r, int native)
{
	struct us_fde fde;
	int found;

	if (p->m)
		return (native ? us_module_step : us_module_rule)(p->m, &p->t, p->bias, ip - p->bias, r);
	found = find_fde(p, ip, &fde);
	return found == US_FOUND ? us_fde_rule(&p->view.w, &fde, ip, r) : found;
}

enum { MAX_PROCEDURE = 1 << 16 };

/* us_space_states, in the place that has been found. */
static int each_state(struct place *p, uint64_t ip, us_states_callback callback, void *token)
{
	struct us_rule r, next;
	struct us_fde fde;
	uint64_t lo, hi;
	int ret = 0;

	if (find_fde(p, ip, &fde) != US_FOUND)
		return -UNW_ENOINFO;
	lo = fde.lo + p->bias;
	hi = fde.hi + p->bias;
	if (hi - lo > MAX_PROCEDURE)
		return -UNW_EINVAL;
	if (find_rule(p, lo, &r, 0) != US_FOUND)
		return -UNW_ENOINFO;
	for (uint64_t pc = lo + 1; ret >= 0 && lo < hi; pc++) {
		int found = pc < hi ? find_rule(p, pc, &next, 0) : US_NOT_FOUND;

		if (found == US_FOUND && memcmp(&r, &next, sizeof r) == 0)
			continue;
		if (found != US_FOUND && pc < hi)
			return -UNW_ENOINFO;
		ret = callback(token, &r, sizeof r, lo, pc);
		lo = pc;
		r = next;
	}
	return ret;
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

/* Finds the place of what di describes, in which ip is: known from before, or by asking. */
static void find_place(struct place *p, uint64_t ip, const unw_dyn_info_t *di)
{
	unw_addr_space_t as = p->rd.as;
	struct us_range r;

	if (find_range(as, ip, &r) && r.lo == di->start_ip && r.hi == di->end_ip && r.segbase == di->u.rti.segbase &&
	    (!r.module || us_module_is(r.module, &p->t, r.bias, 1))) {
		p->m = r.module;
		p->bias = r.bias;
	} else {
		p->m = module_of(as, ip, di, &p->t, &p->bias);
		/* Also that it cannot be told: to find that out takes long. */
		r = (struct us_range){di->start_ip, di->end_ip, di->u.rti.segbase, p->bias, p->m};
		add_range(as, &r);
	}
	if (!p->m) {
		p->bias = 0;
		table_place(p, di, as->strict);
	}
}

/*
 * Finds unwind information for ip in the table that di describes. pi->unwind_info stays NULL: it is for libunwind's own
 * use, and this one needs none.
 */
US_API int U(dwarf_search_unwind_table)(unw_addr_space_t as, unw_word_t ip, unw_dyn_info_t *di, unw_proc_info_t *pi,
					      int need_unwind_info, void *arg)
{
	struct request *q = atomic_load_explicit(&request, memory_order_relaxed);
	struct us_fde fde = {0};
	struct place p;
	int mine = q && q->as == as && q->ip == ip && need_unwind_info && !q->asked, ret;

	if (!is_remote_table(di) && di->format != UNW_INFO_FORMAT_TABLE)
		return -UNW_ENOINFO;
	no_place(&p, as, arg);
	find_place(&p, ip, di);
	if (!mine) {
		if (find_fde(&p, ip, &fde) != US_FOUND)
			return -UNW_ENOINFO;
		fill_info(pi, &fde, p.bias, &p.t);
		pi->gp = di->gp;
		return 0;
	}
	q->asked = 1;
	if (p.m && as->strict && find_fde(&p, ip, &fde) != US_DAMAGED) {
		ret = unreadable_handler(as, &fde, p.bias, arg); /* also of a function that ends before ip */
		if (ret < 0)
			return ret;
	}
	if (q->callback) {
		q->ret = each_state(&p, ip, q->callback, q->token);
		q->found = q->ret != -UNW_ENOINFO;
	} else {
		ret = find_rule(&p, ip, &q->rule, q->native);
		/* To libunwind, a table that cannot be read is an error, and not one without ip. */
		if (ret == US_DAMAGED && !p.m && as->strict)
			return -UNW_EINVAL;
		q->found = ret == US_FOUND;
	}
	memset(pi, 0, sizeof *pi);
	pi->start_ip = di->start_ip;
	pi->end_ip = di->end_ip;
	pi->format = UNW_INFO_FORMAT_TABLE;
	return q->found ? 0 : -UNW_ENOINFO;
}

/* ---- Code that a program has registered ---- */

/*
 * Finds ip in the list of unw_dyn_info_t that get_dyn_info_list_addr leads to: a version, a count of changes, and the
 * first of them. The list may change while it is read.
 */
static int find_registered(unw_addr_space_t as, void *arg, uint64_t ip, unw_dyn_info_t *di)
{
	struct reader rd = {as, arg};
	unw_word_t at = 0;

	if (!as->acc.get_dyn_info_list_addr || as->acc.get_dyn_info_list_addr(as, &at, arg) < 0 || at == 0 ||
	    !read_target(&rd, at + 8, &at, 8))
		return 0;
	for (unsigned n = 0; at && n < 1 << 16; n++, at = (unw_word_t)di->next) {
		if (!read_target(&rd, at, di, sizeof *di))
			return 0;
		if (ip - di->start_ip < di->end_ip - di->start_ip)
			return 1;
	}
	return 0;
}

/* ---- What the rest asks ---- */

int us_space_info(unw_addr_space_t as, void *arg, uint64_t ip, unw_proc_info_t *pi)
{
	int ret = as->acc.find_proc_info(as, ip, pi, 0, arg);
	unw_dyn_info_t di;

	if (ret != -UNW_ENOINFO || !find_registered(as, arg, ip, &di))
		return ret;
	if (di.format != UNW_INFO_FORMAT_DYNAMIC)
		return U(dwarf_search_unwind_table)(as, ip, &di, pi, 0, arg);
	memset(pi, 0, sizeof *pi);
	pi->start_ip = di.start_ip;
	pi->end_ip = di.end_ip;
	pi->gp = di.gp;
	pi->handler = di.u.pi.handler;
	pi->flags = di.u.pi.flags;
	pi->format = di.format;
	return 0;
}

US_API int U(get_proc_info_by_ip)(unw_addr_space_t as, unw_word_t ip, unw_proc_info_t *pi, void *arg)
{
	return us_space_info(as, arg, ip, pi);
}

int us_space_name(unw_addr_space_t as, void *arg, uint64_t ip, char *to, size_t size, unw_word_t *off)
{
	struct reader rd = {as, arg};
	unw_dyn_info_t di;

	if (!find_registered(as, arg, ip, &di) || di.format != UNW_INFO_FORMAT_DYNAMIC || !di.u.pi.name_ptr)
		return -UNW_ENOINFO;
	if (off)
		*off = ip - di.start_ip;
	for (size_t i = 0; i < size; i++) {
		if (!read_target(&rd, di.u.pi.name_ptr + i, to + i, 1))
			return -UNW_EINVAL;
		if (to[i] == 0)
			return 0;
	}
	if (size > 0)
		to[size - 1] = 0;
	return -UNW_ENOMEM;
}

int us_space_code(unw_addr_space_t as, void *arg, uint64_t ip)
{
	(void)as;
	(void)arg;
	return ip >= 4096 && us_is_user(ip);
}

/* Lets find_proc_info, or the list of registered code, answer q. */
static int ask(struct request *q, void *arg)
{
	unw_proc_info_t pi;
	unw_dyn_info_t di;
	int ret;

	memset(&pi, 0, sizeof pi);
	q->outer = atomic_load_explicit(&request, memory_order_relaxed);
	atomic_store_explicit(&request, q, memory_order_relaxed);
	ret = q->as->acc.find_proc_info(q->as, q->ip, &pi, 1, arg);
	if (ret == -UNW_ENOINFO && find_registered(q->as, arg, q->ip, &di)) {
		q->asked = 0;
		ret = U(dwarf_search_unwind_table)(q->as, q->ip, &di, &pi, 1, arg);
	}
	atomic_store_explicit(&request, q->outer, memory_order_relaxed);
	return ret < 0 ? ret : q->found ? 0 : -UNW_ENOINFO;
}

int us_space_states(unw_addr_space_t as, void *arg, uint64_t ip, us_states_callback callback, void *token)
{
	struct request q = {.as = as, .ip = ip, .callback = callback, .token = token};
	int ret = ask(&q, arg);

	return ret < 0 ? ret : q.ret;
}

/* Whether r's module is still there; it is looked at once in a walk. */
static int still_there(const struct us_range *r, const struct us_target *t, struct us_seen *seen)
{
	if (r->module == seen->module && r->bias == seen->bias)
		return 1;
	if (!us_module_is(r->module, t, r->bias, 1))
		return 0;
	*seen = (struct us_seen){r->module, r->bias};
	return 1;
}

static int space_rule(unw_addr_space_t as, void *arg, uint64_t ip, struct us_seen *seen, struct us_rule *rule, int native)
{
	struct request q = {.as = as, .ip = ip, .native = native};
	struct reader rd = {as, arg};
	struct us_target t = {read_target, &rd};
	struct us_range r;
	int ret;

	/* Known code, if it is still there. libunwind asks each time. */
	if (!as->strict && as->policy != UNW_CACHE_NONE && find_range(as, ip, &r) && r.module && still_there(&r, &t, seen) &&
	    (native ? us_module_step : us_module_rule)(r.module, &t, r.bias, ip - r.bias, rule) == US_FOUND)
		return 0;
	ret = ask(&q, arg);
	if (ret == 0)
		*rule = q.rule;
	return ret;
}

US_COLD int us_space_rule(unw_addr_space_t as, void *arg, uint64_t ip, struct us_seen *seen, struct us_rule *rule)
{
	return space_rule(as, arg, ip, seen, rule, 0);
}

US_COLD int us_space_step(unw_addr_space_t as, void *arg, uint64_t ip, struct us_seen *seen, struct us_rule *rule)
{
	return space_rule(as, arg, ip, seen, rule, 1);
}
