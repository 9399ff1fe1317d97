/* SPDX-License-Identifier: Apache-2.0 */
/* module.c: see module.h. */
#define _GNU_SOURCE
#include "module.h"

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static struct us_module *_Atomic modules;

/* Rules by module and link-time address. Only what is used of it takes memory. */
enum { RULE_BITS = 17 };
static struct us_slot rules[1 << RULE_BITS];

/* ---- Windows on a target's memory ---- */

static int view_refill(struct us_window *w, uint64_t at)
{
	struct us_view *v = w->ctx;
	uint64_t lo = at & ~(uint64_t)7;

	/* Who reads on will want more; a search does not. At the edge of what is there, a word can be all. */
	for (unsigned n = at == w->hi ? US_WINDOW : 16;; n = 8) {
		if (v->t->read(v->t->ctx, lo + v->bias, v->buf, n)) {
			w->p = v->buf;
			w->lo = lo;
			w->hi = lo + n;
			return 1;
		}
		if (n == 8)
			return 0;
	}
}

void us_view(struct us_view *v, const struct us_target *t, uint64_t bias)
{
	v->w = (struct us_window){v->buf, 1, 1, view_refill, v};
	v->t = t;
	v->bias = bias;
}

/* ---- ELF headers, in memory or in a file ---- */

/* What the headers of a module say. Offsets are link-time addresses; file offsets where they are said to be. */
struct elf {
	Elf64_Ehdr e;
	uint64_t first;
	uint64_t hdr, hdr_size;
	uint64_t note;
	uint32_t id_size;
	uint8_t id[US_MAX_ID];
	uint32_t n_segments;
	struct {
		uint64_t lo, hi;
	} segment[US_MAX_SEGMENTS];
	uint32_t n_loads;
	struct {
		uint64_t vaddr, off, filesz;
	} load[16];
};

/* Finds NT_GNU_BUILD_ID among notes of size bytes, at link-time address at; pos is where they are read. */
static void find_id(struct elf *x, const struct us_target *t, uint64_t pos, uint64_t at, uint64_t size)
{
	Elf64_Nhdr n;
	char name[4];

	for (uint64_t i = 0; x->id_size == 0 && size >= sizeof n && i <= size - sizeof n && i < 4096;) {
		uint64_t desc;

		if (!t->read(t->ctx, pos + i, &n, sizeof n) || n.n_namesz > 4096 || n.n_descsz > 4096)
			return;
		desc = i + sizeof n + ((n.n_namesz + 3u) & ~3u);
		if (n.n_type == NT_GNU_BUILD_ID && n.n_namesz == 4 && n.n_descsz > 0 && n.n_descsz <= US_MAX_ID &&
		    desc + n.n_descsz <= size && t->read(t->ctx, pos + i + sizeof n, name, 4) && !memcmp(name, "GNU", 4) &&
		    t->read(t->ctx, pos + desc, x->id, n.n_descsz)) {
			x->id_size = n.n_descsz;
			x->note = at + desc;
		}
		i = desc + ((n.n_descsz + 3u) & ~3u);
	}
}

/* Reads the headers at base; in a file, positions are offsets from its start. Returns 0 where there are none of x86-64. */
static int read_elf(struct elf *x, const struct us_target *t, uint64_t base, int file)
{
	Elf64_Phdr p;
	uint64_t bias = 0;

	memset(x, 0, sizeof *x);
	if (!t->read(t->ctx, base, &x->e, sizeof x->e) || memcmp(x->e.e_ident, ELFMAG, SELFMAG) ||
	    x->e.e_ident[EI_CLASS] != ELFCLASS64 || x->e.e_ident[EI_DATA] != ELFDATA2LSB || x->e.e_machine != MACHINE_ELF ||
	    x->e.e_phentsize != sizeof p || x->e.e_phnum > 256 || x->e.e_phoff > 1 << 20)
		return 0;
	x->first = UINT64_MAX;
	for (int pass = 0; pass < 2; pass++) {
		for (unsigned i = 0; i < x->e.e_phnum; i++) {
			if (!t->read(t->ctx, base + x->e.e_phoff + i * sizeof p, &p, sizeof p))
				return 0;
			if (pass == 1) { /* what lies in memory: its place is known once the first segment is */
				if (p.p_type == PT_NOTE)
					find_id(x, t, file ? base + p.p_offset : bias + p.p_vaddr, p.p_vaddr, p.p_filesz);
				continue;
			}
			if (p.p_type == PT_GNU_EH_FRAME) {
				x->hdr = p.p_vaddr;
				x->hdr_size = p.p_memsz;
			}
			if (p.p_type != PT_LOAD)
				continue;
			if (x->first == UINT64_MAX && p.p_offset < US_PAGE)
				x->first = (p.p_vaddr - p.p_offset);
			if (x->n_loads < 16) {
				x->load[x->n_loads].vaddr = p.p_vaddr;
				x->load[x->n_loads].off = p.p_offset;
				x->load[x->n_loads++].filesz = p.p_filesz;
			}
			if (p.p_flags & PF_X && x->n_segments < US_MAX_SEGMENTS) {
				x->segment[x->n_segments].lo = p.p_vaddr & -(uint64_t)US_PAGE;
				x->segment[x->n_segments++].hi = (p.p_vaddr + p.p_memsz + US_PAGE - 1) & -(uint64_t)US_PAGE;
			}
		}
		if (x->first == UINT64_MAX)
			return 0;
		bias = base - x->first;
	}
	return 1;
}

