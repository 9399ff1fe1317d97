/* SPDX-License-Identifier: Apache-2.0 */
/*
 * local_mod.c: the modules that are loaded in the own process, found by _dl_find_object, which takes no lock; where the
 * C library has none, by a list that is made when this library is loaded.
 *
 * A module is known by where it is mapped and by its build ID, and its record is never given back. What was there when
 * the program started stays; anything else may be unloaded and replaced, so each walk looks once whether it still is
 * what it was, and reads its call frame information through the kernel.
 */
#define _GNU_SOURCE
#include "local.h"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <string.h>
#include <sys/auxv.h>

#pragma weak _dl_find_object

enum { MAX_MODULES = 8192, BUCKETS = 16384, MAX_LISTED = 512 };

static struct us_loaded *_Atomic by_index[MAX_MODULES + 1];
static _Atomic uint16_t by_place[BUCKETS]; /* an index; the newest for a place wins */
static _Atomic uint32_t n_modules;

int (*_Atomic us_find_registered)(uint64_t pc, struct us_glass *g, struct us_fde *fde);

/* ---- Where the C library has no _dl_find_object ---- */

static struct dl_find_object listed[MAX_LISTED];
static unsigned n_listed;

static int list_one(struct dl_phdr_info *info, size_t size, void *arg)
{
	struct dl_find_object *o = &listed[n_listed];
	uint64_t lo = UINT64_MAX, hi = 0;

	(void)size;
	(void)arg;
	if (n_listed == MAX_LISTED)
		return 1;
	memset(o, 0, sizeof *o);
	for (unsigned i = 0; i < info->dlpi_phnum; i++) {
		const ElfW(Phdr) *p = &info->dlpi_phdr[i];

		if (p->p_type == PT_LOAD) {
			lo = p->p_vaddr < lo ? p->p_vaddr : lo;
			hi = p->p_vaddr + p->p_memsz > hi ? p->p_vaddr + p->p_memsz : hi;
		} else if (p->p_type == PT_GNU_EH_FRAME) {
			o->dlfo_eh_frame = (void *)(info->dlpi_addr + p->p_vaddr);
		}
	}
	o->dlfo_map_start = (void *)(info->dlpi_addr + lo);
	o->dlfo_map_end = (void *)(info->dlpi_addr + hi);
	if (hi && o->dlfo_eh_frame)
		n_listed++;
	return 0;
}

static int find_object(uint64_t pc, struct dl_find_object *o)
{
	if (us_likely(_dl_find_object != NULL))
		return _dl_find_object((void *)pc, o) == 0 && o->dlfo_eh_frame;
	for (unsigned i = 0; i < n_listed; i++) {
		if (pc - (uint64_t)listed[i].dlfo_map_start < (uint64_t)listed[i].dlfo_map_end - (uint64_t)listed[i].dlfo_map_start) {
			*o = listed[i];
			return 1;
		}
	}
	return 0;
}

/* ---- Records ---- */

static int glass_refill(struct us_window *w, uint64_t at)
{
	struct us_glass *g = w->ctx;
	uint64_t lo = at & ~(uint64_t)(sizeof g->buf - 1);

	for (unsigned n = sizeof g->buf; n >= 8; n /= 8) {
		lo = at & ~(uint64_t)(n - 1);
		if (us_peek(lo, g->buf, n)) {
			w->p = g->buf;
			w->lo = lo;
			w->hi = lo + n;
			return 1;
		}
	}
	return 0;
}

void us_glass(struct us_glass *g, const struct us_loaded *m)
{
	g->w = (struct us_window){g->buf, 1, 1, glass_refill, g};
	if (m && m->permanent && m->text.hi > m->text.lo) {
		g->w.p = (const uint8_t *)m->text.lo;
		g->w.lo = m->text.lo;
		g->w.hi = m->text.hi;
	}
}

