// chain: LIB* plt? s_child? s_fork main START
// waits:
// A child on its parent's stack, again and again.
#include "shape.h"
#include <sys/wait.h>

FN void s_child(void)
{
	for (volatile int i = 0; i < 100000; i++)
		;
	_exit(0);
}

FN void s_fork(void)
{
	READY;
	while (forever) {
		pid_t pid = vfork();

		if (pid == 0)
			s_child();
		if (pid > 0)
			waitpid(pid, 0, 0);
		KEEP;
	}
}

int main(void)
{
	BEGIN;
	s_fork();
	KEEP;
	return 0;
}