/* ---- The file ---- */

static int read_fd(void *ctx, uint64_t at, void *to, size_t n)
{
	return pread(*(int *)ctx, to, n, (off_t)at) == (ssize_t)n;
}

/* Where .eh_frame is. */
struct sections {
	uint64_t eh, eh_size;
};

static int read_sections(int fd, const struct elf *x, struct sections *z)
{
	Elf64_Shdr s, names;
	char name[16];

	memset(z, 0, sizeof *z);
	if (x->e.e_shentsize != sizeof s || x->e.e_shnum == 0 || x->e.e_shnum > 4096 || x->e.e_shstrndx >= x->e.e_shnum ||
	    !read_fd(&fd, x->e.e_shoff + x->e.e_shstrndx * sizeof s, &names, sizeof names))
		return 0;
	for (unsigned i = 0; i < x->e.e_shnum; i++) {
		ssize_t n;

		if (!read_fd(&fd, x->e.e_shoff + i * sizeof s, &s, sizeof s))
			return 0;
		n = pread(fd, name, sizeof name - 1, (off_t)(names.sh_offset + s.sh_name));
		if (n <= 0)
			return 0;
		name[n] = 0;
		if (!strcmp(name, ".eh_frame") && s.sh_type != SHT_NOBITS) {
			z->eh = s.sh_addr;
			z->eh_size += s.sh_size;
		}
	}
	return z->eh_size > 0;
}

enum { MAX_IMAGE = 1 << 28 };

/*
 * Copies what m wants of the file: reading it through the target is slow, and a mapping would fault if the file were cut
 * off.
 */
static US_COLD void copy_file(struct us_module *m, int fd, const struct elf *x)
{
	struct us_window *w, *none = NULL;
	uint64_t size = m->hi - m->lo;

	for (unsigned i = 0; i < x->n_loads; i++) {
		uint64_t at = m->lo - x->load[i].vaddr;
		uint8_t *p;

		if (at >= x->load[i].filesz)
			continue;
		if (size > x->load[i].filesz - at)
			size = x->load[i].filesz - at;
		w = us_alloc(sizeof *w);
		if (!w || size > MAX_IMAGE)
			return;
		p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
		if (p == MAP_FAILED)
			return;
		*w = (struct us_window){p, m->lo, m->lo + size, NULL, NULL};
		if (!read_fd(&fd, x->load[i].off + at, p, size) ||
		    !atomic_compare_exchange_strong_explicit(&m->image, &none, w, memory_order_release, memory_order_relaxed))
			munmap(p, size);
		return;
	}
}

/* A file with more call frame information than this is copied when it has been asked for some rules. */
enum { SMALL = 1 << 17, MANY = 64 };

/* Gets what the file of a new module has: the table that is stored for it, or where its call frame information is. */
static void open_file(struct us_module *m, int fd, const struct elf *x, int strict)
{
	struct sections z;
	struct stat st;

	if (!read_sections(fd, x, &z) || z.eh + z.eh_size < z.eh)
		z.eh_size = 0;
	if (us_stepper(strict) != US_BY_RULES && z.eh_size && fstat(fd, &st) == 0) {
		m->table = us_table_stored(m->id, m->id_size, &st);
		if (us_stepper(strict) == US_BY_NATIVE)
			m->native = us_native_stored(m->id, m->id_size, &st);
	}
	if (m->table && !strict)
		return;
	if (z.eh_size) {
		m->frames.eh_frame = z.eh;
		m->frames.eh_end = z.eh + z.eh_size;
		m->lo = m->hdr < z.eh ? m->hdr : z.eh;
		m->hi = m->hdr < z.eh ? m->frames.eh_end : m->hdr + x->hdr_size;
	} else {
		m->lo = m->hdr;
		m->hi = m->hdr + MAX_IMAGE;
	}
	if (m->hi - m->lo <= SMALL)
		copy_file(m, fd, x);
}

