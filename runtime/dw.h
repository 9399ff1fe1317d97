/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dw.h: the parts of libunspool-dw.so, a library in front of elfutils' libdw. It answers the calls that walk stacks, those of libdwfl, from
 * unspool's rules. All objects but frames are libdw's own. What cannot be answered here, libdw answers.
 */
#ifndef UNSPOOL_DW_H
#define UNSPOOL_DW_H

#include "module.h"

#include <elfutils/libdwfl.h>
#include <stdbool.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/types.h>

#define DW_API __attribute__((visibility("default")))

/* Functions of a Dwfl that are libdw's, once it has been told all of it (dw_whole): F(type, name, parameters, arguments). */
#define DW_PASSED(F) \
	F(int, report_segment, (Dwfl *d, int n, const GElf_Phdr *h, GElf_Addr bias, const void *id), (d, n, h, bias, id)) \
	F(Dwfl_Module *, report_module, (Dwfl *d, const char *name, Dwarf_Addr lo, Dwarf_Addr hi), (d, name, lo, hi)) \
	F(Dwfl_Module *, report_offline, (Dwfl *d, const char *name, const char *path, int fd), (d, name, path, fd)) \
	F(Dwfl_Module *, report_offline_memory, (Dwfl *d, const char *name, const char *path, char *data, size_t n), (d, name, path, data, n)) \
	F(ptrdiff_t, getmodules, (Dwfl *d, int (*f)(Dwfl_Module *, void **, const char *, Dwarf_Addr, void *), void *arg, ptrdiff_t at), (d, f, arg, at)) \
	F(int, addrsegment, (Dwfl *d, Dwarf_Addr at, Dwfl_Module **to), (d, at, to)) \
	F(int, linux_kernel_report_kernel, (Dwfl *d), (d)) \
	F(int, linux_kernel_report_modules, (Dwfl *d), (d)) \
	F(int, linux_kernel_report_offline, (Dwfl *d, const char *release, int (*f)(const char *, const char *)), (d, release, f)) \
	F(int, core_file_report, (Dwfl *d, Elf *core, const char *program), (d, core, program)) \
	F(int, linux_proc_report, (Dwfl *d, pid_t pid), (d, pid)) \
	F(int, linux_proc_maps_report, (Dwfl *d, FILE *maps), (d, maps)) \
	F(ptrdiff_t, getdwarf, (Dwfl *d, int (*f)(Dwfl_Module *, void **, const char *, Dwarf_Addr, Dwarf *, Dwarf_Addr, void *), void *arg, ptrdiff_t at), (d, f, arg, at)) \
	F(Dwarf *, addrdwarf, (Dwfl *d, Dwarf_Addr at, Dwarf_Addr *bias), (d, at, bias)) \
	F(Dwarf_Die *, addrdie, (Dwfl *d, Dwarf_Addr at, Dwarf_Addr *bias), (d, at, bias)) \
	F(Dwarf_Die *, nextcu, (Dwfl *d, Dwarf_Die *cu, Dwarf_Addr *bias), (d, cu, bias)) \
	F(Dwfl_Line *, getsrc, (Dwfl *d, Dwarf_Addr at), (d, at))

/* libdw's own functions, behind ours; NULL for what an old libdw lacks. */
struct dw_real {
	Dwfl *(*begin)(const Dwfl_Callbacks *);
	void (*end)(Dwfl *);
	void (*report_begin)(Dwfl *);
	int (*report_end)(Dwfl *, int (*)(Dwfl_Module *, void *, const char *, Dwarf_Addr, void *), void *);
	void (*report_begin_add)(Dwfl *);
	Dwfl_Module *(*report_elf)(Dwfl *, const char *, const char *, int, GElf_Addr, bool);
	bool (*attach_state)(Dwfl *, Elf *, pid_t, const Dwfl_Thread_Callbacks *, void *);
	int (*linux_proc_attach)(Dwfl *, pid_t, bool);
	int (*core_file_attach)(Dwfl *, Elf *);
	int (*thread_getframes)(Dwfl_Thread *, int (*)(Dwfl_Frame *, void *), void *);
	int (*getthread_frames)(Dwfl *, pid_t, int (*)(Dwfl_Frame *, void *), void *);
	bool (*frame_pc)(Dwfl_Frame *, Dwarf_Addr *, bool *);
	int (*frame_reg)(Dwfl_Frame *, unsigned, Dwarf_Word *);
	Dwfl_Thread *(*frame_thread)(Dwfl_Frame *);
	int (*getthreads)(Dwfl *, int (*)(Dwfl_Thread *, void *), void *);
	pid_t (*pid)(Dwfl *);
	Dwfl *(*thread_dwfl)(Dwfl_Thread *);
	pid_t (*thread_tid)(Dwfl_Thread *);
	bool (*thread_state_registers)(Dwfl_Thread *, int, unsigned, const Dwarf_Word *);
	void (*thread_state_register_pc)(Dwfl_Thread *, Dwarf_Word);
	Dwfl_Module *(*addrmodule)(Dwfl *, Dwarf_Addr);
	Elf *(*module_getelf)(Dwfl_Module *, GElf_Addr *);
	const char *(*module_info)(Dwfl_Module *, void ***, Dwarf_Addr *, Dwarf_Addr *, Dwarf_Addr *, Dwarf_Addr *, const char **, const char **);
	char *(*elf_rawfile)(Elf *, size_t *);
	int (*elf_getphdrnum)(Elf *, size_t *);
	GElf_Phdr *(*gelf_getphdr)(Elf *, int, GElf_Phdr *);
	GElf_Ehdr *(*gelf_getehdr)(Elf *, GElf_Ehdr *);
#define DW_POINTER(type, name, parameters, arguments) type(*name) parameters;
	DW_PASSED(DW_POINTER)
};
extern US_HIDDEN struct dw_real dw_real;

