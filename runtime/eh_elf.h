/* SPDX-License-Identifier: Apache-2.0 */
/*
 * eh_elf.h: walks stacks with eh_elf files. Each has the unwind information of a module as machine code. docs/EH_ELF.md describes the
 * files, and the memory and registers that their code may touch.
 *
 * C11 or C++17, gcc or clang, Linux on x86-64 or AArch64. All functions are inline; there is nothing to link. Include this file
 * first, or define _GNU_SOURCE. eh_elf_file.h lies beside it. A program that includes unspool_table.h too includes that before this.
 *
 *	static struct eh_elf_module modules[256];
 *	static struct eh_elf_map map;
 *
 *	eh_elf_map_init(&map, modules, 256, EH_ELF_SELF);
 *	eh_elf_map_self(&map, "/var/cache/eh_elf");            once, and again after dlopen
 *
 *	struct eh_elf_cursor c;                                 at any time, in signal handlers too
 *	eh_elf_capture(&c.state);
 *	eh_elf_begin(&c, &map, NULL);
 *	do
 *		use(c.state.pc, c.exact);
 *	while ((stop = eh_elf_next(&c)) == EH_ELF_OK);
 *
 * Sections: the modules of this process, memory readers, walking. eh_elf_file.h has the sections before them: memory and outcomes, a
 * file. Memory readers and walking are async-signal-safe: they take no lock, call nothing of libc, keep errno, and use less than 2 KiB of
 * stack (AArch64: 2.5 KiB) beside the caller's cursor, which takes 1.1 KiB.
 */
#ifndef UNSPOOL_EH_ELF_H
#define UNSPOOL_EH_ELF_H

#include "eh_elf_file.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- The modules of a process ---- */

#define EH_ELF_PROGRAM 0x6568656c /* p_type of the program header of a file in a module */

/* Whether n bytes at a link-time address were loaded with a module. */
static inline int eh_elf_loaded(const struct dl_phdr_info *info, uint64_t at, uint64_t n)
{
	uint32_t i;

	for (i = 0; i < info->dlpi_phnum; i++) {
		const ElfW(Phdr) *p = &info->dlpi_phdr[i];

		if (p->p_type == PT_LOAD && at >= p->p_vaddr && n <= p->p_filesz && at - p->p_vaddr <= p->p_filesz - n)
			return 1;
	}
	return 0;
}

/* The build ID of a module that is loaded in this process, in hex. Returns 0 if it has none, or if there is no room for it. */
static inline int eh_elf_build_id(const struct dl_phdr_info *info, char *hex, size_t size)
{
	static const char digits[] = "0123456789abcdef";
	uint32_t i, k, n = 0;

	for (i = 0; i < info->dlpi_phnum; i++) {
		const ElfW(Phdr) *p = &info->dlpi_phdr[i];
		const unsigned char *at = (const unsigned char *)(uintptr_t)(info->dlpi_addr + p->p_vaddr), *id;

		if (p->p_type != PT_NOTE || p->p_align > 4 || !eh_elf_loaded(info, p->p_vaddr, p->p_filesz))
			continue; /* notes that are aligned to 8 hold properties */
		id = eh_elf_note(at, at + p->p_filesz, "GNU", NT_GNU_BUILD_ID, &n);
		if (id == NULL || n == 0 || 2 * (size_t)n + 1 > size)
			continue;
		for (k = 0; k < n; k++) {
			hex[2 * k] = digits[id[k] >> 4];
			hex[2 * k + 1] = digits[id[k] & 15];
		}
		hex[2 * n] = 0;
		return 1;
	}
	return 0;
}

/* Executable memory that came from a module. */
struct eh_elf_module {
	uint64_t start, end; /* run-time addresses */
	uint64_t bias;       /* run-time less link-time addresses */
	struct eh_elf file;  /* none if its base is NULL */
	int error;           /* why there is none */
	int first;           /* it is the first module with this file */
	int owned;           /* this module's file is closed with the map */
};

