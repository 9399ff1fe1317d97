// Threads that wait, below templates and lambdas.
#include <condition_variable>
#include <cstdio>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace pool {
std::mutex mutex;
std::condition_variable changed;
int waiting;

template <class T> struct queue {
	__attribute__((noinline)) T take(std::unique_lock<std::mutex> &lock) {
		T got{};
		++waiting;
		changed.notify_all();
		changed.wait(lock, [] { return waiting < 0; });
		return got;
	}
};
}

int main() {
	std::vector<std::thread> threads;
	pool::queue<std::vector<int>> q;
	for (int i = 0; i < 8; i++)
		threads.emplace_back([&q] {
			std::unique_lock<std::mutex> lock(pool::mutex);
			std::function<int()> work = [&] { return (int)q.take(lock).size(); };
			work();
		});
	{
		std::unique_lock<std::mutex> lock(pool::mutex);
		pool::changed.wait(lock, [] { return pool::waiting == 8; });
	}
	std::puts("ready");
	std::fflush(stdout);
	for (auto &t : threads)
		t.join();
}