/* dw_real, once it has been filled. */
US_HIDDEN const struct dw_real *dw_functions(void);

US_HIDDEN int dw_strict(void);

/* ---- Modules: dw_module.c ---- */

/* A file whose rules are known. It is never forgotten: a Dwfl lives for one sample, in some programs. */
struct dw_file {
	struct dw_file *next;
	dev_t dev;
	ino_t ino;
	off_t size;
	struct timespec changed;
	struct us_module *m; /* NULL: libdw walks here */
	struct us_target t;  /* reads m, at link-time addresses plus DW_BIAS */
	const uint8_t *bytes; /* its bytes, where fd is -1 */
	uint64_t n_bytes;
	int fd;
	uint32_t n_loads;
	struct {
		uint64_t vaddr, off, filesz;
	} load[16];
};

enum { DW_MAX_FD = 512, DW_MAX_IMAGE = 1 << 20 }; /* files that stay open; and bytes of a module without one */

/* Where the headers of a file are taken to be in memory. */
#define DW_BIAS ((uint64_t)1 << 40)

/* A module of a Dwfl. */
struct dw_module {
	Dwfl_Module *mod;
	struct dw_file *file; /* NULL: libdw walks here */
	uint64_t bias;
};

/* Finds out what a module of libdw's is. */
US_HIDDEN void dw_module_open(struct dw_module *to, Dwfl_Module *mod);

/* Reads n bytes of m's file at a run-time address. */
US_HIDDEN int dw_module_read(const struct dw_module *m, uint64_t at, void *to, size_t n);

/* ---- Memory: dw_memory.c ---- */

enum { DW_PAGES = 8, DW_SEGMENTS = 4096 };

/* A module as a program has reported it by dwfl_report_elf, of a Dwfl that may be kept after its end. */
struct dw_reported {
	Dwfl_Module *mod;
	char *name, *path;
	GElf_Addr base, lo, hi; /* lo and hi: where libdw says that it lies */
	dev_t dev;
	ino_t ino;
	off_t size;
	struct timespec changed;
	bool add, native; /* native: of this machine */
	uint32_t order;   /* counts reports, from 1; 0: hidden, until it is reported again */
};

/* What is known of a Dwfl. One thread at a time uses a Dwfl: libdw says so, too. */
struct dw_process {
	struct dw_process *next;
	Dwfl *dwfl;
	const Dwfl_Callbacks *begun; /* what it has begun with, or NULL; with: what was there */
	Dwfl_Callbacks with;
	struct dw_reported *reported; /* or NULL; DW_REPORTED */
	uint32_t n_reported, last_reported, n_order;
	bool reused, whole; /* whole: libdw knows all, and no module is hidden */
	bool attached;      /* the next members say how memory is read */
	bool promised;      /* attached, and libdw has not been told */
	enum { DW_CALLBACKS, DW_PID, DW_CORE } kind;
	pid_t pid;
	const Dwfl_Thread_Callbacks *callbacks;
	void *arg;
	Elf *core;
	uint32_t n_segments, n_modules, last, pad;
	struct dw_segment {
		uint64_t lo, hi, filesz, off;
	} *segment;
	const uint8_t *bytes; /* the core's */
	size_t size;
	struct dw_module *module; /* a ring of DW_MODULES */
	struct dw_page {
		uint64_t at;
		uint8_t bytes[4096];
	} *page; /* of a process, while a walk lasts */
	uint32_t n_pages, next_page;
};

enum { DW_MODULES = 64 };

/* Reads a word of the process's memory; returns 0 where there is none. */
US_HIDDEN int dw_load(struct dw_process *p, uint64_t addr, uint64_t *to);

/* Prepares a core dump. Returns 0 where it cannot be read. */
US_HIDDEN int dw_core(struct dw_process *p, Elf *core);

/* ---- A Dwfl from its beginning to its end: dw_report.c ---- */

/* What is known of a Dwfl; or NULL. */
US_HIDDEN struct dw_process *dw_process(const Dwfl *dwfl);

/* Lets libdw know all that the program has said of a Dwfl, and no more. Returns dw_process. */
US_HIDDEN struct dw_process *dw_whole(Dwfl *dwfl);

/* libdw's dwfl_addrmodule, without what is hidden. */
US_HIDDEN Dwfl_Module *dw_addrmodule(struct dw_process *p, Dwarf_Addr at);

#endif /* UNSPOOL_DW_H */
