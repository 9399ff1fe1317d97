// chain: LIB+ plt? s_wait main START
// waits:
// A thread that waits in the kernel, where it may be cancelled.
#include "shape.h"

FN void s_wait(void)
{
	char c;
	int fd[2];

	if (pipe(fd) == 0) {
		READY;
		KEEP;
		while (read(fd[0], &c, 1) == 1)
			KEEP;
	}
}

int main(void)
{
	BEGIN;
	s_wait();
	KEEP;
	return 0;
}
