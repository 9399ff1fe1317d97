// Work in functions that compilers inline: sorting, maps, strings, regular expressions. Built with -O2 -g, it has a
// recording whose frames have lines and inlined calls.
//
//	inlined SECONDS     of processor time
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <map>
#include <numeric>
#include <regex>
#include <string>
#include <vector>

static unsigned long sum;

static void sorts(std::vector<std::string> &words)
{
	std::sort(words.begin(), words.end(), [](const std::string &a, const std::string &b) {
		return a.size() != b.size() ? a.size() < b.size() : std::lexicographical_compare(a.rbegin(), a.rend(), b.rbegin(), b.rend());
	});
	sum += words.front().size();
}

static void counts(const std::vector<std::string> &words)
{
	std::map<std::string, int> n;

	for (const auto &w : words)
		n[w.substr(0, 3)]++;
	sum += std::accumulate(n.begin(), n.end(), 0ul, [](unsigned long s, const auto &p) { return s + static_cast<unsigned long>(p.second); });
}

static void matches(const std::vector<std::string> &words)
{
	static const std::regex re("([a-f]+)[0-9]*([g-z]+)");

	sum += static_cast<unsigned long>(std::count_if(words.begin(), words.end(), [](const std::string &w) { return std::regex_match(w, re); }));
}

int main(int argc, char **argv)
{
	double until = argc > 1 ? atof(argv[1]) : 1;
	std::vector<std::string> words;

	srand(1);
	while (static_cast<double>(clock()) < until * CLOCKS_PER_SEC) {
		words.clear();
		for (int i = 0; i < 2000; i++) {
			std::string w;

			for (int n = 3 + rand() % 9; n > 0; n--)
				w += static_cast<char>('a' + rand() % 26);
			words.push_back(w);
		}
		sorts(words);
		counts(words);
		matches(words);
	}
	return sum == 0;
}
