#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>

#include "base/errors.h"

namespace braid {

/// Dimensions of a dense row-major tensor, outermost first; up to 5 of them. Rank 0 is a scalar.
class Shape {
 public:
  static constexpr int kMaxRank = 5;

  Shape() = default;
  Shape(std::initializer_list<int64_t> dims) {
    for (const int64_t dim : dims) {
      push_back(dim);
    }
  }

  int rank() const { return rank_; }
  int64_t operator[](int axis) const { return dims_[static_cast<size_t>(axis)]; }
  int64_t& operator[](int axis) { return dims_[static_cast<size_t>(axis)]; }
  const int64_t* begin() const { return dims_.data(); }
  const int64_t* end() const { return dims_.data() + rank_; }

  void push_back(int64_t dim) {
    check(rank_ < kMaxRank, "a shape has at most {} dimensions", kMaxRank);
    dims_[static_cast<size_t>(rank_++)] = dim;
  }

  /// Product of all dimensions; 1 for a scalar.
  int64_t num_elems() const {
    int64_t product = 1;
    for (const int64_t dim : *this) {
      product *= dim;
    }
    return product;
  }

  friend bool operator==(const Shape&, const Shape&) = default;

 private:
  std::array<int64_t, kMaxRank>
      dims_{};  // entries past rank_ stay 0, so that == may compare all of them
  int rank_ = 0;
};

/// "[4,128]"; "[]" for a scalar.
std::string to_string(const Shape& shape);

}  // namespace braid
