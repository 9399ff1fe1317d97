/*
 * Walks its own stack by the drop-in once a seccomp filter is in place: seccomp ACTION WHAT. ACTION is kill, EACCES or EPERM; WHAT are
 * the system calls that it is for: vm, process_vm_readv and _writev; or both, rt_sigprocmask, too. Prints how many frames
 * unw_backtrace finds, and stepping; on the first thread's stack and on another's.
 */
#define _GNU_SOURCE
#define UNW_LOCAL_ONLY
#include <libunwind.h>

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <errno.h>

static void filter(const char *action, int both)
{
	unsigned to = strcmp(action, "kill") == 0 ? SECCOMP_RET_KILL_PROCESS : SECCOMP_RET_ERRNO | (strcmp(action, "EACCES") == 0 ? EACCES : EPERM);
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_vm_readv, 3, 0),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_vm_writev, 2, 0),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, both ? SYS_rt_sigprocmask : SYS_process_vm_readv, 1, 0),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
		BPF_STMT(BPF_RET | BPF_K, to),
	};
	struct sock_fprog p = {sizeof code / sizeof code[0], code};

	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &p))
		perror("seccomp");
}

__attribute__((noinline)) static int walk(void)
{
	void *pcs[64];
	int all = unw_backtrace(pcs, 64), steps = 1;
	unw_context_t uc;
	unw_cursor_t c;

	unw_getcontext(&uc);
	unw_init_local(&c, &uc);
	while (unw_step(&c) > 0)
		steps++;
	return printf("%d %d\n", all, steps);
}

__attribute__((noinline)) static int down(int n)
{
	volatile int v = n > 0 ? down(n - 1) : walk();

	return v + 1;
}

static void *thread(void *p)
{
	down(10);
	return p;
}

int main(int argc, char **argv)
{
	pthread_t t;

	if (argc > 2)
		filter(argv[1], strcmp(argv[2], "both") == 0);
	down(10);
	fflush(stdout);
	if (pthread_create(&t, NULL, thread, NULL) == 0)
		pthread_join(t, NULL);
	return 0;
}
