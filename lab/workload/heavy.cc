// heavy.cc - work for a compiler: what a small program makes of the standard library's larger headers.
#include <algorithm>
#include <functional>
#include <future>
#include <iostream>
#include <map>
#include <memory>
#include <numeric>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <unordered_map>
#include <vector>

namespace {

struct Word {
  std::string text;
  int count = 0;
  bool operator<(const Word &o) const { return count != o.count ? count > o.count : text < o.text; }
};

std::vector<Word> count(std::istream &in, const std::regex &separator) {
  std::unordered_map<std::string, int> words;
  for (std::string line; std::getline(in, line);) {
    std::sregex_token_iterator it(line.begin(), line.end(), separator, -1), end;
    for (; it != end; ++it)
      if (it->length() > 0)
        ++words[it->str()];
  }
  std::vector<Word> out;
  for (const auto &[text, n] : words)
    out.push_back({text, n});
  std::sort(out.begin(), out.end());
  return out;
}

std::map<std::size_t, std::set<std::string>> byLength(const std::vector<Word> &words) {
  std::map<std::size_t, std::set<std::string>> out;
  for (const auto &w : words)
    out[w.text.size()].insert(w.text);
  return out;
}

} // namespace

int main(int argc, char **argv) {
  std::istringstream in(std::accumulate(argv, argv + argc, std::string(), [](std::string s, const char *arg) { return s + ' ' + arg; }));
  auto words = std::async(std::launch::async, [&] { return count(in, std::regex("[^a-z]+", std::regex::icase)); });
  std::vector<std::function<void()>> steps;
  auto list = std::make_shared<std::vector<Word>>(words.get());
  steps.push_back([list] { std::cout << list->size() << '\n'; });
  for (const auto &[length, set] : byLength(*list))
    steps.push_back([length = length, n = set.size()] { std::cout << length << ": " << n << '\n'; });
  std::for_each(steps.begin(), steps.end(), [](auto &step) { step(); });
}
