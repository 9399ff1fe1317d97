/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dw_report.c: a Dwfl from dwfl_begin to dwfl_end. perf begins one for each sample, and reports each file again: libdw opens, maps and reads it then.
 *
 * So a Dwfl that has ended is kept, with its modules, for the next one that begins with the same callbacks. Its modules are hidden until they are
 * reported again, the same file at the same place. Who looks at a Dwfl in a way that is not answered here makes it whole (dw_whole): libdw drops
 * hidden modules, and is told what it has not been told yet. From then on all is libdw's, and the Dwfl is not kept.
 */
#define _GNU_SOURCE
#include "dw.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* ---- What is known of each Dwfl ---- */

enum { BUCKETS = 256, MAX_IDLE = 4, MAX_REPORTED = 128 };
static struct dw_process *processes[BUCKETS];
static struct dw_process *idle[MAX_IDLE]; /* ended, and kept */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* The process that this thread has asked for last, while nobody has been forgotten. */
static _Atomic uint32_t forgotten = 1;
static _Thread_local struct {
	const Dwfl *dwfl;
	struct dw_process *p;
	uint32_t forgotten;
} last __attribute__((tls_model("initial-exec")));

static struct dw_process **bucket(const Dwfl *dwfl)
{
	return &processes[((uintptr_t)dwfl >> 4) * 0x9e3779b97f4a7c15u >> 56];
}

struct dw_process *dw_process(const Dwfl *dwfl)
{
	uint32_t now = atomic_load_explicit(&forgotten, memory_order_acquire);
	struct dw_process *p;

	if (us_likely(last.dwfl == dwfl && last.forgotten == now))
		return last.p;
	pthread_mutex_lock(&lock);
	for (p = *bucket(dwfl); p && p->dwfl != dwfl; p = p->next)
		;
	pthread_mutex_unlock(&lock);
	if (p) {
		last.dwfl = dwfl;
		last.p = p;
		last.forgotten = now;
	}
	return p;
}

static void free_reported(struct dw_reported *r)
{
	free(r->name);
	free(r->path);
}

static void free_process(struct dw_process *p)
{
	if (!p)
		return;
	for (uint32_t i = 0; i < p->n_reported; i++)
		free_reported(&p->reported[i]);
	free(p->reported);
	free(p->segment);
	free(p->module);
	free(p->page);
	free(p);
}

static void forget(const Dwfl *dwfl)
{
	struct dw_process **at, *p;

	pthread_mutex_lock(&lock);
	for (at = bucket(dwfl); *at && (*at)->dwfl != dwfl; at = &(*at)->next)
		;
	p = *at;
	if (p)
		*at = p->next;
	atomic_fetch_add_explicit(&forgotten, 1, memory_order_release);
	pthread_mutex_unlock(&lock);
	free_process(p);
}

/* Makes what is known of a Dwfl; NULL where there is no room, or an old libdw. Then all is libdw's. */
static struct dw_process *make(Dwfl *dwfl)
{
	struct dw_process *p;

	if (!dwfl || !dw_functions()->frame_reg) /* elfutils before 0.188 */
		return NULL;
	p = calloc(1, sizeof *p);
	if (!p)
		return NULL;
	p->dwfl = dwfl;
	p->module = calloc(DW_MODULES, sizeof *p->module);
	if (!p->module) {
		free_process(p);
		return NULL;
	}
	forget(dwfl);
	pthread_mutex_lock(&lock);
	p->next = *bucket(dwfl);
	*bucket(dwfl) = p;
	pthread_mutex_unlock(&lock);
	return p;
}

/* ---- A Dwfl's modules ---- */

static void forget_modules(struct dw_process *p)
{
	p->n_modules = p->last = 0;
}

/* The visible ones in the order in which they have been reported. */
static struct dw_reported *next_reported(struct dw_process *p, uint32_t after)
{
	struct dw_reported *next = NULL;

	for (uint32_t i = 0; i < p->n_reported; i++) {
		struct dw_reported *r = &p->reported[i];

		if (r->order > after && (!next || r->order < next->order))
			next = r;
	}
	return next;
}

struct dw_process *dw_whole(Dwfl *dwfl)
{
	struct dw_process *p = dw_process(dwfl);
	uint32_t n = 0;

