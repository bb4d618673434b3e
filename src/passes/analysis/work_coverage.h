#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "ir/program.h"
#include "ir/verify.h"

namespace braid {

/// Which elements the products of a step write, and which persistent weights they read, however the
/// products are cut into pieces. Used after passes that StepMeaning does not follow. A product in
/// pieces must write the same elements as the whole, each as often, and read the same weights.
///
/// Products are counted by op, phase, microbatch, virtual stage, layer and site; elements by buffer
/// name. Reads of activations are ignored, because a piece may read from the buffer in which its
/// block arrives.
class WorkCoverage {
 public:
  /// The ops that such passes cut: those in the program whose pieces may give different bits
  /// (SplitTraits::keeps_bits). Without attention, because split_exchange turns half of it into
  /// another op.
  static std::set<std::string> ops_in(const Program& program);

  /// Covers the tasks of these ops. O(n log n) in their operands.
  WorkCoverage(const Program& program, const std::set<std::string>& ops);

  /// At this element, the number of tasks of a kind that write or read the buffer changes by
  /// `change`.
  struct Border {
    uint64_t kind = 0;    ///< hash of the task's op and label, and of write or read
    uint64_t buffer = 0;  ///< hash of its name
    int64_t element = 0;
    int64_t change = 0;
    TaskId task;  ///< a task of this kind

    bool is_same(const Border& other) const {
      return kind == other.kind && buffer == other.buffer && element == other.element &&
             change == other.change;
    }
  };

  /// Sorted. For reads, `change` only says whether any task reads the elements.
  const std::vector<Border>& borders() const { return borders_; }

 private:
  std::vector<Border> borders_;
};

/// Compares the coverage of program `after` with the coverage `before`. Returns at most one line,
/// which names a task of the first kind that differs. Empty: both are equal.
std::vector<Violation> compare_coverage(const WorkCoverage& before, const Program& after,
                                        const WorkCoverage& coverage_after);

}  // namespace braid
