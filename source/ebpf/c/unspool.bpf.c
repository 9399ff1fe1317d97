// SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0)
/*
 * unspool.bpf.c: the kernel's program. It is attached to perf events: at each, it walks the user stack of the task that runs
 * and writes it, with the kernel's stack, to a ring buffer. User space keeps tables and address spaces up to date.
 * Linux 5.10 and later.
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>

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
struct range_block;
static struct walk *walk_state(void);
static struct cache *walk_cache(void);
static int walk_registers(struct walk *w);
static const void *walk_table(u32 table);
static const u8 *walk_part(const void *t, u32 k);
static const u8 *walk_value(u32 table, u32 k);
static const struct range_block *walk_block(u32 space, u32 k);
static int walk_read(void *to, u32 n, u64 addr);
static void walk_used(u32 table, u64 time);

#include "walk.h"

#define MAX_TABLES 16384

/* ---- Maps ---- */

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

/* How many walks have looked for a table, whether it was there or not; and when the last one did. */
struct use {
	u64 walks, last;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_TABLES);
	__type(key, u32);
	__type(value, struct use);
} uses SEC(".maps");

/*
 * The ranges of address spaces, by the space's number in the upper half and the block's. A hash, because a change of a map of
 * maps waits for all programs that run.
 */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1 << 14); /* user space sets it to the machine's */
	__type(key, u64);
	__type(value, struct range_block);
} spaces SEC(".maps");

/*
 * Processes, and which space they have. The memory of an entry can become another process's while it is read: its number is
 * written first, so it must be read last.
 */
struct process {
	u32 pid, pad;
	u64 space; /* its number, and in the upper half how many ranges it has, as walk takes it; 0: not known yet */
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1 << 14); /* the same */
	__type(key, u32);
	__type(value, struct process);
} processes SEC(".maps");

/*
 * When processes were last given executable mappings, by the lower bits of their numbers, and until when all such changes are in
 * the maps above. What a process has mapped since then is not known: another file can lie at the same address. Programs write
 * the former, after the kernel has written its record of the change, and user space the latter: the time at which it began to
 * read the records that it has applied.
 */
#define CHANGES (1 << 16)

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, CHANGES);
	__type(key, u32);
	__type(value, u64);
} changes SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, u64);
} applied SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 12); /* user space sets it to the machine's: ring_size */
} samples SEC(".maps");

/* Threads that are blocked, since when, and the stack that blocked. */
struct blocked {
	u64 since, id;
	u32 pid, tid; /* as user space numbers them */
	u32 cut, pad; /* CUT_BEGIN: it was blocked already, and since says when that was seen */
	u64 ran;      /* for how long the thread had run by then, ns */
};

/* What is said of a sample, in its pad. */
#define CUT_BEGIN 1
#define OF_WAKER 2  /* the stack of one who woke a thread; as a sample it comes before that of the wait, with its name for ip and period */
#define NO_WAKER 4  /* a wait that ended, and who ended it is not known */
#define OF_WAIT 8   /* the stack of a thread that blocks, or its wait */
#define WEIGHTED 16 /* a wait that counts for shorter ones, too */

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1 << 14); /* user space sets it to the machine's */
	__type(key, u32);
	__type(value, struct blocked);
} blocked SEC(".maps");

/* Who woke threads that have not gone on yet. */
struct waker {
	u64 id, name[2];
	u32 pid, tid;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1 << 14); /* user space sets it to the machine's */
	__type(key, u32);
	__type(value, struct waker);
} wakers SEC(".maps");

/* The walk of the one that looks for threads that are blocked. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct walk);
} still SEC(".maps");

/* Names of threads, and whether samples of theirs are wanted. */
struct name {
	char s[16];
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1 << 14);
	__type(key, struct name);
	__type(value, u8);
} names SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_CGROUP_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, u32);
} cgroups SEC(".maps");

/*
 * What happened to samples. Lost: the ring buffer was full; an event interrupted the program; a blocked thread or a child
 * could not be remembered. Not lost: left to a copy of the stack, because a mapping or a table was not there yet, or cut off for that, where there
 * are no copies, or too many. Not taken: those of processes that have no number in user space's PID namespace.
 */
enum { RING_FULL, NESTED, FORGOTTEN, COPIED, TOO_MANY, OUTSIDE, NUM_COUNTERS };

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, NUM_COUNTERS);
	__type(key, u32);
	__type(value, u64);
} counters SEC(".maps");

