/* SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0) */
/* aarch64.h: what the kernel has on AArch64: registers, the context of perf events, system calls. Part of unspool.bpf.c. */

/* struct user_pt_regs (asm/ptrace.h) and struct bpf_perf_event_data (linux/bpf_perf_event.h): part of the kernel's interface. */
struct user_regs {
	u64 regs[REGS], pstate; /* x0 to x30, sp, pc */
};

struct bpf_perf_event_data {
	struct user_regs regs;
	u64 sample_period, addr;
};

#define PSTATE_MODE 0xf	/* the exception level and stack; 0: user space */
#define PSTATE_32 0x10	/* AArch32 */

#define CTX_PC(ctx) (ctx)->regs.regs[SLOT_PC]
#define CTX_IN_KERNEL(ctx) (((ctx)->regs.pstate & PSTATE_MODE) != 0)

/* It begins with struct user_pt_regs. */
struct pt_regs___kernel {
	s32 syscallno;
} __attribute__((preserve_access_index));

/* Fills w's registers. Returns 0 where they are of 32-bit code. */
static __always_inline int registers_in(struct walk *w, struct pt_regs___kernel *regs)
{
	u64 pstate;

	if (bpf_probe_read_kernel(&pstate, 8, &((struct user_regs *)regs)->pstate) != 0 || pstate & PSTATE_32)
		return 0;
	return bpf_probe_read_kernel(w->val, 8 * REGS, regs) == 0;
}

/* The system call that ends, and its third argument. */
static __always_inline void call_of(struct pt_regs___kernel *regs, u64 *call, u64 *third)
{
	*call = (u64)(s64)BPF_CORE_READ(regs, syscallno);
	if (bpf_probe_read_kernel(third, 8, &((struct user_regs *)regs)->regs[2]) != 0)
		*third = 0;
}
