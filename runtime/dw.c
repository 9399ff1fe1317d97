/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dw.c: the walking calls of libdwfl. libdw itself finds the thread, stops it and fetches its registers; the callback for its first frame walks, and
 * ends libdw's walk. Where rules do not lead on, libdw walks again, up to the frame that the program has got last, and then for the program: its
 * frames and its errors are libdw's then.
 *
 * With UNSPOOL_STRICT=1, every frame is libdw's. Otherwise code without information is left by docs/SEMANTICS.md, section 6, and stored tables serve.
 */
#define _GNU_SOURCE
#include "dw.h"
#include "apply.h"
#include "blind.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct dw_real dw_real;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static int strict;

static void find(void *to, const char *name)
{
	void *f = dlsym(RTLD_NEXT, name);

	memcpy(to, &f, sizeof f);
}

static void find_all(void)
{
	const char *e = getenv("UNSPOOL_STRICT");

	strict = e && *e && strcmp(e, "0") != 0;
#define FIND(name) find(&dw_real.name, "dwfl_" #name)
	FIND(begin);
	FIND(end);
	FIND(report_begin);
	FIND(report_end);
	FIND(attach_state);
	FIND(linux_proc_attach);
	FIND(core_file_attach);
	FIND(thread_getframes);
	FIND(getthread_frames);
	FIND(frame_pc);
	FIND(frame_reg);
	FIND(frame_thread);
	FIND(report_begin_add);
	FIND(report_elf);
	FIND(getthreads);
	FIND(pid);
	FIND(thread_dwfl);
	FIND(thread_tid);
	FIND(thread_state_registers);
	FIND(thread_state_register_pc);
	FIND(addrmodule);
	FIND(module_getelf);
	FIND(module_info);
	find(&dw_real.elf_rawfile, "elf_rawfile");
	find(&dw_real.elf_getphdrnum, "elf_getphdrnum");
	find(&dw_real.gelf_getphdr, "gelf_getphdr");
	find(&dw_real.gelf_getehdr, "gelf_getehdr");
#define FIND_PASSED(type, name, parameters, arguments) FIND(name);
	DW_PASSED(FIND_PASSED)
}

const struct dw_real *dw_functions(void)
{
	pthread_once(&once, find_all);
	return &dw_real;
}

int dw_strict(void)
{
	dw_functions();
	return strict;
}

/* ---- Counts, which $UNSPOOL_STATS asks for ---- */

static struct {
	_Atomic uint64_t walks, frames, repaired, given; /* given: walks that libdw had to end */
} counts;

static void add(_Atomic uint64_t *to, uint64_t n)
{
	if (n)
		atomic_fetch_add_explicit(to, n, memory_order_relaxed);
}

__attribute__((destructor)) static void tell(void)
{
	const char *e = getenv("UNSPOOL_STATS");

	if (e && *e && strcmp(e, "0") != 0)
		fprintf(stderr, "libunspool-dw: walks %llu, frames %llu, repaired %llu, left to libdw %llu\n", (unsigned long long)counts.walks,
			(unsigned long long)counts.frames, (unsigned long long)counts.repaired, (unsigned long long)counts.given);
}

/* ---- Frames ---- */

struct walk;

/* What the program gets as a Dwfl_Frame. libdw's own begin with the address of their thread. */
struct frame {
	const void *ours; /* the address of mark */
	struct walk *walk;
	struct us_state s;
	uint64_t sp;
	uint32_t n;    /* its number, from 0 */
	uint8_t exact; /* its program counter is no return address */
};

static const char mark;

/* What libdw 0.188 leaves in place: on x86-64, it takes rax, register 0, for rbx. */
#ifdef __x86_64__
#define DW_KEPT ((US_SAVED & ~US_BIT(3)) | US_BIT(0))
#else
#define DW_KEPT US_SAVED
#endif

/* How a step ends. */
enum step { STEPPED, END, LIBDW };

