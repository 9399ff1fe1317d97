/* SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0) */
/*
 * wait.h: the programs of off-CPU recordings: threads that block and go on, who wakes them, and who is blocked from the beginning on. Part of
 * unspool.bpf.c.
 */

static __always_inline u32 state_of(struct task_struct *task)
{
	struct task_struct___state *before = (void *)task;

	return bpf_core_field_exists(task->__state) ? task->__state : (u32)BPF_CORE_READ(before, state);
}

/*
 * What a wait of so many ns counts for; 0: it is not written. Where there is a threshold, a shorter wait is written with a probability of
 * its length to the threshold, and counts for the threshold. So the sum's expected value is the time that threads have waited, of each stack, and
 * all threads together write no more than one sample for each threshold of a thread's waiting.
 */
static __always_inline u64 weight_of(u64 ns)
{
	u64 most = threshold;

	if (ns >= most)
		return ns;
	return ((u64)bpf_get_prandom_u32() * most) >> 32 < ns ? most : 0;
}

/* Writes what a wait of so many ns counts for, whose stack has been written. */
static __always_inline void ended(struct walk *w, struct blocked *was, u64 weight, u32 flags)
{
	w->s.n_user = w->s.n_kernel = 0;
	w->s.what = SAMPLE_SEEN;
	w->s.period = weight;
	w->s.id = was->id;
	w->s.pid = was->pid;
	w->s.tid = was->tid;
	w->s.pad = was->cut | OF_WAIT | flags;
	output(w, sizeof w->s);
	w->s.pad = 0;
}

/*
 * A thread blocks or is dead, and nobody has seen it go on after it blocked before: seldom, a kernel does not trace a switch. What of the time until now
 * it has not run, it has waited.
 */
static __always_inline void unseen(struct walk *w, struct blocked *was, u64 now, u64 ran)
{
	u64 all = now - was->since, worked = ran - was->ran, ns = 1, weight;

	if (now > was->since && worked < all)
		ns = all - worked;
	was->since = 0;
	weight = weight_of(ns);
	if (weight)
		ended(w, was, weight, (weight > ns ? WEIGHTED : 0) | (wakes ? NO_WAKER : 0));
}

/* A thread blocks, another one goes on. */
SEC("tp_btf/sched_switch")
int on_switch(u64 *ctx)
{
	struct task_struct *prev = (void *)ctx[1], *next = (void *)ctx[2];
	u32 from = (u32)prev->pid, to = (u32)next->pid, state = has_state ? (u32)ctx[3] : state_of(prev);
	u32 cpu = bpf_get_smp_processor_id();
	struct blocked *was = bpf_map_lookup_elem(&blocked, &to), *is;
	struct cache *c = bpf_map_lookup_elem(&caches, &cpu);
	struct room *r = room();
	struct process *p;
	struct walk *w;
	u32 what;
	u64 id, ns, weight;

	if (!c || !r || r->busy) {
		/* A later switch must not take the time from here on for a part of the wait. */
		if (was && was->since) {
			was->since = 0;
			bpf_map_delete_elem(&blocked, &to);
			count(FORGOTTEN);
		}
		count(NESTED);
		return 0;
	}
	r->busy = 1;
	w = &r->w;
	is = &r->is;
	is->cut = 0;
	is->ran = prev->se.sum_exec_runtime;
	w->s.time = is->since = bpf_ktime_get_ns();
	w->s.ip = 0;
	w->s.cpu = cpu;
	if (was && was->since) {
		u32 flags = 0;

		/* Another processor's clock can be a little ahead. */
		ns = is->since > was->since ? is->since - was->since : 1;
		weight = weight_of(ns);
		if (weight > ns)
			flags |= WEIGHTED;
		if (wakes && weight) {
			struct waker *by = bpf_map_lookup_elem(&wakers, &to);

			if (by) {
				w->s.n_user = w->s.n_kernel = 0;
				w->s.what = SAMPLE_SEEN;
				w->s.ip = by->name[0];
				w->s.period = by->name[1];
				w->s.id = by->id;
				w->s.pid = by->pid;
				w->s.tid = by->tid;
				w->s.pad = OF_WAKER;
				output(w, sizeof w->s);
				w->s.ip = 0;
			} else {
				flags |= NO_WAKER;
			}
		}
		if (weight)
			ended(w, was, weight, flags);
		was->since = 0; /* also where it cannot be deleted now */
		bpf_map_delete_elem(&blocked, &to);
	}
	if (wakes)
		bpf_map_delete_elem(&wakers, &to);
	if (state & TASK_DEAD) {
		struct blocked *before = bpf_map_lookup_elem(&blocked, &from);

		if (wakes)
			bpf_map_delete_elem(&wakers, &from);
		if (before && before->since) {
			unseen(w, before, is->since, is->ran);
			bpf_map_delete_elem(&blocked, &from);
		}
	}
	/*
	 * One that was preempted could go on, even on its way to sleep; one that is dead will not. The state is the tracepoint's: that of
	 * the task can have changed since.
	 */
	if (!ctx[0] && state && !(state & TASK_DEAD) && (id = ids()) != 0 && wanted((u32)(id >> 32), &p)) {
		struct blocked *before = bpf_map_lookup_elem(&blocked, &from);

		if (before && before->since)
			unseen(w, before, is->since, is->ran);
		w->s.pid = is->pid = (u32)(id >> 32);
		w->s.tid = is->tid = (u32)id;
		/* Without this function and who calls it for the tracepoint. */
		what = stack(ctx, w, p, 1, 2, 1);
		if (what == SAMPLE_COPY)
			count(COPIED);
		else
			what = SAMPLE_STACK;
		w->s.id = is->id = mix(w->id, OF_WAIT); /* no other sample's */
		w->s.pad = OF_WAIT;
		if (write(w, c, what) && bpf_map_update_elem(&blocked, &from, is, BPF_ANY) != 0)
			count(FORGOTTEN);
		w->s.pad = 0;
	}
	r->busy = 0;
	return 0;
}

