// heavy.cc - work for a compiler: containers, algorithms and recursive templates, SIZE times over.
#include <algorithm>
#include <array>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <numeric>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#ifndef SIZE
#define SIZE 16
#endif

// A chain of distinct types, each built of the ones before.
template <int N> struct Node {
  using Below = Node<N - 1>;
  std::map<std::string, Below> children;
  std::variant<int, std::string, std::vector<double>> value;
  std::unique_ptr<Below> next;

  template <class F> void visit(F &&f) const {
    f(N, value);
    for (const auto &[name, child] : children)
      child.visit(f);
    if (next)
      next->visit(f);
  }
};

template <> struct Node<0> {
  template <class F> void visit(F &&) const {}
};

template <std::size_t... I> auto columns(std::index_sequence<I...>) {
  return std::make_tuple(std::vector<std::array<char, I + 1>>(I + 3)...);
}

template <int N> std::string work(std::istream &in) {
  std::unordered_map<std::string, std::set<std::pair<int, std::string>>> index;
  std::vector<std::function<int(int)>> steps;
  std::string word;
  while (in >> word) {
    index[word.substr(0, N % 5 + 1)].emplace(N, word);
    steps.push_back([=](int x) { return x * N + static_cast<int>(word.size()); });
  }
  std::sort(steps.begin(), steps.end(), [](const auto &a, const auto &b) { return a(N) < b(N); });
  auto cols = columns(std::make_index_sequence<N % 7 + 2>());
  std::size_t total = std::apply([](const auto &...c) { return (c.size() + ...); }, cols);
  Node<N % 9 + 1> root;
  std::ostringstream out;
  root.visit([&](int depth, const auto &v) { out << depth << ':' << v.index() << ' '; });
  for (const auto &[key, set] : index)
    out << std::regex_replace(key, std::regex("[aeiou]"), "$&$&") << set.size();
  out << std::accumulate(steps.begin(), steps.end(), static_cast<int>(total), [](int a, auto &f) { return f(a); });
  if constexpr (N > 0)
    return out.str() + work<N - 1>(in);
  else
    return out.str();
}

int main() { std::cout << work<SIZE>(std::cin) << '\n'; }