/* Whether the process has the file of x mapped with this bias. */
static int is_mapped(const struct elf *x, const struct us_target *t, uint64_t bias)
{
	uint8_t b[US_MAX_ID];

	return t->read(t->ctx, x->first + bias, b, 8) && !memcmp(b, ELFMAG "\2\1\1", 7) &&
	       t->read(t->ctx, x->note + bias, b, x->id_size) && !memcmp(b, x->id, x->id_size);
}

/*
 * Finds the file of the module whose .eh_frame_hdr is at segbase among those that this process has open: who reads the
 * module for us, by our call, has it open in most cases, and has just done so in many; a new file gets the lowest number
 * that is free. So the search starts there and goes down. Returns the file's number, or -1.
 */
static int find_fd(struct elf *x, const struct us_target *t, uint64_t segbase)
{
	int top = open("/dev/null", O_RDONLY | O_CLOEXEC);

	if (top < 0)
		return -1;
	close(top);
	if (top > 4096)
		top = 4096;
	for (int fd = top; fd-- > 3;) {
		struct us_target file = {read_fd, &fd};
		struct stat st;

		if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && read_elf(x, &file, 0, 1) && x->id_size && x->hdr &&
		    ((segbase - x->hdr) & (US_PAGE - 1)) == 0 && is_mapped(x, t, segbase - x->hdr))
			return fd;
	}
	return -1;
}

/* How far below .eh_frame_hdr the ELF header is looked for. */
enum { MAX_BACK = 1 << 30 };

/* Reads the ELF header at an address, if it is that of the module whose .eh_frame_hdr is at segbase. */
static int is_header(struct elf *x, const struct us_target *t, uint64_t at, uint64_t segbase)
{
	return read_elf(x, t, at, 0) && x->hdr && at - x->first + x->hdr == segbase;
}

/* Finds the ELF header of the module whose .eh_frame_hdr is at segbase in memory: at an address, or below segbase. */
static int find_header(struct elf *x, const struct us_target *t, uint64_t segbase, uint64_t header)
{
	if (header && (header & (US_PAGE - 1)) == 0 && is_header(x, t, header, segbase))
		return x->id_size > 0;
	for (uint64_t at = segbase & -(uint64_t)US_PAGE, n = 0; n < MAX_BACK / US_PAGE && at >= US_PAGE; n++, at -= US_PAGE) {
		char magic[8];

		if (!t->read(t->ctx, at, magic, 8))
			return 0;
		/* The same bytes are in the data of some programs: what they say must fit. */
		if (!memcmp(magic, ELFMAG "\2\1\1", 7) && is_header(x, t, at, segbase))
			return x->id_size > 0;
	}
	return 0;
}

static US_COLD struct us_module *find_new(const struct us_target *t, uint64_t segbase, uint64_t header, uint64_t *bias, int strict)
{
	struct us_module *m, *first;
	struct us_view v;
	struct elf x;
	int fd = find_fd(&x, t, segbase);

	if (fd < 0 && !find_header(&x, t, segbase, header))
		return NULL;
	*bias = segbase - x.hdr;
	first = atomic_load_explicit(&modules, memory_order_acquire);
	m = us_alloc(sizeof *m);
	if (!m)
		return NULL;
	memcpy(m->id, x.id, x.id_size);
	m->id_size = x.id_size;
	m->first = x.first;
	m->hdr = x.hdr;
	m->note = x.note;
	m->n_segments = x.n_segments;
	memcpy(m->segment, x.segment, sizeof m->segment);
	m->space = us_new_space();
	us_view(&v, t, *bias);
	us_frames_open(&m->frames, &v.w, m->hdr);
	m->frames.strict = strict;
	if (fd >= 0)
		open_file(m, fd, &x, strict);
	/* If another thread has added the same module meanwhile, there are two: no harm. */
	m->next = first;
	while (!atomic_compare_exchange_weak_explicit(&modules, &m->next, m, memory_order_release, memory_order_relaxed))
		;
	return m;
}