/*
 * The same where stacks are walked at the end of waits, only of those that are written: all others cost two lookups. A thread keeps its entry until it
 * has gone. What is to be written is left to on_resumed, in the thread itself.
 */
SEC("tp_btf/sched_switch")
int on_sleep(u64 *ctx)
{
	struct task_struct *prev = (void *)ctx[1], *next = (void *)ctx[2];
	u32 from = (u32)prev->pid, to = (u32)next->pid, state = has_state ? (u32)ctx[3] : state_of(prev);
	struct blocked *was = bpf_map_lookup_elem(&blocked, &to);
	u64 time = bpf_ktime_get_ns(), ns, id;
	struct room *r = room();
	struct process *p;

	if (!r)
		return 0;
	if (r->weight)
		count(NESTED); /* on_resumed did not run */
	r->weight = 0;
	if (was && was->since) {
		ns = time > was->since ? time - was->since : 1;
		was->since = 0;
		r->weight = weight_of(ns);
		r->said = r->weight > ns ? OF_WAIT | WEIGHTED : OF_WAIT;
		r->ended = time;
		r->ends = to;
	}
	if (state & TASK_DEAD) {
		struct blocked *before = bpf_map_lookup_elem(&blocked, &from);

		if (before && before->since)
			count(FORGOTTEN);
		bpf_map_delete_elem(&blocked, &from);
		return 0;
	}
	if (!ctx[0] && state && (id = ids()) != 0 && wanted((u32)(id >> 32), &p)) {
		struct blocked *before = bpf_map_lookup_elem(&blocked, &from), is = {.since = time};

		if (before && before->since)
			count(FORGOTTEN);
		if (before)
			before->since = time;
		else if (bpf_map_update_elem(&blocked, &from, &is, BPF_ANY) != 0)
			count(FORGOTTEN);
	}
	return 0;
}