struct walk {
	struct dw_process *p;
	Dwfl_Thread *thread;
	int (*callback)(Dwfl_Frame *, void *);
	void *arg;
	struct frame at, next;
	int stepped; /* next has been made, by a look ahead */
	int signal;  /* at is a signal frame, then */
	uint32_t repaired; /* frames found without a rule */
	enum step how;
	struct us_moves moves;
	enum { NEW, PASSING, DONE } state;
	uint32_t skip; /* frames of libdw's that the program has got from here */
	int without_ra; /* the first frame has a program counter only */
	int result;
};

US_INLINE int load(void *ctx, uint64_t addr, uint64_t *to)
{
	struct walk *w = ctx;

	return dw_load(w->p, addr, to);
}

/* The module of an address; NULL where libdw knows none, or walks itself. *there: whether it knows one. */
static struct dw_module *module_of(struct dw_process *p, uint64_t at, int *there)
{
	Dwfl_Module *mod = dw_addrmodule(p, at);
	struct dw_module *m;

	*there = mod != NULL;
	if (!mod)
		return NULL;
	m = &p->module[p->last];
	if (m->mod != mod || p->last >= p->n_modules) {
		uint32_t i = 0, n = p->n_modules < DW_MODULES ? p->n_modules : DW_MODULES;

		while (i < n && p->module[i].mod != mod)
			i++;
		if (i == n) {
			i = p->n_modules++ % DW_MODULES;
			dw_module_open(&p->module[i], mod);
		}
		p->last = i;
		m = &p->module[i];
	}
	return m->file ? m : NULL;
}

/* The rule at an address. exact as in us_cache_get. */
static int rule_at(struct dw_process *p, uint64_t at, struct us_rule *r)
{
	int there;
	struct dw_module *m = module_of(p, at, &there);
	uint64_t pc;
	uint32_t space;

	if (!m)
		return US_NOT_FOUND;
	pc = at - m->bias;
	space = m->file->m->space;
	if (us_likely(us_cache_get(&us_cache, space, pc, 1, r)))
		return US_FOUND;
	if (us_module_rule(m->file->m, &m->file->t, DW_BIAS, pc, r) != US_FOUND)
		return US_NOT_FOUND;
	us_cache_put(&us_cache, space, pc, 1, r);
	return US_FOUND;
}

static int code(void *ctx, uint64_t at, uint8_t *to, uint32_t n)
{
	struct walk *w = ctx;
	int there;
	struct dw_module *m = module_of(w->p, at, &there);
	uint32_t i = 0;
	uint64_t v;

	if (m && dw_module_read(m, at, to, n))
		return 1;
	for (; n - i >= 8; i += 8) {
		if (!load(w, at + i, &v))
			return 0;
		memcpy(to + i, &v, 8);
	}
	if (i == n)
		return 1;
	if (load(w, at + i, &v)) {
		memcpy(to + i, &v, n - i);
		return 1;
	}
	if (!load(w, at + n - 8, &v)) /* the word that ends there */
		return 0;
	v >>= 64 - 8 * (n - i);
	memcpy(to + i, &v, n - i);
	return 1;
}

static int is_code(void *ctx, uint64_t at)
{
	struct walk *w = ctx;

	return at >= US_PAGE && at >> w->next.s.bits == 0;
}

static int has_rule(void *ctx, uint64_t at)
{
	struct walk *w = ctx;
	struct us_rule r;

	return rule_at(w->p, at, &r) == US_FOUND;
}

static const struct us_asks asks = {load, NULL, code, is_code, has_rule};

/* Whether the walk may go on to next. */
static int leads_on(struct walk *w, int exact)
{
	uint64_t cfa = w->at.sp;

	if (w->signal) {
		w->moves.low = w->next.sp;
		return 1;
	}
	if (us_likely(w->next.sp - cfa - 1 < UNSPOOL_MAX_PIECE) || (exact && w->next.sp == cfa))
		return 1;
	return us_move(&w->moves, cfa, w->next.sp, w->next.s.pc);
}

