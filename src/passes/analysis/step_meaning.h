#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "ir/program.h"
#include "ir/verify.h"

namespace braid {

/// What a step computes, whatever the order and the buffers in which it does: for every element of
/// every persistent buffer how it came about, and what other ranks get to see of it.
///
/// A value is a hash of the spec that made it and of all values that it read, and an element of it
/// is that and a number (value numbering, Cocke and Schwartz 1970, on ranges of elements). So two
/// programs of equal meaning give the same bits, if an op gives the same bits for the same spec and
/// operands; but for collisions of 64-bit hashes. What moves bytes only (copies also from and to
/// the host, `identity`, collectives of one rank) passes values on; results of an op with a
/// ReplayRule are those of the replay, and a sum over ranks that can be taken apart means its parts
/// (reduction_parts.h). Who moves bytes (EngineAttribute) is no part of the meaning. What
/// `undefine` has touched is no value until it is written. Results of activation functions are
/// values by row (row_values.h), so that one in pieces, cut between rows, means what the whole
/// does.
class StepMeaning {
 public:
  /// Neighbouring elements of one value, in order.
  struct Piece {
    int64_t begin = 0;
    int64_t end = 0;
    uint64_t value = 0;  ///< 0: undefined
    int64_t first = 0;   ///< element of the value that is at `begin`
    TaskId maker;        ///< invalid: there when the step begins. Says nothing about the meaning

    bool is_same(const Piece& other) const {
      return begin == other.begin && end == other.end && value == other.value &&
             first == other.first;
    }
  };

  /// Near-linear in the operands of the program, which must be sound (`verify`).
  explicit StepMeaning(const Program& program);

  /// By name of a persistent buffer: what it holds at the end, in as few pieces as there can be.
  const std::map<std::string, std::vector<Piece>, std::less<>>& buffers() const { return buffers_; }
  /// Hashes of what this rank's calls show to others: of each message its place among the step's
  /// messages and what it carries, of each collective what it reads. Sorted, each once: a
  /// collective that is made again shows nothing new.
  const std::vector<uint64_t>& shown() const { return shown_; }

 private:
  std::map<std::string, std::vector<Piece>, std::less<>> buffers_;
  std::vector<uint64_t> shown_;
};

/// Where a program, `after`, computes something else than one did that had the meaning `before`:
/// one line per persistent buffer, naming the task that leaves another value, and one for messages
/// and collectives. Empty: both give the same bits.
std::vector<Violation> compare_meaning(const StepMeaning& before, const Program& after,
                                       const StepMeaning& meaning_after,
                                       size_t max_violations = 16);

}  // namespace braid
