// heap_all.cc: each way to allocate and to free memory.
#include <dlfcn.h>
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <memory>
#include <new>
#include <string>
#include <thread>
#include <vector>

static void *volatile sink;

template <class T> static T *use(T *p)
{
	sink = p;
	return p;
}

struct alignas(256) wide {
	char c[512];
};

static void c_functions()
{
	void *p = nullptr;

	use(malloc(0));
	free(use(malloc(100)));
	use(calloc(10, 30));
	free(use(calloc(3, 1000)));
	free(nullptr);
	p = use(realloc(nullptr, 50));
	p = use(realloc(p, 60));
	p = use(realloc(p, 200000));
	p = use(realloc(p, 10));
	p = use(reallocarray(p, 10, 7));
	if (use(realloc(p, (size_t)1 << 62)))
		abort();
	if (use(realloc(p, 0)))
		abort();
	if (use(malloc((size_t)1 << 62)) || use(calloc((size_t)1 << 40, (size_t)1 << 40)) || reallocarray(nullptr, (size_t)1 << 40, (size_t)1 << 40))
		abort();
	use(memalign(64, 1001));
	free(use(aligned_alloc(64, 1024)));
	if (posix_memalign(&p, 128, 777))
		abort();
	free(use(p));
	if (posix_memalign(&p, 4096, 778))
		abort();
	use(valloc(99));
	free(use(pvalloc(101)));
	free(use(strdup("a string of some length")));
}

static void cxx_operators()
{
	delete use(new int);
	use(new int[100]);
	delete[] use(new char[1000]);
	delete use(new wide);
	use(new wide[3]);
	delete use(new (std::nothrow) long);
	operator delete(use(operator new(33)), (size_t)33);
	operator delete[](use(operator new[](34, std::nothrow)), std::nothrow);
	use(operator new(0));
	try {
		use(operator new((size_t)1 << 60));
		abort();
	} catch (const std::bad_alloc &) {
	}
}

// Blocks go from thread to thread.
static void threads()
{
	enum { N = 4, BLOCKS = 20000 };
	static std::vector<void *> made[N];
	std::vector<std::thread> all;

	for (int i = 0; i < N; i++)
		all.emplace_back([i] {
			for (int k = 0; k < BLOCKS; k++)
				made[i].push_back(malloc((size_t)(k % 300)));
		});
	for (auto &t : all)
		t.join();
	all.clear();
	for (int i = 0; i < N; i++)
		all.emplace_back([i] {
			for (auto p : made[(i + 1) % N])
				free(p);
			made[(i + 1) % N].clear();
			thread_local std::string last(1000, 'x'); // freed at the thread's end
			use(last.data());
		});
	for (auto &t : all)
		t.join();
}

static void children(char **argv)
{
	int status;

	fflush(stdout);
	for (int i = 0; i < 3; i++) {
		void *before = use(malloc(5000));
		pid_t pid = fork();

		if (pid == 0) {
			free(before);
			use(malloc((size_t)(1000 + i)));
			free(use(malloc(10)));
			threads();
			if (i == 1)
				execl(argv[0], argv[0], "child", (char *)nullptr);
			if (i == 2)
				kill(getpid(), SIGKILL);
			exit(0);
		}
		free(before);
		waitpid(pid, &status, 0);
	}
}

static void libraries(const char *path)
{
	for (int i = 0; i < 5; i++) {
		void *h = dlopen(path, RTLD_NOW);
		void *(*f)(size_t) = h ? (void *(*)(size_t))dlsym(h, "plug") : nullptr;

		if (!f)
			abort();
		use(f(300));
		dlclose(h);
	}
}

int main(int argc, char **argv)
{
	c_functions();
	cxx_operators();
	if (argc > 2)
		libraries(argv[2]);
	threads();
	if (argc > 1 && strcmp(argv[1], "child") != 0)
		children(argv);
	puts("done");
	return 0;
}
