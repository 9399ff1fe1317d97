/* SPDX-License-Identifier: Apache-2.0 */
/* libunspool.c: see libunspool.h. */
#define _GNU_SOURCE
#include "libunspool.h"
#include "abi.h"
#include "local.h"
#include "module.h"

#include <elf.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/uio.h>
#include <sys/user.h>
#include <sys/wait.h>

static enum unspool_stop stop_of(int r)
{
	switch (r) {
	case US_END:
		return UNSPOOL_OUTERMOST;
	case -UNW_EINVAL:
		return UNSPOOL_UNREADABLE;
	}
	return UNSPOOL_BAD_FRAME;
}

static uint32_t how_of(enum us_how how)
{
	return how == US_BY_SIGNAL ? UNSPOOL_SIGNAL : how == US_BY_PLT ? UNSPOOL_PLT : how == US_BY_POINTER ? UNSPOOL_FRAME_POINTER :
	       how == US_BY_CALL ? UNSPOOL_BAD_CALL : UNSPOOL_CFI;
}

US_API int unspool_backtrace_context(const ucontext_t *uc, int in_signal, struct unspool_frame *f, int max, enum unspool_stop *stop)
{
	enum unspool_stop why = UNSPOOL_MAX;
	enum us_how how = US_BY_CFI;
	struct us_walk w;
	int n = 0, r;

	us_walk_context(&w, (uint64_t)uc, in_signal != 0);
	w.saved_only = 1;
	while (n < max) {
		f[n] = (struct unspool_frame){w.s.pc, w.sp, n ? how_of(how) : UNSPOOL_FIRST, 0};
		n++;
		r = us_walk_step(&w, &how);
		if (r <= 0 || w.s.pc == 0) {
			why = r == US_END && w.s.pc ? UNSPOOL_NO_INFO : r > 0 ? UNSPOOL_OUTERMOST : stop_of(r);
			break;
		}
	}
	if (stop)
		*stop = why;
	return n;
}

US_API int unspool_name(uint64_t pc, char *name, size_t size, uint64_t *offset)
{
	struct us_loaded *m = us_loaded_at(pc);
	struct us_symbol s;

	if (!m || !us_symbol_at(m, pc, &s) || size == 0)
		return -1;
	snprintf(name, size, "%s", s.name);
	if (offset)
		*offset = pc - s.lo;
	return 0;
}

/* ---- Other processes ---- */

struct process {
	pid_t pid;
};

static int read_process(void *ctx, uint64_t addr, void *to, size_t n)
{
	struct process *p = ctx;
	struct iovec local = {to, n}, remote = {(void *)addr, n};

	if (process_vm_readv(p->pid, &local, 1, &remote, 1, 0) == (ssize_t)n)
		return 1;
	if (errno == EFAULT)
		return 0;
	for (size_t at = 0; at < n; at += 8) { /* it is forbidden, or not all is there */
		long v;

		errno = 0;
		v = ptrace(PTRACE_PEEKDATA, p->pid, (void *)(addr + at), NULL);
		if (errno)
			return 0;
		memcpy((uint8_t *)to + at, &v, n - at < 8 ? n - at : 8);
	}
	return 1;
}

static int load(void *ctx, uint64_t addr, uint64_t *to)
{
	uint64_t v;

	if (!read_process(ctx, addr, &v, 8))
		return 0;
	*to = v;
	return 1;
}

