#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "passes/analysis/value_pieces.h"

namespace braid {

/// Names values so that a task in pieces and the whole task give equal names. A name is a hash, as
/// ValuePiece::value.
class PieceNames {
 public:
  /// `joins`: whether `joined` will be asked, for which names are kept.
  explicit PieceNames(bool joins) : joins_(joins) {}

  /// What the member `distance` places on in a group of `num_ranks` has where this rank has
  /// `value`. All members run the same program, so at(at(v, 1), 2) is at(v, 3), and all the way
  /// round it is v.
  uint64_t at(uint64_t value, uint64_t group, int64_t num_ranks, int64_t distance);

  /// The sum of what all members of a group have there.
  uint64_t sum_over(uint64_t value, uint64_t group);

  /// Rows of a product. `rows`: hash of op and rows of x; `weights`: by operand with a row per
  /// feature, the weight and perhaps a bias, its pieces.
  uint64_t product(uint64_t rows, std::vector<std::vector<ValuePiece>> weights);

  /// The product, or sum of products over a group, whose features are those of these values one
  /// after the other. 0 if they are no such values of the same rows.
  uint64_t joined(std::span<const uint64_t> values);

 private:
  struct Displaced {
    uint64_t value = 0;
    uint64_t group = 0;
    int64_t distance = 0;
  };
  struct Sum {
    uint64_t value = 0;
    uint64_t group = 0;
  };
  struct Product {
    uint64_t rows = 0;
    std::vector<std::vector<ValuePiece>> weights;
  };

  uint64_t joined_sums(std::span<const uint64_t> values);

  bool joins_;
  std::unordered_map<uint64_t, Displaced> displaced_;
  std::unordered_map<uint64_t, Sum> sums_;
  std::unordered_map<uint64_t, Product> products_;
};

}  // namespace braid
