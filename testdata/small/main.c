// Calls functions at random, 20 to 40 deep, and sleeps. One argument is how many at most are called one after another (100 without it). With a second,
// functions near each other are called, as many as it says, and half a minute later others.
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>
#define N 20000
extern void (*const functions[N])(int);
static uint32_t seed, first, near = N;
static volatile unsigned long sink;
static uint32_t draw(void) { seed = seed * 1664525u + 1013904223u; return seed >> 8; }
__attribute__((noinline)) void burn(void) { for (int i = 0; i < 400; i++) sink += i; }
void next(int depth) { if (depth <= 0) burn(); else functions[(first + draw() % near) % N](depth - 1); sink++; }
int main(int argc, char **argv) {
	int chains = argc > 1 ? atoi(argv[1]) : 100;
	if (argc > 2)
		near = atoi(argv[2]);
	seed = getpid();
	for (int n = 0;; n++) {
		if (n % 100 == 0)
			first = near < N ? draw() : 0;
		for (int i = 0; i < chains; i++)
			next(20 + draw() % 20);
		usleep(150000 + draw() % 300000);
	}
}
