#pragma once

#include <cstddef>
#include <vector>

namespace braid {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif
#else
inline constexpr bool kSanitized = false;
#endif

/// All cases; under a sanitizer, which takes five to twenty times as long, every `stride`-th: what
/// it looks for are threads and memory, which the cases left out use in the same ways. Sums are
/// compared by the build without one.
template <class T>
std::vector<T> thinned(std::vector<T> cases, size_t stride) {
  if (!kSanitized) {
    return cases;
  }
  std::vector<T> some;
  for (size_t i = 0; i < cases.size(); i += stride) {
    some.push_back(cases[i]);
  }
  return some;
}

/// How many cases of a loop over random ones run: all; under a sanitizer, about one in `part`.
template <class T>
constexpr T thinned_count(T cases, int part) {
  const auto parts = static_cast<T>(part);
  return kSanitized ? (cases + parts - 1) / parts : cases;
}

}  // namespace braid
