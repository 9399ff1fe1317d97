/*
 * heap_maps_lock.c: threads that map memory while they hold a lock, which the library's munmap takes. With -DLIBRARY the library, else the program.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

void *page(void);

#ifdef LIBRARY

static pthread_mutex_t lock = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;

void *mmap(void *at, size_t n, int prot, int flags, int fd, off_t off)
{
	void *p;

	pthread_mutex_lock(&lock);
	p = (void *)syscall(SYS_mmap, at, n, prot, flags, fd, off);
	pthread_mutex_unlock(&lock);
	return p;
}

int munmap(void *p, size_t n)
{
	int r;

	pthread_mutex_lock(&lock);
	r = (int)syscall(SYS_munmap, p, n);
	pthread_mutex_unlock(&lock);
	return r;
}

void *page(void)
{
	void *(*first)(void *, size_t, int, int, int, off_t), *p;

	pthread_mutex_lock(&lock);
	*(void **)&first = dlsym(RTLD_DEFAULT, "mmap");
	p = first(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	pthread_mutex_unlock(&lock);
	return p;
}

#else

static void *thread(void *x)
{
	for (int i = 0; i < 5000; i++)
		if (munmap(page(), 4096) != 0)
			_exit(3);
	return x;
}

int main(void)
{
	pthread_t t[4];

	for (int i = 0; i < 4; i++)
		if (pthread_create(&t[i], NULL, thread, NULL) != 0)
			return 4;
	for (int i = 0; i < 4; i++)
		pthread_join(t[i], NULL);
	return puts("done") < 0;
}

#endif
