/*
 * module.c - one of the many shared objects of many.c: gcc -shared -fPIC [-DPAD=BYTES] module.c
 */
#ifndef PAD
#define PAD 24
#endif

typedef void step(void *const *all, int n, int i, int left, void (*work)(void));

/* Calls the next of all, until none is left. */
void next(void *const *all, int n, int i, int left, void (*work)(void))
{
	volatile char frame[PAD];

	frame[0] = (char)left;
	if (left > 0)
		((step *)all[(i + 1) % n])(all, n, (i + 1) % n, left - 1, work);
	else
		work();
	__asm__ volatile("" : : "r"(frame) : "memory"); /* no tail call */
}
