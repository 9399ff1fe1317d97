// chain: ((s_leaf )?(s_switch |s_goto ))?s_loop main START
// Tables of jumps, by switch and by addresses of labels, which run all the time.
#include "shape.h"

FN int s_leaf(int n) { KEEP; return n * 3; }

FN int s_switch(int n)
{
	switch (n & 7) {
	case 0: n += s_leaf(n); break;
	case 1: n ^= 5; KEEP; break;
	case 2: n -= s_leaf(n + 1); break;
	case 3: n |= 9; KEEP; break;
	case 4: n += 7; KEEP; break;
	case 5: n -= 11; KEEP; break;
	case 6: n *= 13; KEEP; break;
	default: n = s_leaf(n) + s_leaf(n + 2);
	}
	return n;
}

FN int s_goto(int n)
{
	static void *const to[] = {&&a, &&b, &&c, &&d};
	int left = 20;

next:
	if (--left == 0)
		return n;
	goto *to[n & 3];
a:	n += s_leaf(n); goto next;
b:	n += 3; KEEP; goto next;
c:	n += 5 * left; KEEP; goto next;
d:	n -= s_leaf(n) + 2; goto next;
}

FN void s_loop(void)
{
	int n = 1;

	READY;
	while (forever) {
		n = n * 5 + s_switch(n);
		n += s_goto(n);
		if (n & 1)
			continue;
		n++;
		KEEP;
	}
}

int main(void)
{
	BEGIN;
	s_loop();
	KEEP;
	return 0;
}
