/* Signals, group-stops, children and threads, and what each looks like to whom it concerns. */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

static volatile sig_atomic_t alarms, children, conts, code, value;

static void on_alarm(int sig) { (void)sig; alarms++; }
static void on_child(int sig) { (void)sig; children++; }
static void on_cont(int sig) { (void)sig; conts++; }
static void on_queue(int sig, siginfo_t *info, void *context)
{
	(void)sig, (void)context;
	code = info->si_code;
	value = info->si_value.sival_int;
}

static void catch(int sig, void (*f)(int))
{
	struct sigaction a = {.sa_handler = f, .sa_flags = SA_RESTART};
	sigaction(sig, &a, NULL);
}

static void burn(int n)
{
	for (volatile long i = 0; i < n * 1000000L; i++)
		;
}

static void status(const char *what, pid_t pid, int options)
{
	int s = 0;
	pid_t got;
	while ((got = waitpid(pid, &s, options)) < 0 && errno == EINTR)
		;
	printf("%s: %s, %s%d\n", what, got == pid ? "it" : "other",
	       WIFEXITED(s) ? "exit " : WIFSIGNALED(s) ? "signal " : WIFSTOPPED(s) ? "stop " : WIFCONTINUED(s) ? "continued " : "?",
	       WIFEXITED(s) ? WEXITSTATUS(s) : WIFSIGNALED(s) ? WTERMSIG(s) : WIFSTOPPED(s) ? WSTOPSIG(s) : 0);
}

static void *worker(void *arg)
{
	sigset_t set;
	int sig;
	burn(5);
	sigemptyset(&set);
	sigaddset(&set, SIGUSR2);
	sigwait(&set, &sig);
	*(int *)arg = sig;
	return NULL;
}

int main(void)
{
	setvbuf(stdout, NULL, _IONBF, 0);

	/* A timer, while it runs. */
	catch(SIGALRM, on_alarm);
	struct itimerval every = {{0, 1000}, {0, 1000}}, off = {{0, 0}, {0, 0}};
	setitimer(ITIMER_REAL, &every, NULL);
	while (alarms < 50)
		burn(1);
	setitimer(ITIMER_REAL, &off, NULL);
	puts("alarms");

	/* A child that stops itself, by each of the signals that stop. */
	catch(SIGCHLD, on_child);
	int stops[] = {SIGSTOP, SIGTSTP, SIGTTIN, SIGTTOU};
	int seen[2]; /* the parent has seen the child go on */
	char c = 0;
	if (pipe(seen))
		return 1;
	for (int i = 0; i < 4; i++) {
		pid_t pid = fork();
		if (pid == 0) {
			setpgid(0, 0); /* TSTP, TTIN and TTOU do not stop an orphaned group: its parent is in another of the session */
			conts = 0;
			catch(SIGCONT, on_cont);
			burn(3);
			raise(stops[i]);
			burn(3);
			if (read(seen[0], &c, 1) != 1)
				_exit(99);
			_exit(10 * i + conts);
		}
		status("stopped", pid, WUNTRACED);
		kill(pid, SIGCONT);
		status("goes on", pid, WCONTINUED);
		if (write(seen[1], &c, 1) != 1)
			return 1;
		status("ends", pid, 0);
	}
	puts(children >= 4 ? "told of children" : "not told of children");

	/* A process of several threads that is stopped by another, more than once, and killed while it is. */
	pid_t pid = fork();
	if (pid == 0) {
		pthread_t t;
		int got;
		pthread_create(&t, NULL, worker, &got);
		for (;;)
			burn(1);
	}
	for (int i = 0; i < 20; i++) {
		kill(pid, SIGSTOP);
		status("stopped again", pid, WUNTRACED);
		kill(pid, SIGCONT);
		status("goes on again", pid, WCONTINUED);
	}
	kill(pid, SIGSTOP);
	status("stopped at last", pid, WUNTRACED);
	kill(pid, SIGKILL);
	status("killed", pid, 0);

	/* What a signal carries, and a signal for one thread. */
	struct sigaction a = {.sa_sigaction = on_queue, .sa_flags = SA_SIGINFO};
	sigaction(SIGRTMIN, &a, NULL);
	sigqueue(getpid(), SIGRTMIN, (union sigval){.sival_int = 4711});
	printf("queued: %d %d\n", code == SI_QUEUE, value);
	sigset_t set;
	sigemptyset(&set);
	sigaddset(&set, SIGUSR2);
	pthread_sigmask(SIG_BLOCK, &set, NULL);
	pthread_t t;
	int got = 0;
	pthread_create(&t, NULL, worker, &got);
	pthread_kill(t, SIGUSR2);
	pthread_join(t, NULL);
	printf("sigwait: %d\n", got == SIGUSR2);

	/* vfork and execve, a trap of its own, a fault. */
	pid = vfork();
	if (pid == 0) {
		execl("/bin/sh", "sh", "-c", "exit 17", NULL);
		_exit(1);
	}
	status("executed", pid, 0);
	int ends[] = {SIGTRAP, SIGSEGV, SIGABRT, SIGTERM};
	for (int i = 0; i < 4; i++) {
		pid = fork();
		if (pid == 0) {
			signal(SIGABRT, SIG_DFL);
			burn(2);
			raise(ends[i]);
			_exit(99);
		}
		status("ended", pid, 0);
	}
	for (int i = 0; i < 50; i++) {
		pid = fork();
		if (pid == 0)
			_exit(i);
		int s;
		while (waitpid(pid, &s, 0) < 0 && errno == EINTR)
			;
		if (WEXITSTATUS(s) != i)
			puts("lost a status");
	}
	puts("done");
	return 42;
}
