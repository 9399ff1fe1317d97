/*
 * dw_begin.c - uses a Dwfl for each walk, as perf does, in ways that a seed chooses, and prints all that it is told: gcc dw_begin.c -ldw -lelf
 *
 *	dw_begin SEED WALKS FILE...
 *
 * The files are modules of processes that are made up. What is printed must not depend on who answers.
 */
#define _GNU_SOURCE
#include <elfutils/libdwfl.h>
#include <elf.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PROCESSES = 5, MODULES = 6, WORDS = 512 };

static uint64_t seed;
static char **files;
static int n_files;

static uint64_t any(uint64_t n)
{
	seed ^= seed << 13;
	seed ^= seed >> 7;
	seed ^= seed << 17;
	return seed % n;
}

static struct module {
	const char *name, *path;
	uint64_t base, lo, hi; /* lo and hi: its code, at addresses of the file */
} all[PROCESSES][MODULES];

static struct walk {
	Dwfl *dwfl;
	struct module *modules;
	uint64_t sp, words[WORDS], regs[17];
	int depth, odd, tid;
} *now;

static const Dwfl_Callbacks callbacks = {.find_elf = dwfl_build_id_find_elf, .find_debuginfo = dwfl_standard_find_debuginfo};
static const Dwfl_Callbacks others = {.find_elf = dwfl_linux_proc_find_elf, .find_debuginfo = dwfl_standard_find_debuginfo};

/* Finds a file's code. */
static void find_code(struct module *m)
{
	Elf64_Ehdr e = {0};
	Elf64_Phdr h[32];
	int fd = open(m->path, O_RDONLY);

	m->lo = 0;
	m->hi = 1;
	if (read(fd, &e, sizeof e) == sizeof e && e.e_phnum <= 32 && pread(fd, h, e.e_phnum * sizeof *h, (off_t)e.e_phoff) > 0)
		for (int i = 0; i < e.e_phnum; i++)
			if (h[i].p_type == PT_LOAD && h[i].p_flags & PF_X) {
				m->lo = h[i].p_vaddr;
				m->hi = h[i].p_vaddr + h[i].p_memsz;
			}
	close(fd);
}

/* Tells what a module is, and leaves a mark in it. */
static void show(const char *what, Dwfl_Module *mod, uint64_t at)
{
	void **user = NULL;
	Dwarf_Addr lo = 0, hi = 0;
	const char *name = NULL, *file = NULL, *debug = NULL;

	if (mod)
		name = dwfl_module_info(mod, &user, &lo, &hi, NULL, NULL, &file, &debug);
	printf("%s %s %#lx-%#lx %s %s %ld\n", what, name ? name : "-", lo, hi, file ? file : "-", debug ? debug : "-", user ? (long)(intptr_t)*user : -1);
	if (user && any(2))
		*user = (void *)(intptr_t)(at % 1000 + 1);
}

static int list(Dwfl_Module *mod, void **user, const char *name, Dwarf_Addr at, void *arg)
{
	(void)user;
	(void)name;
	(void)arg;
	show("  listed", mod, at);
	return DWARF_CB_OK;
}

static Dwfl_Module *report(struct walk *w)
{
	struct module *m = &w->modules[any(MODULES)];
	Dwfl_Module *mod = dwfl_report_elf(w->dwfl, m->name, m->path, -1, m->base, any(12) == 0);

	show(" reported", mod, m->base);
	return mod;
}

