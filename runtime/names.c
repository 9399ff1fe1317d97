/* SPDX-License-Identifier: Apache-2.0 */
/*
 * names.c: function names by address, from .dynsym and .symtab (System V gABI, "Symbol Table"). The file of a module is
 * mapped once, and an index is made of its function symbols, sorted by address; then a name costs a binary search.
 * No lock: of two threads that make one at once, one throws its own away. System calls, but no malloc.
 */
#define _GNU_SOURCE
#include "local.h"

#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <errno.h>

struct entry {
	uint32_t at, size; /* from the module's first address */
	uint64_t name;     /* offset in the file */
};

struct us_names {
	const uint8_t *file;
	uint64_t file_size;
	uint64_t first; /* run-time address of entries' 0 */
	uint64_t n;
	const struct entry *e;
};

static struct us_names none; /* of modules whose file is not there */

static void *pages(uint64_t size)
{
	void *p = size ? mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) : MAP_FAILED;

	return p == MAP_FAILED ? NULL : p;
}

/* Sorts by address; equals stay in order. to is as large. Returns which of the two has the result. */
static struct entry *sort(struct entry *e, struct entry *to, uint64_t n)
{
	uint32_t count[256];

	for (unsigned shift = 0; shift < 32; shift += 8) {
		struct entry *x = e;
		uint32_t sum = 0;

		memset(count, 0, sizeof count);
		for (uint64_t i = 0; i < n; i++)
			count[e[i].at >> shift & 255]++;
		for (unsigned i = 0; i < 256; i++) {
			uint32_t c = count[i];

			count[i] = sum;
			sum += c;
		}
		for (uint64_t i = 0; i < n; i++)
			to[count[e[i].at >> shift & 255]++] = e[i];
		e = to;
		to = x;
	}
	return e;
}

/* Maps the module's file, if it is what is in memory. */
static const uint8_t *map_file(const struct us_loaded *m, uint64_t *size)
{
	const struct link_map *l = m->link_map;
	const char *path = l && l->l_name && l->l_name[0] ? l->l_name : "/proc/self/exe";
	const uint8_t *b = NULL;
	uint8_t head[64];
	struct stat st;
	int saved = errno, fd = open(path, O_RDONLY | O_CLOEXEC);

	if (!us_peek(m->lo, head, sizeof head) || memcmp(head, ELFMAG, SELFMAG))
		goto out;
	if (fd >= 0 && fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_size > 64) {
		*size = (uint64_t)st.st_size;
		b = mmap(NULL, *size, PROT_READ, MAP_PRIVATE, fd, 0);
		if (b == MAP_FAILED)
			b = NULL;
		if (b && memcmp(b, head, sizeof head)) {
			munmap((void *)b, *size);
			b = NULL;
		}
	} else if (fd < 0 && m->permanent) {
		Elf64_Ehdr *h = (void *)head;
		uint64_t all = (m->hi - m->lo + 4095) & ~(uint64_t)4095;

		/* The vDSO is a file that is all in memory, in whole pages: its section headers can lie behind its segment. */
		if (h->e_shoff && h->e_shoff < all && (uint64_t)h->e_shnum * sizeof(Elf64_Shdr) <= all - h->e_shoff) {
			*size = all;
			b = (const uint8_t *)m->lo;
		}
	}
out:
	if (fd >= 0)
		close(fd);
	errno = saved;
	return b;
}

static int section(const uint8_t *b, uint64_t size, const Elf64_Ehdr *h, uint64_t i, Elf64_Shdr *s)
{
	if (i >= h->e_shnum)
		return 0;
	memcpy(s, b + h->e_shoff + i * sizeof *s, sizeof *s);
	return s->sh_offset <= size && s->sh_size <= size - s->sh_offset && s->sh_type != SHT_NOBITS;
}

