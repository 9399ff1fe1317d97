// SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0)
/*
 * unspool.bpf.c: the kernel's program. It is attached to perf events: at each, it walks the user stack of the task that runs
 * and writes it, with the kernel's stack, to a ring buffer. User space keeps tables and address spaces up to date.
 * Linux 6.1 and later.
 */
#include <linux/bpf.h>
#include <linux/bpf_perf_event.h>
#include <bpf/bpf_helpers.h>

typedef __u8 u8;
typedef __u16 u16;
typedef __u32 u32;
typedef __u64 u64;
typedef __s8 s8;
typedef __s16 s16;
typedef __s32 s32;
typedef __s64 s64;

#define UNSPOOL_NO_STDINT
typedef u8 uint8_t;
typedef u16 uint16_t;
typedef u32 uint32_t;
typedef u64 uint64_t;
typedef s8 int8_t;
typedef s16 int16_t;
typedef s32 int32_t;
typedef s64 int64_t;
#include "unspool_table.h"

#define PART __attribute__((noinline))

struct walk;
struct range;
static struct walk *walk_state(void);
static const u8 *walk_value(u32 table, u32 k);
static const struct range *walk_range(u32 space, u64 i);
static int walk_read(void *to, u32 n, u64 addr);
#define walk_loop(n, f, ctx) bpf_loop(n, f, ctx, 0)

#include "walk.h"

#define MAX_TABLES 16384
#define RING_SIZE (1 << 22)
#define RANGES_PER_VALUE 32

/* ---- Maps ---- */

struct range_block {
	struct range r[RANGES_PER_VALUE];
};

/* One table: VALUE_SIZE bytes a value. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, MAX_TABLES);
	__type(key, u32);
	__array(values, struct {
		__uint(type, BPF_MAP_TYPE_ARRAY);
		__uint(map_flags, BPF_F_INNER_MAP);
		__uint(max_entries, 1);
		__uint(key_size, sizeof(u32));
		__uint(value_size, VALUE_SIZE);
	});
} tables SEC(".maps");

/*
 * The ranges of address spaces, by the space's number in the upper half and the block's. A hash, because a change of a map of
 * maps waits for all programs that run.
 */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1 << 20);
	__type(key, u64);
	__type(value, struct range_block);
} spaces SEC(".maps");

/* Processes: which space, and how many ranges it has. */
struct process {
	u32 space, n_ranges;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1 << 20);
	__type(key, u32);
	__type(value, struct process);
} processes SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, RING_SIZE);
} stacks SEC(".maps");

/* What happened to samples: lost, because the ring buffer was full or an event interrupted the program; in code that is not known to be mapped yet. */
enum { RING_FULL, NESTED, UNKNOWN, NUM_COUNTERS };

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, NUM_COUNTERS);
	__type(key, u32);
	__type(value, u64);
} counters SEC(".maps");

/* The walk of a processor. */
struct room {
	u32 busy, pad; /* an event can interrupt another one's program */
	struct walk w;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct room);
} rooms SEC(".maps");

/* ---- What the walk needs ---- */

static __always_inline struct room *room(void)
{
	u32 zero = 0;

	return bpf_map_lookup_elem(&rooms, &zero);
}

static __always_inline struct walk *walk_state(void)
{
	struct room *r = room();

	return r ? &r->w : NULL;
}

static __always_inline const u8 *walk_value(u32 table, u32 k)
{
	void *inner = bpf_map_lookup_elem(&tables, &table);

	return inner ? bpf_map_lookup_elem(inner, &k) : NULL;
}

static __always_inline const struct range *walk_range(u32 space, u64 i)
{
	u64 k = (u64)space << 32 | i / RANGES_PER_VALUE;
	struct range_block *b = bpf_map_lookup_elem(&spaces, &k);

	return b ? &b->r[i & (RANGES_PER_VALUE - 1)] : NULL;
}