/* The walk of a processor. It comes first: the verifier before Linux 5.13 wants no sum with a pointer that may be null. */
struct room {
	struct walk w;
	struct waker by;
	struct blocked is;
	u32 busy; /* an event can interrupt another one's program */
	u32 hits; /* of tracepoints */
	u32 ends, said;	   /* the thread that goes on, whose wait is to be written; what is said of it */
	u64 weight, ended; /* what it counts for; 0: there is none. When it ended */
	u64 copies;	   /* when as many copies will be due as have been written: see may_write */
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct room);
} rooms SEC(".maps");

/*
 * One for each processor: user space sets how many there are. Values of per-processor maps are smaller. Values of a map that may be mapped begin
 * with a page, others 56 bytes behind the beginning of a cache line: then x86-64's two places of an answer, 64 bytes, lie in one line, not two.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct cache);
} caches SEC(".maps");

/* What user space asks for: set before there are events. began and seed are set later, and some can change. */
volatile u32 pass;	/* let events write their own samples, too */
volatile u32 scoped;	/* only processes that are known */
volatile u32 self;	/* not this one */
volatile u32 by_name;	/* those whose names say so, or are not known */
volatile u32 by_cgroup; /* those in the cgroup */
volatile u32 every;	/* take a sample at each so many tracepoints */
volatile u32 wakes;	/* who ends waits is asked for */
volatile u32 one_of;	/* a sample is taken at one of so many events, which counts for all; can change, too */
volatile u32 threshold; /* ns: of shorter waits, some count for all; can change while waits are recorded */
volatile u64 cgroup;	/* the number of that */
volatile u64 ns_ino; /* of the PID namespace that numbers processes; 0: the first */
volatile u64 began;  /* samples count from then on; 0: not yet */
volatile u64 seed;	/* of stack IDs */

/*
 * What this kernel has, as user space has probed. The verifier knows them as constants: it does not look at what a kernel lacks. Before
 * has_task, tasks are read as memory, not by their types.
 */
const volatile u32 has_task;	/* bpf_get_current_task_btf: Linux 5.11 */
const volatile u32 has_cmpxchg; /* atomic instructions besides the sum: 5.12 */
const volatile u32 has_regs;	/* bpf_task_pt_regs: 5.15 */
const volatile u32 has_state;	/* the state of who blocks, in sched_switch: 5.18 */
const volatile u32 kernel_stack; /* how many bytes a task's stack in the kernel has, to where there is no bpf_task_pt_regs */

const volatile u32 ring_size; /* bytes of samples */
const volatile u32 no_copies; /* where a mapping or a table is not there yet, the stack is cut off */

#define OF(task, field) (has_task ? (task)->field : BPF_CORE_READ(task, field))

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

static __always_inline struct cache *walk_cache(void)
{
	u32 cpu = bpf_get_smp_processor_id();

	return bpf_map_lookup_elem(&caches, &cpu);
}

static __always_inline const void *walk_table(u32 table)
{
	return bpf_map_lookup_elem(&tables, &table);
}

static __always_inline const u8 *walk_part(const void *t, u32 k)
{
	return bpf_map_lookup_elem((void *)t, &k);
}

static __always_inline const u8 *walk_value(u32 table, u32 k)
{
	const void *t = walk_table(table);

	return t ? walk_part(t, k) : NULL;
}

static __always_inline const struct range_block *walk_block(u32 space, u32 k)
{
	u64 key = (u64)space << 32 | k;

	return bpf_map_lookup_elem(&spaces, &key);
}

static __always_inline int walk_read(void *to, u32 n, u64 addr)
{
	return bpf_probe_read_user(to, n, (const void *)addr);
}

static __always_inline void walk_used(u32 table, u64 time)
{
	struct use *u = bpf_map_lookup_elem(&uses, &table);

	if (u && u->last != time) { /* a walk's frames have one time; of two processors' walks at once, one may be left out */
		u->last = time;
		u->walks++;
	}
}

/* ---- Samples ---- */

#include "kernel.h"

#if MACHINE_ELF == UNSPOOL_X86_64_ELF
#include "x86_64.h"
#else
#include "aarch64.h"
#endif

#define TASK_DEAD 0x80
#define MAX_NS_LEVELS 8 /* of PID namespaces that are looked at */
#define PF_KTHREAD 0x00200000
#define PF_IO_WORKER 0x00000010

static __always_inline void count(u32 what)
{
	u64 *n = bpf_map_lookup_elem(&counters, &what);

	if (n)
		*n += 1;
}

