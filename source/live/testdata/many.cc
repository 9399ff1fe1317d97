// Threads in C++: blocked in templates, lambdas and virtual functions.
#include <condition_variable>
#include <functional>
#include <iostream>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

struct Shape {
	virtual ~Shape() = default;
	virtual int area(int n) = 0;
};

std::mutex m;
std::condition_variable forever, ready;
int in = 0;

template <typename T> __attribute__((noinline)) int nested(T n)
{
	std::unique_lock<std::mutex> l(m);
	in++;
	ready.notify_one();
	forever.wait(l, [] { return false; });
	return int(n);
}

struct Square : Shape {
	int area(int n) override { return n > 0 ? area(n - 1) + 1 : nested<long>(n); }
};

int main()
{
	std::vector<std::thread> ts;
	for (int i = 0; i < 20; i++)
		ts.emplace_back([i] {
			std::function<int(int)> f = [](int n) { return Square().area(n); };
			std::map<std::string, int> x{{"a", f(i)}};
			return x.size();
		});
	{
		std::unique_lock<std::mutex> l(m);
		ready.wait(l, [] { return in == 20; });
	}
	std::cout << "up" << std::endl;
	for (auto &t : ts)
		t.join();
}
