/* SPDX-License-Identifier: Apache-2.0 */
/* dw_module.c: what libdw's modules are, by file. See dw.h. */
#define _GNU_SOURCE
#include "dw.h"

#include <elf.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static struct dw_file *files;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* Reads f at an offset. */
static int read_at(const struct dw_file *f, uint64_t off, void *to, size_t n)
{
	if (f->fd >= 0)
		return pread(f->fd, to, n, (off_t)off) == (ssize_t)n;
	if (off > f->n_bytes || n > f->n_bytes - off)
		return 0;
	memcpy(to, f->bytes + off, n);
	return 1;
}

/* Reads f at link-time addresses plus DW_BIAS. */
static int read_file(void *ctx, uint64_t addr, void *to, size_t n)
{
	const struct dw_file *f = ctx;
	uint64_t at = addr - DW_BIAS;

	for (uint32_t i = 0; i < f->n_loads; i++) {
		uint64_t in = at - f->load[i].vaddr, off = f->load[i].off + in;

		if (in >= f->load[i].filesz || n > f->load[i].filesz - in)
			continue;
		return off >= in && read_at(f, off, to, n);
	}
	return 0;
}

/* Reads the headers of f, and makes it known to module.c, which takes the table that is stored for it. */
static void open_file(struct dw_file *f)
{
	uint64_t hdr = 0, first = UINT64_MAX, bias;
	struct us_fde fde;
	Elf64_Ehdr e;
	Elf64_Phdr p;

	if (!read_at(f, 0, &e, sizeof e) || memcmp(e.e_ident, ELFMAG "\2\1", 6) || e.e_machine != MACHINE_ELF || e.e_phentsize != sizeof p)
		return;
	for (unsigned i = 0; i < e.e_phnum; i++) {
		if (!read_at(f, e.e_phoff + i * sizeof p, &p, sizeof p))
			return;
		if (p.p_type == PT_GNU_EH_FRAME)
			hdr = p.p_vaddr;
		if (p.p_type != PT_LOAD || f->n_loads == 16)
			continue;
		if (first == UINT64_MAX && p.p_offset < US_PAGE)
			first = p.p_vaddr - p.p_offset;
		f->load[f->n_loads].vaddr = p.p_vaddr;
		f->load[f->n_loads].off = p.p_offset;
		f->load[f->n_loads++].filesz = p.p_filesz;
	}
	if (!hdr || first == UINT64_MAX || !us_is_user(hdr) || !us_is_user(first))
		return;
	f->t = (struct us_target){read_file, f};
	f->m = us_module_near(&f->t, DW_BIAS + hdr, DW_BIAS + first, &bias, dw_strict());
	if (f->m && bias != DW_BIAS)
		f->m = NULL;
	/* It copies what it has often been asked for: here, at once. */
	for (int i = 0; f->m && !f->m->table && i < 80 && !atomic_load_explicit(&f->m->image, memory_order_relaxed); i++)
		us_module_fde(f->m, &f->t, DW_BIAS, f->m->segment[0].lo, &fde);
}

/* Copies the file that libdw has of a module without a name, such as the vDSO: libdw keeps its bytes only while the Dwfl lives. */
static void copy_image(struct dw_file *f, const char *bytes, size_t size)
{
	void *copy = bytes && size <= DW_MAX_IMAGE ? malloc(size) : NULL;

	if (!copy)
		return;
	memcpy(copy, bytes, size);
	f->bytes = copy;
	f->n_bytes = size;
}

static int is_image(const struct dw_file *f, const char *bytes, size_t size)
{
	return f->bytes && bytes && f->n_bytes == size && memcmp(f->bytes, bytes, size) == 0;
}

static int is_file(const struct dw_file *f, const struct stat *st)
{
	return f->ino == st->st_ino && f->dev == st->st_dev && f->size == st->st_size && f->changed.tv_sec == st->st_ctim.tv_sec &&
	       f->changed.tv_nsec == st->st_ctim.tv_nsec;
}

/* The file at a path, opened where it is not known yet; NULL where there is none. */
static struct dw_file *named(const char *path)
{
	struct dw_file *f;
	struct stat st;
	int fd;

	if (stat(path, &st) != 0 || !S_ISREG(st.st_mode))
		return NULL;
	for (f = files; f; f = f->next)
		if (is_file(f, &st))
			return f;
	fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	if (fd < 0)
		return NULL;
	/* The path may lead to another file by now. */
	f = fstat(fd, &st) == 0 && S_ISREG(st.st_mode) ? calloc(1, sizeof *f) : NULL;
	if (!f) {
		close(fd);
		return NULL;
	}
	f->dev = st.st_dev;
	f->ino = st.st_ino;
	f->size = st.st_size;
	f->changed = st.st_ctim;
	f->fd = fd;
	return f;
}

/* The file whose bytes libdw has, copied where it is not known yet; NULL where there is no memory. */
static struct dw_file *nameless(Elf *elf)
{
	size_t size = 0;
	const char *bytes = dw_real.elf_rawfile(elf, &size);
	struct dw_file *f;

	for (f = files; f; f = f->next)
		if (is_image(f, bytes, size))
			return f;
	f = calloc(1, sizeof *f);
	if (!f)
		return NULL;
	f->fd = -1;
	copy_image(f, bytes, size);
	if (f->bytes)
		return f;
	free(f);
	return NULL;
}

void dw_module_open(struct dw_module *to, Dwfl_Module *mod)
{
	const char *path = NULL;
	struct dw_file *f, *known;
	GElf_Addr bias;
	Elf *elf;

	*to = (struct dw_module){mod, NULL, 0};
	elf = dw_real.module_getelf(mod, &bias);
	if (!elf)
		return;
	to->bias = bias;
	dw_real.module_info(mod, NULL, NULL, NULL, NULL, NULL, &path, NULL);
	pthread_mutex_lock(&lock);
	f = path ? named(path) : NULL;
	if (!f)
		f = nameless(elf);
	for (known = files; known && known != f; known = known->next)
		;
	if (f && !known) {
		open_file(f);
		if (f->fd >= DW_MAX_FD) {
			close(f->fd);
			f->fd = -1;
		}
		f->next = files;
		files = f;
	}
	pthread_mutex_unlock(&lock);
	if (f && f->m)
		to->file = f;
}

int dw_module_read(const struct dw_module *m, uint64_t at, void *to, size_t n)
{
	return m->file && read_file(m->file, at - m->bias + DW_BIAS, to, n);
}