static __always_inline struct task_struct *current(void)
{
	return has_task ? bpf_get_current_task_btf() : (void *)bpf_get_current_task();
}

/* Fills w's registers with those of user space. Returns 0 where there are none, or they are of 32-bit code. */
static __always_inline int registers_of(struct walk *w, struct task_struct *task)
{
	struct pt_regs___kernel *regs;

	if (OF(task, flags) & (PF_KTHREAD | PF_IO_WORKER) || !OF(task, mm)) /* one without memory is about to go */
		return 0;
	if (has_regs)
		regs = (void *)bpf_task_pt_regs(task);
	else /* at the top of its stack */
		regs = OF(task, stack) + kernel_stack - bpf_core_type_size(struct pt_regs___kernel);
	return registers_in(w, regs);
}

static __always_inline int walk_registers(struct walk *w)
{
	return registers_of(w, current());
}

/* The number of a task as user space has it; 0 where it has none. */
static __always_inline u32 number(struct task_struct *task)
{
	struct pid *pid;
	u32 i, level;

	if (!ns_ino)
		return (u32)OF(task, pid);
	pid = OF(task, thread_pid);
	level = BPF_CORE_READ(pid, level);
	for (i = 0; i < MAX_NS_LEVELS && i <= level; i++) {
		struct upid id;

		if (bpf_core_read(&id, sizeof id, &pid->numbers[i]) == 0 && BPF_CORE_READ(id.ns, ns.inum) == ns_ino)
			return (u32)id.nr;
	}
	return 0;
}

/* The current task's process in the upper half, and thread; 0 where user space has no numbers for them. */
static __always_inline u64 ids(void)
{
	struct task_struct *task;

	if (!ns_ino)
		return bpf_get_current_pid_tgid();
	task = current();
	return (u64)number(OF(task, group_leader)) << 32 | number(task);
}

static __always_inline u64 *change(u32 pid)
{
	u32 slot = pid & (CHANGES - 1);

	return bpf_map_lookup_elem(&changes, &slot);
}

/* Notes that a process has other mappings since a time. Another processor can do so for another process: the later time counts. */
static __always_inline void change_at(u32 pid, u64 time)
{
	u64 *at = change(pid), old;
	u32 i;

	if (!at)
		return;
	for (i = 0; i < 8; i++) {
		old = *(volatile u64 *)at;
		if (old >= time)
			return;
		if (!has_cmpxchg)
			*(volatile u64 *)at = time; /* and it is looked at again */
		else if (__sync_val_compare_and_swap(at, old, time) == old)
			return;
	}
}

/* The space of a process and how many ranges it has; 0 where what is known of it is nothing, or older than its mappings. */
static __always_inline u64 space_of(struct process *p, u32 pid)
{
	u64 *at = change(pid), *until, space;
	u32 zero = 0;

	until = bpf_map_lookup_elem(&applied, &zero);
	if (!p || !at || !until)
		return 0;
	space = *(volatile u64 *)&p->space;
	if (*(volatile u32 *)&p->pid != pid || *(volatile u64 *)at > *(volatile u64 *)until)
		return 0;
	return space;
}

/* Whether samples of the current task are asked for, and what is known of its process. */
static __always_inline int wanted(u32 pid, struct process **p)
{
	*p = bpf_map_lookup_elem(&processes, &pid);
	if ((scoped && !*p) || (self && pid == self))
		return 0;
	if (by_cgroup && bpf_current_task_under_cgroup(&cgroups, 0) != 1)
		return 0;
	if (by_name) {
		struct name n = {};
		u8 *yes;

		bpf_get_current_comm(n.s, sizeof n.s);
		yes = bpf_map_lookup_elem(&names, &n);
		if (yes && !*yes)
			return 0;
	}
	return 1;
}

/* Puts the registers and what can be read of the stack, up to MAX_FRAMES words, in the place of the words of a walk. */
PART int copy(void)
{
	struct walk *w = walk_state();
	u32 i, n = 0;
	u64 sp;

	if (!w || !walk_registers(w))
		return 0;
	sp = w->val[SLOT_SP] & ~7ull;
	for (i = 0; i < REGS; i++)
		w->words[i] = w->val[i];
	for (i = 0; i < MAX_FRAMES * 8 / WINDOW + 1 && n < MAX_FRAMES * 8; i++) {
		u32 len = WINDOW - (u32)((sp + n) & (WINDOW - 1));

		if (len > MAX_FRAMES * 8 - n)
			len = MAX_FRAMES * 8 - n;
		len = LENGTH(len, WINDOW);
		if (walk_read((u8 *)&w->words[REGS] + BOUNDED(n, MAX_FRAMES * 8), len, sp + n) != 0)
			break;
		n += len;
	}
	w->n = REGS + n / 8;
	w->id = mix(mix(w->id, w->s.time), w->s.tid); /* another one each time */
	return 1;
}

