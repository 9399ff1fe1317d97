/* SPDX-License-Identifier: Apache-2.0 */
/*
 * local.c: libunwind's interface to the own process: what libunwind.so.8 exports, apart from _Unwind_*, which are
 * libgcc's. docs/DROPIN.md says how it differs.
 */
#define _GNU_SOURCE
#include "abi.h"
#include "local.h"

#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- The address space ---- */

struct unw_addr_space {
	unw_accessors_t acc; /* where others look for it */
	int policy;
};

static int find_proc_info(unw_addr_space_t as, unw_word_t ip, unw_proc_info_t *pi, int need, void *arg);
static void put_unwind_info(unw_addr_space_t as, unw_proc_info_t *pi, void *arg);
static int dyn_list(unw_addr_space_t as, unw_word_t *to, void *arg);
static int access_mem(unw_addr_space_t as, unw_word_t addr, unw_word_t *v, int write, void *arg);
static int access_reg(unw_addr_space_t as, unw_regnum_t n, unw_word_t *v, int write, void *arg);
static int access_fpreg(unw_addr_space_t as, unw_regnum_t n, unw_fpreg_t *v, int write, void *arg);
static int resume(unw_addr_space_t as, unw_cursor_t *c, void *arg);
static int proc_name(unw_addr_space_t as, unw_word_t ip, char *to, size_t n, unw_word_t *off, void *arg);

static struct unw_addr_space space = {
	{find_proc_info, put_unwind_info, dyn_list, access_mem, access_reg, access_fpreg, resume, proc_name},
	UNW_CACHE_GLOBAL,
};

extern unw_addr_space_t UL(local_addr_space);
US_API unw_addr_space_t UL(local_addr_space) = &space;

/* There is one address space here. */
US_API unw_addr_space_t UL(create_addr_space)(unw_accessors_t *a, int byte_order)
{
	(void)a;
	(void)byte_order;
	return NULL;
}

US_API void UL(destroy_addr_space)(unw_addr_space_t as)
{
	(void)as;
}

US_API unw_accessors_t *U(get_accessors)(unw_addr_space_t as)
{
	return as ? &as->acc : NULL;
}

US_API void U(flush_cache)(unw_addr_space_t as, unw_word_t lo, unw_word_t hi)
{
	(void)lo;
	(void)hi;
	if (as == &space)
		us_local_flush();
}

/* The cache is one for all threads, and takes no lock: per-thread ones would not be better. */
US_API int UL(set_caching_policy)(unw_addr_space_t as, int policy)
{
	if (as != &space)
		return -UNW_EINVAL;
	if (policy != space.policy) {
		space.policy = policy;
		us_local_flush();
	}
	return 0;
}

US_API int UL(set_cache_size)(unw_addr_space_t as, size_t size, int flag)
{
	(void)size;
	if (flag != 0 || as != &space)
		return -UNW_EINVAL;
	us_local_flush();
	return 0;
}

/* ---- Cursors ---- */

struct cursor {
	struct us_walk w;
	uint64_t uc;
};
_Static_assert(sizeof(struct cursor) <= sizeof(unw_cursor_t), "it must fit");

US_INLINE struct cursor *cursor(unw_cursor_t *c)
{
	return (struct cursor *)(void *)c;
}

US_INLINE int init(unw_cursor_t *cur, void *uc, int exact)
{
	struct cursor *c = cursor(cur);

	us_walk_context(&c->w, (uint64_t)uc, exact);
	c->w.uncached = space.policy == UNW_CACHE_NONE;
	c->uc = (uint64_t)uc;
	return 0;
}

US_API int UL(init_local)(unw_cursor_t *cur, void *uc)
{
	return init(cur, uc, 0);
}

/* flag: 0, or UNW_INIT_SIGNAL_FRAME (1) where uc is what a signal handler got. */
US_API int UL(init_local2)(unw_cursor_t *cur, void *uc, int flag)
{
	if (flag != 0 && flag != 1)
		return -UNW_EINVAL;
	return init(cur, uc, flag);
}

US_API int UL(init_remote)(unw_cursor_t *c, unw_addr_space_t as, void *arg)
{
	if (as != &space || !arg)
		return -UNW_EINVAL;
	return init(c, arg, 0);
}

US_API int UL(step)(unw_cursor_t *cur)
{
	return us_walk_step(&cursor(cur)->w, NULL);
}

US_API int UL(is_signal_frame)(unw_cursor_t *cur)
{
	return us_walk_is_signal(&cursor(cur)->w);
}

/* ---- Registers ---- */

