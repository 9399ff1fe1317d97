// chain: LIB* plt? s_loop main START
// Calls through the procedure linkage table, all the time; the first one of each binds the function.
#include "shape.h"
#include <stdlib.h>
#include <string.h>

FN void s_loop(void)
{
	volatile int n = 1;
	char text[32] = "abcdef";

	READY;
	while (forever) {
		n += labs(n) + rand();
		n += strlen(text + (n & 3));
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