/* finish_task_switch: a thread goes on, with its own memory and stack. */
SEC("kprobe")
int on_resumed(void *ctx)
{
	struct room *r = room();
	struct process *p;
	struct cache *c;
	struct walk *w;
	u64 weight, id;
	u32 what;

	if (!r || !r->weight)
		return 0;
	weight = r->weight;
	r->weight = 0;
	c = walk_cache();
	if (!c || r->busy || (u32)OF(current(), pid) != r->ends) {
		count(NESTED);
		return 0;
	}
	r->busy = 1;
	w = &r->w;
	id = ids();
	w->s.time = r->ended;
	w->s.ip = 0;
	w->s.period = weight;
	w->s.cpu = bpf_get_smp_processor_id();
	w->s.pid = (u32)(id >> 32);
	w->s.tid = (u32)id;
	p = bpf_map_lookup_elem(&processes, &w->s.pid);
	what = stack(ctx, w, p, 1, 0, 1);
	w->s.id = mix(w->id, OF_WAIT); /* no other sample's */
	w->s.pad = r->said;
	c = walk_cache();
	if (what == SAMPLE_COPY)
		count(COPIED);
	if (c && write(w, c, what) && what == SAMPLE_COPY) {
		w->s.what = SAMPLE_SEEN;
		output(w, sizeof w->s);
	}
	w->s.pad = 0;
	r->busy = 0;
	return 0;
}

struct bpf_iter__task {
	void *meta;
	struct task_struct *task;
} __attribute__((preserve_access_index));

#define EEXIST 17
#define MAX_CGROUPS 64 /* of a task's cgroup and those above */

/* As wanted, of another task than the current one. */
static __always_inline int wanted_of(struct task_struct *task, u32 pid)
{
	u32 i;

	if ((scoped && !bpf_map_lookup_elem(&processes, &pid)) || (self && pid == self))
		return 0;
	if (by_cgroup) {
		struct cgroup *c = task->cgroups->dfl_cgrp, *up;
		struct cgroup___ids *before = (void *)c;
		u64 id;

		for (i = 0; i < MAX_CGROUPS && (int)i <= c->level; i++) {
			id = 0;
			if (!bpf_core_field_exists(c->ancestors))
				bpf_core_read(&id, sizeof id, &before->ancestor_ids[i]);
			else if (bpf_core_read(&up, sizeof up, &c->ancestors[i]) == 0)
				id = BPF_CORE_READ(up, kn, id);
			if (id == cgroup)
				break;
		}
		if (i == MAX_CGROUPS || (int)i > c->level)
			return 0;
	}
	if (by_name) {
		struct name n = {};
		u8 *yes;

		bpf_probe_read_kernel_str(n.s, sizeof n.s, task->comm);
		yes = bpf_map_lookup_elem(&names, &n);
		if (yes && !*yes)
			return 0;
	}
	return 1;
}

/*
 * The current task, or an interrupt in it, wakes a thread. Each that goes on has been woken since it blocked, and not by two: the last one
 * is who ended its wait.
 */
SEC("tp_btf/sched_waking")
int on_waking(u64 *ctx)
{
	struct task_struct *task = (void *)ctx[0];
	u32 tid = (u32)task->pid, pid = number(task->group_leader), cpu = bpf_get_smp_processor_id();
	struct cache *c;
	struct room *r = room();
	struct waker *by;
	struct process *p;
	struct walk *w;
	u32 what;
	u64 id;

	if (!pid || !wanted_of(task, pid))
		return 0;
	if (!walk_cache() || !r || r->busy) {
		bpf_map_delete_elem(&wakers, &tid);
		return 0;
	}
	r->busy = 1;
	w = &r->w;
	by = &r->by;
	id = ids();
	w->s.time = bpf_ktime_get_ns();
	w->s.ip = w->s.period = 0;
	w->s.cpu = cpu;
	w->s.pid = by->pid = (u32)(id >> 32);
	w->s.tid = by->tid = (u32)id;
	bpf_get_current_comm(by->name, sizeof by->name);
	p = bpf_map_lookup_elem(&processes, &by->pid);
	what = stack(ctx, w, p, 1, 2, p != NULL); /* a copy of others cannot be walked */
	if (what == SAMPLE_COPY)
		count(COPIED);
	else
		what = SAMPLE_STACK;
	w->s.id = by->id = mix(w->id, OF_WAKER); /* no wait's */
	w->s.pad = OF_WAKER;
	c = walk_cache();
	if (!c || !write(w, c, what) || bpf_map_update_elem(&wakers, &tid, by, BPF_ANY) != 0)
		bpf_map_delete_elem(&wakers, &tid);
	w->s.pad = 0;
	r->busy = 0;
	return 0;
}

