/* SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0) */
/*
 * heap.h: the programs at the functions of a process's allocator: where it allocates, and what it frees. Where the process has probes by which it
 * says what it samples itself (USDT), the programs at these. Part of unspool.bpf.c. Linux 5.15 and later: bpf_get_attach_cookie.
 */

/* What user space says of a function, for its cookie: where its arguments have the size, and what else it does. */
#define SIZE_FIRST 0
#define SIZE_SECOND 1
#define SIZE_PRODUCT 2	/* of the first two */
#define SIZE_OUT 3	/* the third, and the address goes to where the first points */
#define SIZE_KINDS 3
#define FREES 4		/* the first argument, before it allocates, and may call another function for that, which has a probe, too */

#define FREED 32 /* in a sample's pad */
#define SIZED 64 /* the same: its period is what the process says that it stands for, in bytes, and ip its size */

/* An allocation that is in use. */
struct object {
	u64 id, size, weight; /* weight: the bytes that it stands for, as the process says */
	u32 pid, tid;
	u32 published, pad; /* published: it says so */
	u64 time;	    /* when its record was written */
};

/* What a thread calls, until it returns: an allocation, and what realloc frees if it does not fail. */
struct call {
	struct object is, was; /* id 0: it is no sample */
	u64 sp, out, from;     /* out: where the address goes; from: was's address */
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1 << 14);
	__type(key, u64); /* process and thread */
	__type(value, struct call);
} allocating SEC(".maps");

struct place {
	u64 address;
	u32 pid, pad;
};

/* Written by programs, read by user space: which stacks are still needed. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1 << 20);
	__type(key, struct place);
	__type(value, struct object);
} objects SEC(".maps");

/* Bytes to the next sample: quantiles of an exponential distribution, from user space. */
#define DRAWS 4096

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, DRAWS);
	__type(key, u32);
	__type(value, u64);
} draws SEC(".maps");

/* Of each processor: bytes that are left to its next sample, and how often the process was stopped by a probe; published: by one of its own. */
struct quota {
	s64 left;
	u64 allocations, frees, returns, published, published_frees;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct quota);
} quotas SEC(".maps");

static __always_inline u64 word_of(void *ctx, u32 i)
{
	return ((u64 *)ctx)[i];
}

static __always_inline struct quota *quota_of(void)
{
	u32 zero = 0;

	return bpf_map_lookup_elem(&quotas, &zero);
}

/* Where an argument of a process's own probe is. */
#define IS_CONSTANT 0
#define IS_REGISTER 1
#define IS_MEMORY 2
#define NO_REGISTER 0xffff

struct argument {
	s64 value;	/* the constant; of memory, what is added to the address */
	u32 reg, index; /* bytes of the context where they are, or NO_REGISTER; of memory, its address is their sum */
	u32 kind, size; /* bytes of the argument: 1, 2, 4 or 8 */
	u32 is_signed, scale; /* scale: bits by which the index is shifted */
};

/* Pointer, bytes and weight. */
struct arguments {
	struct argument all[3];
};

/* Written by user space. A probe's cookie is its number here. */
#define MAX_PROBES 1024

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_PROBES);
	__type(key, u32);
	__type(value, struct arguments);
} probes SEC(".maps");

#define CONTEXT_MASK 511 /* for the verifier: a context has fewer bytes */

static __always_inline u64 register_of(void *ctx, u32 at)
{
	u64 n = 0;

	if (at != NO_REGISTER)
		bpf_probe_read_kernel(&n, sizeof n, ctx + (at & CONTEXT_MASK));
	return n;
}

/* Reads an argument. Returns 0 where its memory is not there. */
static __always_inline int argument_of(void *ctx, struct argument *a, u64 *to)
{
	u64 n = (u64)a->value;
	u32 size = a->size, shift;

	if (size < 1 || size > 8)
		return 0;
	if (a->kind != IS_CONSTANT)
		n += register_of(ctx, a->reg);
	if (a->kind == IS_MEMORY) {
		u64 address = n + (register_of(ctx, a->index) << (a->scale & 63));

		n = 0;
		if (bpf_probe_read_user(&n, size, (void *)address) != 0)
			return 0;
	}
	shift = 64 - 8 * size;
	n <<= shift & 63;
	*to = a->is_signed ? (u64)((s64)n >> (shift & 63)) : n >> (shift & 63);
	return 1;
}