/* A step out of code without a rule, in libdw's place. It guesses by the frame pointer, and reports an error where the stack ends. */
static US_COLD enum step step_blind(struct walk *w, uint64_t at)
{
	struct us_blind b = {.s = &w->next.s, .sp = w->at.sp, .from = &asks, .ctx = w, .exact = w->at.exact};

	switch (us_step_blind(&b, at)) {
	case US_OK:
		break;
	case US_OUTERMOST:
		return END;
	default:
		return LIBDW;
	}
	w->repaired++;
	w->signal = w->next.exact = b.how == US_BY_SIGNAL;
	w->next.sp = w->next.s.cfa;
	if (!leads_on(w, w->at.exact))
		return END;
	return w->next.s.pc != 0 || w->next.exact ? STEPPED : END;
}

/* Makes the frame after at. */
static enum step step(struct walk *w)
{
	uint64_t at = w->at.s.pc - !w->at.exact;
	struct us_rule r;
	int o, alive;

	w->next = w->at;
	w->next.n++;
	w->signal = 0;
	if (us_unlikely(rule_at(w->p, at, &r) != US_FOUND))
		return strict ? LIBDW : step_blind(w, at);
	o = us_apply_with(&r, &w->next.s, load, NULL, w, strict ? DW_KEPT : US_SAVED);
	switch (o) {
	case US_OK:
		break;
	case US_OUTERMOST:
		return END;
	case US_UNREADABLE:
	case US_LOST_REGISTER: /* to libdw, the return address is undefined then; expressions differ in what they read */
		return strict && r.kind == US_KIND_WIDE ? LIBDW : END;
	default:
		return strict ? LIBDW : step_blind(w, at);
	}
	alive = w->at.exact && !(r.flags & US_SIGNAL);
	if (us_unlikely(alive) && !strict)
		us_restore(&w->next.s, &w->at.s, w->at.sp, load, w);
	w->next.sp = w->next.s.cfa;
	w->signal = w->next.exact = (r.flags & US_SIGNAL) != 0;
	if (!strict && us_unlikely(!leads_on(w, w->at.exact)))
		return END;
	return w->next.s.pc != 0 || (w->next.exact && !strict) ? STEPPED : END;
}

/* The same, once for each frame, unless libdw is to do it: then modules may be reported meanwhile. */
static enum step look_ahead(struct walk *w)
{
	if (!w->stepped) {
		w->how = step(w);
		w->stepped = w->how != LIBDW;
	}
	return w->how;
}

/* ---- Walks ---- */

/* Begins at a frame whose registers are in w->at.s.snap, those in known. Returns 0 where libdw is to walk. */
static int begin(struct walk *w, Dwfl_Thread *thread, uint64_t pc, us_set known)
{
	struct us_state *s = &w->at.s;
	int there;

	us_start(s, pc, 0);
	s->snap[US_PC] = pc;
	w->without_ra = !(known >> US_PC & 1);
	if (w->without_ra && strict) /* rules that ask for it are another matter */
		return 0;
	known |= US_BIT(US_PC);
	s->known = s->in_reg = known;
	if (!(known >> US_SP & 1))
		return 0;
	w->thread = thread;
	w->at.sp = s->snap[US_SP];
	w->at.ours = &mark;
	w->at.walk = w;
	w->at.exact = 1;
	w->moves.low = w->at.sp;
	/* Another machine's process has no module that is ours. */
	return module_of(w->p, pc, &there) || !there;
}

/* The same at libdw's first frame. */
static int begin_at(struct walk *w, Dwfl_Frame *first)
{
	Dwarf_Addr pc;
	us_set known = 0;

	if ((!US_RA_IS_PC && strict) || !dw_real.frame_pc(first, &pc, NULL)) /* what libdw's own steps are on AArch64 has not been judged */
		return 0;
	for (unsigned i = 0; i < US_SLOTS && i < 33; i++) {
		Dwarf_Word v;

		if (dw_real.frame_reg(first, i, &v) != 0)
			continue;
		w->at.s.snap[i] = v;
		known |= US_BIT(i);
	}
	return begin(w, dw_real.frame_thread(first), pc, known);
}