/* Whether a task runs: an int, since Linux 7.2 a byte. */
static __always_inline u64 on_cpu(struct task_struct *task)
{
	return BPF_CORE_READ_BITFIELD(task, on_cpu);
}

/*
 * Looks at each task when the recording has begun. One that is blocked has a wait that began before: it begins now, with a copy
 * of its stack.
 */
SEC("iter.s/task")
int on_still(struct bpf_iter__task *ctx)
{
	struct task_struct *task = ctx->task;
	u32 zero = 0, tid, n = 0, k, i;
	struct blocked is = {.cut = CUT_BEGIN}, *now;
	struct walk *w = bpf_map_lookup_elem(&still, &zero);
	u64 switches, sp;
	long got;

	if (!task || !w)
		return 0;
	tid = (u32)task->pid;
	switches = task->nvcsw + task->nivcsw;
	if (!tid || !task->__state || task->__state & TASK_DEAD || task->exit_state || on_cpu(task))
		return 0;
	is.pid = number(task->group_leader);
	is.tid = number(task);
	if (!is.tid || !wanted_of(task, is.pid))
		return 0;
	is.since = w->s.time = bpf_ktime_get_ns();
	is.ran = task->se.sum_exec_runtime;
	is.id = w->s.id = mix(mix(seed, is.since), is.tid);
	w->s.pid = is.pid;
	w->s.tid = is.tid;
	w->s.cpu = 0;
	w->s.ip = 0;
	w->s.pad = OF_WAIT;
	w->s.what = SAMPLE_COPY;
	if (registers_of(w, task)) {
		for (i = 0; i < REGS; i++)
			w->words[i] = w->val[i];
		sp = w->val[SLOT_SP] & ~7ull;
		for (i = 0; i < MAX_FRAMES * 8 / WINDOW + 1 && n < MAX_FRAMES * 8; i++) {
			u32 len = WINDOW - (u32)((sp + n) & (WINDOW - 1));

			if (len > MAX_FRAMES * 8 - n)
				len = MAX_FRAMES * 8 - n;
			len = LENGTH(len, WINDOW);
			if (bpf_copy_from_user_task((u8 *)&w->words[REGS] + BOUNDED(n, MAX_FRAMES * 8), len, (void *)(sp + n), task, 0) != 0)
				break;
			n += len;
		}
		n = REGS + n / 8;
		w->s.stop = STOP_DEPTH;
	} else { /* a thread of the kernel */
		w->s.what = SAMPLE_STACK;
		w->s.stop = STOP_NO_STACK;
	}
	if (n > MAX_USER)
		n = MAX_USER;
	got = bpf_get_task_stack(task, &w->words[n], MAX_KERNEL * 8, 0);
	k = got < 0 ? 0 : (u32)got >> 3;
	w->s.n_user = n;
	w->s.n_kernel = (u16)k;
	__asm__ volatile("" : "+r"(n), "+r"(k)); /* the compiler is not to leave out what the verifier wants to see */
	if (n > MAX_USER)
		n = MAX_USER;
	if (k > MAX_KERNEL)
		k = MAX_KERNEL;
	if (!output(w, sizeof w->s + 8 * (n + k)))
		return 0;
	/* It may have gone on, which on_switch has told or not, and have blocked again, which on_switch knows better. */
	got = bpf_map_update_elem(&blocked, &tid, &is, BPF_NOEXIST);
	if (got != 0) {
		if ((int)got != -EEXIST) /* before Linux 6.4, the upper half of what is returned can be anything */
			count(FORGOTTEN);
		return 0;
	}
	if (on_cpu(task) || task->nvcsw + task->nivcsw != switches) {
		now = bpf_map_lookup_elem(&blocked, &tid);
		if (now && now->since == is.since && now->cut)
			bpf_map_delete_elem(&blocked, &tid);
	}
	return 0;
}
