#pragma once

#include <cstdint>
#include <numeric>
#include <vector>

/// Rows of experts that the members of a group exchange.
namespace braid {

/// What the members of a group have: counts[m][e] rows of expert e.
struct Experts {
  std::vector<std::vector<int64_t>> counts;
  int64_t copies = 1;
  int64_t room = 1000;  ///< rows that a member can receive
  bool drops = false;

  int64_t members() const { return std::ssize(counts); }
  int64_t experts() const { return std::ssize(counts[0]); }
  int64_t local() const { return experts() * copies / members(); }
  int64_t rows() const { return std::reduce(counts[0].begin(), counts[0].end()); }
  int64_t first(int64_t member) const { return member / copies * local(); }
};

inline std::vector<int32_t> offsets_of_all(const Experts& given) {
  std::vector<int32_t> offsets;
  for (const auto& counts : given.counts) {
    int32_t sum = 0;
    offsets.push_back(sum);
    for (const int64_t count : counts) {
      sum += static_cast<int32_t>(count);
      offsets.push_back(sum);
    }
  }
  return offsets;
}

/// Two members' experts each on one rank; an expert without rows; a member that gets nothing; all
/// rows to one expert; three members that share every expert.
inline std::vector<Experts> awkward_experts() {
  return {{.counts = {{3}}},
          {.counts = {{2, 1, 0, 4}, {0, 5, 1, 1}}},
          {.counts = {{0, 4}, {0, 4}}},
          {.counts = {{1, 0, 2, 3, 1, 0}, {7, 0, 0, 0, 0, 0}, {2, 0, 1, 1, 1, 2}}},
          {.counts = {{2, 2}, {4, 0}, {1, 3}}, .copies = 3},
          {.counts = {{2, 1, 0, 4}, {0, 5, 1, 1}, {7, 0, 0, 0}, {1, 2, 2, 2}}, .copies = 2},
          {.counts = {{2, 1, 0, 4}, {0, 5, 1, 1}}, .room = 5, .drops = true},
          {.counts = {{2, 2}, {4, 0}, {1, 3}}, .copies = 3, .room = 7, .drops = true}};
}

}  // namespace braid