/* Walks from the first frame. Returns 0 where libdw is to go on: its frames up to this one the program has had. */
static int walk(struct walk *w)
{
	for (;;) {
		int r = w->callback((Dwfl_Frame *)(void *)&w->at, w->arg);

		if (r != DWARF_CB_OK) {
			w->result = r;
			break;
		}
		if (look_ahead(w) == LIBDW) {
			w->skip = w->at.n;
			return 0;
		}
		if (w->how == END)
			break;
		w->at = w->next;
		w->stepped = 0;
	}
	w->state = DONE;
	return 1;
}

/* libdw's callback. */
static int each(Dwfl_Frame *f, void *arg)
{
	struct walk *w = arg;

	if (w->state == NEW) {
		w->state = PASSING;
		if (!begin_at(w, f))
			return w->callback(f, w->arg);
		return walk(w) ? DWARF_CB_ABORT : DWARF_CB_OK;
	}
	if (w->skip > 0) {
		w->skip--;
		return DWARF_CB_OK;
	}
	return w->callback(f, w->arg);
}

/* After libdw's walk. */
static int result(struct walk *w, int r)
{
	w->p->n_pages = w->p->next_page = 0; /* the process runs on */
	add(&counts.walks, 1);
	add(&counts.frames, w->at.n + (w->at.ours != NULL));
	add(&counts.repaired, w->repaired);
	add(&counts.given, w->state == PASSING);
	return w->state == DONE ? w->result : r;
}

/* ---- Threads ---- */

/* The thread of a Dwfl that is attached by promise. libdw's own begin with the address of their process. */
struct thread {
	const void *ours; /* the address of thread_mark */
	struct dw_process *p;
	pid_t tid;
	bool bad;    /* libdw is to say what is wrong with its registers */
	bool has_pc; /* the program counter has been set apart */
	uint64_t pc;
	us_set known;
	struct us_state *to;
};

static const char thread_mark;

static struct thread *own_thread(Dwfl_Thread *t)
{
	struct thread *o = (struct thread *)(void *)t;

	return o->ours == &thread_mark ? o : NULL;
}

DW_API pid_t dwfl_thread_tid(Dwfl_Thread *t)
{
	struct thread *o = own_thread(t);

	return o ? o->tid : dw_functions()->thread_tid(t);
}

DW_API Dwfl *dwfl_thread_dwfl(Dwfl_Thread *t)
{
	struct thread *o = own_thread(t);

	return o ? o->p->dwfl : dw_functions()->thread_dwfl(t);
}

DW_API void dwfl_thread_state_register_pc(Dwfl_Thread *t, Dwarf_Word pc)
{
	struct thread *o = own_thread(t);

	if (!o) {
		dw_functions()->thread_state_register_pc(t, pc);
		return;
	}
	o->pc = pc;
	o->has_pc = true;
}

DW_API bool dwfl_thread_state_registers(Dwfl_Thread *t, int first, unsigned n, const Dwarf_Word *regs)
{
	struct thread *o = own_thread(t);

	if (!o)
		return dw_functions()->thread_state_registers(t, first, n, regs);
	if (first < 0 || (unsigned)first > US_RA || n > US_RA + 1 - (unsigned)first) {
		o->bad = true;
		return false;
	}
	for (unsigned i = 0; i < n; i++) {
		o->to->snap[(unsigned)first + i] = regs[i];
		o->known |= US_BIT((unsigned)first + i);
	}
	return true;
}

