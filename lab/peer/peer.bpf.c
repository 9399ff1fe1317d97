// SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0)
/*
 * peer.bpf.c: walks user stacks in the kernel as eBPF profilers do today, to be measured beside ours. For every frame it looks up
 * the mapping in an LPM trie by process and address, the page of 64 KiB of the file in a hash, the file's rows in a hash of maps,
 * the row by binary search with one map lookup a step, and the rule in an array; then it reads the return address and, where it was saved,
 * rbp. It knows two registers, rsp and rbp, as those do. It writes the same records to a ring buffer as ours does.
 *
 * kernelpeer_test.go loads it, and fills the maps.
 */
#include <linux/bpf.h>
#include <linux/bpf_perf_event.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

typedef __u16 u16;
typedef __u32 u32;
typedef __u64 u64;
typedef __s32 s32;

#define MAX_FRAMES 1024
#define MAX_STEPS 17 /* a page has at most 65,536 rows */
#define PAGE_BITS 16
#define RING_SIZE (1 << 22)
#define READS 1000

enum { RUNNING, END, NO_MAPPING, NO_ROW, NO_RULE, UNREADABLE, DEPTH };

/* ---- Maps, which user space writes ---- */

struct mapping_key {
	u32 prefix; /* bits, from the process on */
	u32 pid;    /* big-endian, as the address is */
	u64 addr;
} __attribute__((packed, aligned(4)));

struct mapping {
	u64 bias;
	u32 file, pad;
};

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1 << 16);
	__type(key, struct mapping_key);
	__type(value, struct mapping);
} mappings SEC(".maps");

struct page_key {
	u32 file, page;
};

/* The rows of a page. The first is at or before its start. */
struct page {
	u32 first, n;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1 << 16);
	__type(key, struct page_key);
	__type(value, struct page);
} pages SEC(".maps");

struct row {
	u16 pc; /* in the page */
	u16 rule;
};

/* The loader sets the length of the inner maps. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH_OF_MAPS);
	__uint(max_entries, 1 << 12);
	__type(key, u32);
	__array(values, struct {
		__uint(type, BPF_MAP_TYPE_ARRAY);
		__uint(max_entries, 1);
		__uint(key_size, sizeof(u32));
		__uint(value_size, sizeof(struct row));
	});
} files SEC(".maps");

enum { CFA_NONE, CFA_RSP, CFA_RBP, CFA_END };
enum { SAME, SAVED };

struct rule {
	s32 cfa_off, rbp_off; /* from the register, from the CFA */
	u16 cfa, rbp;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1 << 14);
	__type(key, u32);
	__type(value, struct rule);
} rules SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, RING_SIZE);
} stacks SEC(".maps");

struct sample {
	u64 time, period, ip;
	u32 pid, tid, cpu, stop;
	u32 n_user, n_kernel;
};

struct walk {
	u64 pc, sp, fp;
	u32 pid, pad;
	u32 lo, hi; /* of the search */
	struct sample s;
	u64 words[MAX_FRAMES];
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct walk);
} walks SEC(".maps");

/* What became of samples. */
enum { FRAMES, LOST, NUM_COUNTERS };

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, NUM_COUNTERS);
	__type(key, u32);
	__type(value, u64);
} counters SEC(".maps");

static __always_inline void count(u32 what, u64 by)
{
	u64 *n = bpf_map_lookup_elem(&counters, &what);

	if (n)
		*n += by;
}

/* ---- The walk ---- */

static __always_inline struct walk *walk_state(void)
{
	u32 zero = 0;

	return bpf_map_lookup_elem(&walks, &zero);
}

/* Finds the rule of an address of a file. */
static __always_inline struct rule *find(struct walk *w, u32 file, u64 addr)
{
	struct page_key k = {file, (u32)(addr >> PAGE_BITS)};
	struct page *p = bpf_map_lookup_elem(&pages, &k);
	void *rows = bpf_map_lookup_elem(&files, &file);
	u16 pc = (u16)addr;
	struct row *row;
	u32 i, at;

	if (!p || !rows)
		return NULL;
	w->lo = p->first;
	w->hi = p->first + p->n;
	for (i = 0; i < MAX_STEPS && w->lo < w->hi; i++) {
		at = (w->lo + w->hi) / 2;
		row = bpf_map_lookup_elem(rows, &at);
		if (!row)
			return NULL;
		if (row->pc <= pc)
			w->lo = at + 1;
		else
			w->hi = at;
	}
	at = w->lo - 1;
	row = bpf_map_lookup_elem(rows, &at);
	if (!row)
		return NULL;
	at = row->rule;
	return bpf_map_lookup_elem(&rules, &at);
}