	dw_functions();
	if (!p || p->whole)
		return p;
	p->whole = 1;
	if (p->reused) {
		dw_real.report_begin(dwfl);
		for (struct dw_reported *r = next_reported(p, 0); r; r = next_reported(p, r->order))
			dw_real.report_module(dwfl, r->name, r->lo, r->hi); /* the same again: it stays as it is */
		dw_real.report_end(dwfl, NULL, NULL);
		for (uint32_t i = 0; i < p->n_reported; i++)
			if (p->reported[i].order)
				p->reported[n++] = p->reported[i];
			else
				free_reported(&p->reported[i]);
		p->n_reported = n;
		forget_modules(p);
	}
	if (p->promised)
		dw_real.attach_state(dwfl, NULL, p->pid, p->callbacks, p->arg);
	p->promised = 0;
	return p;
}

static int same_file(const struct dw_reported *r, const struct stat *st)
{
	return r->ino == st->st_ino && r->dev == st->st_dev && r->size == st->st_size && r->changed.tv_sec == st->st_ctim.tv_sec &&
	       r->changed.tv_nsec == st->st_ctim.tv_nsec;
}

/* Whether m lies where another module does. */
static int overlaps(const struct dw_process *p, const struct dw_reported *m)
{
	for (uint32_t i = 0; i < p->n_reported; i++)
		if (p->reported[i].lo < m->hi && m->lo < p->reported[i].hi)
			return 1;
	return 0;
}

static int is_known(const struct dw_process *p, const Dwfl_Module *mod)
{
	for (uint32_t i = 0; i < p->n_reported; i++)
		if (p->reported[i].mod == mod)
			return 1;
	return 0;
}

/* Whether libdw has an ELF file of this machine for mod. */
static int is_native(Dwfl_Module *mod)
{
	GElf_Addr bias;
	GElf_Ehdr mem, *e;
	Elf *elf = dw_real.module_getelf(mod, &bias);

	e = elf && dw_real.gelf_getehdr ? dw_real.gelf_getehdr(elf, &mem) : NULL;
	return e && e->e_machine == MACHINE_ELF && e->e_ident[EI_CLASS] == ELFCLASS64 && e->e_ident[EI_DATA] == ELFDATA2LSB;
}

/* Remembers what libdw has just been told. Returns 0 where there is no room. */
static int add_reported(struct dw_process *p, Dwfl_Module *mod, const char *name, const char *path, GElf_Addr base, bool add, const struct stat *st)
{
	struct dw_reported r = {mod, strdup(name), strdup(path), base, 0, 0, st->st_dev, st->st_ino, st->st_size, st->st_ctim, add, is_native(mod), p->n_order + 1};
	int whole;

	if (!p->reported)
		p->reported = calloc(MAX_REPORTED, sizeof *p->reported);
	if (!r.name || !r.path || !p->reported) {
		free_reported(&r);
		return 0;
	}
	dw_real.module_info(mod, NULL, &r.lo, &r.hi, NULL, NULL, NULL, NULL);
	whole = overlaps(p, &r);
	p->n_order++;
	p->reported[p->n_reported++] = r;
	if (whole) /* libdw says which module an address is in */
		dw_whole(p->dwfl);
	return 1;
}

DW_API Dwfl_Module *dwfl_report_elf(Dwfl *dwfl, const char *name, const char *path, int fd, GElf_Addr base, bool add)
{
	struct dw_process *p = dw_process(dwfl);
	Dwfl_Module *mod;
	struct stat st;
	int there;

	if (!p || p->whole || fd >= 0 || !name || !path || p->n_reported == MAX_REPORTED) {
		dw_whole(dwfl);
		return dw_real.report_elf(dwfl, name, path, fd, base, add);
	}
	there = stat(path, &st) == 0 && S_ISREG(st.st_mode);
	for (uint32_t i = 0; there && i < p->n_reported; i++) {
		struct dw_reported *r = &p->reported[i];

		if (r->base != base || !same_file(r, &st) || r->add != add || strcmp(r->path, path) || strcmp(r->name, name))
			continue;
		if (r->order) /* libdw may take a module for its own hindrance */
			break;
		r->order = ++p->n_order;
		return r->mod;
	}
	mod = dw_real.report_elf(dwfl, name, path, fd, base, add);
	if (mod ? there && !is_known(p, mod) && add_reported(p, mod, name, path, base, add, &st) : !there)
		return mod;
	dw_whole(dwfl); /* a hidden module may be in the way */
	return dw_real.report_elf(dwfl, name, path, fd, base, add);
}

