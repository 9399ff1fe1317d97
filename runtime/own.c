/* SPDX-License-Identifier: Apache-2.0 */
/*
 * own.c: the own process as one more address space, U(local_addr_space): its accessors. The argument is a
 * ucontext_t. The kernel is asked about each word of memory, so what is not there is an error and not a signal; and it
 * is slow: libunwind.so.8 (local.c) is the fast way.
 *
 * Async-signal-safe where the C library has _dl_find_object, except for names.
 */
#define _GNU_SOURCE
#include "local.h"
#include "space.h"

#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <link.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/syscall.h>
#include <sys/ucontext.h>
#include <sys/uio.h>
#include <unistd.h>

#pragma weak _dl_find_object

/* libunwind.so.8's, from which the context comes: whichever the program has. */
#ifdef __x86_64__
extern int U(setcontext)(const ucontext_t *uc) __attribute__((weak));
#endif
extern unw_word_t _U_dyn_info_list_addr(void) __attribute__((weak));

extern int U(dwarf_search_unwind_table)(unw_addr_space_t as, unw_word_t ip, unw_dyn_info_t *di, unw_proc_info_t *pi, int need,
					      void *arg);

/* ---- Memory and registers ---- */

static int read_word(uint64_t addr, uint64_t *to)
{
	return us_peek(addr, to, 8);
}

static int write_word(uint64_t addr, uint64_t v)
{
	addr = us_readable(addr, 8);
	if (!addr || !us_may_write(addr))
		return 0;
	*(volatile uint64_t *)addr = v;
	return 1;
}

static int access_mem(unw_addr_space_t as, unw_word_t addr, unw_word_t *v, int write, void *arg)
{
	(void)as;
	(void)arg;
	return (write ? write_word(addr, *v) : read_word(addr, v)) ? 0 : -UNW_EINVAL;
}

