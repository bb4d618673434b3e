#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "ir/program.h"
#include "ir/verify.h"

namespace braid {

/// Describes what a step computes, independent of task order and of step buffers: how each element
/// of every persistent buffer was computed, and what other ranks see of it.
///
/// A value is a hash of the spec that computed it and of all values that this spec read. An element
/// is a value and an index into it (value numbering, Cocke and Schwartz 1970, on ranges of
/// elements). Programs with equal meaning therefore give the same bits, except for collisions of
/// 64-bit hashes, if an op gives the same bits for equal specs and operands. Special cases:
///  - Tasks that only move bytes keep the value: copies (also from and to the host), `identity`,
///  and
///    collectives of one rank.
///  - Results of an op with a ReplayRule get the values of the replay.
///  - A sum over ranks that can be split gets the meaning of its parts (reduction_parts.h).
///  - The engine that moves bytes (EngineAttribute) is ignored.
///  - Elements that `undefine` has touched have no value until they are written.
///  - Results of activation functions have values per row (row_values.h), so an activation cut
///    between rows has the same meaning as the whole.
class StepMeaning {
 public:
  /// Consecutive elements of one value, in order.
  struct Piece {
    int64_t begin = 0;
    int64_t end = 0;
    uint64_t value = 0;  ///< 0: undefined
    int64_t first = 0;   ///< index, in the value, of the element at `begin`
    TaskId maker;        ///< invalid: defined before the step. Not part of the meaning

    bool is_same(const Piece& other) const {
      return begin == other.begin && end == other.end && value == other.value &&
             first == other.first;
    }
  };

  /// Near-linear in the number of operands. Requires a valid program (`verify`).
  explicit StepMeaning(const Program& program);

  /// By name of a persistent buffer: its contents at the end of the step, in as few pieces as
  /// possible.
  const std::map<std::string, std::vector<Piece>, std::less<>>& buffers() const { return buffers_; }
  /// Hashes of what this rank's calls show to other ranks. A message has its position among the
  /// step's messages and its contents; a collective has what it reads. Sorted, without duplicates:
  /// repeating a collective shows nothing new.
  const std::vector<uint64_t>& shown() const { return shown_; }

 private:
  std::map<std::string, std::vector<Piece>, std::less<>> buffers_;
  std::vector<uint64_t> shown_;
};

/// Compares the meaning of program `after` with the meaning `before`. Returns one line per
/// persistent buffer with a different value, naming the task that wrote it, and one line if
/// messages or collectives differ. Empty: both programs give the same bits.
std::vector<Violation> compare_meaning(const StepMeaning& before, const Program& after,
                                       const StepMeaning& meaning_after,
                                       size_t max_violations = 16);

}  // namespace braid