Dwfl_Module *dw_addrmodule(struct dw_process *p, Dwarf_Addr at)
{
	struct dw_reported *r;

	if (p->whole)
		return dw_real.addrmodule(p->dwfl, at);
	if (us_likely(p->n_reported)) {
		r = &p->reported[p->last_reported];
		if (us_likely(at - r->lo < r->hi - r->lo && r->order))
			return r->mod;
	}
	for (uint32_t i = 0; i < p->n_reported; i++) {
		r = &p->reported[i];
		if (!r->order)
			continue;
		if (at - r->lo < r->hi - r->lo) {
			p->last_reported = i;
			return r->mod;
		}
		if (at == r->hi) { /* to libdw, it may be the module's */
			dw_whole(p->dwfl);
			return dw_real.addrmodule(p->dwfl, at);
		}
	}
	return NULL;
}

DW_API Dwfl_Module *dwfl_addrmodule(Dwfl *dwfl, Dwarf_Addr at)
{
	struct dw_process *p = dw_process(dwfl);

	return p ? dw_addrmodule(p, at) : dw_functions()->addrmodule(dwfl, at);
}

/* ---- From the beginning to the end ---- */

DW_API Dwfl *dwfl_begin(const Dwfl_Callbacks *callbacks)
{
	struct dw_process *p = NULL;
	Dwfl *dwfl;

	dw_functions();
	pthread_mutex_lock(&lock);
	for (int i = 0; !p && i < MAX_IDLE; i++)
		if (idle[i] && idle[i]->begun == callbacks && memcmp(&idle[i]->with, callbacks, sizeof *callbacks) == 0) {
			p = idle[i];
			idle[i] = NULL;
		}
	pthread_mutex_unlock(&lock);
	if (p) {
		p->reused = 1;
		return p->dwfl;
	}
	dwfl = dw_real.begin(callbacks);
	p = make(dwfl);
	if (p) {
		p->begun = callbacks;
		p->with = *callbacks;
	}
	return dwfl;
}

/* Keeps a Dwfl, with its modules as they are after they have been reported. Returns 0 where it is not to be kept. */
static int keep(struct dw_process *p)
{
	int kept = 0;

	if (!p->begun || p->whole || p->n_reported == 0 || p->n_reported == MAX_REPORTED)
		return 0;
	for (uint32_t i = 0; i < p->n_reported; i++) {
		const char *debug = NULL;
		void **user = NULL;

		if (!p->reported[i].order)
			continue;
		dw_real.module_info(p->reported[i].mod, &user, NULL, NULL, NULL, NULL, NULL, &debug);
		if (!user || debug)
			return 0;
		*user = NULL;
		p->reported[i].order = 0;
	}
	p->n_order = 0;
	p->promised = 0;
	pthread_mutex_lock(&lock);
	for (int i = 0; !kept && i < MAX_IDLE; i++)
		if (!idle[i]) {
			idle[i] = p;
			kept = 1;
		}
	pthread_mutex_unlock(&lock);
	return kept;
}

DW_API void dwfl_end(Dwfl *dwfl)
{
	struct dw_process *p = dwfl ? dw_process(dwfl) : NULL;

	if (p && keep(p))
		return;
	dw_functions()->end(dwfl);
	forget(dwfl);
}

/* ---- Attaching ---- */

/*
 * Whether libdw would attach: it takes the machine of the first module that has a file. Callbacks that want to hear of the end are libdw's to call.
 */
static int can_promise(struct dw_process *p, const Dwfl_Thread_Callbacks *c)
{
	struct dw_reported *r = next_reported(p, 0);

	return US_RA_IS_PC && r && r->native && !strchr(r->path, '(') && r->name[0] != '[' && !strchr(r->name, '(') && c && c->next_thread && c->set_initial_registers &&
	       c->memory_read && !c->detach && !c->thread_detach;
}

