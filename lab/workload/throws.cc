// throws.cc - threads that throw through deep stacks and sort, at once: g++ -pthread throws.cc
//
//	throws THREADS MS
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

using clk = std::chrono::steady_clock;

static volatile unsigned long sum;

struct guard { // a cleanup in each frame
	int n;
	~guard() { sum = sum + n; }
};

[[gnu::noinline]] static int down(int depth, const std::string &what)
{
	guard g{depth};
	if (depth == 0)
		throw std::runtime_error(what);
	return down(depth - 1, what) + g.n;
}

[[gnu::noinline]] static int caught(int depth)
{
	try {
		return down(depth, "a message that is longer than what a string holds inside");
	} catch (const std::exception &e) {
		return e.what()[0];
	}
}

static void work(unsigned seed, clk::time_point until)
{
	std::mt19937 random(seed);
	std::vector<unsigned> v(3000);
	while (clk::now() < until) {
		for (int i = 0; i < 5; i++)
			sum = sum + caught(int(random() % 60));
		std::generate(v.begin(), v.end(), std::ref(random));
		std::sort(v.begin(), v.end(), [](unsigned a, unsigned b) { sum = sum + 1; return a < b; });
	}
}

int main(int, char **argv)
{
	auto until = clk::now() + std::chrono::milliseconds(atoi(argv[2]));
	std::vector<std::thread> threads;
	for (int i = 0; i < atoi(argv[1]); i++)
		threads.emplace_back(work, i, until);
	for (auto &t : threads)
		t.join();
}