/* Writes that an object was allocated or freed: its stack has come before. If it is older than the recording, nothing is written when it is freed. */
static __always_inline void tell(struct object *o, u32 pad)
{
	struct sample s = {};
	u64 flags, now = bpf_ktime_get_ns();

	if (!(pad & FREED))
		o->time = now;
	else if (!began || o->time < began)
		return;
	flags = bpf_ringbuf_query(&samples, BPF_RB_AVAIL_DATA) > ring_size / 4 ? BPF_RB_FORCE_WAKEUP : BPF_RB_NO_WAKEUP;
	s.time = now;
	s.period = o->size;
	if (o->published) {
		s.period = o->weight;
		s.ip = o->size;
		pad |= SIZED;
	}
	s.id = o->id;
	s.pid = o->pid;
	s.tid = o->tid;
	s.cpu = bpf_get_smp_processor_id();
	s.what = SAMPLE_SEEN;
	s.pad = pad;
	if (bpf_ringbuf_output(&samples, &s, sizeof s, flags) != 0)
		count(RING_FULL);
}

PART int freed(u64 address)
{
	struct place at = {.address = address, .pid = (u32)(bpf_get_current_pid_tgid() >> 32)};
	struct object *o = address ? bpf_map_lookup_elem(&objects, &at) : NULL;

	if (!o)
		return 0;
	tell(o, FREED);
	bpf_map_delete_elem(&objects, &at);
	return 1;
}

/* How many bytes a call asks for. */
static __always_inline u64 size_of(void *ctx, u64 kind)
{
	u64 n = word_of(ctx, MACHINE(WORD_ARG_1));

	switch (kind & SIZE_KINDS) {
	case SIZE_SECOND:
		return word_of(ctx, MACHINE(WORD_ARG_2));
	case SIZE_PRODUCT:
		return n * word_of(ctx, MACHINE(WORD_ARG_2));
	case SIZE_OUT:
		return word_of(ctx, MACHINE(WORD_ARG_3));
	}
	return n;
}

/* Draws how many bytes there are to the next sample. */
PART int next(void)
{
	u32 i = bpf_get_prandom_u32() & (DRAWS - 1);
	u64 *draw = bpf_map_lookup_elem(&draws, &i);
	struct quota *q = quota_of();

	if (draw && q)
		q->left = (s64)*draw;
	return 0;
}

/* Whether a call is to be a sample. It is remembered until it returns: what it calls itself is none. */
static __attribute__((noinline)) int due(void *ctx)
{
	u64 kind = bpf_get_attach_cookie(ctx), thread = bpf_get_current_pid_tgid(), n;
	struct call *outer = bpf_map_lookup_elem(&allocating, &thread), c = {.sp = word_of(ctx, MACHINE(WORD_SP))};
	struct place at = {.address = word_of(ctx, MACHINE(WORD_ARG_1)), .pid = (u32)(thread >> 32)};
	struct quota *q = quota_of();

	if (!q)
		return 0;
	if (!q->allocations++)
		next(); /* the first sample is no other than the rest */
	/* A function of the allocator calls another one, or goes on in it: the outer one counts. One that was left without a return lies deeper. */
	if (outer && outer->sp >= c.sp)
		return 0;
	n = size_of(ctx, kind);
	if (n >> 47) /* it will fail */
		return 0;
	c.is.size = n;
	if (kind & FREES) {
		struct object *was = bpf_map_lookup_elem(&objects, &at);

		/* Another thread can get the address before the function returns. */
		if (was) {
			c.was = *was;
			c.from = at.address;
			bpf_map_delete_elem(&objects, &at);
		}
	}
	if (bpf_map_update_elem(&allocating, &thread, &c, BPF_ANY) != 0)
		count(FORGOTTEN);
	q->left -= (s64)(n ? n : 1);
	return q->left <= 0;
}

/* Says of a call that it is a sample whose stack is in w. The processor is busy. */
static __attribute__((noinline)) int allocates(void *ctx)
{
	u64 kind = bpf_get_attach_cookie(ctx), thread = bpf_get_current_pid_tgid();
	struct call *c = bpf_map_lookup_elem(&allocating, &thread);
	struct walk *w = walk_state();

	if (!w || !c)
		return 0;
	c->is.id = w->id;
	c->is.pid = w->s.pid;
	c->is.tid = w->s.tid;
	c->out = (kind & SIZE_KINDS) == SIZE_OUT ? word_of(ctx, MACHINE(WORD_ARG_1)) : 0;
	return 0;
}

/* Walks the stack of a thread that allocates, and writes it unless it has been. Returns 0 where there is none: w has its name otherwise. */
static __always_inline int walks(void *ctx, struct room *r, struct process *p, u64 id)
{
	u32 cpu = bpf_get_smp_processor_id(), what;
	struct cache *c = bpf_map_lookup_elem(&caches, &cpu);
	struct walk *w = &r->w;

	if (!c)
		return 0;
	w->s.time = bpf_ktime_get_ns();
	w->s.period = w->s.ip = 0;
	w->s.pid = (u32)(id >> 32);
	w->s.tid = (u32)id;
	w->s.cpu = cpu;
	w->s.pad = 0;
	what = stack(ctx, w, p, 0, 0, 1);
	if (what == SAMPLE_COPY)
		count(COPIED);
	else
		what = SAMPLE_STACK;
	return write(w, c, what);
}

