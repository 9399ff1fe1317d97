#include <algorithm>
#include <map>
#include <regex>
#include <string>
#include <vector>
#include <functional>
#include <cstdio>

namespace deep { namespace {
template <typename T> struct box { T v; T twice() const { return v + v; } };
struct base { virtual int f(int) const = 0; virtual ~base() {} };
struct left : base { int f(int x) const override { return x * 3 + box<int>{x}.twice(); } };
struct right : base { int f(int x) const override { return x * 5 - box<int>{x}.twice(); } };
} }

static int count(const std::string &s) {
	std::regex word("[a-z]+([0-9]*)");
	return std::distance(std::sregex_iterator(s.begin(), s.end(), word), std::sregex_iterator());
}

int main(int argc, char **argv) {
	std::map<std::string, std::vector<int>> m;
	for (int i = 0; i < argc * 10; i++) m[argv[i % argc]].push_back(i);
	std::vector<std::function<int(int)>> fs;
	deep::left l; deep::right r;
	for (auto &[k, v] : m) {
		std::sort(v.begin(), v.end(), [&](int a, int b) { return l.f(a) > r.f(b); });
		fs.push_back([n = count(k), &v](int x) { return x + n + v[0]; });
	}
	const deep::base *b = argc > 1 ? (const deep::base *)&l : &r;
	int sum = b->f(argc);
	for (auto &f : fs) sum += f(sum);
	printf("%d\n", sum);
}