/* Finds the mapping of pc, and in its file's headers, as they are in memory, where .eh_frame_hdr is; 0 for nowhere. */
static uint64_t find_hdr(struct process *p, uint64_t pc)
{
	char name[64], line[4400], file[4097], last[4097] = "";
	unsigned long lo, hi, off;
	uint64_t start = 0, hdr = 0;
	FILE *f;

	snprintf(name, sizeof name, "/proc/%d/maps", (int)p->pid);
	f = fopen(name, "re");
	if (!f)
		return 0;
	while (fgets(line, sizeof line, f)) {
		file[0] = 0;
		if (sscanf(line, "%lx-%lx %*s %lx %*s %*s %4096[^\n]", &lo, &hi, &off, file) < 3)
			continue;
		if (off == 0 && (strcmp(file, last) || file[0] == 0 || pc < hi))
			if (start == 0 || strcmp(file, last) || pc >= hi || pc >= lo)
				start = lo;
		snprintf(last, sizeof last, "%s", file);
		if (pc >= lo && pc < hi) {
			Elf64_Ehdr e;
			Elf64_Phdr ph;
			uint64_t first = UINT64_MAX, eh = 0;

			if (!read_process(p, start, &e, sizeof e) || memcmp(e.e_ident, ELFMAG, SELFMAG) || e.e_phentsize != sizeof ph)
				break;
			for (unsigned i = 0; i < e.e_phnum && i < 64; i++) {
				if (!read_process(p, start + e.e_phoff + i * sizeof ph, &ph, sizeof ph))
					break;
				if (ph.p_type == PT_LOAD && ph.p_vaddr < first)
					first = ph.p_vaddr & -(uint64_t)4096;
				if (ph.p_type == PT_GNU_EH_FRAME)
					eh = ph.p_vaddr;
			}
			if (eh && first != UINT64_MAX)
				hdr = start - first + eh;
			break;
		}
	}
	fclose(f);
	return hdr;
}

static int find_rule(struct process *p, uint64_t pc, struct us_rule *r)
{
	struct us_target t = {read_process, p};
	uint64_t bias, hdr = find_hdr(p, pc);
	struct us_module *m = hdr ? us_module_at(&t, hdr, &bias, 0) : NULL;

	return m ? us_module_rule(m, &t, bias, pc - bias, r) : US_NOT_FOUND;
}

static int code(void *ctx, uint64_t at, uint8_t *to, uint32_t n)
{
	return read_process(ctx, at, to, n);
}

static int is_code(void *ctx, uint64_t at)
{
	struct process *p = ctx;
	char name[64], line[4400], x;
	unsigned long lo, hi;
	int found = 0;
	FILE *f;

	snprintf(name, sizeof name, "/proc/%d/maps", (int)p->pid);
	f = fopen(name, "re");
	if (!f)
		return 0;
	while (!found && fgets(line, sizeof line, f))
		found = sscanf(line, "%lx-%lx %*c%*c%c", &lo, &hi, &x) == 3 && x == 'x' && lo <= at && at < hi;
	fclose(f);
	return found;
}

static int has_rule(void *ctx, uint64_t at)
{
	struct us_rule r;

	return find_rule(ctx, at, &r) == US_FOUND;
}

/* A stopped thread's registers by slot, those that are in known, and how many bits its addresses have. */
struct thread {
	uint64_t regs[US_SLOTS];
	us_set known;
	uint32_t bits;
};

static int read_registers(pid_t tid, struct thread *t)
{
	struct user_regs_struct u;
	struct iovec iov = {&u, sizeof u};

	if (ptrace(PTRACE_GETREGSET, tid, (void *)NT_PRSTATUS, &iov) != 0)
		return 0;
	if (iov.iov_len != sizeof u) { /* a program of 32 bits */
		errno = ENOEXEC;
		return 0;
	}
	memset(t, 0, sizeof *t);
	t->bits = US_SIGNED_BITS;
#ifdef __x86_64__
	const uint64_t regs[US_SLOTS] = {u.rax, u.rdx, u.rcx, u.rbx, u.rsi, u.rdi, u.rbp, u.rsp, u.r8, u.r9, u.r10, u.r11, u.r12, u.r13, u.r14, u.r15, u.rip};

	memcpy(t->regs, regs, sizeof regs);
	t->known = US_ALL;
#else
	uint64_t pac[2]; /* which bits of addresses sign data, and code */

	memcpy(t->regs, u.regs, sizeof u.regs);
	t->regs[US_SP] = u.sp;
	t->regs[US_PC] = u.pc;
	t->known = US_IN_FRAME;
	iov = (struct iovec){pac, sizeof pac};
	if (ptrace(PTRACE_GETREGSET, tid, (void *)NT_ARM_PAC_MASK, &iov) == 0 && pac[1])
		t->bits = (uint32_t)__builtin_ctzll(pac[1]);
#endif
	return 1;
}