/*
 * The modules of a process, by address. It must not change while somebody walks with it: a program that loads more makes a
 * second map, and closes the first when no walk uses it any more.
 */
struct eh_elf_map {
	struct eh_elf_module *modules;
	uint32_t n, room;
	enum eh_elf_deref deref;             /* of all files */
	unsigned long long added, removed;   /* objects, when eh_elf_map_self looked */
};

/* Makes an empty map in storage for so many modules. A module has as many as it has executable segments: one, as a rule. */
static inline void eh_elf_map_init(struct eh_elf_map *map, struct eh_elf_module *storage, uint32_t room, enum eh_elf_deref deref)
{
	memset(map, 0, sizeof *map);
	map->modules = storage;
	map->room = room;
	map->deref = deref;
}

/* Adds a module, which may be one of another process. f may be NULL, and stays the caller's. Returns 0 or an eh_elf_error. */
static inline int eh_elf_map_add(struct eh_elf_map *map, uint64_t start, uint64_t end, uint64_t bias, const struct eh_elf *f)
{
	struct eh_elf_module *m;
	uint32_t i = map->n;

	if (f != NULL && f->base != NULL && f->info.deref != (uint8_t)map->deref)
		return EH_ELF_E_DEREF;
	while (i > 0 && map->modules[i - 1].start > start)
		i--;
	if (start >= end || (i > 0 && map->modules[i - 1].end > start) || (i < map->n && map->modules[i].start < end))
		return EH_ELF_E_OVERLAP;
	if (map->n == map->room)
		return EH_ELF_E_FULL;
	m = &map->modules[i];
	memmove(m + 1, m, (map->n - i) * sizeof *m);
	map->n++;
	memset(m, 0, sizeof *m);
	m->start = start;
	m->end = end;
	m->bias = bias;
	if (f != NULL)
		m->file = *f;
	return 0;
}

