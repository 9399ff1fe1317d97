/* SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0) */
/*
 * kernel.h: of the kernel's types, what the programs read: the loader finds out where that is in the running kernel (CO-RE). Part of unspool.bpf.c.
 */

struct ns_common {
	unsigned int inum;
} __attribute__((preserve_access_index));

struct pid_namespace {
	struct ns_common ns;
} __attribute__((preserve_access_index));

struct upid {
	int nr;
	struct pid_namespace *ns;
} __attribute__((preserve_access_index));

struct pid {
	unsigned int level;
	struct upid numbers[];
} __attribute__((preserve_access_index));

struct kernfs_node {
	u64 id;
} __attribute__((preserve_access_index));

struct cgroup {
	int level;
	struct kernfs_node *kn;
	struct cgroup *ancestors[];
} __attribute__((preserve_access_index));

/* Before Linux 6.0. */
struct cgroup___ids {
	u64 ancestor_ids[1];
} __attribute__((preserve_access_index));

struct sched_entity {
	u64 sum_exec_runtime;
} __attribute__((preserve_access_index));

struct css_set {
	struct cgroup *dfl_cgrp;
} __attribute__((preserve_access_index));

struct task_struct {
	unsigned int flags, __state;
	int on_cpu, exit_state;
	unsigned long nvcsw, nivcsw;
	char comm[16];
	struct sched_entity se;
	struct css_set *cgroups;
	void *mm, *stack;
	unsigned in_execve : 1;
	int pid, tgid;
	struct task_struct *group_leader;
	struct pid *thread_pid;
} __attribute__((preserve_access_index));

/* Before Linux 5.14. */
struct task_struct___state {
	long state;
} __attribute__((preserve_access_index));

struct vm_area_struct {
	unsigned long vm_flags;
} __attribute__((preserve_access_index));