static int error_of(int outcome)
{
	return outcome == US_OK ? 0 : outcome == US_UNREADABLE ? -UNW_EINVAL : -UNW_EBADREG;
}

US_API int UL(get_reg)(unw_cursor_t *cur, int n, unw_word_t *to)
{
	struct cursor *c = cursor(cur);

	if (us_likely(n == UNW_PC) || n == UNW_IP) {
		*to = c->w.s.pc;
		return 0;
	}
	if (n == US_SP || n == UNW_CFA) {
		*to = c->w.sp;
		return 0;
	}
	if (n < 0 || n >= UNW_NUM_REGS)
		return -UNW_EBADREG;
	return error_of(us_walk_get(&c->w, (unsigned)n, to));
}

static int store(uint64_t addr, uint64_t v)
{
	addr = us_readable(addr, 8);
	if (!addr)
		return -UNW_EINVAL;
	*(volatile uint64_t *)addr = v;
	return 0;
}

US_API int UL(set_reg)(unw_cursor_t *cur, int n, unw_word_t v)
{
	struct us_walk *w = &cursor(cur)->w;
	int pc = n == UNW_PC || n == UNW_IP;

	if (n == US_SP || n == UNW_CFA)
		return -UNW_EREADONLYREG;
	if (n < 0 || n >= UNW_NUM_REGS || !(w->s.known >> n & 1 || (pc && !US_RA_IS_PC)))
		return -UNW_EBADREG;
	if (pc) {
		w->s.pc = v;
		w->s.val[US_PC] = v;
		return w->ra_at ? store(w->ra_at, v) : 0;
	}
	if (w->s.in_mem >> n & 1)
		return store(w->s.val[n], v);
	w->s.val[n] = v;
	return 0;
}

US_API int UL(get_save_loc)(unw_cursor_t *cur, int n, unw_save_loc_t *to)
{
	struct us_walk *w = &cursor(cur)->w;

	memset(to, 0, sizeof *to);
	if (n == UNW_PC && w->ra_at) {
		to->type = UNW_SLT_MEMORY;
		to->u.addr = w->ra_at;
	} else if (n >= 0 && n < UNW_PC && w->s.known & w->s.in_mem & US_BIT(n)) {
		to->type = UNW_SLT_MEMORY;
		to->u.addr = w->s.val[n];
	}
	return 0;
}

US_API int UL(get_fpreg)(unw_cursor_t *c, int n, unw_fpreg_t *to)
{
	(void)c;
	(void)n;
	(void)to;
	return -UNW_EBADREG;
}

US_API int UL(set_fpreg)(unw_cursor_t *c, int n, unw_fpreg_t v)
{
	(void)c;
	(void)n;
	(void)v;
	return -UNW_EBADREG;
}

/*
 * Goes on in the cursor's frame. One that a signal interrupted is gone back to by the kernel, with its signal mask and
 * its floating-point registers; any other has the registers that its callees saved.
 */
US_API int UL(resume)(unw_cursor_t *cur)
{
	struct cursor *c = cursor(cur);
	struct us_walk *w = &c->w;
	uint64_t regs[US_SLOTS] = {0};

#ifdef __aarch64__
	us_kept(regs);
#endif
	for (unsigned i = 0; i < US_SLOTS; i++)
		if (w->s.known >> i & 1 && us_walk_get(w, i, &regs[i]) != US_OK)
			regs[i] = 0;
	regs[US_SP] = w->sp;
	regs[US_PC] = w->s.pc;
	if (w->s.pc == 0)
		return -UNW_EINVALIDIP;
	if (w->from_signal && w->sig)
		us_sigreturn(w->sig);
	us_resume(regs);
}

US_API int unw_backtrace2(void **pcs, int max, void *uc, int flag)
{
	struct us_walk w;
	int n = 0;

	if (!uc || max <= 0)
		return 0;
	us_walk_context(&w, (uint64_t)uc, flag == 1);
	while (n < max) {
		pcs[n++] = (void *)w.s.pc;
		if (us_walk_step(&w, NULL) <= 0 || w.s.pc == 0)
			break;
	}
	return n;
}

/* ---- Code that programs register ---- */

static struct {
	uint32_t version;
	_Atomic uint32_t generation;
	unw_dyn_info_t *_Atomic first;
} dyn = {1, 0, NULL};

static _Atomic int dyn_lock; /* among those who change the list */

static void lock(void)
{
	while (atomic_exchange_explicit(&dyn_lock, 1, memory_order_acquire))
		sched_yield();
}

static int find_dyn(uint64_t pc, struct us_glass *g, struct us_fde *fde);