/* What few programs do between walks. */
static void other(struct walk *w, int attached)
{
	Dwarf_Addr at = w->modules[any(MODULES)].base + any(1 << 21), bias;
	Dwfl_Module *mod = NULL;

	switch (any(attached ? 8 : 9)) { /* a Dwfl does not outlive the module by which it has been attached */
	case 0:
		printf(" modules %ld\n", (long)dwfl_getmodules(w->dwfl, list, NULL, 0));
		return;
	case 1:
		printf(" segment %d\n", dwfl_addrsegment(w->dwfl, at, &mod));
		show(" in", mod, at);
		return;
	case 2:
		printf(" dwarf %d\n", dwfl_addrdwarf(w->dwfl, at, &bias) != NULL);
		return;
	case 3:
		dwfl_report_begin_add(w->dwfl);
		report(w);
		dwfl_report_end(w->dwfl, NULL, NULL);
		return;
	case 4:
		show(" module", dwfl_report_module(w->dwfl, "other", at & -4096ul, (at & -4096ul) + 8192), at);
		return;
	case 5:
		mod = dwfl_addrmodule(w->dwfl, at);
		printf(" name %s\n", mod && dwfl_module_addrname(mod, at) ? dwfl_module_addrname(mod, at) : "-");
		return;
	case 6:
		printf(" pid %d\n", (int)dwfl_pid(w->dwfl));
		return;
	case 8:
		dwfl_report_begin(w->dwfl);
		report(w);
		dwfl_report_end(w->dwfl, NULL, NULL);
		return;
	default:
		mod = dwfl_addrmodule(w->dwfl, at);
		printf(" dwarf of module %d\n", mod && dwfl_module_getdwarf(mod, &bias) != NULL);
		show(" with dwarf", mod, at);
	}
}

static pid_t next_thread(Dwfl *d, void *arg, void **thread)
{
	struct walk *w = arg;

	if (d != w->dwfl || w != now)
		abort();
	if (*thread == w->regs)
		return w->odd & 1 ? -1 : 0;
	if (*thread == NULL && w->odd & 2) {
		*thread = w;
		return 77;
	}
	*thread = w->regs;
	return dwfl_pid(d);
}

static bool get_thread(Dwfl *d, pid_t tid, void *arg, void **thread)
{
	*thread = arg;
	return d == now->dwfl && tid == now->tid;
}

static bool memory_read(Dwfl *d, Dwarf_Addr at, Dwarf_Word *to, void *arg)
{
	struct walk *w = arg;

	if (d != w->dwfl || at - w->sp > sizeof w->words - 8)
		return false;
	memcpy(to, (char *)w->words + (at - w->sp), 8);
	return true;
}

static bool set_registers(Dwfl_Thread *t, void *arg)
{
	struct walk *w = now;

	(void)arg;

	if (dwfl_thread_dwfl(t) != w->dwfl || dwfl_thread_tid(t) < 77)
		abort();
	if (w->odd & 4)
		dwfl_thread_state_register_pc(t, w->regs[16]);
	if (w->odd & 8)
		return dwfl_thread_state_registers(t, 10, 8, w->regs);
	return dwfl_thread_state_registers(t, 0, (w->odd & 20) == 20 ? 16 : 17, w->regs);
}

static const Dwfl_Thread_Callbacks by_list = {.next_thread = next_thread, .memory_read = memory_read, .set_initial_registers = set_registers};
static const Dwfl_Thread_Callbacks by_number = {.next_thread = next_thread, .get_thread = get_thread, .memory_read = memory_read, .set_initial_registers = set_registers};

static int frame(Dwfl_Frame *f, void *arg)
{
	struct walk *w = arg;
	Dwarf_Addr pc, v;
	Dwfl_Module *mod;
	bool exact;

	if (!dwfl_frame_pc(f, &pc, NULL))
		return DWARF_CB_ABORT;
	mod = dwfl_addrmodule(w->dwfl, pc);
	show(" at", mod, pc);
	/*
	 * Not the fourth module, which may lie over the third, nor one that is there: libdw drops it then. A walk that libdw repeats would be another.
	 */
	for (int i = 0; !mod && i < MODULES; i++) {
		struct module *m = &w->modules[i];

		if (i != 4 && pc - m->base - m->lo < m->hi - m->lo && any(8)) {
			mod = dwfl_report_elf(w->dwfl, m->name, m->path, -1, m->base, false);
			show(" came", mod, pc);
			if (dwfl_addrmodule(w->dwfl, pc) != mod)
				printf(" elsewhere\n");
		}
	}
	if (any(200) == 0)
		other(w, 1);
	if (!dwfl_frame_pc(f, &pc, &exact))
		return DWARF_CB_ABORT;
	printf(" frame %d %#lx %d", w->depth, pc, exact);
	for (int i = 0; i < 18; i++)
		if (i != 0 && i != 3 && dwfl_frame_reg(f, (unsigned)i, &v) == 0) /* libdw 0.188 takes the first for the other */
			printf(" %d:%#lx", i, v);
	printf("\n");
	if (dwfl_thread_tid(dwfl_frame_thread(f)) != w->tid || dwfl_thread_dwfl(dwfl_frame_thread(f)) != w->dwfl)
		abort();
	return ++w->depth == 40 ? DWARF_CB_ABORT : any(300) == 0 ? 5 : DWARF_CB_OK;
}

