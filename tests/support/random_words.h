#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <initializer_list>
#include <random>
#include <string>
#include <vector>

namespace braid {

/// Draws overrides of a configuration, the same for a seed on any machine.
class RandomWords {
 public:
  /// `seed`: of the generator itself.
  explicit RandomWords(uint64_t seed) : random_(seed) {}

 protected:
  int64_t below(int64_t limit) {
    return static_cast<int64_t>(random_() % static_cast<uint64_t>(limit));
  }
  bool one_in(int64_t n) { return below(n) == 0; }
  template <class T>
  T any(std::initializer_list<T> list) {
    return list.begin()[below(static_cast<int64_t>(list.size()))];
  }
  template <class T>
  void set(const char* key, const T& value) {
    words_.push_back(fmt::format("{}={}", key, value));
  }

  std::vector<std::string> words_;

 private:
  std::mt19937_64 random_;
};

}  // namespace braid