/* Reads the module's headers out of memory: its build ID, and which segment .eh_frame_hdr is in. */
static void read_headers(struct us_loaded *m)
{
	Elf64_Ehdr e;
	Elf64_Phdr ph[32];
	uint64_t first = UINT64_MAX;
	unsigned n;

	if (!us_peek(m->lo, &e, sizeof e) || memcmp(e.e_ident, ELFMAG, SELFMAG) || e.e_phentsize != sizeof ph[0])
		return;
	n = e.e_phnum < 32 ? e.e_phnum : 32;
	if (e.e_phoff > 4096 || !us_peek(m->lo + e.e_phoff, ph, n * sizeof ph[0]))
		return;
	for (unsigned i = 0; i < n; i++)
		if (ph[i].p_type == PT_LOAD && ph[i].p_vaddr < first)
			first = ph[i].p_vaddr & -(uint64_t)4096;
	m->bias = m->lo - first;
	for (unsigned i = 0; i < n; i++) {
		uint64_t lo = ph[i].p_vaddr + m->bias, hi = lo + ph[i].p_filesz;

		if (ph[i].p_type == PT_LOAD && m->hdr >= lo && m->hdr < hi && hi > lo && hi <= m->hi)
			m->text = (struct us_span){lo, hi};
		if (ph[i].p_type == PT_LOAD && (ph[i].p_flags & (PF_R | PF_X)) == (PF_R | PF_X) && hi > lo && hi <= m->hi)
			m->code = (struct us_span){lo, hi};
		if (ph[i].p_type == PT_DYNAMIC) {
			Elf64_Dyn d[32];
			uint64_t left = ph[i].p_memsz / sizeof d[0];

			for (uint64_t at = lo; left > 0; at += sizeof d) {
				unsigned k, room = left < 32 ? (unsigned)left : 32;

				if (!us_peek(at, d, room * sizeof d[0]))
					break;
				for (k = 0; k < room && d[k].d_tag != DT_NULL; k++)
					if (d[k].d_tag == DT_PLTGOT)
						m->gp = d[k].d_un.d_ptr < m->lo ? d[k].d_un.d_ptr + m->bias : d[k].d_un.d_ptr;
				if (k < room)
					break;
				left -= room;
			}
		}
		if (ph[i].p_type == PT_NOTE && !m->id_at && ph[i].p_filesz < 4096) {
			uint32_t h[4];

			for (uint64_t at = lo; at + 16 <= hi && us_peek(at, h, sizeof h);) {
				uint64_t size = 12 + (((uint64_t)h[0] + 3) & ~(uint64_t)3) + (((uint64_t)h[1] + 3) & ~(uint64_t)3);

				if (h[2] == NT_GNU_BUILD_ID && h[0] == 4 && h[1] >= 8 && h[3] == 0x00554e47) {
					if (us_peek(at + 16, m->id, sizeof m->id))
						m->id_at = at + 16;
					break;
				}
				at += size;
			}
		}
	}
}

static unsigned bucket(uint64_t lo)
{
	return (unsigned)((lo >> 12) * 0x9e3779b97f4a7c15u >> 50) % BUCKETS;
}

/* Whether m is what o says, and has the build ID that it had. */
static int same(const struct us_loaded *m, const struct dl_find_object *o, int careful)
{
	uint64_t id, now;

	if (m->lo != (uint64_t)o->dlfo_map_start || m->hi != (uint64_t)o->dlfo_map_end ||
	    m->hdr != (uint64_t)o->dlfo_eh_frame || m->link_map != o->dlfo_link_map)
		return 0;
	if (m->permanent)
		return 1;
	if (!m->id_at)
		return 0;
	memcpy(&id, m->id, 8);
	if (careful)
		return us_peek(m->id_at, &now, 8) && now == id;
	return us_word(m->id_at) == id;
}

/* What o and the module's headers say of it. */
static void read_module(struct us_loaded *m, const struct dl_find_object *o)
{
	struct us_glass g;

	m->lo = (uint64_t)o->dlfo_map_start;
	m->hi = (uint64_t)o->dlfo_map_end;
	m->hdr = (uint64_t)o->dlfo_eh_frame;
	m->link_map = o->dlfo_link_map;
	read_headers(m);
	us_glass(&g, m);
	if (us_frames_open(&m->frames, &g.w, m->hdr) != US_FOUND)
		memset(&m->frames, 0, sizeof m->frames);
}

