/* A shared object that calls back: directly, or with DEPTH through frames of other sizes at the same addresses. */
#define NOINLINE __attribute__((noinline))
#ifdef DEPTH
NOINLINE static int inner(int (*f)(void))
{
	volatile char room[200];

	room[0] = 1;
	return f() + room[0] - 1;
}

NOINLINE static int outer(int (*f)(void))
{
	volatile char room[3000];

	room[0] = 1;
	return inner(f) + room[0] - 1;
}
#endif
int plugin(int (*f)(void))
{
	volatile int r;

#ifdef DEPTH
	r = outer(f);
#else
	r = f();
#endif
	return r;
}