/* Looks up the module at an address; NULL if there is none. Async-signal-safe. */
static inline const struct eh_elf_module *eh_elf_map_find(const struct eh_elf_map *map, uint64_t pc)
{
	uint32_t lo = 0, hi = map->n;

	while (lo < hi) {
		uint32_t mid = lo + (hi - lo) / 2;

		if (map->modules[mid].start <= pc)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo > 0 && pc < map->modules[lo - 1].end ? &map->modules[lo - 1] : NULL;
}

struct eh_elf_filling {
	struct eh_elf_map *map;
	const char *dir;
	int error;
};

/*
 * The file in a module that unspool compile --embed made, if it is one of a kind, and of the module: one that was linked or
 * changed since has another build ID. It is loaded with the module, and stays as long.
 */
static inline int eh_elf_embedded(const struct dl_phdr_info *info, enum eh_elf_deref deref, struct eh_elf *f)
{
	char id[EH_ELF_MAX_ID + 1];
	uint32_t i;
	int e = EH_ELF_E_FILE;

	memset(f, 0, sizeof *f);
	for (i = 0; i < info->dlpi_phnum; i++) {
		const ElfW(Phdr) *p = &info->dlpi_phdr[i];

		if (p->p_type != EH_ELF_PROGRAM || p->p_filesz > 1 << 30 || !eh_elf_loaded(info, p->p_vaddr, p->p_filesz))
			continue;
		e = eh_elf_check((const unsigned char *)(uintptr_t)(info->dlpi_addr + p->p_vaddr), p->p_filesz, f);
		if (e == 0 && f->info.deref != (uint8_t)deref)
			e = EH_ELF_E_DEREF;
		if (e == 0 && eh_elf_build_id(info, id, sizeof id) && strcmp(f->id, id) != 0)
			e = EH_ELF_E_ID;
		if (e == 0)
			return 0;
		memset(f, 0, sizeof *f);
	}
	return e;
}

static inline int eh_elf_map_object(struct dl_phdr_info *info, size_t size, void *ctx)
{
	struct eh_elf_filling *c = (struct eh_elf_filling *)ctx;
	char id[EH_ELF_MAX_ID + 1];
	struct eh_elf f;
	int i, e, within, first = 0, owned = 0;

	if (size >= offsetof(struct dl_phdr_info, dlpi_subs) + sizeof info->dlpi_subs) {
		c->map->added = info->dlpi_adds;
		c->map->removed = info->dlpi_subs;
	}
	e = eh_elf_embedded(info, c->map->deref, &f);
	within = e == 0;
	if (!within)
		e = eh_elf_build_id(info, id, sizeof id) ? eh_elf_open_id(c->dir, id, &f) : (int)EH_ELF_E_NO_ID;
	if (e == 0 && f.info.deref != (uint8_t)c->map->deref) {
		eh_elf_close(&f);
		e = EH_ELF_E_DEREF;
	}
	for (i = 0; i < info->dlpi_phnum; i++) {
		const ElfW(Phdr) *p = &info->dlpi_phdr[i];
		uint64_t start = info->dlpi_addr + p->p_vaddr;
		int added;

		if (p->p_type != PT_LOAD || (p->p_flags & PF_X) == 0 || p->p_memsz == 0)
			continue;
		added = eh_elf_map_add(c->map, start, start + p->p_memsz, info->dlpi_addr, &f);
		if (added == 0) {
			struct eh_elf_module *m = (struct eh_elf_module *)(uintptr_t)eh_elf_map_find(c->map, start);

			m->error = e;
			m->owned = f.base != NULL && !owned && !within;
			m->first = f.base != NULL && !first;
			owned |= m->owned;
			first |= m->first;
		} else if (c->error == 0) {
			c->error = added;
		}
	}
	if (!owned && !within)
		eh_elf_close(&f);
	return c->error == EH_ELF_E_FULL;
}

/*
 * Adds the program, the libraries that are loaded now, and the vDSO, each with the file in it, or with its file
 * DIR/BUILD-ID.eh_elf.so, if there is one of the map's kind: a module's error says why there is none. Returns the number of modules with a file, or an
 * eh_elf_error. Not for signal handlers.
 */
static inline int eh_elf_map_self(struct eh_elf_map *map, const char *dir)
{
	struct eh_elf_filling c = {map, dir, 0};
	uint32_t i;
	int n = 0;

	dl_iterate_phdr(eh_elf_map_object, &c);
	for (i = 0; i < map->n; i++)
		n += map->modules[i].first;
	return c.error != 0 ? c.error : n;
}

static inline int eh_elf_map_counts(struct dl_phdr_info *info, size_t size, void *ctx)
{
	struct eh_elf_map *map = (struct eh_elf_map *)ctx;

	if (size >= offsetof(struct dl_phdr_info, dlpi_subs) + sizeof info->dlpi_subs) {
		map->added = info->dlpi_adds;
		map->removed = info->dlpi_subs;
	}
	return 1;
}

/* Whether libraries were loaded or unloaded since eh_elf_map_self: then it is time for a new map. Not for signal handlers. */
static inline int eh_elf_map_stale(const struct eh_elf_map *map)
{
	struct eh_elf_map now;

	memset(&now, 0, sizeof now);
	dl_iterate_phdr(eh_elf_map_counts, &now);
	return now.added != map->added || now.removed != map->removed;
}

/* Closes the files that eh_elf_map_self loaded, and empties the map, which nobody may be using. */
static inline void eh_elf_map_close(struct eh_elf_map *map)
{
	uint32_t i;

	for (i = 0; i < map->n; i++)
		if (map->modules[i].owned)
			eh_elf_close(&map->modules[i].file);
	map->n = 0;
}

/* ---- Memory readers ---- */

/* A word at any address. */
typedef uint64_t __attribute__((may_alias, aligned(1))) eh_elf_word;

/*
 * Memory that may be read: plainly in [lo, hi), a stack's bounds; elsewhere by asking the kernel for the memory of process
 * pid, or not at all if pid is 0. With a pid, lo = hi = 0 and a map of its modules it reads another process.
 */
struct eh_elf_memory {
	uint64_t lo, hi;
	pid_t pid;
};

/*
 * A read8 for struct unspool_reader, whose ctx is a struct eh_elf_memory. It does not fault on any address outside of the
 * bounds. Async-signal-safe.
 */
__attribute__((no_sanitize("address", "undefined"))) static inline int eh_elf_read8(void *ctx, uint64_t addr, uint64_t *value)
{
	const struct eh_elf_memory *m = (const struct eh_elf_memory *)ctx;
	struct iovec to = {value, 8}, from = {(void *)(uintptr_t)addr, 8};
#ifdef __x86_64__
	register long r10 __asm__("r10") = (long)&from;
	register long r8 __asm__("r8") = 1;
	register long r9 __asm__("r9") = 0;
	long n;
#else
	register long n __asm__("x0") = m->pid;
	register long x1 __asm__("x1") = (long)&to;
	register long x2 __asm__("x2") = 1;
	register long x3 __asm__("x3") = (long)&from;
	register long x4 __asm__("x4") = 1;
	register long x5 __asm__("x5") = 0;
	register long x8 __asm__("x8") = SYS_process_vm_readv;
#endif

	if (addr >= m->lo && addr < m->hi && m->hi - addr >= 8) {
		*value = *(const eh_elf_word *)(uintptr_t)addr;
		return 1;
	}
	if (m->pid == 0)
		return 0;
#ifdef __x86_64__
	__asm__ volatile("syscall" /* libc's function would set errno */
		: "=a"(n)
		: "a"((long)SYS_process_vm_readv), "D"((long)m->pid), "S"(&to), "d"(1L), "r"(r10), "r"(r8), "r"(r9)
		: "rcx", "r11", "memory");
#else
	__asm__ volatile("svc #0" : "+r"(n) : "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5), "r"(x8) : "memory");
#endif
	return n == 8;
}

/* Reads a word as files of a kind do. */
__attribute__((no_sanitize("address", "undefined"))) static inline enum eh_elf_outcome eh_elf_load(enum eh_elf_deref deref,
	const void *mem, uint64_t addr, uint64_t *value)
{
	if (deref == EH_ELF_CALLBACK) {
		const struct unspool_reader *r = (const struct unspool_reader *)mem;

		return r->read8(r->ctx, addr, value) ? EH_ELF_OK : EH_ELF_UNREADABLE;
	}
	if (deref == EH_ELF_SLICE) {
		const struct unspool_slice *m = (const struct unspool_slice *)mem;
		uint64_t i;

		if (addr - m->lo < m->size && m->size - (addr - m->lo) >= 8) {
			*value = *(const eh_elf_word *)(m->bytes + (addr - m->lo));
			return EH_ELF_OK;
		}
		for (i = 0; i < m->n_words; i++) {
			if (m->words[i].addr == addr) {
				*value = m->words[i].value;
				return m->words[i].ok ? EH_ELF_OK : EH_ELF_UNREADABLE;
			}
		}
		return m->more ? EH_ELF_MISSING : EH_ELF_UNREADABLE;
	}
	*value = *(const eh_elf_word *)(uintptr_t)addr;
	return EH_ELF_OK;
}

/* ---- Walking ---- */

/* A walk in progress. */
struct eh_elf_cursor {
	struct unspool_state state; /* of the frame at hand */
	const struct eh_elf_map *map;
	const struct eh_elf_module *module; /* that state.pc lies in; NULL if none */
	const void *mem;
	uint64_t cfa;    /* that the next one must exceed */
	uint32_t frames; /* so far */
	uint32_t limit;  /* of frames; eh_elf_begin sets 4096 */
	int exact;       /* state.pc is not a return address: frame 0, and a frame that a signal interrupted */
};

/* All registers have values. */
static inline void eh_elf_all_known(struct unspool_state *s)
{
	s->cfa = 0;
	s->known = ((uint64_t)1 << EH_ELF_NUM_SLOTS) - 1;
#ifdef __aarch64__
	s->known &= ~((uint64_t)7 << 32); /* pc, and what is no register to save */
#endif
	s->in_mem = 0;
	s->in_reg = 0;
	s->fault = 0;
}

/* Captures the registers of the function that calls this, at this place. Async-signal-safe. */
__attribute__((always_inline)) static inline void eh_elf_capture(struct unspool_state *s)
{
#ifdef __x86_64__
	__asm__ volatile(
		"movq %%rax, 40(%0)\n\t"
		"movq %%rdx, 48(%0)\n\t"
		"movq %%rcx, 56(%0)\n\t"
		"movq %%rbx, 64(%0)\n\t"
		"movq %%rsi, 72(%0)\n\t"
		"movq %%rdi, 80(%0)\n\t"
		"movq %%rbp, 88(%0)\n\t"
		"movq %%rsp, 96(%0)\n\t"
		"movq %%r8, 104(%0)\n\t"
		"movq %%r9, 112(%0)\n\t"
		"movq %%r10, 120(%0)\n\t"
		"movq %%r11, 128(%0)\n\t"
		"movq %%r12, 136(%0)\n\t"
		"movq %%r13, 144(%0)\n\t"
		"movq %%r14, 152(%0)\n\t"
		"movq %%r15, 160(%0)\n\t"
		"leaq 0(%%rip), %%rax\n\t"
		"movq %%rax, 0(%0)"
		:
		: "r"(s)
		: "rax", "memory");
	s->val[EH_ELF_RA] = s->pc;
#else
	__asm__ volatile(
		"stp x0, x1, [%0, #40]\n\t"
		"stp x2, x3, [%0, #56]\n\t"
		"stp x4, x5, [%0, #72]\n\t"
		"stp x6, x7, [%0, #88]\n\t"
		"stp x8, x9, [%0, #104]\n\t"
		"stp x10, x11, [%0, #120]\n\t"
		"stp x12, x13, [%0, #136]\n\t"
		"stp x14, x15, [%0, #152]\n\t"
		"stp x16, x17, [%0, #168]\n\t"
		"stp x18, x19, [%0, #184]\n\t"
		"stp x20, x21, [%0, #200]\n\t"
		"stp x22, x23, [%0, #216]\n\t"
		"stp x24, x25, [%0, #232]\n\t"
		"stp x26, x27, [%0, #248]\n\t"
		"stp x28, x29, [%0, #264]\n\t"
		"str x30, [%0, #280]\n\t"
		"mov x16, sp\n\t"
		"str x16, [%0, #288]\n\t"
		"stp d8, d9, [%0, #320]\n\t"
		"stp d10, d11, [%0, #336]\n\t"
		"stp d12, d13, [%0, #352]\n\t"
		"stp d14, d15, [%0, #368]\n\t"
		"adr x16, .\n\t"
		"str x16, [%0, #0]"
		:
		: "r"(s)
		: "x16", "memory");
#endif
	eh_elf_all_known(s);
}

/* Takes the registers that a signal interrupted from what its handler was given. Async-signal-safe. */
static inline void eh_elf_from_ucontext(struct unspool_state *s, const ucontext_t *uc)
{
#ifdef __x86_64__
	static const unsigned char at[16] = {REG_RAX, REG_RDX, REG_RCX, REG_RBX, REG_RSI, REG_RDI, REG_RBP, REG_RSP,
		REG_R8, REG_R9, REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15};
	int i;

	for (i = 0; i < 16; i++)
		s->val[i] = (uint64_t)uc->uc_mcontext.gregs[at[i]];
	s->pc = (uint64_t)uc->uc_mcontext.gregs[REG_RIP];
	s->val[EH_ELF_RA] = s->pc;
	eh_elf_all_known(s);
#else
	enum { FPSIMD = 0x46508001, FPSIMD_SIZE = 528, VREGS = 16 }; /* struct fpsimd_context of asm/sigcontext.h */
	const unsigned char *p = (const unsigned char *)uc->uc_mcontext.__reserved;
	uint64_t left = sizeof uc->uc_mcontext.__reserved;
	uint32_t magic, size, i;

	for (i = 0; i < 31; i++)
		s->val[i] = uc->uc_mcontext.regs[i];
	s->val[EH_ELF_SP] = uc->uc_mcontext.sp;
	s->pc = uc->uc_mcontext.pc;
	eh_elf_all_known(s);
	for (; left >= 8; p += size, left -= size) { /* records: magic, size, contents; the last has magic 0 */
		magic = eh_elf_u32(p);
		size = eh_elf_u32(p + 4);
		if (magic == FPSIMD && size >= FPSIMD_SIZE && size <= left) {
			for (i = 0; i < 8; i++)
				memcpy(&s->val[35 + i], p + VREGS + 16 * (size_t)(8 + i), 8);
			return;
		}
		if (magic == 0 || size < 8 || size > left)
			break;
	}
	s->known &= ~((uint64_t)0xff << 35);
#endif
}

/*
 * Starts a walk at frame 0, whose registers are in c->state. map says what kind of memory mem is: NULL, a struct
 * unspool_reader, or a struct unspool_slice. Async-signal-safe.
 */
static inline void eh_elf_begin(struct eh_elf_cursor *c, const struct eh_elf_map *map, const void *mem)
{
	c->map = map;
	c->module = eh_elf_map_find(map, c->state.pc);
	c->mem = mem;
	c->cfa = c->state.known >> EH_ELF_SP & 1 ? c->state.val[EH_ELF_SP] : 0;
	c->frames = 1;
	c->limit = 4096;
	c->exact = 1;
}

/*
 * After a step from a frame that has called nobody, whose state was was: a register whose place is below that frame's stack pointer, and is
 * not the function's any more, has the value that it had (docs/SEMANTICS.md, section 6).
 */
static inline enum eh_elf_outcome eh_elf_restore(struct eh_elf_cursor *c, const struct unspool_state *was)
{
#ifdef __x86_64__
	enum { RED_ZONE = 128 };
	const uint64_t SAVED = 0xf048; /* rbx, rbp, r12 to r15 */
#else
	enum { RED_ZONE = 0 };
	const uint64_t SAVED = (uint64_t)0x7f8 << 32 | 0x7ff80000; /* x19 to x30, d8 to d15 */
#endif
	struct unspool_state *s = &c->state;
	uint64_t sp = was->val[EH_ELF_SP], v;
	unsigned i, j;

	if (!(was->known >> EH_ELF_SP & 1) || (was->in_mem >> EH_ELF_SP & 1 && eh_elf_load(c->map->deref, c->mem, sp, &sp) != EH_ELF_OK))
		return EH_ELF_OK;
	if (!(was->in_mem >> EH_ELF_SP & 1) && was->in_reg >> EH_ELF_SP & 1)
		sp = was->snap[sp & 63];
	for (i = 0; i < EH_ELF_NUM_SLOTS; i++) {
		uint64_t bit = (uint64_t)1 << i, at = s->val[i];
		enum eh_elf_outcome o;

		if (!(s->known & s->in_mem & SAVED & bit) || at >= sp)
			continue;
		for (j = 0; j < EH_ELF_NUM_SLOTS; j++) /* where a signal has put a register */
			if ((was->known & was->in_mem) >> j & 1 && was->val[j] == at)
				break;
		if (j < EH_ELF_NUM_SLOTS)
			continue;
		o = sp - at <= RED_ZONE ? eh_elf_load(c->map->deref, c->mem, at, &v) : EH_ELF_UNREADABLE;
		if (o == EH_ELF_OK)
			continue;
		if (o == EH_ELF_MISSING) {
			*s = *was;
			s->fault = at;
			return o;
		}
		s->known = (s->known & ~bit) | (was->known & bit);
		s->in_mem = (s->in_mem & ~bit) | (was->in_mem & bit);
		s->in_reg = (s->in_reg & ~bit) | (was->in_reg & bit);
		s->val[i] = was->val[i];
	}
	return EH_ELF_OK;
}

/* Reads a register of the frame at hand. Async-signal-safe. */
static inline enum eh_elf_outcome eh_elf_get(struct eh_elf_cursor *c, uint32_t slot, uint64_t *value)
{
	struct unspool_state *s = &c->state;
	enum eh_elf_outcome o = EH_ELF_OK;

	if (slot >= EH_ELF_NUM_SLOTS || !(s->known >> slot & 1))
		return EH_ELF_LOST_REGISTER;
	*value = s->val[slot];
	if (s->in_mem >> slot & 1) {
		o = eh_elf_load(c->map->deref, c->mem, s->val[slot], value);
		if (o != EH_ELF_OK)
			s->fault = s->val[slot];
	} else if (s->in_reg >> slot & 1) {
		*value = s->snap[s->val[slot] & 63];
	}
	return o;
}

#ifdef __aarch64__
/*
 * Goes from the code to which signal handlers return to the frame that the signal interrupted. That code has no unwind information in the
 * vDSO and in some C libraries, so its instructions are looked at. The stack pointer is at the kernel's struct rt_sigframe: siginfo, then
 * ucontext. Returns what a step does; EH_ELF_NO_INFO where other code is at the pc.
 */
static inline int eh_elf_sigreturn(struct eh_elf_cursor *c)
{
	/* generated, from package arch: mov x8, #139; svc #0; and where the kernel saves x0, sp and pc */
	const uint64_t code = 0xd4000001d2801168;
	enum { REGS = 312, OLD_SP = 560, OLD_PC = 568 };
	/* end */
	const struct eh_elf_module *m = c->module;
	struct unspool_state *s = &c->state;
	enum eh_elf_outcome o;
	uint64_t at = s->pc, sp, old_sp, v;
	unsigned i;

	if (at < m->start || at >= m->end || m->end - at < sizeof code) /* the module is that of pc - 1 */
		return EH_ELF_NO_INFO;
	o = eh_elf_load(c->map->deref, c->mem, at, &v);
	if (o != EH_ELF_OK || v != code) {
		if (o == EH_ELF_MISSING)
			s->fault = at;
		return o == EH_ELF_MISSING ? EH_ELF_MISSING : EH_ELF_NO_INFO;
	}
	o = eh_elf_get(c, EH_ELF_SP, &sp);
	if (o != EH_ELF_OK)
		return o;
	at = sp + OLD_SP;
	o = eh_elf_load(c->map->deref, c->mem, at, &old_sp);
	if (o == EH_ELF_OK) {
		at = sp + OLD_PC;
		o = eh_elf_load(c->map->deref, c->mem, at, &v);
	}
	if (o != EH_ELF_OK) {
		s->fault = at;
		return o;
	}
	for (i = 0; i < 31; i++)
		s->val[i] = sp + REGS + 8 * i;
	s->in_mem = ((uint64_t)1 << 31) - 1;
	s->in_reg = 0;
	s->known = ((uint64_t)1 << 32) - 1; /* x0 to x30, sp. d8 to d15 are in a record that need not be there */
	s->val[EH_ELF_SP] = s->cfa = old_sp;
	s->pc = v;
	return EH_ELF_OK | EH_ELF_SIGNAL;
}
#endif

/*
 * Goes to the caller: EH_ELF_OK, or why there is none. It never loops: each frame lies above the one before, except behind
 * a signal frame, whose handler can have a stack of its own, and there is the limit. With files of the kind self, a damaged
 * stack can lead the code to memory that is not there, and the process gets a SIGSEGV: where a stack
 * is not trusted, use the kind callback with eh_elf_read8. Async-signal-safe.
 */
static inline enum eh_elf_outcome eh_elf_next(struct eh_elf_cursor *c)
{
	const struct eh_elf_module *m = c->module;
	struct unspool_state was;
	uint64_t pc;
	int exact = c->exact, o = EH_ELF_NO_INFO;

	if (c->frames >= c->limit)
		return EH_ELF_DEPTH_LIMIT;
	if (m == NULL)
		return EH_ELF_NO_INFO;
	if (m->file.step != NULL) {
		if (exact)
			was = c->state;
		o = m->file.step(&c->state, c->mem, c->state.pc - !c->exact - m->bias);
		if (o == EH_ELF_OK && exact)
			o = eh_elf_restore(c, &was);
	}
#ifdef __aarch64__
	if (o == EH_ELF_NO_INFO && !exact)
		o = eh_elf_sigreturn(c);
#endif
	if ((o & ~EH_ELF_SIGNAL) != EH_ELF_OK)
		return (enum eh_elf_outcome)o;
	if (c->state.cfa <= c->cfa && !(o & EH_ELF_SIGNAL) && !(c->exact && c->state.cfa == c->cfa))
		return EH_ELF_BAD_CFA;
	c->exact = (o & EH_ELF_SIGNAL) != 0;
	c->cfa = c->state.cfa;
	if (c->exact) { /* the interrupted frame's stack pointer is what the next CFA must exceed: it is seldom the signal frame's CFA */
		uint64_t sp = c->state.val[EH_ELF_SP];

		c->cfa = 0;
		if (!(c->state.known >> EH_ELF_SP & 1) || (c->state.in_reg >> EH_ELF_SP & 1))
			sp = 0;
		else if (c->state.in_mem >> EH_ELF_SP & 1 && eh_elf_load(c->map->deref, c->mem, sp, &sp) != EH_ELF_OK)
			sp = 0;
		c->cfa = sp;
	}
	pc = c->state.pc - !c->exact;
	if (pc < m->start || pc >= m->end)
		c->module = eh_elf_map_find(c->map, pc);
	if (c->module == NULL)
		return EH_ELF_BAD_RETURN;
	c->frames++;
	return EH_ELF_OK;
}

/*
 * Calls fn for the frame at hand and then for each caller, until it returns nonzero (EH_ELF_OK), or there are no more.
 * Async-signal-safe if fn is.
 */
static inline enum eh_elf_outcome eh_elf_walk(struct eh_elf_cursor *c, int (*fn)(void *ctx, struct eh_elf_cursor *c), void *ctx)
{
	enum eh_elf_outcome o = EH_ELF_OK;

	while (fn(ctx, c) == 0 && (o = eh_elf_next(c)) == EH_ELF_OK)
		;
	return o;
}

/*
 * Writes the pc of the frame at hand and of each caller to pcs, as backtrace(3) does: those of callers are return addresses,
 * which point behind the call. Returns how many; *why says why there are no more, EH_ELF_DEPTH_LIMIT that max was
 * reached, and that another call goes on from there; why may be NULL. Async-signal-safe.
 */
static inline uint32_t eh_elf_pcs(struct eh_elf_cursor *c, uint64_t *pcs, uint32_t max, enum eh_elf_outcome *why)
{
	enum eh_elf_outcome o = EH_ELF_DEPTH_LIMIT;
	uint32_t n = 0;

	while (n < max) {
		pcs[n++] = c->state.pc;
		o = eh_elf_next(c);
		if (o != EH_ELF_OK)
			break;
	}
	if (why != NULL)
		*why = o == EH_ELF_OK ? EH_ELF_DEPTH_LIMIT : o;
	return n;
}

#ifdef __cplusplus
}
#endif
#endif /* UNSPOOL_EH_ELF_H */