int us_module_is(const struct us_module *m, const struct us_target *t, uint64_t bias, int quick)
{
	uint8_t b[US_MAX_ID];
	uint32_t n = quick && m->id_size > 8 ? 8 : m->id_size;

	if (!quick && (!t->read(t->ctx, m->first + bias, b, 8) || memcmp(b, ELFMAG "\2\1\1", 7)))
		return 0;
	return t->read(t->ctx, m->note + bias, b, n) && !memcmp(b, m->id, n);
}

struct us_module *us_module_near(const struct us_target *t, uint64_t segbase, uint64_t header, uint64_t *bias, int strict)
{
	int saved = errno;
	struct us_module *m;

	for (m = atomic_load_explicit(&modules, memory_order_acquire); m; m = m->next)
		if (((segbase - m->hdr) & (US_PAGE - 1)) == 0 && us_module_is(m, t, segbase - m->hdr, 0)) {
			*bias = segbase - m->hdr;
			return m;
		}
	m = find_new(t, segbase, header, bias, strict);
	errno = saved;
	return m;
}

struct us_module *us_module_at(const struct us_target *t, uint64_t segbase, uint64_t *bias, int strict)
{
	return us_module_near(t, segbase, 0, bias, strict);
}

/* A window on m's call frame information: its copy, or v. */
static struct us_window *window(struct us_module *m, const struct us_target *t, uint64_t bias, struct us_window *w, struct us_view *v)
{
	struct us_window *image = atomic_load_explicit(&m->image, memory_order_acquire);

	if (!image && m->hi && atomic_fetch_add_explicit(&m->lookups, 1, memory_order_relaxed) == MANY) {
		struct elf x;
		int saved = errno, fd = find_fd(&x, t, m->hdr + bias);

		if (fd >= 0)
			copy_file(m, fd, &x);
		errno = saved;
		image = atomic_load_explicit(&m->image, memory_order_acquire);
	}
	if (image) {
		*w = *image;
		return w;
	}
	us_view(v, t, bias);
	return &v->w;
}

int us_module_fde(struct us_module *m, const struct us_target *t, uint64_t bias, uint64_t pc, struct us_fde *fde)
{
	struct us_window w;
	struct us_view v;

	return us_frames_find(&m->frames, window(m, t, bias, &w, &v), pc, fde);
}

/* The rule by the file, or through t. */
static int frames_rule(struct us_module *m, const struct us_target *t, uint64_t bias, uint64_t pc, struct us_rule *r)
{
	struct us_window w, *x;
	struct us_slot *slot;
	struct us_view v;
	struct us_fde fde;
	int found;

	slot = us_slot_of(rules, RULE_BITS, m->space, pc);
	if (us_slot_get(slot, m->space, pc, r))
		return US_FOUND;
	x = window(m, t, bias, &w, &v);
	found = us_frames_find(&m->frames, x, pc, &fde);
	if (found == US_FOUND)
		found = us_fde_rule(x, &fde, pc, r);
	if (found == US_FOUND)
		us_slot_put(slot, m->space, pc, r);
	return found;
}

/* Whether a rule says of each register either where it is saved, or nothing: then stale values stay in strict mode. */
static int is_simple(const struct us_rule *r)
{
	return (r->kind == US_KIND_REG || r->kind == US_KIND_PLT) && !(r->flags & (US_PARTIAL | US_OUTERMOST_FLAG));
}

int us_module_rule(struct us_module *m, const struct us_target *t, uint64_t bias, uint64_t pc, struct us_rule *r)
{
	struct us_rule stored;
	int found;

	if (!m->frames.strict && m->table)
		return us_table_rule(m->table, pc, r);
	found = frames_rule(m, t, bias, pc, r);
	if (found == US_FOUND && m->table && is_simple(r) && us_table_rule(m->table, pc, &stored) == US_FOUND)
		*r = stored;
	return found;
}

int us_module_step(struct us_module *m, const struct us_target *t, uint64_t bias, uint64_t pc, struct us_rule *r)
{
	int found = us_module_rule(m, t, bias, pc, r);
	struct us_rule code;

	if (!m->native || (m->frames.strict && (found != US_FOUND || !is_simple(r))))
		return found;
	if (us_native_rule(m->native, pc, found == US_FOUND ? r : NULL, &code) != US_FOUND)
		return found;
	*r = code;
	return US_FOUND;
}
