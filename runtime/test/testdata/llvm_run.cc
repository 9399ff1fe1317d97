// llvm_run.cc: a program with libc++ and LLVM's libunwind. It throws, catches, rethrows in a thread and walks, and says what it came to. On standard
// error, it says which files of unwinders are mapped.
#include <cstdio>
#include <cstring>
#include <exception>
#include <libunwind.h>
#include <stdexcept>
#include <string>
#include <thread>

struct Counts {
	int &n;
	~Counts() { n++; }
};

__attribute__((noinline)) static int throws(int depth, int &cleanups)
{
	Counts c{cleanups};

	if (depth == 0)
		throw std::runtime_error("deep");
	return throws(depth - 1, cleanups) + 1;
}

// The frames from here to main, by their names.
__attribute__((noinline)) static std::string walk()
{
	std::string names;
	unw_context_t uc;
	unw_cursor_t c;
	char name[64];
	unw_word_t off;

	unw_getcontext(&uc);
	unw_init_local(&c, &uc);
	while (unw_step(&c) > 0 && unw_get_proc_name(&c, name, sizeof name, &off) == 0) {
		names += std::string(" ") + name;
		if (strcmp(name, "main") == 0)
			break;
	}
	return names;
}

extern "C" __attribute__((noinline)) int middle(std::string &names)
{
	names = walk();
	return (int)names.size();
}

int main()
{
	int cleanups = 0;
	std::string names;
	std::exception_ptr kept;

	for (int i = 0; i < 100; i++) {
		try {
			throws(i % 30, cleanups);
		} catch (const std::exception &e) {
			kept = std::current_exception();
			names = e.what();
		}
	}
	printf("%d cleanups, %s\n", cleanups, names.c_str());
	std::thread([&] {
		try {
			std::rethrow_exception(kept);
		} catch (const std::runtime_error &e) {
			printf("in a thread: %s\n", e.what());
		}
	}).join();
	middle(names);
	printf("frames:%s\n", names.c_str());
	if (FILE *maps = fopen("/proc/self/maps", "r")) {
		char line[4096];

		while (fgets(line, sizeof line, maps))
			if (strstr(line, "r-xp") && (strstr(line, "/libunwind") || strstr(line, "/libunspool") || strstr(line, "/libgcc_s")))
				fputs(strchr(line, '/'), stderr);
		fclose(maps);
	}
	return 0;
}
