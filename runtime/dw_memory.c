/* SPDX-License-Identifier: Apache-2.0 */
/* dw_memory.c: memory of what a Dwfl walks. See dw.h. */
#define _GNU_SOURCE
#include "dw.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

/* Reads memory of a process that is stopped. */
static int read_process(pid_t pid, uint64_t at, void *to, size_t n)
{
	struct iovec local = {to, n}, remote = {(void *)(uintptr_t)at, n};
	ssize_t got = process_vm_readv(pid, &local, 1, &remote, 1, 0);
	char name[32];
	int fd;

	if (got == (ssize_t)n)
		return 1;
	snprintf(name, sizeof name, "/proc/%d/mem", (int)pid);
	fd = open(name, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return 0;
	got = pread(fd, to, n, (off_t)at);
	close(fd);
	return got == (ssize_t)n;
}

/* The page of the process at an address, or NULL. */
static const uint8_t *page(struct dw_process *p, uint64_t at)
{
	struct dw_page *g;

	for (uint32_t i = 0; i < p->n_pages; i++)
		if (p->page[i].at == at)
			return p->page[i].bytes;
	if (!p->page)
		p->page = malloc(DW_PAGES * sizeof *p->page);
	if (!p->page)
		return NULL;
	g = &p->page[p->next_page];
	if (p->n_pages <= p->next_page)
		p->n_pages = p->next_page + 1;
	g->at = 1; /* of no page */
	if (!read_process(p->pid, at, g->bytes, sizeof g->bytes))
		return NULL;
	g->at = at;
	p->next_page = (p->next_page + 1) % DW_PAGES;
	return g->bytes;
}

static int load_process(struct dw_process *p, uint64_t addr, uint64_t *to)
{
	uint64_t in = addr & 4095;
	const uint8_t *b;

	if (!us_is_user(addr))
		return 0;
	if (in > 4088)
		return read_process(p->pid, addr, to, 8);
	b = page(p, addr - in);
	if (!b)
		return 0;
	memcpy(to, b + in, 8);
	return 1;
}

/*
 * libdw reads a segment's addresses also where the core has no bytes of them: what lies behind in the file. Walks that are repaired do without.
 */
static int load_core(struct dw_process *p, uint64_t addr, uint64_t *to)
{
	for (uint32_t i = 0; i < p->n_segments; i++) {
		const struct dw_segment *s = &p->segment[i];
		uint64_t in = addr - s->lo, off;

		if (addr < s->lo || addr > UINT64_MAX - 8 || addr + 8 > s->hi)
			continue;
		if (!dw_strict() && (s->filesz < 8 || in > s->filesz - 8))
			return 0;
		off = s->off + in;
		if (off < s->off || p->size < 8 || off > p->size - 8)
			return 0;
		memcpy(to, p->bytes + off, 8);
		return 1;
	}
	return 0;
}

int dw_load(struct dw_process *p, uint64_t addr, uint64_t *to)
{
	Dwarf_Word v = 0;

	if (p->kind == DW_PID)
		return load_process(p, addr, to);
	if (p->kind == DW_CORE)
		return load_core(p, addr, to);
	if (!p->callbacks->memory_read || !p->callbacks->memory_read(p->dwfl, addr, &v, p->arg))
		return 0;
	*to = v;
	return 1;
}

int dw_core(struct dw_process *p, Elf *core)
{
	size_t n;
	char *bytes;

	if (!dw_real.elf_rawfile || !dw_real.elf_getphdrnum || !dw_real.gelf_getphdr)
		return 0;
	bytes = dw_real.elf_rawfile(core, &p->size);
	if (!bytes || dw_real.elf_getphdrnum(core, &n) < 0)
		return 0;
	p->bytes = (const uint8_t *)bytes;
	p->core = core;
	p->segment = calloc(n ? n : 1, sizeof *p->segment);
	if (!p->segment)
		return 0;
	for (size_t i = 0; i < n && i < 1 << 20; i++) {
		GElf_Phdr mem, *h = dw_real.gelf_getphdr(core, (int)i, &mem);

		if (h && h->p_type == PT_LOAD)
			p->segment[p->n_segments++] = (struct dw_segment){h->p_vaddr & -(uint64_t)US_PAGE, (h->p_vaddr + h->p_memsz + US_PAGE - 1) & -(uint64_t)US_PAGE, h->p_filesz, h->p_offset};
	}
	return 1;
}