/* Whether m, a module without a build ID, would be read as it was: it serves again. Its rules are read from memory each time. */
static int reads_same(const struct us_loaded *m, const struct dl_find_object *o)
{
	struct us_loaded now;

	if (m->id_at)
		return 0;
	memset(&now, 0, sizeof now);
	now.index = m->index;
	read_module(&now, o);
	return memcmp(&now, m, offsetof(struct us_loaded, names)) == 0;
}

static struct us_loaded *add(const struct dl_find_object *o)
{
	uint32_t i = atomic_fetch_add_explicit(&n_modules, 1, memory_order_relaxed) + 1;
	struct us_loaded *m;

	if (i > MAX_MODULES) {
		atomic_fetch_sub_explicit(&n_modules, 1, memory_order_relaxed);
		return NULL;
	}
	m = us_alloc(sizeof *m);
	if (!m)
		return NULL;
	m->index = (uint16_t)i;
	read_module(m, o);
	atomic_store_explicit(&by_index[i], m, memory_order_release);
	for (unsigned b = bucket(m->lo), n = 0; n < 64; n++, b = (b + 1) % BUCKETS) {
		uint16_t was = atomic_load_explicit(&by_place[b], memory_order_acquire);
		struct us_loaded *old = was ? atomic_load_explicit(&by_index[was], memory_order_acquire) : NULL;

		if (was && (!old || old->lo != m->lo))
			continue;
		if (atomic_compare_exchange_strong_explicit(&by_place[b], &was, (uint16_t)i, memory_order_release, memory_order_relaxed))
			break;
	}
	return m;
}

static struct us_loaded *record(const struct dl_find_object *o)
{
	uint64_t lo = (uint64_t)o->dlfo_map_start;

	for (unsigned b = bucket(lo), n = 0; n < 64; n++, b = (b + 1) % BUCKETS) {
		uint16_t i = atomic_load_explicit(&by_place[b], memory_order_acquire);
		struct us_loaded *m;

		if (i == 0)
			break;
		m = atomic_load_explicit(&by_index[i], memory_order_acquire);
		if (!m || m->lo != lo)
			continue;
		if (same(m, o, 1) || reads_same(m, o))
			return m;
		break;
	}
	return add(o);
}

struct us_loaded *us_loaded_at(uint64_t pc)
{
	struct dl_find_object o;

	return find_object(pc, &o) ? record(&o) : NULL;
}

int us_still_loaded(unsigned index, uint64_t pc, int careful)
{
	struct us_loaded *m;
	struct dl_find_object o;

	if (index == 0 || index > MAX_MODULES)
		return 0;
	m = atomic_load_explicit(&by_index[index], memory_order_acquire);
	return m && find_object(pc, &o) && same(m, &o, careful);
}

/* ---- Rules ---- */

/* What libgcc says of a program counter; its registry has the code that __register_frame was called for. */
struct bases {
	void *tbase, *dbase, *func;
};
extern const void *_Unwind_Find_FDE(void *pc, struct bases *b) __attribute__((weak));

int us_local_fde(uint64_t pc, int in_handler, struct us_glass *g, struct us_fde *fde, struct us_loaded **at)
{
	struct us_loaded *m = us_loaded_at(pc);
	struct bases b;
	const void *p;

	*at = m;
	us_glass(g, m);
	if (m)
		return us_frames_find(&m->frames, &g->w, pc, fde);
	if (us_find_registered && us_find_registered(pc, g, fde))
		return US_FOUND;
	/*
	 * libgcc before 13 takes a lock where anything is registered. The code that a signal interrupted may hold it.
	 */
	if (in_handler || !_Unwind_Find_FDE)
		return US_NOT_FOUND;
	memset(&b, 0, sizeof b);
	p = _Unwind_Find_FDE((void *)pc, &b);
	if (!p || us_fde_open(&g->w, (uint64_t)p, fde) != US_FOUND)
		return US_NOT_FOUND;
	return pc >= fde->lo && pc < fde->hi ? US_FOUND : US_NOT_FOUND;
}

int us_local_rule(uint64_t pc, int in_handler, struct us_rule *r, unsigned *index)
{
	struct us_loaded *m;
	struct us_glass g;
	struct us_fde fde;
	int o;

	o = us_local_fde(pc, in_handler, &g, &fde, &m);
	*index = !m ? US_VOLATILE : m->permanent ? 0 : m->id_at ? m->index : US_VOLATILE;
	return o == US_FOUND ? us_fde_rule(&g.w, &fde, pc, r) : o;
}

