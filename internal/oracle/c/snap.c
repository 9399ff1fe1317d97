/* snap.c - see snap.h. */
#define _GNU_SOURCE
#include "snap.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

_Noreturn void snap_die(const char *what)
{
	fprintf(stderr, "%s%s%s\n", what, errno ? ": " : "", errno ? strerror(errno) : "");
	exit(2);
}

uint64_t snap_now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void *grow(void *p, size_t n, size_t size)
{
	/* Room doubles at each power of two, so that appending costs a constant on average. */
	if (n & (n - 1))
		return p;
	p = realloc(p, (n ? 2 * n : 1) * size);
	if (!p)
		snap_die("out of memory");
	return p;
}

/* ---- files ---- */

static struct file **files;
static size_t nfiles;

static uint64_t u64at(const uint8_t *p)
{
	uint64_t v;
	memcpy(&v, p, sizeof v);
	return v;
}

/* at returns n bytes of the file at a link-time address, from a segment whose flags have none of not. */
static const uint8_t *at(const struct file *f, uint64_t v, uint64_t n, uint32_t not)
{
	for (unsigned i = 0; i < f->nph; i++) {
		const Elf64_Phdr *p = &f->ph[i];
		if (p->p_type == PT_LOAD && !(p->p_flags & not) && v >= p->p_vaddr && p->p_filesz >= n &&
		    v - p->p_vaddr <= p->p_filesz - n && p->p_offset <= f->size && v - p->p_vaddr <= f->size - p->p_offset &&
		    n <= f->size - p->p_offset - (v - p->p_vaddr))
			return f->image + p->p_offset + (v - p->p_vaddr);
	}
	return NULL;
}

/* parse finds the program headers and the search table (LSB Core 5.0, section 10.6.2). */
static bool parse(struct file *f)
{
	Elf64_Ehdr e;
	if (f->size < sizeof e)
		return false;
	memcpy(&e, f->image, sizeof e);
	if (memcmp(e.e_ident, ELFMAG, SELFMAG) || e.e_ident[EI_CLASS] != ELFCLASS64 || e.e_machine != EM_X86_64 ||
	    e.e_phentsize != sizeof(Elf64_Phdr) || e.e_phoff > f->size || e.e_phoff % 8 ||
	    e.e_phnum > (f->size - e.e_phoff) / sizeof(Elf64_Phdr))
		return false;
	f->ph = (const Elf64_Phdr *)(const void *)(f->image + e.e_phoff);
	f->nph = e.e_phnum;
	f->exec = e.e_type == ET_EXEC;
	for (unsigned i = 0; i < f->nph; i++) {
		if (f->ph[i].p_type != PT_GNU_EH_FRAME)
			continue;
		const uint8_t *h = at(f, f->ph[i].p_vaddr, 12, 0);
		if (!h)
			continue;
		f->hdr = f->ph[i].p_vaddr;
		if (h[0] == 1 && (h[1] & 0x0f) == 0x0b && h[2] == 0x03 && h[3] == 0x3b) {
			memcpy(&f->hdr_len, h + 8, 4);
			f->hdr_table = f->hdr + 12;
		}
	}
	return true;
}

static struct file *file_open(const char *path)
{
	for (size_t i = 0; i < nfiles; i++)
		if (!strcmp(files[i]->path, path))
			return files[i];
	struct file *f = calloc(1, sizeof *f);
	if (!f || !(f->path = strdup(path)))
		snap_die("out of memory");
	files = grow(files, nfiles, sizeof *files);
	files[nfiles++] = f;
	int fd = path[0] == '/' ? open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK) : -1;
	struct stat st;
	if (fd >= 0 && !fstat(fd, &st) && S_ISREG(st.st_mode) && st.st_size > 0) {
		void *p = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
		if (p != MAP_FAILED) {
			f->image = p;
			f->size = (size_t)st.st_size;
			if (!parse(f))
				f->image = NULL;
		}
	}
	if (fd >= 0)
		close(fd);
	return f;
}

/* ---- spaces ---- */

static struct space **spaces; /* by id */
static size_t nspaces;
static unsigned nopen;
static uint64_t ticks;

static struct space *space_get(uint32_t id, bool make)
{
	if (id >= nspaces) {
		if (!make || id > nspaces + (1u << 20)) {
			errno = 0;
			snap_die("no such space");
		}
		size_t n = (size_t)id * 2 + 64;
		spaces = realloc(spaces, n * sizeof *spaces);
		if (!spaces)
			snap_die("out of memory");
		memset(spaces + nspaces, 0, (n - nspaces) * sizeof *spaces);
		nspaces = n;
	}
	if (!spaces[id] && make) {
		spaces[id] = calloc(1, sizeof **spaces);
		if (!spaces[id])
			snap_die("out of memory");
		spaces[id]->id = id;
	}
	if (!spaces[id]) {
		errno = 0;
		snap_die("no such space");
	}
	return spaces[id];
}