SEC("kprobe")
int on_alloc(void *ctx)
{
	struct process *p;
	struct room *r;
	u64 id;

	if (!due(ctx))
		return 0;
	id = ids();
	r = room();
	if (!wanted((u32)(id >> 32), &p))
		return 0;
	if (!r || r->busy) { /* another thread of this processor is being walked: the next allocation is looked at */
		count(NESTED);
		return 0;
	}
	next();
	r->busy = 1;
	if (walks(ctx, r, p, id))
		allocates(ctx);
	r->busy = 0;
	return 0;
}

SEC("kprobe")
int on_alloc_return(void *ctx)
{
	u64 thread = bpf_get_current_pid_tgid(), address = word_of(ctx, MACHINE(WORD_RESULT));
	struct call *is = bpf_map_lookup_elem(&allocating, &thread), c;
	struct place at = {.pid = (u32)(thread >> 32)};
	struct quota *q = quota_of();

	if (q)
		q->returns++;
	if (!is || word_of(ctx, MACHINE(WORD_SP)) < is->sp)
		return 0;
	c = *is;
	bpf_map_delete_elem(&allocating, &thread);
	if (c.was.id && (address || !c.is.size)) {
		tell(&c.was, FREED);
	} else if (c.was.id) { /* it has failed */
		at.address = c.from;
		if (bpf_map_update_elem(&objects, &at, &c.was, BPF_ANY) != 0)
			count(FORGOTTEN);
	}
	if (!c.is.id)
		return 0;
	if (c.out && (address || bpf_probe_read_user(&address, sizeof address, (void *)c.out) != 0))
		return 0;
	if (!address)
		return 0;
	at.address = address;
	freed(address); /* nobody has seen what was there freed */
	tell(&c.is, 0);
	if (bpf_map_update_elem(&objects, &at, &c.is, BPF_ANY) != 0)
		count(FORGOTTEN);
	return 0;
}

SEC("kprobe")
int on_free(void *ctx)
{
	struct quota *q = quota_of();

	if (q)
		q->frees++;
	freed(word_of(ctx, MACHINE(WORD_ARG_1)));
	return 0;
}

/* Takes what a process says of its sample, whose stack is in w. The processor is busy. */
static __attribute__((noinline)) int published(void *ctx)
{
	u32 number = (u32)bpf_get_attach_cookie(ctx);
	struct arguments *a = bpf_map_lookup_elem(&probes, &number);
	struct place at = {.pid = (u32)(bpf_get_current_pid_tgid() >> 32)};
	struct walk *w = walk_state();
	struct object o = {.published = 1};

	if (!a || !w)
		return 0;
	if (!argument_of(ctx, &a->all[0], &at.address) || !argument_of(ctx, &a->all[1], &o.size) || !argument_of(ctx, &a->all[2], &o.weight) ||
	    (o.size | o.weight) >> 47) { /* no such memory */
		count(FORGOTTEN);
		return 0;
	}
	if (o.size && !o.weight) /* it stands for nothing */
		return 0;
	o.id = w->id;
	o.pid = w->s.pid;
	o.tid = w->s.tid;
	freed(at.address); /* it has not said so */
	tell(&o, 0);
	if (at.address && bpf_map_update_elem(&objects, &at, &o, BPF_ANY) != 0)
		count(FORGOTTEN);
	return 0;
}

/* A process says that it has taken a sample: alloc(pointer, bytes, the bytes that they stand for). */
SEC("kprobe")
int on_published(void *ctx)
{
	struct quota *q = quota_of();
	struct process *p;
	struct room *r;
	u64 id = ids();

	if (q)
		q->published++;
	if (!wanted((u32)(id >> 32), &p))
		return 0;
	r = room();
	if (!r || r->busy) {
		count(NESTED);
		return 0;
	}
	r->busy = 1;
	if (walks(ctx, r, p, id))
		published(ctx);
	r->busy = 0;
	return 0;
}

/* It says that it has freed one: free(pointer). */
SEC("kprobe")
int on_published_free(void *ctx)
{
	u32 number = (u32)bpf_get_attach_cookie(ctx);
	struct arguments *a = bpf_map_lookup_elem(&probes, &number);
	struct quota *q = quota_of();
	u64 address;

	if (q)
		q->published_frees++;
	if (a && argument_of(ctx, &a->all[0], &address))
		freed(address);
	return 0;
}