static __always_inline u32 walk_frame(struct walk *w)
{
	u32 n = w->s.n_user;
	u64 addr, cfa, ra;
	struct mapping_key k;
	struct mapping *m;
	struct rule *r;

	if (n >= MAX_FRAMES)
		return DEPTH;
	w->words[n & (MAX_FRAMES - 1)] = w->pc;
	w->s.n_user = n + 1;
	addr = w->pc - (n > 0); /* a return address is behind its call */
	k.prefix = 96;
	k.pid = bpf_htonl(w->pid);
	k.addr = bpf_cpu_to_be64(addr);
	m = bpf_map_lookup_elem(&mappings, &k);
	if (!m)
		return NO_MAPPING;
	r = find(w, m->file, addr - m->bias);
	if (!r)
		return NO_ROW;
	switch (r->cfa) {
	case CFA_RSP: cfa = w->sp + (u64)(long)r->cfa_off; break;
	case CFA_RBP: cfa = w->fp + (u64)(long)r->cfa_off; break;
	case CFA_END: return END;
	default: return NO_RULE;
	}
	if (bpf_probe_read_user(&ra, 8, (void *)(cfa - 8)) != 0)
		return UNREADABLE;
	if (r->rbp == SAVED && bpf_probe_read_user(&w->fp, 8, (void *)(cfa + (u64)(long)r->rbp_off)) != 0)
		return UNREADABLE;
	w->pc = ra;
	w->sp = cfa;
	return RUNNING;
}

static long walk_one(u32 i, void *ctx)
{
	struct walk *w = walk_state();

	(void)i;
	(void)ctx;
	if (!w)
		return 1;
	w->s.stop = walk_frame(w);
	return w->s.stop != RUNNING;
}

SEC("perf_event")
int peer(struct bpf_perf_event_data *ctx)
{
	struct walk *w = walk_state();
	u64 id = bpf_get_current_pid_tgid(), flags;
	u32 n;

	if (!w)
		return 0;
	w->s.time = bpf_ktime_get_ns();
	w->s.period = ctx->sample_period;
	w->s.ip = w->pc = ctx->regs.rip;
	w->s.pid = w->pid = (u32)(id >> 32);
	w->s.tid = (u32)id;
	w->s.cpu = bpf_get_smp_processor_id();
	w->s.n_user = w->s.n_kernel = 0;
	w->sp = ctx->regs.rsp;
	w->fp = ctx->regs.rbp;
	bpf_loop(MAX_FRAMES + 1, walk_one, NULL, 0);
	n = w->s.n_user;
	if (n > MAX_FRAMES)
		n = MAX_FRAMES;
	count(FRAMES, n);
	flags = bpf_ringbuf_query(&stacks, BPF_RB_AVAIL_DATA) > RING_SIZE / 4 ? BPF_RB_FORCE_WAKEUP : BPF_RB_NO_WAKEUP;
	if (bpf_ringbuf_output(&stacks, &w->s, sizeof w->s + 8 * n, flags) != 0)
		count(LOST, 1);
	return 0;
}

/* What any program costs. */
SEC("perf_event")
int empty(struct bpf_perf_event_data *ctx)
{
	(void)ctx;
	return 0;
}

/* What this machine takes for a read of user memory, which is most of what a walk without a window does. */
static long read_one(u32 i, void *ctx)
{
	struct walk *w = walk_state();

	(void)i;
	(void)ctx;
	return !w || bpf_probe_read_user(&w->pc, 8, (void *)w->sp) != 0;
}

SEC("perf_event")
int reads(struct bpf_perf_event_data *ctx)
{
	struct walk *w = walk_state();

	if (!w)
		return 0;
	w->sp = ctx->regs.rsp;
	bpf_loop(READS, read_one, NULL, 0);
	return 0;
}

char _license[] SEC("license") = "Dual BSD/GPL";
