// Work sorts for three seconds, with comparisons that go some frames deep. It asks for no time: another machine has not its vDSO.
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#define OUT __attribute__((noinline, noclone))

static volatile int sink;

OUT static int deeper(int n) {
	volatile char room[32];
	room[0] = n;
	if (n > 0)
		return deeper(n - 1) + room[0];
	for (int i = 0; i < 1000; i++)
		sink += i;
	return sink;
}

static int compare(const void *a, const void *b) {
	sink += deeper(7);
	return *(const int *)a - *(const int *)b;
}

OUT static void work(void) {
	int x[64];
	for (int i = 0; i < 64; i++)
		x[i] = i * 37 % 64;
	qsort(x, 64, sizeof *x, compare);
}

static volatile sig_atomic_t over;

static void end(int sig) { over = sig; }

int main(void) {
	signal(SIGALRM, end);
	alarm(3);
	while (!over)
		work();
	return 0;
}