US_API void _U_dyn_register(unw_dyn_info_t *di)
{
	unw_dyn_info_t *first;

	lock();
	first = atomic_load_explicit(&dyn.first, memory_order_relaxed);
	di->next = first;
	di->prev = NULL;
	if (first)
		first->prev = di;
	atomic_store_explicit(&dyn.first, di, memory_order_release);
	atomic_fetch_add_explicit(&dyn.generation, 1, memory_order_release);
	us_find_registered = find_dyn;
	atomic_store_explicit(&dyn_lock, 0, memory_order_release);
}

US_API void _U_dyn_cancel(unw_dyn_info_t *di)
{
	lock();
	if (di->prev)
		__atomic_store_n(&di->prev->next, di->next, __ATOMIC_RELEASE);
	else
		atomic_store_explicit(&dyn.first, di->next, memory_order_release);
	if (di->next)
		di->next->prev = di->prev;
	atomic_fetch_add_explicit(&dyn.generation, 1, memory_order_release);
	atomic_store_explicit(&dyn_lock, 0, memory_order_release);
	us_local_flush();
}

US_API unw_word_t _U_dyn_info_list_addr(void)
{
	return (unw_word_t)&dyn;
}

static unw_dyn_info_t *dyn_at(uint64_t pc)
{
	unw_dyn_info_t *di = atomic_load_explicit(&dyn.first, memory_order_acquire);

	for (unsigned n = 0; di && n < 1 << 20; n++, di = __atomic_load_n(&di->next, __ATOMIC_ACQUIRE))
		if (pc >= di->start_ip && pc < di->end_ip)
			return di;
	return NULL;
}

/* Searches a table of pairs of int32, which are relative to segbase, or of format IP_OFFSET to start_ip. */
static int search(const unw_dyn_info_t *di, uint64_t pc, struct us_glass *g, struct us_fde *fde)
{
	struct us_frames f = {
		.hdr = di->format == UNW_INFO_FORMAT_IP_OFFSET ? di->start_ip : di->u.rti.segbase,
		.table = di->u.rti.table_data,
		.n = di->u.rti.table_len,
	};

	if (di->format != UNW_INFO_FORMAT_TABLE && di->format != UNW_INFO_FORMAT_REMOTE_TABLE && di->format != UNW_INFO_FORMAT_IP_OFFSET)
		return 0;
	us_glass(g, NULL);
	return f.n && us_frames_find(&f, &g->w, pc, fde) == US_FOUND;
}

static int find_dyn(uint64_t pc, struct us_glass *g, struct us_fde *fde)
{
	unw_dyn_info_t *di = dyn_at(pc);

	return di && search(di, pc, g, fde);
}

/* ---- Procedures ---- */

static void fill(unw_proc_info_t *pi, const struct us_fde *fde, uint64_t gp)
{
	memset(pi, 0, sizeof *pi);
	pi->start_ip = fde->lo;
	pi->end_ip = fde->hi;
	pi->lsda = fde->lsda;
	pi->handler = fde->handler;
	if (fde->handler && fde->handler_indirect && !us_peek(fde->handler, &pi->handler, 8))
		pi->handler = 0;
	if (fde->lsda && fde->lsda_indirect && !us_peek(fde->lsda, &pi->lsda, 8))
		pi->lsda = 0;
	pi->gp = gp;
	pi->format = UNW_INFO_FORMAT_TABLE;
}

static int find_proc_info(unw_addr_space_t as, unw_word_t ip, unw_proc_info_t *pi, int need, void *arg)
{
	struct us_loaded *m;
	struct us_glass g;
	struct us_fde fde;
	unw_dyn_info_t *di;

	(void)as;
	(void)need;
	(void)arg;
	if (us_local_fde(ip, 0, &g, &fde, &m) == US_FOUND) {
		fill(pi, &fde, m ? m->gp : 0);
		return 0;
	}
	di = dyn_at(ip);
	if (!di || di->format != UNW_INFO_FORMAT_DYNAMIC)
		return -UNW_ENOINFO;
	memset(pi, 0, sizeof *pi);
	pi->start_ip = di->start_ip;
	pi->end_ip = di->end_ip;
	pi->gp = di->gp;
	pi->handler = di->u.pi.handler;
	pi->flags = di->u.pi.flags;
	pi->format = di->format;
	return 0;
}

static void put_unwind_info(unw_addr_space_t as, unw_proc_info_t *pi, void *arg)
{
	(void)as;
	(void)arg;
	pi->unwind_info = NULL;
}

