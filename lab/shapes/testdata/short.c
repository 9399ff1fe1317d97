// chain: s_spin? s_work main START
// chain: (LIB|plt)* s_parent? main START
// chain: _start|(LIB|plt|_init|_fini)+ _start?
// runs:
// Programs that live for a few milliseconds, from their first instruction on.
#include "shape.h"
#include <sys/wait.h>

FN void s_spin(void)
{
	for (volatile int i = 0; i < 100000; i++)
		;
}

FN void s_work(void)
{
	for (int i = 0; i < 30; i++)
		s_spin();
	KEEP;
}

FN void s_parent(char *self)
{
	char *args[] = {self, (char *)"child", 0};

	for (int i = 0; i < 40; i++) {
		pid_t pid = fork();

		if (pid == 0) {
			execv("/proc/self/exe", args);
			_exit(1);
		}
		waitpid(pid, 0, 0);
		KEEP;
	}
}

int main(int argc, char **argv)
{
	BEGIN;
	if (argc == 1)
		s_parent(argv[0]);
	else
		s_work();
	KEEP;
	return 0;
}
