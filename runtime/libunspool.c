/* SPDX-License-Identifier: Apache-2.0 */
/* libunspool.c: see libunspool.h. */
#define _GNU_SOURCE
#include "libunspool.h"
#include "abi.h"
#include "edge.h"
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

/*
 * Whether nothing but the return address can be on the stack yet at pc, where there is no call frame information: in a
 * stub of the linkage table (jmp *x(%rip); push $n; jmp), or where there is no code.
 */
static uint32_t just_called(struct process *p, uint64_t pc)
{
	uint8_t b[16];

	if (!read_process(p, pc, b, sizeof b))
		return UNSPOOL_BAD_CALL;
	return b[0] == 0xff && b[1] == 0x25 && b[6] == 0x68 && b[11] == 0xe9 ? UNSPOOL_PLT : UNSPOOL_FIRST;
}

/* The same at the beginning or the end of a function: where it says that its return address is, and its caller's frame pointer. */
static int at_edge(struct process *p, uint64_t pc, struct unspool_edge *e)
{
	e->n = UNSPOOL_EDGE_BYTES;
	if (!read_process(p, pc, e->code, e->n)) {
		e->n = 4096 - (uint32_t)(pc & 4095); /* up to the end of the page */
		if (e->n >= UNSPOOL_EDGE_BYTES || !read_process(p, pc, e->code, e->n))
			return 0;
	}
	if (!read_process(p, pc - 1, &e->last, 1))
		e->last = 0;
	return unspool_edge(e);
}

/* Whether the frame pointer is the caller's, whose address behind its call is the word at the stack pointer, then *top. */
static int leaf(struct process *p, struct us_state *s, uint64_t sp, uint64_t *top)
{
	uint64_t rbp, ra, code;

	return us_get_with(s, US_RBP, load, NULL, p, &rbp) == US_OK && rbp >= sp && rbp - sp <= 0x4000 && load(p, rbp + 8, &ra) &&
	       load(p, ra - 8, &code) && load(p, sp, top) && unspool_leaf(s->pc, ra, code, *top) && load(p, *top - 8, &code) && unspool_after_call(code);
}

static int walk_process(struct process *p, const struct user_regs_struct *u, struct unspool_frame *f, int max, enum unspool_stop *stop)
{
	const uint64_t regs[US_SLOTS] = {u->rax, u->rdx, u->rcx, u->rbx, u->rsi, u->rdi, u->rbp, u->rsp, u->r8,
					 u->r9, u->r10, u->r11, u->r12, u->r13, u->r14, u->r15, u->rip};
	struct us_mem mem = {load, NULL, p};
	uint32_t how = UNSPOOL_FIRST;
	uint64_t sp = u->rsp, rbp, ra, code;
	struct unspool_edge edge;
	struct us_state s;
	struct us_rule r;
	int n = 0, exact = 1, o;

	us_start(&s, u->rip, US_ALL);
	memcpy(s.snap, regs, sizeof regs);
	*stop = UNSPOOL_MAX;
	while (n < max) {
		f[n++] = (struct unspool_frame){s.pc, sp, how, 0};
		if (find_rule(p, s.pc - !exact, &r) == US_FOUND && !(exact && r.flags & US_SYNC_ONLY)) {
			o = us_apply(&r, &s, &mem, US_SAVED);
			if (o != US_OK) {
				*stop = o == US_OUTERMOST ? UNSPOOL_OUTERMOST : o == US_UNREADABLE ? UNSPOOL_UNREADABLE : UNSPOOL_BAD_FRAME;
				break;
			}
			exact = r.flags & US_SIGNAL;
			how = exact ? UNSPOOL_SIGNAL : UNSPOOL_CFI;
			if (!exact && s.cfa <= sp && n > 1) {
				*stop = UNSPOOL_BAD_FRAME;
				break;
			}
			sp = s.cfa;
		} else if (exact && (how = just_called(p, s.pc)) != UNSPOOL_FIRST && load(p, sp, &ra) && load(p, ra, &rbp)) {
			s.known |= 1u << US_RSP | 1u << US_RA;
			s.in_mem &= ~(1u << US_RSP | 1u << US_RA);
			s.in_reg &= ~(1u << US_RSP | 1u << US_RA);
			s.val[US_RSP] = s.cfa = sp += 8;
			s.val[US_RA] = s.pc = ra;
			exact = 0;
		} else if (edge = (struct unspool_edge){.n = 0}, exact && at_edge(p, s.pc, &edge) && load(p, sp + (uint64_t)edge.off, &ra) &&
			   load(p, ra - 8, &code) && unspool_after_call(code)) {
			s.known &= US_SAVED;
			s.known |= 1u << US_RSP | 1u << US_RA;
			s.in_mem &= ~(1u << US_RSP | 1u << US_RA);
			s.in_reg &= ~(1u << US_RSP | 1u << US_RA);
			if (edge.fp >= 0) {
				s.known |= 1u << US_RBP;
				s.in_mem |= 1u << US_RBP;
				s.in_reg &= ~(1u << US_RBP);
				s.val[US_RBP] = sp + (uint64_t)edge.fp;
			}
			s.val[US_RSP] = s.cfa = sp += (uint64_t)edge.off + 8;
			s.val[US_RA] = s.pc = ra;
			exact = 0;
			how = UNSPOOL_BAD_CALL;
		} else if (exact && leaf(p, &s, sp, &ra)) {
			s.known = (s.known & US_SAVED) | 1u << US_RSP | 1u << US_RA;
			s.in_mem &= ~(1u << US_RSP | 1u << US_RA);
			s.in_reg &= ~(1u << US_RSP | 1u << US_RA);
			s.val[US_RSP] = s.cfa = sp += 8;
			s.val[US_RA] = s.pc = ra;
			exact = 0;
			how = UNSPOOL_BAD_CALL;
		} else {
			/* For want of information: the frame pointer, if it leads up the stack. */
			if (us_get_with(&s, US_RBP, load, NULL, p, &rbp) != US_OK || rbp < sp || rbp - sp > 0x4000 || !load(p, rbp + 8, &ra) || ra == 0) {
				*stop = UNSPOOL_NO_INFO;
				break;
			}
			s.known = 1u << US_RBP | 1u << US_RSP | 1u << US_RA;
			s.in_mem = 1u << US_RBP;
			s.in_reg = 0;
			s.val[US_RBP] = rbp;
			s.val[US_RSP] = s.cfa = sp = rbp + 16;
			s.val[US_RA] = s.pc = ra;
			exact = 0;
			how = UNSPOOL_FRAME_POINTER;
		}
		if (s.pc == 0 && !exact) {
			*stop = UNSPOOL_OUTERMOST;
			break;
		}
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
	struct user_regs_struct regs;
	struct process p = {tid};
	int status, n = -1, e;

	if (ptrace(PTRACE_SEIZE, tid, 0, 0) != 0)
		return -1;
	if (ptrace(PTRACE_INTERRUPT, tid, 0, 0) == 0 && stopped(tid, &status)) {
		if (ptrace(PTRACE_GETREGS, tid, 0, &regs) == 0)
			n = walk_process(&p, &regs, f, max, &why);
		e = errno;
		/* A signal that arrived instead of the stop is passed on. */
		ptrace(PTRACE_DETACH, tid, 0, status >> 16 ? 0 : WSTOPSIG(status));
		errno = e;
	}
	if (stop)
		*stop = why;
	return n;
}
