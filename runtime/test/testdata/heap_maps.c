/* heap_maps.c: each way to map memory without a file, between "begin" and "end"; nothing else does that there. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PAGE = 4096, THREADS = 8 };

static void say(const char *s)
{
	if (write(1, s, strlen(s)) < 0)
		_exit(3);
}

__attribute__((noipa)) static char *map_at(void *at, size_t n, int flags)
{
	char *p = mmap(at, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);

	if (p == MAP_FAILED)
		_exit(4);
	return p;
}

static void must(int ok)
{
	if (!ok)
		_exit(5);
}

__attribute__((noipa)) static void s_brief(void)
{
	for (int i = 0; i < 10; i++)
		must(munmap(map_at(NULL, 5 * PAGE, 0), 5 * PAGE) == 0);
}

/* 7 of 10 pages stay, in 3 parts. */
__attribute__((noipa)) static void s_parts(void)
{
	char *p = map_at(NULL, 10 * PAGE, 0);

	must(munmap(p + 2 * PAGE, PAGE) == 0);
	must(munmap(p + 6 * PAGE, 2 * PAGE) == 0);
	must(munmap(p + 6 * PAGE, 2 * PAGE) == 0); /* again */
	must(munmap(p + 1, PAGE) == -1 && errno == EINVAL);
}

/* 100 pages stay; 8 of them are mapped from elsewhere. */
__attribute__((noipa)) static void s_over(void)
{
	char *p = mmap(NULL, 100 * PAGE - 5, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	must(p != MAP_FAILED);
	map_at(p + 10 * PAGE, 4 * PAGE, MAP_FIXED);
	map_at(p + 20 * PAGE, 6 * PAGE, MAP_FIXED);
	map_at(p + 22 * PAGE, 2 * PAGE, MAP_FIXED);
	must(madvise(p + 10 * PAGE, 4 * PAGE, MADV_DONTNEED) == 0);
	must(mprotect(p, 2 * PAGE, PROT_READ) == 0);
}

/* A file over 1 of 3 pages. */
__attribute__((noipa)) static void s_file(const char *path)
{
	char *p = map_at(NULL, 3 * PAGE, 0);
	int fd = open(path, O_RDONLY | O_CLOEXEC);

	must(fd >= 0);
	must(mmap(p + PAGE, PAGE, PROT_READ, MAP_PRIVATE | MAP_FIXED, fd, 0) == p + PAGE);
	must(mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE, fd, 0) != MAP_FAILED);
	close(fd);
}

/* 4 + 40 + 9 pages. */
__attribute__((noipa)) static void s_remap(void)
{
	char *p = map_at(NULL, 20 * PAGE, 0), *q = map_at(NULL, 8 * PAGE, 0), *r;

	must(mremap(p, 20 * PAGE, 4 * PAGE, 0) == p);
	must((q = mremap(q, 8 * PAGE, 40 * PAGE, MREMAP_MAYMOVE)) != MAP_FAILED);
	r = map_at(NULL, 9 * PAGE, 0);
	must(mremap(q + 10 * PAGE, 5 * PAGE, 5 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, r) == r);
	map_at(q + 10 * PAGE, 5 * PAGE, MAP_FIXED);
	must(mremap(r, 9 * PAGE, (size_t)1 << 60, MREMAP_MAYMOVE) == MAP_FAILED && errno == EINVAL);
}

/* 2 * 3 pages. */
__attribute__((noipa)) static void s_shared(void)
{
	char *p = mmap(NULL, 3 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	must(p != MAP_FAILED);
	must(mremap(p, 0, 3 * PAGE, MREMAP_MAYMOVE) != MAP_FAILED);
}

/* 24 pages. */
__attribute__((noipa)) static void s_break(void)
{
	char *p = sbrk(0);

	must(sbrk(30 * PAGE) == p);
	must(sbrk(-10 * PAGE) == p + 30 * PAGE);
	must(brk(p + 25 * PAGE) == 0);
	must(brk(p + 24 * PAGE) == 0);
	must(brk(NULL) == 0); /* changes nothing */
}

static pthread_barrier_t barrier;

/* 50 of 100 pages, each. */
static void *thread(void *p)
{
	char *all[100];

	pthread_barrier_wait(&barrier);
	for (int k = 0; k < 20; k++) {
		for (int i = 0; i < 100; i++)
			*(all[i] = map_at(NULL, PAGE, 0)) = 1;
		for (int i = 0; i < 100; i++)
			must(munmap(all[i], PAGE) == 0);
	}
	for (int i = 0; i < 100; i++)
		all[i] = map_at(NULL, PAGE, 0);
	for (int i = 0; i < 50; i++)
		must(munmap(all[i], PAGE) == 0);
	pthread_barrier_wait(&barrier);
	pthread_barrier_wait(&barrier);
	return p;
}

int main(int argc, char **argv)
{
	pthread_t t[THREADS];
	int threads;
	char c;

	must(argc == 3);
	threads = argv[2][0] - '0';
	must(threads >= 0 && threads <= THREADS);
	pthread_barrier_init(&barrier, NULL, (unsigned)threads + 1);
	for (int i = 0; i < threads; i++)
		must(pthread_create(&t[i], NULL, thread, NULL) == 0);
	usleep(200000); /* they have allocated what they need */
	say("begin\n");
	must(read(0, &c, 1) == 1);
	s_brief();
	s_parts();
	s_over();
	s_file(argv[1]);
	s_remap();
	s_shared();
	s_break();
	pthread_barrier_wait(&barrier);
	pthread_barrier_wait(&barrier);
	say("end\n");
	must(read(0, &c, 1) == 1);
	pthread_barrier_wait(&barrier);
	for (int i = 0; i < threads; i++)
		pthread_join(t[i], NULL);
	_exit(0);
}
