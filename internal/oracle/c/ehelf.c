/* ehelf.c - walks snapshots through eh_elf files, as the research report did: dlopen and a call a frame.
 * gcc ehelf.c snap.c
 *
 *	ehelf LIST
 *
 * LIST has a line for each module: its path, a tab, and the path of its eh_elf file, of memory kind slice. */
#define _GNU_SOURCE
#include "snap.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* docs/EH_ELF.md. */
struct state {
	uint64_t pc, cfa, known, in_mem, in_reg, val[64], snap[64], fault;
};
struct word {
	uint64_t addr, value, ok;
};
struct slice {
	uint64_t lo, size;
	const uint8_t *bytes;
	const struct word *words;
	uint64_t n_words, more;
};
typedef int step_fn(struct state *, const struct slice *, uint64_t pc);
enum { OK, OUTERMOST, NO_RULE, LOST_REGISTER, UNREADABLE, BAD_EXPRESSION, MISSING, SIGNAL = 0x100 };

static struct entry {
	char *path, *so;
	step_fn *step;
	bool tried;
} *entries;
static size_t nentries;

static void read_list(const char *path)
{
	FILE *f = fopen(path, "r");
	char *line = NULL;
	size_t room = 0;
	if (!f)
		snap_die(path);
	while (getline(&line, &room, f) > 0) {
		char *tab = strchr(line, '\t');
		if (!tab)
			continue;
		*tab = 0;
		tab[1 + strcspn(tab + 1, "\n")] = 0;
		entries = realloc(entries, (nentries + 1) * sizeof *entries);
		if (!entries)
			snap_die("out of memory");
		entries[nentries++] = (struct entry){strdup(line), strdup(tab + 1), NULL, false};
	}
	free(line);
	fclose(f);
}

static step_fn *step_of(const char *path)
{
	for (size_t i = 0; i < nentries; i++) {
		struct entry *e = &entries[i];
		if (strcmp(e->path, path))
			continue;
		if (!e->tried) {
			e->tried = true;
			void *so = dlopen(e->so, RTLD_NOW | RTLD_LOCAL);
			if (!so) {
				fprintf(stderr, "%s\n", dlerror());
				exit(2);
			}
			/* POSIX has it that a function's address fits a void *. */
			void *sym = dlsym(so, "eh_elf_step");
			memcpy(&e->step, &sym, sizeof sym);
		}
		return e->step;
	}
	return NULL;
}

/* Where addresses lie, by page: most stacks lead through a few modules by turns. */
static struct {
	uint64_t key;
	const struct mapping *m;
} pages[1024];

static const struct mapping *find(const struct space *s, uint64_t at)
{
	uint64_t key = (at >> 12) ^ (uint64_t)(s->id + 1) << 48;
	size_t i = (key ^ key >> 48) % (sizeof pages / sizeof *pages);

	if (pages[i].key != key || at < pages[i].m->lo || at >= pages[i].m->hi) {
		const struct mapping *m = snap_find(s, at);
		if (!m)
			return NULL;
		pages[i].key = key;
		pages[i].m = m;
	}
	return pages[i].m;
}

/* A space keeps the step of each of its modules. */
static bool update_space(struct space *s)
{
	step_fn **steps = realloc(s->peer, (s->nmod + 1) * sizeof *steps);
	if (!steps)
		return false;
	for (unsigned i = 0; i < s->nmod; i++)
		steps[i] = step_of(s->mod[i].file->path);
	s->peer = steps;
	memset(pages, 0, sizeof pages); /* the mappings have moved */
	return true;
}

static void close_space(struct space *s)
{
	free(s->peer);
	s->peer = NULL;
}

/* A step waits for the return address that the one before has found; what lies above on the stack is fetched
 * meanwhile. */
static void prefetch(const struct sample *x, uint64_t from, uint64_t to)
{
	for (from -= x->lo, to -= x->lo; from < to && from < x->size; from += 64)
		__builtin_prefetch(x->stack + from);
}

/* After a step from a frame that has called nobody, of which was is the state: what the function has saved below its stack pointer and may
 * have taken back (docs/SEMANTICS.md, section 6). */