static int access_reg(unw_addr_space_t as, unw_regnum_t n, unw_word_t *v, int write, void *arg)
{
#define OFFSET(slot, offset) [slot] = (offset) - MACHINE(FRAME_CONTEXT),
	static const uint16_t at[US_SLOTS] = {MACHINE(FRAME)(OFFSET)};

	(void)as;
	if (n < 0 || n > US_PC || !arg)
		return -UNW_EBADREG;
	if (write)
		memcpy((char *)arg + at[n], v, sizeof *v);
	else
		memcpy(v, (char *)arg + at[n], sizeof *v);
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

/*
 * Goes on in the frame whose registers are in the context. If a signal frame lies between, the kernel goes back there,
 * with the signal mask and the floating-point registers that it saved.
 */
static int resume(unw_addr_space_t as, unw_cursor_t *cur, void *arg)
{
	uint64_t sig = us_signal_context(cur), was;
	ucontext_t *uc = arg;

	(void)as;
	if (sig) {
		ucontext_t *to = (ucontext_t *)sig;

		if (!us_peek((uint64_t)&to->uc_sigmask, &was, 8))
			return -UNW_EINVAL;
#ifdef __x86_64__
		memcpy(to->uc_mcontext.gregs, uc->uc_mcontext.gregs, (REG_RIP + 1) * sizeof(greg_t)); /* r8 to rip */
		__asm__ volatile("mov %0, %%rsp\n\tsyscall\n\thlt" : : "r"(sig), "a"(SYS_rt_sigreturn) : "memory");
#else
		memcpy(to->uc_mcontext.regs, uc->uc_mcontext.regs, 33 * sizeof(uint64_t)); /* x0 to pc */
		__asm__ volatile("mov sp, %0\n\tmov x8, %1\n\tsvc #0\n\tbrk #1" : : "r"(sig - MACHINE(FRAME_CONTEXT)), "i"(SYS_rt_sigreturn) : "x8", "memory");
#endif
		__builtin_unreachable();
	}
#ifdef __x86_64__
	if (U(setcontext))
		U(setcontext)(uc);
#else
	(void)uc; /* there, libunwind has no function that goes on in a context */
#endif
	return -UNW_EINVAL;
}

/* ---- Modules ---- */

struct module {
	uint64_t lo, hi, hdr, dynamic;
	const void *link_map;
};

struct search {
	uint64_t ip;
	struct module *to;
	int found;
};

static int look_at(struct dl_phdr_info *info, size_t size, void *arg)
{
	struct search *s = arg;
	struct module m = {.lo = UINT64_MAX};

	(void)size;
	for (unsigned i = 0; i < info->dlpi_phnum; i++) {
		const ElfW(Phdr) *p = &info->dlpi_phdr[i];
		uint64_t at = info->dlpi_addr + p->p_vaddr;

		if (p->p_type == PT_LOAD) {
			m.lo = at < m.lo ? at : m.lo;
			m.hi = at + p->p_memsz > m.hi ? at + p->p_memsz : m.hi;
		} else if (p->p_type == PT_GNU_EH_FRAME) {
			m.hdr = at;
		} else if (p->p_type == PT_DYNAMIC) {
			m.dynamic = at;
		}
	}
	m.lo &= -(uint64_t)4096;
	s->found = m.hdr && s->ip - m.lo < m.hi - m.lo;
	if (s->found)
		*s->to = m;
	return s->found;
}

static int find_module(uint64_t ip, struct module *m)
{
	struct search s = {ip, m, 0};

	if (us_likely(_dl_find_object != NULL)) {
		const struct link_map *l;
		struct dl_find_object o;

		if (_dl_find_object((void *)ip, &o) != 0 || !o.dlfo_eh_frame)
			return 0;
		l = o.dlfo_link_map;
		*m = (struct module){(uint64_t)o.dlfo_map_start, (uint64_t)o.dlfo_map_end, (uint64_t)o.dlfo_eh_frame, 0, l};
		if (l)
			us_peek((uint64_t)&l->l_ld, &m->dynamic, 8);
		return 1;
	}
	dl_iterate_phdr(look_at, &s);
	return s.found;
}

/* What DT_PLTGOT says; 0 for nothing. */
static uint64_t global_pointer(const struct module *m)
{
	Elf64_Dyn d;

	for (unsigned i = 0; m->dynamic && i < 256 && us_peek(m->dynamic + i * sizeof d, &d, sizeof d) && d.d_tag != DT_NULL; i++)
		if (d.d_tag == DT_PLTGOT)
			return d.d_un.d_ptr;
	return 0;
}

static int peek_refill(struct us_window *w, uint64_t at)
{
	if (!read_word(at & ~(uint64_t)7, w->ctx))
		return 0;
	w->lo = at & ~(uint64_t)7;
	w->hi = w->lo + 8;
	return 1;
}

static int find_proc_info(unw_addr_space_t as, unw_word_t ip, unw_proc_info_t *pi, int need, void *arg)
{
	uint64_t word = 0;
	struct us_window w = {(const uint8_t *)&word, 1, 1, peek_refill, &word};
	unw_dyn_info_t di;
	struct us_frames f;
	struct module m;

	if (!find_module(ip, &m) || us_frames_open(&f, &w, m.hdr) != US_FOUND)
		return -UNW_ENOINFO;
	memset(&di, 0, sizeof di);
	di.start_ip = m.lo;
	di.end_ip = m.hi;
	di.gp = need ? 0 : global_pointer(&m);
	di.format = UNW_INFO_FORMAT_REMOTE_TABLE;
	di.u.rti.segbase = m.hdr;
	di.u.rti.table_data = f.table;
	di.u.rti.table_len = f.n * 8 / sizeof(unw_word_t);
	return U(dwarf_search_unwind_table)(as, ip, &di, pi, need, arg);
}

static void put_unwind_info(unw_addr_space_t as, unw_proc_info_t *pi, void *arg)
{
	(void)as;
	(void)arg;
	pi->unwind_info = NULL;
}

static int dyn_list(unw_addr_space_t as, unw_word_t *to, void *arg)
{
	(void)as;
	(void)arg;
	if (!_U_dyn_info_list_addr)
		return -UNW_ENOINFO;
	*to = _U_dyn_info_list_addr();
	return 0;
}

/* ---- Names ---- */

/* A module with its names, kept. It is the one at an address as long as the build ID there is the same; or the ELF header. */
struct named {
	struct named *next;
	const struct us_module *id; /* NULL where there is none */
	uint8_t head[64];
	struct us_loaded m;
};

static struct named *_Atomic named;

static int peek(void *ctx, uint64_t addr, void *to, size_t n)
{
	(void)ctx;
	return n == 8 ? read_word(addr, to) : us_peek(addr, to, n);
}

static struct us_loaded *named_at(uint64_t ip)
{
	struct us_target own = {peek, NULL};
	struct named *first = atomic_load_explicit(&named, memory_order_acquire), *x;
	uint64_t bias = 0;
	uint8_t head[64];
	struct module m;

	if (!find_module(ip, &m))
		return NULL;
	for (x = first; x; x = x->next)
		if (x->m.lo == m.lo && x->m.hi == m.hi && x->id && us_module_is(x->id, &own, x->m.bias, 1))
			return &x->m;
	if (!us_peek(m.lo, head, sizeof head))
		return NULL;
	for (x = first; x; x = x->next)
		if (x->m.lo == m.lo && x->m.hi == m.hi && !x->id && !memcmp(x->head, head, sizeof head))
			return &x->m;
	x = us_alloc(sizeof *x);
	if (!x)
		return NULL;
	x->id = us_module_near(&own, m.hdr, m.lo, &bias, us_local_space.strict);
	memcpy(x->head, head, sizeof head);
	x->m.lo = m.lo;
	x->m.hi = m.hi;
	x->m.bias = x->id ? bias : ((Elf64_Ehdr *)(void *)head)->e_type == ET_DYN ? m.lo : 0;
	x->m.link_map = m.link_map;
	x->m.permanent = m.lo == getauxval(AT_SYSINFO_EHDR);
	x->next = first;
	while (!atomic_compare_exchange_weak_explicit(&named, &x->next, x, memory_order_release, memory_order_relaxed))
		;
	return &x->m;
}

static int get_proc_name(unw_addr_space_t as, unw_word_t ip, char *to, size_t size, unw_word_t *off, void *arg)
{
	struct us_loaded *m = named_at(ip);
	struct us_symbol s;
	size_t n;

	(void)as;
	(void)arg;
	if (!m || !us_symbol_at(m, ip, &s))
		return -UNW_ENOINFO;
	if (off)
		*off = ip - s.lo;
	if (size == 0)
		return -UNW_ENOMEM;
	n = strnlen(s.name, size);
	memcpy(to, s.name, n < size ? n + 1 : size - 1);
	to[size - 1] = n < size ? to[size - 1] : 0;
	return n < size ? 0 : -UNW_ENOMEM;
}

/* ---- The address space ---- */

struct unw_addr_space us_local_space = {
	.acc = {find_proc_info, put_unwind_info, dyn_list, access_mem, access_reg, access_fpreg, resume, get_proc_name},
	.policy = UNW_CACHE_GLOBAL,
	.keep = US_ALL,
	.epoch = 1,
};
US_API struct unw_addr_space *U(local_addr_space) = &us_local_space;

__attribute__((constructor)) static void at_load(void)
{
	us_local_space.strict = US_RA_IS_PC && us_strict_mode(); /* AArch64's is for other processes */
	us_alloc(16); /* maps room for the first modules: a program may limit its memory later */
}
