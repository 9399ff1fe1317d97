// heap_safe.cc: allocates where that can go wrong. Arguments: "signals", or "forks" and a library.
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

static void *volatile sink;
static std::atomic<bool> stop;
static std::atomic<long> handled;
static void *early;

__attribute__((constructor(101))) static void before()
{
	early = malloc(123);
	sink = realloc(malloc(10), 1000);
	free(sink);
}

__attribute__((destructor)) static void after()
{
	free(early);
	free(sink = malloc(77));
}

static std::atomic<void *> kept[64]; // not in handler, which would interrupt itself where it makes them

static void handler(int)
{
	long n = handled++;
	void *p = malloc((size_t)(n % 500));

	free(kept[n % 64].exchange(p));
	if (n % 7 == 0) {
		sink = realloc(malloc(20), 3000);
		free(sink);
	}
}

static void work()
{
	std::vector<void *> v;

	for (unsigned k = 0; !stop; k++) {
		v.push_back(malloc(k % 700));
		if (v.size() > 100) {
			for (auto p : v)
				free(p);
			v.clear();
		}
	}
	for (auto p : v)
		free(p);
}

static int signals()
{
	struct sigaction a = {};
	std::vector<std::thread> all;
	struct itimerval t = {{0, 100}, {0, 100}};

	a.sa_handler = handler;
	a.sa_flags = SA_RESTART | SA_NODEFER;
	sigaction(SIGALRM, &a, nullptr);
	setitimer(ITIMER_REAL, &t, nullptr);
	for (int i = 0; i < 3; i++)
		all.emplace_back(work);
	for (int i = 0; i < 200; i++) {
		for (auto &th : all)
			pthread_kill(th.native_handle(), SIGALRM);
		usleep(1000);
	}
	t = {};
	setitimer(ITIMER_REAL, &t, nullptr);
	stop = true;
	for (auto &th : all)
		th.join();
	puts(handled > 100 ? "many" : "few");
	return 0;
}

static void allocate()
{
	free(sink = malloc(5000));
}

static void at_end(void *p)
{
	free(p);
	free(sink = malloc(300));
}

static pthread_key_t key;

static int forks(const char *plug)
{
	std::vector<std::thread> all;
	int bad = 0;

	pthread_atfork(allocate, allocate, allocate);
	pthread_key_create(&key, at_end);
	for (int i = 0; i < 2; i++)
		all.emplace_back(work);
	all.emplace_back([plug] {
		while (!stop) {
			void *h = dlopen(plug, RTLD_NOW);
			void *(*f)(size_t) = h ? (void *(*)(size_t))dlsym(h, "plug") : nullptr;

			if (!f)
				abort();
			free(f(100));
			dlclose(h);
		}
	});
	for (int i = 0; i < 100; i++) {
		pid_t pid = fork();

		if (pid == 0) {
			std::thread th([] {
				pthread_setspecific(key, malloc(200));
				thread_local std::string last(1000, 'x');
				sink = last.data();
			});
			th.join();
			free(sink = malloc(1 << 20));
			_exit(0);
		}
		int status = 0;

		waitpid(pid, &status, 0);
		bad += status != 0;
	}
	stop = true;
	for (auto &th : all)
		th.join();
	printf("%d\n", bad);
	return 0;
}

int main(int, char **argv)
{
	return strcmp(argv[1], "signals") == 0 ? signals() : forks(argv[2]);
}
