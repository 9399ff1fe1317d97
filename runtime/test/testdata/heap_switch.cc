// SPDX-License-Identifier: Apache-2.0
// Allocates on stacks that change between allocations: coroutines on stacks that come and go, handlers on alternate stacks, exceptions, jumps, children
// of vfork, frames of any size, code that is replaced where it lies, and libraries that follow each other. The argument is a library to load.
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <alloca.h>
#include <csetjmp>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <stdexcept>
#include <string>
#include <sys/mman.h>
#include <sys/wait.h>
#include <thread>
#include <ucontext.h>
#include <unistd.h>
#include <vector>

static thread_local uint64_t seed = 1;

static unsigned any(unsigned n)
{
	seed = seed * 6364136223846793005u + 1442695040888963407u;
	return (unsigned)(seed >> 33) % n;
}

static thread_local void *volatile sink;
static int make_nothing(unsigned n);

static __attribute__((noipa)) void one(void)
{
	sink = malloc(1 + any(100));
	free(sink);
}

static thread_local jmp_buf back;
static thread_local int jumps;

static void handler(int)
{
	make_nothing(any(8));
}

// Goes down by frames of several kinds, and allocates at the end and on the way.
static __attribute__((noipa)) int make_nothing(unsigned n)
{
	if (n == 0) {
		one();
		return 0;
	}
	switch (any(8)) {
	case 0: { // a frame by rbp
		volatile char *p = static_cast<char *>(alloca(16 + any(500)));
		p[0] = 1;
		return make_nothing(n - 1) + p[0];
	}
	case 1: {
		std::string s(any(60), 'x');
		return make_nothing(n - 1) + static_cast<int>(s.size());
	}
	case 2:
		try {
			if (any(2))
				make_nothing(n - 1);
			throw std::runtime_error("a text that takes memory of its own, because it is long");
		} catch (std::exception &) {
			one();
			return make_nothing(n - 1);
		}
	case 3:
		if (jumps && any(4) == 0)
			longjmp(back, 1);
		return make_nothing(n - 1) + 1;
	case 4:
		if (any(6) == 0)
			raise(SIGUSR1);
		one();
		return make_nothing(n - 1) + 1;
	case 5: {
		long a[20];
		for (long &x : a)
			x = any(3);
		return make_nothing(n - 1) + static_cast<int>(a[any(20)]);
	}
	}
	return make_nothing(n - 1) + 1;
}

static void jump(void)
{
	jumps++;
	if (setjmp(back) == 0)
		make_nothing(30);
	jumps = 0;
	one();
}

// Coroutines: each switches to another one in the middle of its own stack.
struct coroutine {
	ucontext_t at;
	char *stack;
	size_t size;
	bool over;
};
static thread_local coroutine routines[8];
static thread_local ucontext_t home;
static thread_local int running;

static void run(void)
{
	int own = running;

	for (int i = 0; i < 20; i++) {
		make_nothing(any(12));
		if (any(2))
			swapcontext(&routines[own].at, &home);
	}
	routines[own].over = true;
	swapcontext(&routines[own].at, &home);
}

static void coroutines(void)
{
	for (coroutine &c : routines) {
		c.size = 256 << 10;
		c.stack = static_cast<char *>(mmap(nullptr, c.size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
		c.over = true;
	}
	for (int i = 0; i < 200; i++) {
		running = static_cast<int>(any(8));
		coroutine &c = routines[running];
		if (c.over) {
			if (any(2)) { // others of the process may get the place
				munmap(c.stack, c.size);
				c.stack = static_cast<char *>(mmap(nullptr, c.size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
			}
			getcontext(&c.at);
			c.at.uc_stack.ss_sp = c.stack;
			c.at.uc_stack.ss_size = c.size;
			c.at.uc_link = nullptr;
			c.over = false;
			makecontext(&c.at, run, 0);
		}
		swapcontext(&home, &c.at);
		one();
	}
	for (coroutine &c : routines)
		munmap(c.stack, c.size);
}

// Code without unwind information, whose frame has one size and then another, at the same place.
static void made(void)
{
#ifdef __x86_64__
	auto *code = static_cast<unsigned char *>(mmap(nullptr, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
	auto one_at = reinterpret_cast<uint64_t>(&one);

	for (unsigned char size : {0x08, 0x18, 0x28, 0x18, 0x08}) {
		unsigned char text[] = {0x48, 0x83, 0xec, size, 0x48, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xd0, 0x48, 0x83, 0xc4, size, 0xc3};
		memcpy(text + 6, &one_at, 8);
		memcpy(code, text, sizeof text);
		__builtin___clear_cache(reinterpret_cast<char *>(code), reinterpret_cast<char *>(code) + sizeof text);
		for (int i = 0; i < 3; i++)
			reinterpret_cast<void (*)(void)>(code)();
	}
	munmap(code, 4096);
#endif
}

static void children(void)
{
	for (int i = 0; i < 5; i++) {
		pid_t p = vfork();
		if (p == 0) {
			one();
			_exit(0);
		}
		waitpid(p, nullptr, 0);
		one();
	}
}

static void libraries(const char *path)
{
	for (int i = 0; i < 10; i++) {
		void *h = dlopen(path, RTLD_NOW);
		if (!h)
			abort();
		make_nothing(5);
		dlclose(h);
		make_nothing(5);
	}
}

static void all(int number, const char *path)
{
	seed = static_cast<uint64_t>(number) * 977 + 1;
	std::vector<char> room(64 << 10);
	stack_t s = {};
	s.ss_sp = room.data();
	s.ss_size = room.size();
	sigaltstack(&s, nullptr);
	for (int k = 0; k < 50; k++)
		jump();
	coroutines();
	made();
	children();
	libraries(path);
	s.ss_flags = SS_DISABLE;
	sigaltstack(&s, nullptr);
}

int main(int, char **v)
{
	struct sigaction sa = {};

	sa.sa_handler = handler;
	sa.sa_flags = SA_ONSTACK | SA_NODEFER;
	sigaction(SIGUSR1, &sa, nullptr);
	all(0, v[1]);
	std::vector<std::thread> threads;
	for (int i = 1; i <= 4; i++)
		threads.emplace_back(all, i, v[1]);
	for (std::thread &t : threads)
		t.join();
	puts("done");
	return 0;
}
