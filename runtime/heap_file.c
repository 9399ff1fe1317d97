/* SPDX-License-Identifier: Apache-2.0 */
/*
 * heap_file.c: the files by which the recorder has a process's allocations. They are mapped, and closed at once: a program closes descriptors that
 * it does not know. Blocks are reserved before they are written to: what finds no room in a mapping is killed.
 */
#define _GNU_SOURCE
#include "heap.h"

#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { FIRST_CHUNK = 256 << 10, LAST_CHUNK = HEAP_MAX_CHUNK };

struct heap_chunk *heap_chunks[HEAP_CHUNKS];

void *heap_map(uint64_t size)
{
	long p = syscall(SYS_mmap, 0, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	return p == -1 ? NULL : (void *)p;
}

uint64_t heap_clock(void)
{
	struct timespec t = {0, 0};

	clock_gettime(CLOCK_REALTIME, &t);
	return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

/* Writes a number in decimal, and returns where it ends. */
static char *decimal(char *to, uint64_t n)
{
	char digits[20];
	unsigned k = 0;

	do
		digits[k++] = (char)('0' + n % 10);
	while (n /= 10);
	while (k)
		*to++ = digits[--k];
	return to;
}

/* Reserves n bytes of a file; 0 if there is no room. */
static int reserve(int fd, uint64_t n)
{
	static const char zeros[4096];
	struct rlimit r;

	/* Beyond its limit a program gets a signal. */
	if (syscall(SYS_prlimit64, 0, RLIMIT_FSIZE, NULL, &r) == 0 && r.rlim_cur < n)
		return 0;
	if (syscall(SYS_fallocate, fd, 0, 0L, (long)n) == 0)
		return 1;
	for (uint64_t at = 0; at < n; at += sizeof zeros)
		if (syscall(SYS_write, fd, zeros, sizeof zeros) != sizeof zeros)
			return 0;
	return 1;
}

static int is_forked(const struct heap_files *f)
{
	return f->pid != (int32_t)syscall(SYS_getpid);
}

static int next_chunk(struct heap_files *f, uint64_t size)
{
	char path[HEAP_PATH + 80], *p = path + strlen(f->dir);
	long fd, at;
	int there;

	if (f->number == HEAP_CHUNKS || is_forked(f))
		return 0;
	memcpy(path, f->dir, (size_t)(p - path));
	*p++ = '/';
	p = decimal(p, (uint64_t)syscall(SYS_getpid));
	*p++ = '-';
	p = decimal(p, f->part);
	*p++ = '-';
	*decimal(p, f->number) = 0;
	fd = syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (fd < 0)
		return 0;
	there = reserve((int)fd, size);
	at = there ? syscall(SYS_mmap, 0, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) : -1;
	if (at == -1)
		syscall(SYS_ftruncate, fd, 0);
	syscall(SYS_close, fd);
	if (at == -1)
		return 0;
	f->chunk = heap_chunks[f->number] = (struct heap_chunk *)at;
	f->size = size;
	if (is_forked(f)) { /* since it was opened: perhaps it was not in the list */
		heap_left(f);
		return 0;
	}
	*f->chunk = (struct heap_chunk){HEAP_MAGIC, HEAP_VERSION, (uint32_t)f->pid, f->part, f->number++, 0, sizeof *f->chunk};
	return 1;
}

void heap_left(struct heap_files *f)
{
	uint64_t size = FIRST_CHUNK;

	for (uint32_t i = 0; i < HEAP_CHUNKS && i <= f->number && heap_chunks[i]; i++) {
		if (syscall(SYS_mmap, heap_chunks[i], size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != -1)
			heap_chunks[i]->used = sizeof *heap_chunks[i];
		size = size < LAST_CHUNK ? size * 2 : LAST_CHUNK;
	}
}

void *heap_room(struct heap_files *f, uint32_t type, uint64_t size)
{
	uint64_t used = f->chunk ? f->chunk->used : 0;
	struct heap_head *h;

	size = (size + 7) & ~(uint64_t)7;
	if (!f->chunk || f->size - used < size) {
		uint64_t next = !f->chunk ? FIRST_CHUNK : f->size < LAST_CHUNK ? f->size * 2 : LAST_CHUNK;

		if (!next_chunk(f, next))
			return NULL;
		used = f->chunk->used;
	}
	h = (struct heap_head *)((char *)f->chunk + used);
	h->type = type;
	h->size = (uint32_t)size;
	return h;
}

void heap_wrote(struct heap_files *f)
{
	uint64_t used = atomic_load_explicit(&f->chunk->used, memory_order_relaxed);

	used += ((struct heap_head *)((char *)f->chunk + used))->size;
	atomic_store_explicit(&f->chunk->used, used, memory_order_release);
}

heap_ref heap_place(const struct heap_files *f, const void *record)
{
	return (f->number - 1) << HEAP_REF_BITS | (heap_ref)(((const char *)record - (const char *)f->chunk) / 8);
}

/* Reads a small file into a string. */
static void read_string(const char *path, char *to, size_t size)
{
	long fd = syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC, 0), n = -1;

	if (fd >= 0) {
		n = syscall(SYS_read, fd, to, size - 1);
		syscall(SYS_close, fd);
	}
	to[n > 0 ? n : 0] = 0;
	to[strcspn(to, "\n")] = 0;
}

static void read_link(const char *path, char *to, size_t size)
{
	long n = syscall(SYS_readlinkat, AT_FDCWD, path, to, size - 1);

	to[n > 0 ? n : 0] = 0;
}

int heap_open(struct heap_files *f, const char *dir, uint64_t period)
{
	char path[HEAP_PATH];
	struct heap_process *p;

	if (strlen(dir) >= sizeof f->dir)
		return 0;
	memset(f, 0, sizeof *f);
	for (uint32_t i = 0; i < HEAP_CHUNKS && heap_chunks[i]; i++)
		heap_chunks[i] = NULL;
	strcpy(f->dir, dir);
	f->pid = (int32_t)syscall(SYS_getpid);
	f->part = heap_clock();
	read_link("/proc/self/exe", path, sizeof path);
	p = heap_room(f, HEAP_PROCESS, sizeof *p + strlen(path) + 1);
	if (!p)
		return 0;
	p->period = period;
	strcpy(p->path, path);
	read_string("/proc/self/comm", p->comm, sizeof p->comm);
	f->process = p;
	heap_wrote(f);
	return 1;
}

/* The absolute path of a module that is loaded. */
static void module_path(const struct us_loaded *m, char *to, size_t size)
{
	const struct link_map *l = m->link_map;
	const char *name = l && l->l_name ? l->l_name : "";
	size_t n = 0, k = strlen(name);

	if (name[0] == 0) {
		read_link("/proc/self/exe", to, size);
		return;
	}
	if (name[0] != '/' && strchr(name, '/')) {
		long got = syscall(SYS_getcwd, to, size / 2);

		n = got > 0 ? (size_t)got : 1;
		to[n - 1] = '/';
	}
	if (k > size - n - 1)
		k = size - n - 1;
	memcpy(to + n, name, k);
	to[n + k] = 0;
}

static void write_module(struct heap_files *f, const struct us_loaded *m)
{
	char path[HEAP_PATH];
	Elf64_Ehdr e;
	Elf64_Phdr ph[32];
	struct heap_module *r;
	uint32_t h[1], n = 0, k = 0;

	module_path(m, path, sizeof path);
	r = heap_room(f, HEAP_MODULE, sizeof *r + strlen(path) + 1);
	if (!r)
		return;
	strcpy(r->path, path);
	r->index = m->index;
	if (m->id_at && us_peek(m->id_at - 12, h, sizeof h) && h[0] <= HEAP_ID && us_peek(m->id_at, r->id, h[0]))
		n = h[0];
	r->n_id = n;
	if (us_peek(m->lo, &e, sizeof e) && memcmp(e.e_ident, ELFMAG, SELFMAG) == 0 && e.e_phentsize == sizeof ph[0] && e.e_phoff <= 4096) {
		unsigned all = e.e_phnum < 32 ? e.e_phnum : 32;

		if (!us_peek(m->lo + e.e_phoff, ph, all * sizeof ph[0]))
			all = 0;
		for (unsigned i = 0; i < all && k < HEAP_SEGMENTS; i++) {
			if (ph[i].p_type != PT_LOAD || !(ph[i].p_flags & PF_X))
				continue;
			r->segment[k].lo = m->bias + ph[i].p_vaddr;
			r->segment[k].hi = m->bias + ph[i].p_vaddr + ph[i].p_filesz;
			r->segment[k++].off = ph[i].p_offset;
		}
	}
	r->n_segments = k;
	heap_wrote(f);
	f->announced[m->index / 64] |= (uint64_t)1 << m->index % 64;
}

uint64_t heap_frame(struct heap_files *f, uint64_t pc, struct us_loaded **at)
{
	struct us_loaded *m = *at;

	if (!us_is_user(pc))
		return 0;
	if (!m || pc - 1 - m->lo >= m->hi - m->lo)
		m = *at = us_loaded_at(pc - 1);
	if (!m)
		return pc;
	if (!(f->announced[m->index / 64] >> m->index % 64 & 1))
		write_module(f, m);
	return f->announced[m->index / 64] >> m->index % 64 & 1 ? pc | (uint64_t)m->index << 48 : pc;
}
