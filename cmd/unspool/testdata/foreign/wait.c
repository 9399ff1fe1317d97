// Wait has threads that wait in known ways, and prints a line when they do. With the number of such a process, it ends that by SIGABRT and waits
// until its core is written.
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define OUT __attribute__((noinline, noclone))

static volatile int sink;
static int nothing[2];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t never = PTHREAD_COND_INITIALIZER;

OUT static int reads(int n) {
	volatile char room[48];
	room[0] = n;
	if (n > 0)
		return reads(n - 1) + room[0];
	return (int)read(nothing[0], (char *)room, 1);
}

OUT static int varied(int n) { // found by its frame pointer
	volatile char *room = __builtin_alloca((size_t)n);
	room[0] = 1;
	pthread_mutex_lock(&lock);
	while (!sink)
		pthread_cond_wait(&never, &lock);
	return room[0];
}

OUT static void handler(int sig) {
	sink += sig - sig;
	pause();
	sink = 0;
}

static int compare(const void *a, const void *b) {
	raise(SIGUSR1);
	return *(const int *)a - *(const int *)b;
}

OUT static void *reader(void *arg) {
	sink += reads(900) & 0;
	return arg;
}

OUT static void *waiter(void *arg) {
	sink += varied(1000) & 0;
	return arg;
}

OUT static void *interrupted(void *arg) {
	stack_t ss = {.ss_size = 1 << 16};
	int x[3] = {3, 1, 2};

	ss.ss_sp = mmap(NULL, ss.ss_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	sigaltstack(&ss, NULL);
	qsort(x, 3, sizeof *x, compare);
	return arg;
}

static int end(pid_t pid) {
	char name[64], state = 0;

	kill(pid, SIGABRT);
	snprintf(name, sizeof name, "/proc/%d/stat", (int)pid);
	while (state != 'Z') {
		FILE *f = fopen(name, "r");

		if (!f)
			return 0;
		if (fscanf(f, "%*d (%*[^)]) %c", &state) != 1)
			state = 0;
		fclose(f);
		usleep(100000);
	}
	return 0;
}

int main(int argc, char **argv) {
	void *(*const all[])(void *) = {reader, waiter, interrupted};
	struct sigaction sa = {.sa_handler = handler, .sa_flags = SA_ONSTACK};
	pthread_t t;

	if (argc > 1)
		return end(atoi(argv[1]));
	if (pipe(nothing) != 0)
		return 1;
	sigaction(SIGUSR1, &sa, NULL);
	for (unsigned i = 0; i < sizeof all / sizeof *all; i++)
		pthread_create(&t, NULL, all[i], NULL);
	sleep(2); // they wait by now
	puts("waits");
	fflush(stdout);
	for (;;)
		pause();
}