/* Counts the function symbols, or with e not NULL writes them. */
static uint64_t collect(const uint8_t *b, uint64_t size, const Elf64_Ehdr *h, uint64_t first, struct entry *e, uint64_t room)
{
	Elf64_Shdr s, str;
	Elf64_Sym y;
	uint64_t n = 0;

	for (uint64_t i = 0; i < h->e_shnum; i++) {
		if (!section(b, size, h, i, &s) || (s.sh_type != SHT_DYNSYM && s.sh_type != SHT_SYMTAB) ||
		    !section(b, size, h, s.sh_link, &str) || str.sh_size == 0 || b[str.sh_offset + str.sh_size - 1] != 0)
			continue;
		for (uint64_t k = 0; k < s.sh_size / sizeof y; k++) {
			memcpy(&y, b + s.sh_offset + k * sizeof y, sizeof y);
			if (ELF64_ST_TYPE(y.st_info) != STT_FUNC || y.st_shndx == SHN_UNDEF || y.st_name >= str.sh_size ||
			    y.st_value < first || y.st_value - first > UINT32_MAX)
				continue;
			if (e && n < room)
				e[n] = (struct entry){(uint32_t)(y.st_value - first),
						      y.st_size > UINT32_MAX ? UINT32_MAX : (uint32_t)y.st_size,
						      str.sh_offset + y.st_name};
			n++;
		}
	}
	return n;
}

static struct us_names *build(const struct us_loaded *m)
{
	struct us_names *x = us_alloc(sizeof *x);
	struct entry *a, *b, *sorted;
	uint64_t size = 0, n;
	const uint8_t *file;
	Elf64_Ehdr h;

	if (!x || !(file = map_file(m, &size)))
		return &none;
	memcpy(&h, file, sizeof h);
	if (h.e_shentsize != sizeof(Elf64_Shdr) || h.e_shoff > size || h.e_shnum > (size - h.e_shoff) / sizeof(Elf64_Shdr))
		goto nothing;
	n = collect(file, size, &h, m->lo - m->bias, NULL, 0);
	if (n == 0 || n > UINT32_MAX)
		goto nothing;
	a = pages(n * sizeof *a);
	b = pages(n * sizeof *b);
	if (a && b && collect(file, size, &h, m->lo - m->bias, a, n) == n) {
		sorted = sort(a, b, n);
		munmap(sorted == a ? b : a, n * sizeof *a);
		*x = (struct us_names){file, size, m->lo, n, sorted};
		return x;
	}
	if (a)
		munmap(a, n * sizeof *a);
	if (b)
		munmap(b, n * sizeof *b);
nothing:
	if (file != (const uint8_t *)m->lo)
		munmap((void *)file, size);
	return &none;
}

int us_symbol_at(struct us_loaded *m, uint64_t pc, struct us_symbol *s)
{
	struct us_names *x = atomic_load_explicit(&m->names, memory_order_acquire), *was = NULL;
	uint64_t lo = 0, hi, key;

	if (us_unlikely(!x)) {
		x = build(m);
		if (!atomic_compare_exchange_strong_explicit(&m->names, &was, x, memory_order_acq_rel, memory_order_acquire)) {
			if (x != &none) {
				munmap((void *)x->e, x->n * sizeof *x->e);
				if (x->file != (const uint8_t *)m->lo)
					munmap((void *)x->file, x->file_size);
			}
			x = was;
		}
	}
	key = pc - x->first;
	hi = x->n;
	if (hi == 0 || pc < x->first || key > UINT32_MAX)
		return 0;
	while (lo < hi) {
		uint64_t mid = lo + (hi - lo) / 2;

		if (x->e[mid].at <= key)
			lo = mid + 1;
		else
			hi = mid;
	}
	if (lo == 0)
		return 0;
	/* Of several names for one address, the first in the file's order. */
	for (lo--; lo > 0 && x->e[lo - 1].at == x->e[lo].at; lo--)
		;
	*s = (struct us_symbol){(const char *)x->file + x->e[lo].name, x->first + x->e[lo].at, x->e[lo].size};
	return 1;
}