/* bias_of returns what to add to link-time addresses, given that the byte at off is mapped at lo. */
static bool bias_of(const struct file *f, uint64_t lo, uint64_t off, uint64_t *bias)
{
	for (int pass = 0; pass < 2; pass++)
		for (unsigned i = 0; i < f->nph; i++) {
			const Elf64_Phdr *p = &f->ph[i];
			if (p->p_type != PT_LOAD || (pass == 0 && !(p->p_flags & PF_X)))
				continue;
			if ((p->p_offset & ~0xfffull) <= off && off < p->p_offset + p->p_filesz) {
				*bias = lo - (p->p_vaddr + off - p->p_offset);
				return true;
			}
		}
	return false;
}

static unsigned space_module(struct space *s, struct file *f, uint64_t lo, uint64_t off)
{
	uint64_t bias;
	if (!f->image || !bias_of(f, lo, off, &bias) || (f->exec && bias))
		return NO_MODULE;
	for (unsigned i = 0; i < s->nmod; i++)
		if (s->mod[i].file == f && s->mod[i].bias == bias)
			return i;
	struct module m = {.lo = UINT64_MAX, .bias = bias, .file = f};
	for (unsigned i = 0; i < f->nph; i++) {
		if (f->ph[i].p_type != PT_LOAD)
			continue;
		uint64_t a = f->ph[i].p_vaddr + bias, b = a + f->ph[i].p_memsz;
		m.lo = a < m.lo ? a : m.lo;
		m.hi = b > m.hi ? b : m.hi;
	}
	s->mod = grow(s->mod, s->nmod, sizeof *s->mod);
	s->mod[s->nmod] = m;
	return s->nmod++;
}

static void space_add(struct space *s, uint64_t lo, uint64_t hi, uint64_t off, const char *path)
{
	struct mapping m = {.lo = lo, .hi = hi, .module = space_module(s, file_open(path), lo, off)};
	s->map = grow(s->map, s->nmap, sizeof *s->map);
	unsigned i = s->nmap++;
	for (; i > 0 && s->map[i - 1].lo > lo; i--)
		s->map[i] = s->map[i - 1];
	s->map[i] = m;
	s->changed = true;
}