static __always_inline u64 in_execve(void)
{
	struct task_struct *task = current();

	return has_task ? BPF_CORE_READ_BITFIELD(task, in_execve) : BPF_CORE_READ_BITFIELD_PROBED(task, in_execve);
}

#define COPIES_AT_ONCE 32

/*
 * Whether a copy of a stack may be written now: where there is a threshold of waits, one for each threshold on a processor, and some at once.
 * A process whose tables are not there yet can wait thousands of times a second, and user space, which makes them, would do nothing else than read.
 */
static __always_inline int may_write(u64 now)
{
	struct room *r = room();
	u64 each = threshold, due;

	if (!r)
		return 0;
	due = r->copies > now ? r->copies : now;
	if (due - now > each * COPIES_AT_ONCE)
		return 0;
	r->copies = due + each;
	return 1;
}

/*
 * Walks the current task's stack: its words, user and kernel, the latter without the first skip, are in w. Returns what it
 * comes to: a copy where it may, and the walk wants for a mapping or a table. Without copies, or with too many, it is cut off there.
 */
static __always_inline u32 stack(void *ctx, struct walk *w, struct process *p, int in_kernel, u32 skip, int may_copy)
{
	u32 n, i, what = SAMPLE_NEW;
	u64 space = space_of(p, w->s.pid);
	long k = 0;

	w->n = 0;
	w->id = seed;
	w->missing = 0;
	w->stop = STOP_NO_STACK;
	if (walk_registers(w)) {
		if (space) {
			walk(w, (u32)space, (u32)(space >> 32));
		} else {
			w->words[0] = w->val[SLOT_PC] | (u64)HOW_START << HOW_SHIFT;
			w->id = mix(w->id, w->words[0]);
			w->n = 1;
			w->stop = STOP_NO_INFO;
			w->missing = 1;
		}
	}
	/* Between two programs, the registers are of one and the memory of the other. */
	if (w->stop != STOP_OUTERMOST && w->n && in_execve()) {
		w->n = w->missing = 0;
		w->id = seed;
		w->stop = STOP_NO_STACK;
	}
	if (no_copies && w->missing) {
		w->stop = STOP_TRUNCATED;
		count(COPIED);
	} else if (may_copy && w->missing && !may_write(w->s.time)) {
		w->stop = STOP_TRUNCATED;
		count(TOO_MANY);
	} else if (may_copy && w->missing && copy()) {
		what = SAMPLE_COPY;
	}
	n = w->n;
	if (n > MAX_USER)
		n = MAX_USER;
	if (in_kernel) {
		k = bpf_get_stack(ctx, &w->words[n], MAX_KERNEL * 8, skip);
		if (k < 0)
			k = 0;
		k >>= 3;
		if (k > MAX_KERNEL)
			k = MAX_KERNEL;
		for (i = 0; i < MAX_KERNEL && i < k; i++)
			w->id = mix(w->id, w->words[n + i]);
	}
	w->id = mix(w->id, (u64)w->stop << 32 | n << 16 | (u32)k);
	w->s.id = w->id;
	w->s.stop = (u8)w->stop;
	w->s.n_user = n;
	w->s.n_kernel = (u16)k;
	return what;
}

static __always_inline int output(struct walk *w, u64 size)
{
	u64 flags = BPF_RB_NO_WAKEUP;

	/* User space looks ten times a second; a wake-up costs more than the walk. */
	if ((w->written += (u32)size) > ring_size / 256) {
		w->written = 0;
		if (bpf_ringbuf_query(&samples, BPF_RB_AVAIL_DATA) > ring_size / 4)
			flags = BPF_RB_FORCE_WAKEUP;
	}
	if (bpf_ringbuf_output(&samples, &w->s, size, flags) == 0)
		return 1;
	count(RING_FULL);
	return 0;
}

