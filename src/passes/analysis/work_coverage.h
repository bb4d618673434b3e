#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "ir/program.h"
#include "ir/verify.h"

namespace braid {

/// Which elements the products of a step write and which lasting weights they read, whatever the
/// pieces in which they are computed. For passes that may change rounding, after which StepMeaning
/// says nothing: a product that is cut up must write what the whole wrote, each element as often,
/// and read all of the weights that the whole read.
///
/// Products are counted by op, phase, microbatch, virtual stage, layer and site. Elements are those
/// of buffers by name. What a piece reads of activations is not looked at, since pieces may read
/// from where a block has just arrived.
class WorkCoverage {
 public:
  /// Ops whose tasks such passes cut: those of the program that have pieces of other bits
  /// (SplitTraits::keeps_bits). Not attention, half of which split_exchange makes a task of another
  /// op.
  static std::set<std::string> ops_in(const Program& program);

  /// Looks at tasks of these ops. O(n log n) in their operands.
  WorkCoverage(const Program& program, const std::set<std::string>& ops);

  /// From here on so many tasks more, or fewer, of a kind write or read.
  struct Border {
    uint64_t kind = 0;    ///< of tasks, with write or read
    uint64_t buffer = 0;  ///< hash of its name
    int64_t element = 0;
    int64_t change = 0;
    TaskId task;  ///< one of them

    bool is_same(const Border& other) const {
      return kind == other.kind && buffer == other.buffer && element == other.element &&
             change == other.change;
    }
  };

  /// In order. Of reads only whether there are any.
  const std::vector<Border>& borders() const { return borders_; }

 private:
  std::vector<Border> borders_;
};

/// Where `after` covers something else than a program did that had the coverage `before`: at most
/// one line, naming a task of the kind. Empty: both cover the same.
std::vector<Violation> compare_coverage(const WorkCoverage& before, const Program& after,
                                        const WorkCoverage& coverage_after);

}  // namespace braid
