#pragma once

#include <cstdint>

#include "base/errors.h"

namespace braid {

/// Rows [begin, begin + count) of an expert.
struct ExpertRange {
  int64_t begin;
  int64_t count;
};

/// Which rows each expert has, as its offsets say. Throws DeviceError if they are no ranges of the
/// rows.
class ExpertRanges {
 public:
  ExpertRanges(const int32_t* offsets, int64_t num_experts, int64_t num_rows)
      : offsets_(offsets), num_experts_(num_experts) {
    for (int64_t e = 0; e < num_experts; ++e) {
      if (offsets[e] < 0 || offsets[e] > offsets[e + 1] || offsets[e + 1] > num_rows) [[unlikely]] {
        throw_device_error("expert {} has the rows [{}, {}) of {}", e, offsets[e], offsets[e + 1],
                           num_rows);
      }
    }
  }

  ExpertRange operator[](int64_t expert) const {
    return {.begin = offsets_[expert], .count = offsets_[expert + 1] - offsets_[expert]};
  }
  int64_t num_experts() const { return num_experts_; }
  /// Rows of all experts.
  int64_t end() const { return offsets_[num_experts_]; }

 private:
  const int32_t* offsets_;
  int64_t num_experts_;
};

}  // namespace braid
