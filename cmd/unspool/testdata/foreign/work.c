// Work sorts for two seconds, with comparisons that go some frames deep.
#include <stdlib.h>
#include <time.h>

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

int main(void) {
	for (time_t end = time(0) + 3; time(0) < end;)
		work();
	return 0;
}