DW_API bool dwfl_attach_state(Dwfl *dwfl, Elf *elf, pid_t pid, const Dwfl_Thread_Callbacks *callbacks, void *arg)
{
	struct dw_process *p = dw_process(dwfl);

	dw_functions();
	if (p && !p->whole && !p->promised && !elf && can_promise(p, callbacks)) {
		p->kind = DW_CALLBACKS;
		p->callbacks = callbacks;
		p->pid = pid;
		p->arg = arg;
		p->promised = p->attached = 1;
		return true;
	}
	dw_whole(dwfl);
	if (!dw_real.attach_state(dwfl, elf, pid, callbacks, arg))
		return false;
	p = p ? p : make(dwfl);
	if (p) {
		p->kind = DW_CALLBACKS;
		p->callbacks = callbacks;
		p->arg = arg;
		p->whole = p->attached = 1;
	}
	return true;
}

DW_API int dwfl_linux_proc_attach(Dwfl *dwfl, pid_t pid, bool stopped)
{
	struct dw_process *p = dw_whole(dwfl);
	int r = dw_real.linux_proc_attach(dwfl, pid, stopped);

	p = r == 0 && !p ? make(dwfl) : p;
	if (r == 0 && p) {
		p->kind = DW_PID;
		p->pid = pid;
		p->whole = p->attached = 1;
	}
	return r;
}

DW_API int dwfl_core_file_attach(Dwfl *dwfl, Elf *core)
{
	struct dw_process *p = dw_whole(dwfl);
	int r = dw_real.core_file_attach(dwfl, core);

	p = r >= 0 && !p ? make(dwfl) : p;
	if (r >= 0 && p) {
		p->kind = DW_CORE;
		p->whole = 1;
		p->attached = dw_core(p, core) != 0; /* else libdw walks */
	}
	return r;
}

DW_API pid_t dwfl_pid(Dwfl *dwfl)
{
	struct dw_process *p = dw_process(dwfl);

	return p && p->promised ? p->pid : dw_functions()->pid(dwfl);
}

/* ---- What libdw answers, once it has been told all ---- */

/* Modules come and go there. */
static void changed(Dwfl *dwfl)
{
	struct dw_process *p = dw_whole(dwfl);

	if (p)
		forget_modules(p);
}

DW_API void dwfl_report_begin(Dwfl *dwfl)
{
	changed(dwfl);
	dw_real.report_begin(dwfl);
	changed(dwfl);
}

DW_API int dwfl_report_end(Dwfl *dwfl, int (*removed)(Dwfl_Module *, void *, const char *, Dwarf_Addr, void *), void *arg)
{
	int r;

	changed(dwfl);
	r = dw_real.report_end(dwfl, removed, arg);
	changed(dwfl);
	return r;
}

DW_API void dwfl_report_begin_add(Dwfl *dwfl)
{
	dw_whole(dwfl);
	dw_real.report_begin_add(dwfl);
}

DW_API int dwfl_getthreads(Dwfl *dwfl, int (*callback)(Dwfl_Thread *, void *), void *arg)
{
	dw_whole(dwfl);
	return dw_real.getthreads(dwfl, callback, arg);
}

/* The others only pass through. */
#define PASS(type, name, parameters, arguments) \
	DW_API type dwfl_##name parameters \
	{ \
		dw_whole(d); \
		return dw_real.name arguments; \
	}
DW_PASSED(PASS)

/* Programs that were linked before elfutils 0.156 and 0.158 call these two. */
__asm__(".symver old_report_elf, dwfl_report_elf@ELFUTILS_0.122");
__asm__(".symver old_core_file_report, dwfl_core_file_report@ELFUTILS_0.146");

DW_API Dwfl_Module *old_report_elf(Dwfl *dwfl, const char *name, const char *path, int fd, GElf_Addr base);
DW_API Dwfl_Module *old_report_elf(Dwfl *dwfl, const char *name, const char *path, int fd, GElf_Addr base)
{
	return dwfl_report_elf(dwfl, name, path, fd, base, true);
}

DW_API int old_core_file_report(Dwfl *dwfl, Elf *elf);
DW_API int old_core_file_report(Dwfl *dwfl, Elf *elf)
{
	return dwfl_core_file_report(dwfl, elf, NULL);
}