/* Asks the program for a thread and its first frame. Returns 0 where libdw is to ask, too. */
static int first_frame(struct walk *w, struct thread *t, void **arg)
{
	struct dw_process *p = w->p;
	const Dwfl_Thread_Callbacks *c = p->callbacks;

	if (c->get_thread) {
		if (!c->get_thread(p->dwfl, t->tid, p->arg, arg))
			return 0;
	} else {
		pid_t tid;

		do {
			tid = c->next_thread(p->dwfl, p->arg, arg);
			if (tid <= 0)
				return 0;
		} while (tid != t->tid);
	}
	if (!c->set_initial_registers((Dwfl_Thread *)(void *)t, *arg) || t->bad || !p->promised)
		return 0;
	/* Without a program counter of its own, libdw takes the return address's register. */
	if (!t->has_pc && !(t->known >> US_RA & 1))
		return 0;
	return begin(w, (Dwfl_Thread *)(void *)t, t->has_pc ? t->pc : w->at.s.snap[US_RA], t->known);
}

/* Walks a thread of a Dwfl that is attached by promise. */
static int walk_promised(struct walk *w, pid_t tid)
{
	struct thread t = {.ours = &thread_mark, .p = w->p, .tid = tid, .to = &w->at.s};
	Dwfl *dwfl = w->p->dwfl;
	void *arg = NULL;

	w->state = PASSING;
	if (!first_frame(w, &t, &arg)) {
		w->at.ours = NULL;
	} else if (walk(w)) {
		return w->result;
	} else {
		w->skip++; /* the first frame, too */
	}
	dw_whole(dwfl);
	return dw_real.getthread_frames(dwfl, tid, each, w);
}

DW_API int dwfl_thread_getframes(Dwfl_Thread *thread, int (*callback)(Dwfl_Frame *, void *), void *arg)
{
	struct dw_process *p;
	struct walk w;

	if (own_thread(thread)) /* it is being walked */
		return -1;
	p = dw_process(dw_functions()->thread_dwfl(thread));
	if (!p || !p->attached)
		return dw_real.thread_getframes(thread, callback, arg);
	memset(&w, 0, sizeof w);
	w.p = p;
	w.callback = callback;
	w.arg = arg;
	return result(&w, dw_real.thread_getframes(thread, each, &w));
}

DW_API int dwfl_getthread_frames(Dwfl *dwfl, pid_t tid, int (*callback)(Dwfl_Frame *, void *), void *arg)
{
	struct dw_process *p = dw_process(dwfl);
	struct walk w;

	if (!p || !p->attached)
		return dw_functions()->getthread_frames(dwfl, tid, callback, arg);
	memset(&w, 0, sizeof w);
	w.p = p;
	w.callback = callback;
	w.arg = arg;
	return result(&w, p->promised ? walk_promised(&w, tid) : dw_real.getthread_frames(dwfl, tid, each, &w));
}

/* The frame, if it is one of ours. */
static struct frame *own(Dwfl_Frame *f)
{
	struct frame *o = (struct frame *)(void *)f;

	return o->ours == &mark ? o : NULL;
}

DW_API bool dwfl_frame_pc(Dwfl_Frame *f, Dwarf_Addr *pc, bool *activation)
{
	struct frame *o = own(f);

	if (!o)
		return dw_functions()->frame_pc(f, pc, activation);
	*pc = o->s.pc;
	if (activation)
		*activation = o->exact || (look_ahead(o->walk) == STEPPED && o->walk->signal);
	return true;
}

DW_API int dwfl_frame_reg(Dwfl_Frame *f, unsigned n, Dwarf_Word *to)
{
	struct frame *o = own(f);
	uint64_t v;

	if (!o)
		return dw_functions()->frame_reg ? dw_real.frame_reg(f, n, to) : -1;
	if (n >= US_SLOTS)
		return -1;
	if ((n == US_PC && o->n == 0 && o->walk->without_ra) || us_get_with(&o->s, n, load, NULL, o->walk, &v) != US_OK)
		return 1;
	*to = v;
	return 0;
}

DW_API Dwfl_Thread *dwfl_frame_thread(Dwfl_Frame *f)
{
	struct frame *o = own(f);

	return o ? o->walk->thread : dw_functions()->frame_thread(f);
}