static void restore(const struct sample *x, struct state *s, const struct state *was)
{
	const uint64_t saved = 0xf048; /* rbx, rbp, r12 to r15 */
	uint64_t sp = was->val[REG_SP], v;

	if (!(was->known >> REG_SP & 1))
		return;
	if (was->in_mem >> REG_SP & 1) {
		if (!snap_read(x, sp, &sp))
			return;
	} else if (was->in_reg >> REG_SP & 1) {
		sp = was->snap[sp];
	}
	for (unsigned i = 0; i < NREGS; i++) {
		uint64_t bit = 1ull << i, at = s->val[i];
		bool kept = false;

		if (!(saved & s->known & s->in_mem & bit) || at >= sp)
			continue;
		for (unsigned j = 0; j < NREGS; j++) /* a signal has put it there */
			kept = kept || (was->known >> j & was->in_mem >> j & 1 && was->val[j] == at);
		if (kept || (sp - at <= 128 && snap_read(x, at, &v)))
			continue;
		s->known = (s->known & ~bit) | (was->known & bit);
		s->in_mem = (s->in_mem & ~bit) | (was->in_mem & bit);
		s->in_reg = (s->in_reg & ~bit) | (was->in_reg & bit);
		s->val[i] = was->val[i];
	}
}

enum { AHEAD = 512 };

static void walk(const struct sample *x, struct chain *c)
{
	static const char *const outcomes[] = {"ok", "outermost", "no rule", "lost register", "unreadable", "bad expression", "missing"};
	static struct state s, was;
	static const uint64_t identity[NREGS] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};
	struct word words[64];
	struct slice mem = {x->lo, x->size, x->stack, words, 0, 1};
	const struct space *space = x->space;
	step_fn *const *steps = space->peer;
	uint64_t sp = x->regs[REG_SP], ahead = sp + AHEAD;
	uint64_t at = x->regs[REG_IP];
	unsigned n = 1;

	prefetch(x, sp, ahead);
	s.pc = at;
	s.cfa = 0;
	s.known = s.in_reg = (1u << NREGS) - 1;
	s.in_mem = 0;
	memcpy(s.val, identity, sizeof identity);
	memcpy(s.snap, x->regs, NREGS * sizeof *x->regs);
	c->pc[0] = at;
	c->exact[0] = 1;
	c->stop = NULL;
	const struct mapping *m = find(space, at);
	do {
		if (!m || m->module == NO_MODULE || !steps[m->module]) {
			c->stop = "no information";
			break;
		}
		int r;
		mem.n_words = 0;
		if (c->exact[n - 1])
			was = s;
		while ((r = steps[m->module](&s, &mem, at - space->mod[m->module].bias)) == MISSING && mem.n_words < 64) {
			struct word *w = &words[mem.n_words++];
			w->addr = s.fault;
			w->value = 0;
			w->ok = snap_read(x, w->addr, &w->value);
		}
		if (r != OK && r != SIGNAL) {
			c->stop = outcomes[r];
			break;
		}
		if (s.cfa <= sp && r != SIGNAL && !(n == 1 && s.cfa == sp)) {
			c->stop = "bad cfa";
			break;
		}
		if (r == OK && c->exact[n - 1])
			restore(x, &s, &was);
		sp = r == SIGNAL ? 0 : s.cfa;
		if (s.cfa + AHEAD / 2 > ahead) {
			prefetch(x, ahead, s.cfa + AHEAD);
			ahead = s.cfa + AHEAD;
		}
		at = s.pc - (r != SIGNAL);
		if ((at < m->lo || at >= m->hi) && !(m = find(space, at))) {
			c->stop = "bad return address";
			break;
		}
		c->pc[n] = s.pc;
		c->exact[n++] = r == SIGNAL;
	} while (n < MAX_DEPTH);
	if (!c->stop)
		c->stop = "depth limit";
	c->n = n;
}

int main(int argc, char **argv)
{
	if (argc != 2)
		snap_die("usage: ehelf LIST");
	read_list(argv[1]);
	static const struct peer p = {512, update_space, update_space, close_space, walk};
	return snap_serve(&p);
}
