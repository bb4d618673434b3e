#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

namespace braid {

/// Which rows of a microbatch a tensor rank holds, with sequence parallelism: rows that other
/// pipeline ranks send do not tell. Learned from the first calls that gather such rows.
class SpreadRows {
 public:
  /// Consecutive rows of the rank. `first` and `origin` are rows of the microbatch.
  struct Run {
    int64_t begin = 0;
    int64_t end = 0;
    int64_t first = 0;   ///< of this rank
    int64_t origin = 0;  ///< of the first rank
    int64_t stride = 0;  ///< from rank to rank
  };

  void learn(const Run& run) { runs_.try_emplace(run.begin, run); }

  /// All runs of a rank with that many rows; nothing if some are unknown.
  std::optional<std::vector<Run>> of(int64_t rows) const {
    std::vector<Run> found;
    int64_t end = 0;
    for (const auto& [begin, run] : runs_) {
      if (begin != end || run.end > rows) {
        return std::nullopt;
      }
      found.push_back(run);
      end = run.end;
      if (end == rows) {
        return found;
      }
    }
    return std::nullopt;
  }

 private:
  std::map<int64_t, Run> runs_;  // by begin
};

}  // namespace braid
