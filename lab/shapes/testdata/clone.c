// chain: LIB* plt? s_make main START
// chain: LIB* s_work THREAD
// chain: LIB{1,6}
// link: -pthread
// A thread that makes others all the time. Where a new one begins, or ends, there is no function of its own yet, or any more.
#include "shape.h"
#include <pthread.h>

FN void *s_work(void *p)
{
	KEEP;
	return p;
}

FN void s_make(void)
{
	READY;
	while (forever) {
		pthread_t t;

		if (pthread_create(&t, 0, s_work, 0) == 0)
			pthread_join(t, 0);
		KEEP;
	}
}

int main(void)
{
	BEGIN;
	s_make();
	KEEP;
	return 0;
}
