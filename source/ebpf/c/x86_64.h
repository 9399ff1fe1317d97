/* SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0) */
/* x86_64.h: what the kernel has on x86-64: registers, the context of perf events, system calls. Part of unspool.bpf.c. */

#include <linux/bpf_perf_event.h>

#define CTX_PC(ctx) (ctx)->regs.rip
#define CTX_IN_KERNEL(ctx) !((ctx)->regs.cs & 3)

/* As the kernel has it: <asm/ptrace.h> is user space's. */
struct pt_regs___kernel {
	unsigned long r15, r14, r13, r12, bp, bx, r11, r10, r9, r8, ax, cx, dx, si, di, orig_ax, ip;
	unsigned short cs;
	unsigned long flags, sp;
} __attribute__((preserve_access_index));

/* Fills w's registers. Returns 0 where they are of 32-bit code. */
static __always_inline int registers_in(struct walk *w, struct pt_regs___kernel *regs)
{
#define REG(r) (has_regs ? regs->r : BPF_CORE_READ(regs, r))
	if (REG(cs) != 0x33)
		return 0;
	w->val[UNSPOOL_X86_64_REG_RAX] = REG(ax);
	w->val[UNSPOOL_X86_64_REG_RDX] = REG(dx);
	w->val[UNSPOOL_X86_64_REG_RCX] = REG(cx);
	w->val[UNSPOOL_X86_64_REG_RBX] = REG(bx);
	w->val[UNSPOOL_X86_64_REG_RSI] = REG(si);
	w->val[UNSPOOL_X86_64_REG_RDI] = REG(di);
	w->val[UNSPOOL_X86_64_REG_RBP] = REG(bp);
	w->val[UNSPOOL_X86_64_REG_RSP] = REG(sp);
	w->val[UNSPOOL_X86_64_REG_R8] = REG(r8);
	w->val[UNSPOOL_X86_64_REG_R9] = REG(r9);
	w->val[UNSPOOL_X86_64_REG_R10] = REG(r10);
	w->val[UNSPOOL_X86_64_REG_R11] = REG(r11);
	w->val[UNSPOOL_X86_64_REG_R12] = REG(r12);
	w->val[UNSPOOL_X86_64_REG_R13] = REG(r13);
	w->val[UNSPOOL_X86_64_REG_R14] = REG(r14);
	w->val[UNSPOOL_X86_64_REG_R15] = REG(r15);
	w->val[UNSPOOL_X86_64_REG_RIP] = REG(ip);
	return 1;
}

/* The system call that ends, and its third argument. */
static __always_inline void call_of(struct pt_regs___kernel *regs, u64 *call, u64 *third)
{
	*call = regs->orig_ax;
	*third = regs->dx;
}