US_API int UL(get_proc_info)(unw_cursor_t *cur, unw_proc_info_t *pi)
{
	struct us_walk *w = &cursor(cur)->w;

	return find_proc_info(&space, w->s.pc - !w->exact, pi, 0, NULL);
}

US_API int UL(get_proc_info_by_ip)(unw_addr_space_t as, unw_word_t ip, unw_proc_info_t *pi, void *arg)
{
	return as == &space ? find_proc_info(as, ip, pi, 0, arg) : -UNW_EINVAL;
}

US_API int UL(dwarf_search_unwind_table)(unw_addr_space_t as, unw_word_t ip, unw_dyn_info_t *di, unw_proc_info_t *pi, int need, void *arg)
{
	struct us_glass g;
	struct us_fde fde;

	(void)as;
	(void)need;
	(void)arg;
	if (!search(di, ip, &g, &fde))
		return -UNW_ENOINFO;
	fill(pi, &fde, di->gp);
	return 0;
}

/* Its first argument is libunwind's own; there is nothing to be found in it. */
US_API int UL(dwarf_find_unwind_table)(void *edi, unw_addr_space_t as, char *path, unw_word_t segbase, unw_word_t mapoff, unw_word_t ip)
{
	(void)edi;
	(void)as;
	(void)path;
	(void)segbase;
	(void)mapoff;
	(void)ip;
	return -UNW_ENOINFO;
}

/* Copies a name, as much as fits. */
static int give(const char *name, char *to, size_t n)
{
	size_t len = strlen(name);

	if (n == 0)
		return -UNW_ENOMEM;
	if (len < n) {
		memcpy(to, name, len + 1);
		return 0;
	}
	memcpy(to, name, n - 1);
	to[n - 1] = 0;
	return -UNW_ENOMEM;
}

static int proc_name(unw_addr_space_t as, unw_word_t ip, char *to, size_t n, unw_word_t *off, void *arg)
{
	struct us_loaded *m;
	struct us_symbol s;
	unw_dyn_info_t *di;

	(void)as;
	(void)arg;
	m = us_loaded_at(ip);
	if (m) {
		if (!us_symbol_at(m, ip, &s))
			return -UNW_ENOINFO;
		if (off)
			*off = ip - s.lo;
		return give(s.name, to, n);
	}
	di = dyn_at(ip);
	if (!di || !di->u.pi.name_ptr)
		return -UNW_ENOINFO;
	if (off)
		*off = ip - di->start_ip;
	return give((const char *)di->u.pi.name_ptr, to, n);
}

US_API int UL(get_proc_name)(unw_cursor_t *cur, char *to, size_t n, unw_word_t *off)
{
	struct us_walk *w = &cursor(cur)->w;
	int r = proc_name(&space, w->s.pc - !w->exact, to, n, off, NULL);

	if (off && !w->exact && (r == 0 || r == -UNW_ENOMEM))
		++*off;
	return r;
}

US_API int UL(get_proc_name_by_ip)(unw_addr_space_t as, unw_word_t ip, char *to, size_t n, unw_word_t *off, void *arg)
{
	return as == &space ? proc_name(as, ip, to, n, off, arg) : -UNW_EINVAL;
}

/* ---- The local accessors; arg is a ucontext_t ---- */

static int dyn_list(unw_addr_space_t as, unw_word_t *to, void *arg)
{
	(void)as;
	(void)arg;
	*to = (unw_word_t)&dyn;
	return 0;
}

static int access_mem(unw_addr_space_t as, unw_word_t addr, unw_word_t *v, int write, void *arg)
{
	(void)as;
	(void)arg;
	if (write)
		return store(addr, *v);
	return us_peek(addr, v, 8) ? 0 : -UNW_EINVAL;
}

static int access_reg(unw_addr_space_t as, unw_regnum_t n, unw_word_t *v, int write, void *arg)
{
	uint64_t at;

	(void)as;
	if (n < 0 || n > US_PC || !arg)
		return -UNW_EBADREG;
	at = (uint64_t)arg + us_greg[n];
	if (write)
		*(uint64_t *)at = *v;
	else
		*v = *(uint64_t *)at;
	return 0;
}

static int access_fpreg(unw_addr_space_t as, unw_regnum_t n, unw_fpreg_t *v, int write, void *arg)
{
	(void)as;
	(void)n;
	(void)v;
	(void)write;
	(void)arg;
	return -UNW_EBADREG;
}

static int resume(unw_addr_space_t as, unw_cursor_t *c, void *arg)
{
	(void)as;
	(void)arg;
	return UL(resume)(c);
}

/* ---- States of registers ---- */

/* What reg_states_iterate gives, and apply_reg_state takes. */
struct reg_state {
	struct us_rule rule;
};

