// Ways out of functions, and stacks of all kinds. It prints what it has counted.
#define _GNU_SOURCE
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

static volatile int hits, sum;
static sigjmp_buf env;
static ucontext_t here, there[2];

__attribute__((noinline)) static int deep(int n) { volatile char room[200]; room[n] = n; return n ? deep(n - 1) + room[n] : 0; }

static void nested(int s) { hits++; sum += deep(3); if (s == SIGUSR1) raise(SIGUSR2); }
static void info(int s, siginfo_t *i, void *u) { hits++; sum += deep(2) + (s == i->si_signo) + (u != 0); }
static void fault(int s) { hits++; deep(s % 4); siglongjmp(env, 1); }
#ifdef __aarch64__
#define ILLEGAL "udf #0"
#define BEHIND(u) ((u)->uc_mcontext.pc += 4)
#else
#define ILLEGAL "ud2"
#define BEHIND(u) ((u)->uc_mcontext.gregs[REG_RIP] += 2)
#endif
static void next(int s, siginfo_t *i, void *u) { (void)s, (void)i; hits++; BEHIND((ucontext_t *)u); }

__attribute__((noinline)) static void leave(jmp_buf to, int n) { if (n == 0) longjmp(to, 7); if (n > 0) leave(to, n - 1); sum++; }

static void routine(int k) { for (int i = 0; i < 3; i++) { sum += deep(k + 2); swapcontext(&there[k], i & 1 ? &here : &there[!k]); } }

static void *worker(void *p) { long n = (long)p; for (int i = 0; i < 20; i++) __sync_fetch_and_add(&sum, deep(n)); return p; }

static void signals(void) {
	struct sigaction a = { .sa_handler = nested };
	sigaction(SIGUSR1, &a, 0);
	a = (struct sigaction){ .sa_sigaction = info, .sa_flags = SA_SIGINFO | SA_ONSTACK };
	sigaction(SIGUSR2, &a, 0);
	raise(SIGUSR2);
	raise(SIGUSR1);
	stack_t alt = { .ss_sp = malloc(1 << 16), .ss_size = 1 << 16 };
	sigaltstack(&alt, 0);
	raise(SIGUSR2);
	raise(SIGUSR1);
	a = (struct sigaction){ .sa_handler = fault, .sa_flags = SA_ONSTACK };
	sigaction(SIGSEGV, &a, 0);
	for (int i = 0; i < 2; i++)
		if (!sigsetjmp(env, 1)) *(volatile int *)0 = 1;
	a = (struct sigaction){ .sa_sigaction = next, .sa_flags = SA_SIGINFO };
	sigaction(SIGILL, &a, 0);
	__asm__ volatile(ILLEGAL);
	signal(SIGCHLD, SIG_IGN);
	raise(SIGCHLD);
	signal(SIGCHLD, SIG_DFL);
	// One in a system call that is restarted, and one in one that is not.
	int p[2];
	char c = 0;
	pipe(p);
	for (int i = 0; i < 2; i++) {
		a = (struct sigaction){ .sa_handler = nested, .sa_flags = i ? SA_RESTART : 0 };
		sigaction(SIGALRM, &a, 0);
		pid_t parent = getpid(), child = fork();
		if (!child) { // it waits until its parent sleeps in read
			for (char s = 0; s != 'S';) {
				char path[64], line[256] = "";
				snprintf(path, sizeof path, "/proc/%d/stat", parent);
				FILE *f = fopen(path, "r");
				if (!f || !fgets(line, sizeof line, f)) _exit(1);
				fclose(f);
				s = strrchr(line, ')')[2];
			}
			kill(parent, SIGALRM);
			if (i) write(p[1], "x", 1);
			_exit(0);
		}
		sum += read(p[0], &c, 1);
		waitpid(child, 0, 0);
	}
}

int main(int argc, char **argv) {
	if (argc == 1 && argv[0][0] == 'a') return deep(9) ? 8 : 9;
	jmp_buf to;
	for (int i = 0; i < 3; i++)
		if (setjmp(to) == 0) leave(to, i * 3);
		else hits++;
	signals();
	for (int k = 0; k < 2; k++) {
		getcontext(&there[k]);
		there[k].uc_stack.ss_size = 1 << 16;
		there[k].uc_stack.ss_sp = k ? mmap(0, 1 << 16, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) : malloc(1 << 16);
		there[k].uc_link = &here;
		makecontext(&there[k], (void (*)(void))routine, 1, k);
	}
	for (int i = 0; i < 4; i++) swapcontext(&here, &there[i & 1]); // at last they end: setcontext(uc_link)
	pthread_t t[4];
	for (long i = 0; i < 4; i++) pthread_create(&t[i], 0, worker, (void *)(i + 1));
	for (int i = 0; i < 4; i++) pthread_join(t[i], 0);
	int status = 0;
	fflush(stdout);
	if (!fork()) { sum += deep(5); _exit(3); }
	wait(&status);
	sum += WEXITSTATUS(status);
	if (!vfork()) _exit(4);
	wait(&status);
	sum += WEXITSTATUS(status);
	pid_t pid = vfork();
	if (!pid) execl("/proc/self/exe", "again", (char *)0), _exit(1);
	waitpid(pid, &status, 0);
	sum += WEXITSTATUS(status);
	sum += WEXITSTATUS(system("exit 5"));
	printf("%d signals and jumps, sum %d\n", hits, sum);
	return 6;
}
