// A parent that waits for a child that runs for ever. Both write their process ID first.
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

int main(void) {
	setvbuf(stdout, 0, _IOLBF, BUFSIZ);
	printf("%d\n", getpid());
	if (fork()) return wait(0) < 0;
	printf("%d\n", getpid());
	for (volatile unsigned n = 0;; n++) ;
}