static int walk_process(struct process *p, const struct thread *t, struct unspool_frame *f, int max, enum unspool_stop *stop)
{
	static const struct us_asks asks = {load, NULL, code, is_code, has_rule};
	struct us_mem mem = {load, NULL, p};
	struct us_moves moves = {t->regs[US_SP], 0, 0, 0, 0};
	uint32_t how = UNSPOOL_FIRST;
	uint64_t sp = t->regs[US_SP];
	struct us_state s, was;
	struct us_rule r, before;
	int n = 0, exact = 1, o;

	us_start(&s, t->regs[US_PC], t->known);
	s.bits = t->bits;
	memcpy(s.snap, t->regs, sizeof t->regs);
	*stop = UNSPOOL_MAX;
	while (n < max) {
		struct us_blind b = {.s = &s, .sp = sp, .from = &asks, .ctx = p, .exact = exact};
		int place = !exact && us_is_place(&b), begins = 0;
		uint64_t at = s.pc - (!exact && !place);

		f[n++] = (struct unspool_frame){s.pc, sp, how, 0};
		if (find_rule(p, at, &r) == US_FOUND && !((exact || place) && r.flags & US_SYNC_ONLY) &&
		    !(place && !(r.flags & US_SIGNAL) && us_is_sigreturn(&b))) {
			begins = place && (find_rule(p, at - 1, &before) != US_FOUND || memcmp(&r, &before, sizeof r) != 0);
			was = s;
			o = us_apply(&r, &s, &mem, US_SAVED);
			if (o == US_OK && exact && !(r.flags & US_SIGNAL))
				us_restore(&s, &was, sp, load, p);
			how = r.flags & US_SIGNAL ? UNSPOOL_SIGNAL : UNSPOOL_CFI;
		} else {
			o = us_step_blind(&b, at);
			how = how_of(b.how);
			if (o == US_NO_RULE || o == US_LOST_REGISTER) {
				*stop = UNSPOOL_NO_INFO;
				break;
			}
		}
		if (o != US_OK) {
			*stop = o == US_OUTERMOST ? UNSPOOL_OUTERMOST : o == US_UNREADABLE ? UNSPOOL_UNREADABLE : UNSPOOL_BAD_FRAME;
			break;
		}
		if (how == UNSPOOL_SIGNAL) {
			exact = 1;
			moves.low = s.cfa;
		} else if ((s.pc == 0 && !exact) || (begins && !is_code(p, s.pc - 1))) {
			*stop = UNSPOOL_OUTERMOST;
			break;
		} else if (s.cfa - sp - 1 >= UNSPOOL_MAX_PIECE && !(exact && s.cfa == sp) && !us_move(&moves, sp, s.cfa, s.pc)) {
			*stop = UNSPOOL_BAD_FRAME;
			break;
		} else {
			exact = 0;
		}
		sp = s.cfa;
	}
	return n;
}

/* Waits until a thread stops; a signal that arrives here meanwhile changes nothing. */
static int stopped(pid_t tid, int *status)
{
	pid_t got;

	do
		got = waitpid(tid, status, __WALL);
	while (got < 0 && errno == EINTR);
	if (got == tid && !WIFSTOPPED(*status))
		errno = ESRCH;
	return got == tid && WIFSTOPPED(*status);
}

US_API int unspool_backtrace_thread(pid_t tid, struct unspool_frame *f, int max, enum unspool_stop *stop)
{
	enum unspool_stop why = UNSPOOL_NO_INFO;
	struct process p = {tid};
	struct thread t;
	int status, n = -1, e;

	if (ptrace(PTRACE_SEIZE, tid, 0, 0) != 0)
		return -1;
	if (ptrace(PTRACE_INTERRUPT, tid, 0, 0) == 0 && stopped(tid, &status)) {
		if (read_registers(tid, &t))
			n = walk_process(&p, &t, f, max, &why);
		e = errno;
		/* A signal that arrived instead of the stop is passed on. */
		ptrace(PTRACE_DETACH, tid, 0, status >> 16 ? 0 : WSTOPSIG(status));
		errno = e;
	}
	if (stop)
		*stop = why;
	return n;
}