const struct mapping *snap_find(const struct space *s, uint64_t a)
{
	unsigned lo = 0, hi = s->nmap;
	while (lo < hi) {
		unsigned mid = (lo + hi) / 2;
		if (s->map[mid].lo <= a)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo > 0 && a < s->map[lo - 1].hi ? &s->map[lo - 1] : NULL;
}

bool snap_read(const struct sample *x, uint64_t a, uint64_t *val)
{
	if (a >= x->lo && x->size >= 8 && a - x->lo <= x->size - 8) {
		*val = u64at(x->stack + (a - x->lo));
		return true;
	}
	static unsigned last; /* reads come in runs */
	const struct space *s = x->space;
	for (unsigned i = 0; i < s->nmod; i++) {
		unsigned k = (i + last) % s->nmod;
		const struct module *m = &s->mod[k];
		if (a < m->lo || a >= m->hi)
			continue;
		const uint8_t *p = at(m->file, a - m->bias, 8, PF_W);
		if (p) {
			last = k;
			*val = u64at(p);
			return true;
		}
	}
	return false;
}

/* ready opens the space of a sample for the peer, closing others where there are too many. */
static bool ready(const struct peer *p, struct space *s)
{
	s->used = ++ticks;
	if (s->peer) {
		bool ok = !s->changed || !p->update || p->update(s);
		s->changed = false;
		return ok;
	}
	while (nopen >= p->max_open) {
		struct space *old = NULL;
		for (size_t i = 0; i < nspaces; i++)
			if (spaces[i] && spaces[i]->peer && (!old || spaces[i]->used < old->used))
				old = spaces[i];
		if (!old)
			break;
		p->close(old);
		old->peer = NULL;
		nopen--;
	}
	for (unsigned i = 0; i < s->nmod; i++)
		s->mod[i].told = false;
	s->changed = false;
	if (!p->open(s))
		return false;
	nopen++;
	return true;
}

/* ---- the stream ---- */

static bool get(void *p, size_t n)
{
	for (size_t k = 0; k < n;) {
		ssize_t r = read(STDIN_FILENO, (char *)p + k, n - k);
		if (r < 0 && errno == EINTR)
			continue;
		if (r < 0)
			snap_die("reading");
		if (r == 0) {
			if (k == 0)
				return false;
			errno = 0;
			snap_die("the stream ends inside a record");
		}
		k += (size_t)r;
	}
	return true;
}

static void put(const void *p, size_t n)
{
	static const uint8_t zero[8];
	if (fwrite(p, 1, n, stdout) != n || fwrite(zero, 1, -n & 7, stdout) != (-n & 7))
		snap_die("writing");
}

/* The batch: records end to end, and where each sample starts. */
static uint8_t *batch;
static size_t batch_len, batch_cap;
struct start {
	size_t off;
	struct space *space;
};
static struct start *starts;
static size_t nstarts;

static struct sample sample_at(size_t i)
{
	const uint8_t *p = batch + starts[i].off;
	struct sample x = {.space = starts[i].space, .regs = (const uint64_t *)(const void *)p};
	x.lo = u64at(p + NREGS * 8);
	x.size = u64at(p + NREGS * 8 + 8);
	x.stack = p + NREGS * 8 + 16;
	return x;
}

static struct chain chain;

static void walk(const struct peer *p, const struct sample *x)
{
	chain.n = 0;
	chain.stop = "";
	if (ready(p, x->space)) {
		p->walk(x, &chain);
		return;
	}
	chain.stop = "the space cannot be opened";
	chain.pc[0] = x->regs[REG_IP];
	chain.exact[0] = 1;
	chain.n = 1;
}

static void answer_chains(const struct peer *p)
{
	for (size_t i = 0; i < nstarts; i++) {
		struct sample x = sample_at(i);
		walk(p, &x);
		uint32_t head[2] = {chain.n, (uint32_t)strlen(chain.stop)};
		put(head, sizeof head);
		put(chain.pc, chain.n * sizeof *chain.pc);
		put(chain.exact, chain.n);
		put(chain.stop, head[1]);
	}
}

/* read_stack brings a sample into the processor's caches. */
static void read_stack(const struct sample *x)
{
	for (uint64_t i = 0; i < x->size; i += 64)
		*(volatile const uint8_t *)(x->stack + i);
	*(volatile const uint64_t *)x->regs;
}

static void answer_times(const struct peer *p, uint32_t passes, bool fresh)
{
	enum { GROUP = 8 };
	uint64_t frames = 0, *ns = calloc(passes ? passes : 1, sizeof *ns);
	size_t group = fresh ? GROUP : nstarts;
	if (!ns)
		snap_die("out of memory");
	for (uint32_t k = 0; k < passes; k++) {
		frames = 0;
		for (size_t lo = 0; lo < nstarts; lo += group) {
			size_t hi = nstarts - lo < group ? nstarts : lo + group;
			for (size_t i = lo; fresh && i < hi; i++) {
				struct sample x = sample_at(i);
				read_stack(&x);
			}
			uint64_t t = snap_now();
			for (size_t i = lo; i < hi; i++) {
				struct sample x = sample_at(i);
				walk(p, &x);
				frames += chain.n;
			}
			ns[k] += snap_now() - t;
		}
	}
	put(&frames, sizeof frames);
	put(ns, passes * sizeof *ns);
	free(ns);
}

static void add_mappings(uint32_t id, const uint8_t *p, size_t n)
{
	struct space *s = space_get(id, true);
	uint64_t count = n >= 8 ? u64at(p) : 0;
	size_t k = 8;
	for (uint64_t i = 0; i < count; i++) {
		uint64_t len;
		if (n < k || n - k < 32 || (len = u64at(p + k + 24)) > n - k - 32) {
			errno = 0;
			snap_die("malformed space");
		}
		char *path = strndup((const char *)p + k + 32, len);
		if (!path)
			snap_die("out of memory");
		space_add(s, u64at(p + k), u64at(p + k + 8), u64at(p + k + 16), path);
		free(path);
		k += 32 + ((len + 7) & ~7ull);
	}
}

int snap_serve(const struct peer *p)
{
	struct {
		uint32_t kind, id;
		uint64_t size;
	} h;
	static char out[1 << 16];
	setvbuf(stdout, out, _IOFBF, sizeof out);
	while (get(&h, sizeof h)) {
		errno = 0;
		if (h.size % 8 || h.size > 1u << 30)
			snap_die("malformed record");
		if (batch_cap - batch_len < h.size) {
			batch_cap = 2 * batch_cap + h.size;
			batch = realloc(batch, batch_cap);
			if (!batch)
				snap_die("out of memory");
		}
		if (h.size && !get(batch + batch_len, h.size))
			snap_die("the stream ends inside a record");
		switch (h.kind) {
		case SNAP_SPACE:
			add_mappings(h.id, batch + batch_len, h.size);
			continue;
		case SNAP_SAMPLE:
			if (h.size < NREGS * 8 + 16 || u64at(batch + batch_len + NREGS * 8 + 8) > h.size - NREGS * 8 - 16)
				snap_die("malformed sample");
			starts = grow(starts, nstarts, sizeof *starts);
			starts[nstarts++] = (struct start){batch_len, space_get(h.id, false)};
			batch_len += h.size;
			continue;
		case SNAP_WALK:
			answer_chains(p);
			break;
		case SNAP_TIME:
		case SNAP_FRESH:
			answer_times(p, h.id, h.kind == SNAP_FRESH);
			break;
		default:
			snap_die("unknown record");
		}
		batch_len = nstarts = 0;
		if (fflush(stdout))
			snap_die("writing");
	}
	return 0;
}
