// chain: s_spin s_work THREAD
// chain: LIB+ main START
// link: -pthread
// A thread works, the first one waits for it.
#include "shape.h"
#include <pthread.h>

FN void s_spin(void) { SPIN; }

FN void *s_work(void *p)
{
	s_spin();
	KEEP;
	return p;
}

int main(void)
{
	pthread_t t;

	BEGIN;
	pthread_create(&t, 0, s_work, 0);
	pthread_join(t, 0);
	KEEP;
	return 0;
}