static int thread(Dwfl_Thread *t, void *arg)
{
	struct walk *w = arg;

	printf(" thread %d\n", (int)dwfl_thread_tid(t));
	w->tid = dwfl_thread_tid(t);
	return w->depth == 0 ? dwfl_thread_getframes(t, frame, w) : DWARF_CB_OK;
}

/* An address in the code of a module, more often than not. */
static uint64_t address(struct walk *w)
{
	struct module *m = &w->modules[any(MODULES)];

	return any(8) == 0 ? any(1ul << 47) : m->base + m->lo + any(m->hi - m->lo);
}

int main(int argc, char **argv)
{
	int walks = atoi(argv[2]);

	seed = strtoull(argv[1], NULL, 0) * 0x9e3779b97f4a7c15 + 1;
	files = argv + 3;
	n_files = argc - 3;
	for (int p = 0; p < PROCESSES; p++)
		for (int i = 0; i < MODULES; i++) {
			const char *path = files[any((uint64_t)n_files)];

			/* The last process lies where the first does, with other files; some modules reach over others. */
			all[p][i] = (struct module){.name = i == 5 ? "five" : path, .path = path, .base = p == PROCESSES - 1 ? all[0][i].base : 0x7f0000000000 + ((uint64_t)p << 32) + ((uint64_t)i << 24) + (any(2048) << 12)};
			if (i == 4 && any(3) == 0)
				all[p][i].base = all[p][3].base + 8192;
			if (i == 3 && any(3) == 0)
				all[p][i].path = "/nonexistent";
			find_code(&all[p][i]);
		}
	for (int n = 0; n < walks; n++) {
		struct walk w = {0};
		uint64_t odd = any(16);

		now = &w;
		w.odd = odd == 0 ? (int)any(32) : (int)any(2) * 4;
		w.modules = all[any(8) ? (unsigned)n / 20 % PROCESSES : any(PROCESSES)];
		w.dwfl = dwfl_begin(any(20) ? &callbacks : &others);
		w.tid = 100 + (int)any(3);
		w.sp = 0x7fff00000000 + any(1 << 20) * 8;
		printf("walk %d\n", n);
		for (int i = 0; i < WORDS; i++)
			w.words[i] = any(3) == 0 ? address(&w) : any(3) == 0 ? w.sp + any(sizeof w.words) : any(1000);
		for (int i = 0; i < 17; i++)
			w.regs[i] = any(2) ? w.sp + any(sizeof w.words / 8) * 8 : any(1ul << 47);
		w.regs[7] = w.sp;
		w.regs[16] = address(&w);
		for (uint64_t i = any(4) ? 1 : any(4); i > 0; i--)
			report(&w);
		if (any(40) == 0)
			other(&w, 0);
		if (!dwfl_attach_state(w.dwfl, NULL, w.tid, any(2) ? &by_list : &by_number, &w)) {
			printf(" not attached: %s\n", dwfl_errmsg(-1));
		} else if (any(30) == 0) {
			printf(" threads %d\n", dwfl_getthreads(w.dwfl, thread, &w));
		} else {
			int r = dwfl_getthread_frames(w.dwfl, w.tid, frame, &w);

			printf(" result %d\n", r);
			if (r < 0 && any(2))
				printf(" %s\n", dwfl_errmsg(-1));
			if (any(60) == 0)
				other(&w, 1);
			if (any(60) == 0)
				printf(" again %d\n", dwfl_attach_state(w.dwfl, NULL, w.tid, &by_list, &w));
		}
		dwfl_end(w.dwfl);
	}
	return 0;
}
