// A program that ends, or waits, in the way its argument says. Before it waits it prints a line.
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define OUT __attribute__((noinline, noclone))

static volatile int sink;
static int *volatile nowhere = (int *)16;
static void (*volatile no_function)(void);

OUT static void segv(int n) {
	if (n > 0)
		segv(n - 1);
	else
		*nowhere = 1;
	sink = n;
}

OUT static void null_call(void) {
	no_function();
	sink = 1;
}

// The call is the last instruction: its return address is in the next function.
OUT static _Noreturn void give_up(void) { abort(); }

OUT static int overflow(int n) {
	volatile char room[100];
	room[0] = n;
	int r = overflow(n + 1) + room[0];
	sink = r;
	return r + 1;
}

OUT static int deep(int n) {
	volatile char room[16];
	room[0] = n;
	if (n == 0)
		abort();
	return deep(n - 1) + room[0];
}

static sem_t go;

OUT static void *overflow_thread(void *arg) {
	sem_wait(&go); // until the other thread is past clone, which nobody can walk out of
	sink = overflow(0);
	return arg;
}

static void small_stack(void) {
	pthread_attr_t attr;
	pthread_t t;
	pthread_attr_init(&attr);
	pthread_attr_setstacksize(&attr, 64 << 10);
	sem_init(&go, 0, 0);
	pthread_create(&t, &attr, overflow_thread, 0);
	sem_post(&go);
	pthread_join(t, 0);
}

OUT static void in_handler(void) { abort(); }

static void handler(int sig) {
	in_handler();
	sink = sig;
}

static void alternate(void) {
	static char stack[64 << 10];
	stack_t alt = {.ss_sp = stack, .ss_size = sizeof stack};
	struct sigaction act = {.sa_handler = handler, .sa_flags = SA_ONSTACK};
	sigaltstack(&alt, 0);
	sigaction(SIGSEGV, &act, 0);
	segv(3);
}

OUT static void child(void) {
	*nowhere = 2;
	_exit(1);
}

OUT static void in_vfork(void) {
	pid_t pid = vfork();
	if (pid == 0)
		child();
	waitpid(pid, 0, 0);
}

// Everything above its caller's frame is overwritten.
OUT static void smash(char *frame) {
	memset(frame, 0x41, 2048);
	*nowhere = 3;
}

OUT static void corrupted(void) {
	char room[64];
	smash(room);
	sink = room[0];
}

OUT static void ready(void) {
	puts("ready");
	fflush(stdout);
}

OUT static void blocked(void) {
	char c;
	int p[2];
	if (pipe(p) == 0) {
		ready();
		sink = read(p[0], &c, 1);
	}
}

static pthread_barrier_t barrier;

OUT static void *wait_there(void *arg) {
	pthread_barrier_wait(&barrier);
	pause();
	return arg;
}

static void threads(int n) {
	pthread_barrier_init(&barrier, 0, n + 1);
	for (int i = 0; i < n; i++) {
		pthread_t t;
		pthread_create(&t, 0, wait_there, 0);
	}
	pthread_barrier_wait(&barrier);
	ready();
	pause();
	sink = 1;
}

int main(int argc, char **argv) {
	const char *how = argc > 1 ? argv[1] : "";
	if (!strcmp(how, "segv"))
		segv(5);
	else if (!strcmp(how, "null"))
		null_call();
	else if (!strcmp(how, "abort"))
		give_up();
	else if (!strcmp(how, "deep"))
		deep(10000);
	else if (!strcmp(how, "overflow"))
		small_stack();
	else if (!strcmp(how, "handler"))
		alternate();
	else if (!strcmp(how, "vfork"))
		in_vfork();
	else if (!strcmp(how, "corrupted"))
		corrupted();
	else if (!strcmp(how, "blocked"))
		blocked();
	else if (!strcmp(how, "threads"))
		threads(argc > 2 ? atoi(argv[2]) : 3);
	else
		return 2;
	sink = 2;
	return 0;
}