/* The next address above pc at which the rule can change. */
static uint64_t same_until(struct us_glass *g, const struct us_fde *fde, uint64_t pc, const struct us_rule *r)
{
	struct us_rule x;

	for (pc++; pc < fde->hi; pc++)
		if (us_fde_rule(&g->w, fde, pc, &x) != US_FOUND || memcmp(&x, r, sizeof x)) /* equal wide rules are one */
			break;
	return pc;
}

typedef int (*reg_states_callback)(void *token, void *data, size_t size, unw_word_t start, unw_word_t end);

/*
 * Calls back for each range of the cursor's procedure that has the same rules. Not for signal handlers. Procedures of
 * more than 64 KiB are cut off.
 */
US_API int UL(reg_states_iterate)(unw_cursor_t *cur, reg_states_callback cb, void *token)
{
	struct us_walk *w = &cursor(cur)->w;
	struct us_loaded *m;
	struct us_glass g;
	struct us_fde fde;
	int ret = 0;

	if (us_local_fde(w->s.pc - !w->exact, w->in_handler, &g, &fde, &m) != US_FOUND)
		return -UNW_ENOINFO;
	for (uint64_t pc = fde.lo, end; ret == 0 && pc < fde.hi && pc - fde.lo < 1 << 16; pc = end) {
		struct reg_state s;

		if (us_fde_rule(&g.w, &fde, pc, &s.rule) != US_FOUND)
			return -UNW_ENOINFO;
		end = same_until(&g, &fde, pc, &s.rule);
		ret = cb(token, &s, sizeof s, pc, end);
	}
	return ret;
}

US_API int UL(apply_reg_state)(unw_cursor_t *cur, void *data)
{
	struct reg_state s;

	memcpy(&s, data, sizeof s);
	return us_walk_apply(&cursor(cur)->w, &s.rule);
}

/* ---- What libunwind's other libraries call ---- */

/* Numbers in LEB128; *at is moved behind them. */
US_API unw_word_t _ReadULEB(unsigned char **at)
{
	unw_word_t v = 0;
	unsigned shift = 0;
	unsigned char c;

	do {
		c = *(*at)++;
		if (shift < 64)
			v |= (unw_word_t)(c & 0x7f) << shift;
		shift += 7;
	} while (c & 0x80);
	return v;
}

US_API int64_t _ReadSLEB(unsigned char **at)
{
	unw_word_t v = 0;
	unsigned shift = 0;
	unsigned char c;

	do {
		c = *(*at)++;
		if (shift < 64)
			v |= (unw_word_t)(c & 0x7f) << shift;
		shift += 7;
	} while (c & 0x80);
	if (shift < 64 && c & 0x40)
		v |= ~(unw_word_t)0 << shift;
	return (int64_t)v;
}

US_API void U(get_exe_image_path)(char *path)
{
	strcpy(path, "/proc/self/exe");
}

struct image {
	void *at;
	size_t size;
};

/* Maps the file that process pid has mapped at ip: its path, the mapping's start, and its offset. Not for signal handlers. */
US_API int U(get_elf_image)(struct image *to, pid_t pid, unw_word_t ip, unsigned long *segbase, unsigned long *mapoff, char *path, size_t n)
{
	char name[64], line[4400], file[4097];
	unsigned long lo, hi, off;
	struct stat st;
	FILE *f;
	int fd, found = 0;

	snprintf(name, sizeof name, "/proc/%d/maps", (int)pid);
	f = fopen(name, "re");
	if (!f)
		return -UNW_ENOINFO;
	while (!found && fgets(line, sizeof line, f))
		found = sscanf(line, "%lx-%lx %*s %lx %*s %*s %4096[^\n]", &lo, &hi, &off, file) == 4 && ip >= lo && ip < hi;
	fclose(f);
	if (!found || file[0] != '/')
		return -UNW_ENOINFO;
	*segbase = lo;
	*mapoff = off;
	if (path && n)
		snprintf(path, n, "%s", file);
	fd = open(file, O_RDONLY | O_CLOEXEC);
	if (fd < 0 || fstat(fd, &st) != 0 || st.st_size < 64) {
		if (fd >= 0)
			close(fd);
		return -UNW_ENOINFO;
	}
	to->size = (size_t)st.st_size;
	to->at = mmap(NULL, to->size, PROT_READ, MAP_PRIVATE, fd, 0);
	close(fd);
	return to->at == MAP_FAILED || memcmp(to->at, ELFMAG, SELFMAG) ? -UNW_ENOINFO : 0;
}
