#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "ir/program.h"
#include "ir/verify.h"
#include "passes/analysis/value_pieces.h"

namespace braid {

/// Describes what a step computes, independent of task order and of step buffers: how each element
/// of every persistent buffer was computed, and what other ranks see of it.
///
/// A value is a hash of the spec that computed it and of all values that this spec read. An element
/// is a value and an index into it (value numbering, Cocke and Schwartz 1970, on ranges of
/// elements). Programs with equal meaning therefore give the same bits, except for collisions of
/// 64-bit hashes, if an op gives the same bits for equal specs and operands. Special cases:
///  - Tasks that only move bytes keep the value: copies (also from and to the host), `identity`,
///    and collectives of one rank.
///  - Results of an op with a ReplayRule get the values of the replay.
///  - Results of a task with a tally get the values that they have without it.
///  - A sum over ranks that can be split gets the meaning of its parts (reduction_parts.h).
///  - The engine that moves bytes (EngineAttribute) is ignored.
///  - Elements that `undefine` has touched have no value until they are written.
///  - Results of activation functions have values per row (row_values.h), so an activation cut
///    between rows has the same meaning as the whole.
///
/// The meaning Of::kSums is also independent of how passes cut tasks (piece_interpreter.h). Each
/// element is still computed by the same ops from the same elements, but in pieces, for which a
/// library may choose another kernel, and with sums over tensor ranks added up in pieces. It
/// follows
///  - products, attention, norms and all other ops that are cut by rows, features or sequences;
///  - collectives of tensor ranks and exchanges of context ranks that are cut into pieces, and the
///    shifts of a ring in their place;
///  - rows of a microbatch that are spread over tensor ranks in another way. A gradient that is a
///    sum over a rank's own rows is then a sum over other rows, and only the sum over ranks is as
///    before.
/// It does not follow attention that is replaced by attention steps (split_exchange), nor chunks of
/// features that tensor ranks with sequence parallelism sum if context ranks exchange heads
/// (ring_exchange with context_method "a2a"): the meanings differ.
class StepMeaning {
 public:
  enum class Of : uint8_t {
    kBits,  ///< equal meanings give equal bits
    kSums,  ///< equal meanings give equal bits but for the rounding of products in pieces and of
            ///< sums over ranks
  };
  using Piece = ValuePiece;

  /// Near-linear in the number of operands. Requires a valid program (`verify`).
  explicit StepMeaning(const Program& program, Of of = Of::kBits);

  /// By name of a persistent buffer: its contents at the end of the step, in as few pieces as
  /// possible.
  const std::map<std::string, std::vector<Piece>, std::less<>>& buffers() const { return buffers_; }
  /// Hashes of what this rank's calls show to other ranks. A message has its position among the
  /// step's messages and its contents; a collective has what it reads. Sorted, without duplicates:
  /// repeating a collective shows nothing new.
  const std::vector<uint64_t>& shown() const { return shown_; }

 private:
  template <class Interpreter>
  void take(const Program& program);

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