/* ---- At load time ---- */

static void keep(uint64_t address)
{
	struct us_loaded *m = address ? us_loaded_at(address) : NULL;

	if (m)
		m->permanent = 1;
}

static int keep_one(struct dl_phdr_info *info, size_t size, void *arg)
{
	(void)size;
	(void)arg;
	for (unsigned i = 0; i < info->dlpi_phnum; i++) {
		if (info->dlpi_phdr[i].p_type == PT_LOAD && info->dlpi_phdr[i].p_flags & PF_X) {
			keep(info->dlpi_addr + info->dlpi_phdr[i].p_vaddr);
			break;
		}
	}
	return 0;
}

extern void *__libc_stack_end __attribute__((weak));

/*
 * Whether the program is just being started: this runs on the first stack, and every caller is the loader. dlopen is in
 * the C library, or calls back into it.
 */
static int starting(void)
{
	struct us_loaded *loader = us_loaded_at(getauxval(AT_BASE)), *self = us_loaded_at((uint64_t)&starting);
	uint64_t here = (uint64_t)__builtin_frame_address(0), uc[121];
	struct us_walk w;

	if (!loader)
		loader = us_loaded_at((uint64_t)&__libc_stack_end);
	if (!loader || !self || !&__libc_stack_end || here > (uint64_t)__libc_stack_end || (uint64_t)__libc_stack_end - here > 1 << 16)
		return 0;
	memset(uc, 0, sizeof uc);
#ifdef __x86_64__
	__asm__ volatile("mov %%rbx, 128(%0)\n\tmov %%rbp, 120(%0)\n\tmov %%rsp, 160(%0)\n\tmov %%r12, 72(%0)\n\tmov %%r13, 80(%0)\n\t"
			 "mov %%r14, 88(%0)\n\tmov %%r15, 96(%0)\n\tlea 0(%%rip), %%rcx\n\tmov %%rcx, 168(%0)"
			 : : "r"(uc) : "rcx", "memory");
#else
	__asm__ volatile("stp x19, x20, [%0, #336]\n\tstp x21, x22, [%0, #352]\n\tstp x23, x24, [%0, #368]\n\tstp x25, x26, [%0, #384]\n\t"
			 "stp x27, x28, [%0, #400]\n\tstp x29, x30, [%0, #416]\n\tmov x9, sp\n\tadr x10, .\n\tstp x9, x10, [%0, #432]"
			 : : "r"(uc) : "x9", "x10", "memory");
#endif
	us_walk_context(&w, (uint64_t)uc, 1);
	for (unsigned n = 0; n < 64; n++) {
		struct us_loaded *m = us_loaded_at(w.s.pc);

		if (m != loader && m != self)
			return 0;
		if (us_walk_step(&w, NULL) <= 0)
			return m == loader;
	}
	return 0;
}

__attribute__((constructor)) static void at_load(void)
{
	if (!_dl_find_object)
		dl_iterate_phdr(list_one, NULL);
	if (starting()) {
		dl_iterate_phdr(keep_one, NULL);
	} else {
		/* What this library and every program need stays too. */
		keep((uint64_t)&at_load);
		keep(getauxval(AT_ENTRY));
		keep(getauxval(AT_SYSINFO_EHDR));
		keep((uint64_t)&dl_iterate_phdr);
		keep(getauxval(AT_BASE));
	}
}

/* Whether n bytes are code of a module that stays. */
static int is_permanent(uint64_t pc, uint64_t n)
{
	const struct us_loaded *m = us_loaded_at(pc);

	return m && m->permanent && pc - m->code.lo < m->code.hi - m->code.lo && m->code.hi - pc >= n;
}

int us_local_code(uint64_t pc)
{
	uint8_t byte;

	return is_permanent(pc, 1) || (!us_within(&us_stack, pc) && us_peek(pc, &byte, 1));
}

int us_local_bytes(uint64_t pc, void *to, size_t n)
{
	if (!is_permanent(pc, n))
		return us_peek(pc, to, n);
	memcpy(to, (const void *)pc, n);
	return 1;
}