static __always_inline int walk_read(void *to, u32 n, u64 addr)
{
	return bpf_probe_read_user(to, n, (const void *)addr);
}

/* ---- The program ---- */

struct task_struct {
	unsigned int flags;
} __attribute__((preserve_access_index));

#define PF_KTHREAD 0x00200000
#define PF_IO_WORKER 0x00000010

static __always_inline void count(u32 what)
{
	u64 *n = bpf_map_lookup_elem(&counters, &what);

	if (n)
		*n += 1;
}

/* Fills w's registers with those of user space. Returns 0 where there are none, or they are of 32-bit code. */
static __always_inline int registers(struct walk *w)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct pt_regs regs;

	if (task->flags & (PF_KTHREAD | PF_IO_WORKER))
		return 0;
	if (bpf_probe_read_kernel(&regs, sizeof regs, (void *)bpf_task_pt_regs(task)) != 0)
		return 0;
	if (regs.cs != 0x33)
		return 0;
	w->val[0] = regs.rax;
	w->val[1] = regs.rdx;
	w->val[2] = regs.rcx;
	w->val[3] = regs.rbx;
	w->val[4] = regs.rsi;
	w->val[5] = regs.rdi;
	w->val[6] = regs.rbp;
	w->val[7] = regs.rsp;
	w->val[8] = regs.r8;
	w->val[9] = regs.r9;
	w->val[10] = regs.r10;
	w->val[11] = regs.r11;
	w->val[12] = regs.r12;
	w->val[13] = regs.r13;
	w->val[14] = regs.r14;
	w->val[15] = regs.r15;
	w->val[16] = regs.rip;
	return 1;
}

volatile const u32 pass; /* let the event write its own sample, too */

SEC("perf_event")
int on_event(struct bpf_perf_event_data *ctx)
{
	u64 id = bpf_get_current_pid_tgid(), ip = ctx->regs.rip, flags;
	u32 pid = (u32)(id >> 32), n;
	struct process *p;
	struct room *r = room();
	long k;

	if (!r || r->busy) {
		count(NESTED);
		return pass;
	}
	r->busy = 1;
	r->w.s.time = bpf_ktime_get_ns();
	r->w.s.period = ctx->sample_period;
	r->w.s.ip = ip;
	r->w.s.pid = pid;
	r->w.s.tid = (u32)id;
	r->w.s.cpu = bpf_get_smp_processor_id();
	r->w.n = 0;
	r->w.stop = STOP_NO_STACK;
	if (registers(&r->w)) {
		p = bpf_map_lookup_elem(&processes, &pid);
		walk(&r->w, p ? p->space : 0, p ? p->n_ranges : 0);
		if (r->w.n == 1 && r->w.range.kind == 0)
			count(UNKNOWN);
	}
	n = r->w.n;
	if (n > MAX_FRAMES)
		n = MAX_FRAMES;
	r->w.s.n_user = n;
	r->w.s.stop = r->w.stop;
	k = 0;
	if (!(ctx->regs.cs & 3)) {
		k = bpf_get_stack(ctx, &r->w.words[n], MAX_KERNEL * 8, 0);
		if (k < 0)
			k = 0;
		k >>= 3;
		if (k > MAX_KERNEL)
			k = MAX_KERNEL;
	}
	r->w.s.n_kernel = (u32)k;
	/* User space looks ten times a second; a wake-up costs more than the walk. */
	flags = bpf_ringbuf_query(&stacks, BPF_RB_AVAIL_DATA) > RING_SIZE / 4 ? BPF_RB_FORCE_WAKEUP : BPF_RB_NO_WAKEUP;
	if (bpf_ringbuf_output(&stacks, &r->w.s, sizeof r->w.s + 8 * (n + (u32)k), flags) != 0)
		count(RING_FULL);
	r->busy = 0;
	return pass;
}

char _license[] SEC("license") = "Dual BSD/GPL";