/* Writes the sample in w, with the words of its stack where they have not been written. Returns 0 where there is no room. */
static __always_inline int write(struct walk *w, struct cache *c, u32 what)
{
	u64 id = w->s.id, *seen = &c->seen[BOUNDED(id, 1 << SEEN_BITS)];
	u32 n = w->s.n_user, k = w->s.n_kernel;

	if (*seen == id) {
		w->s.what = SAMPLE_SEEN;
		return what != SAMPLE_NEW || output(w, sizeof w->s);
	}
	w->s.what = (u8)what;
	if (n > MAX_USER)
		n = MAX_USER;
	if (k > MAX_KERNEL)
		k = MAX_KERNEL;
	if (!output(w, sizeof w->s + 8 * (n + k)))
		return 0;
	*seen = id;
	return 1;
}

/* Takes a sample of the current task, at each of so many events. Returns whether the event is to write its own, with a copy of the stack. */
static __always_inline int take(void *ctx, u64 ip, u64 period, int in_kernel, u32 of)
{
	u64 id = ids();
	u32 cpu = bpf_get_smp_processor_id();
	struct cache *c = bpf_map_lookup_elem(&caches, &cpu);
	struct room *r = room();
	struct process *p;
	struct walk *w;
	int copy = 0;

	if ((!id && ns_ino && !bpf_get_current_pid_tgid()) || !wanted((u32)(id >> 32), &p))
		return pass;
	if (of > 1) {
		if (r && ++r->hits % of != 0)
			return pass;
		period *= of;
	}
	if (!id && ns_ino) {
		count(OUTSIDE);
		return pass;
	}
	if (!c || !r || r->busy) {
		count(NESTED);
		return pass;
	}
	r->busy = 1;
	w = &r->w;
	w->s.time = bpf_ktime_get_ns();
	w->s.period = period;
	w->s.ip = ip;
	w->s.pid = (u32)(id >> 32);
	w->s.tid = (u32)id;
	w->s.cpu = cpu;
	stack(ctx, w, p, in_kernel, 0, 0);
	copy = w->missing && !no_copies;
	if (copy)
		count(COPIED);
	else
		write(w, c, SAMPLE_NEW);
	r->busy = 0;
	return copy | pass;
}

/* ---- Programs ---- */

SEC("perf_event")
int on_event(struct bpf_perf_event_data *ctx)
{
	return take(ctx, CTX_PC(ctx), ctx->sample_period, CTX_IN_KERNEL(ctx), one_of);
}

SEC("tracepoint")
int on_tracepoint(void *ctx)
{
	return take(ctx, 0, 1, 1, every);
}

SEC("kprobe") /* also of uprobes */
int on_probe(void *ctx)
{
	return take(ctx, 0, 1, 1, every);
}

#include "wait.h"
#include "heap.h"

/* A process that has another program has other mappings, which come soon. */
SEC("tp_btf/sched_process_exec")
int on_exec(u64 *ctx)
{
	(void)ctx;
	change_at((u32)(ids() >> 32), bpf_ktime_get_ns());
	return 0;
}

#define VM_EXEC 4

/* The kernel has written its record of a mapping, and the call that made the mapping has not returned. */
SEC("fexit/perf_event_mmap")
int on_map(u64 *ctx)
{
	struct vm_area_struct *vma = (void *)ctx[0];

	if (vma->vm_flags & VM_EXEC)
		change_at((u32)(ids() >> 32), bpf_ktime_get_ns());
	return 0;
}

#define PROT_EXEC 4

/* The same, where the kernel's functions cannot be traced, at a cost for all system calls. */
SEC("tp_btf/sys_exit")
int on_mapped(u64 *ctx)
{
	u64 call, protection;

	call_of((void *)ctx[0], &call, &protection);
	if ((call == MACHINE(SYS_MMAP) || call == MACHINE(SYS_MPROTECT)) && protection & PROT_EXEC)
		change_at((u32)(ids() >> 32), bpf_ktime_get_ns());
	return 0;
}

/* A new process has its parent's mappings. */
SEC("tp_btf/sched_process_fork")
int on_fork(u64 *ctx)
{
	struct task_struct *parent = (void *)ctx[0], *child = (void *)ctx[1];
	u32 from, to;
	struct process *p, copy = {};

	if (child->pid != child->tgid)
		return 0;
	from = number(parent->group_leader);
	to = number(child);
	p = bpf_map_lookup_elem(&processes, &from);
	if (p) {
		copy.pid = to;
		copy.space = space_of(p, from);
		if (bpf_map_update_elem(&processes, &to, &copy, BPF_ANY) != 0 && scoped)
			count(FORGOTTEN); /* the child's samples are not wanted, then, unless user space finds room */
	} else {
		bpf_map_delete_elem(&processes, &to);
	}
	return 0;
}

char _license[] SEC("license") = "Dual BSD/GPL";
