#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "ir/program.h"
#include "passes/tensor/tensor_sites.h"

namespace braid {

/// The scales of the rows that ranks gather for an FP8 product: all_gather s -> S, join_blocks S ->
/// S', which the product reads.
struct GatheredScales {
  uint32_t call = 0;
  uint32_t join = 0;
  bool has_other_readers = false;  ///< other tasks also read S'
};

/// A matrix product and the one call of tensor ranks that produces its input or consumes its
/// result. Tasks are given by their position.
struct DependentProduct {
  enum class Kind : uint8_t {
    kGather,   ///< all_gather x -> X, then a product that reads X as its rows
    kScatter,  ///< a product that writes Y, then reduce_scatter Y -> y
    kReduce,   ///< a product that writes Y, then all_reduce of Y, in place or to another buffer
  };
  Kind kind = Kind::kGather;
  uint32_t product = 0;
  uint32_t call = 0;
  GroupId group;
  int64_t num_ranks = 1;
  int64_t rank = 0;  ///< this rank's place in the group
  /// Other tasks also read X, or Y.
  bool has_other_readers = false;
  SiteOverlap overlap = {};
  /// Of kGather before an FP8 product with scales for runs of elements.
  std::optional<GatheredScales> scales = {};
};

/// Finds all dependent products: linear and linear_dgrad that overwrite their result, and the same
/// two of FP8 factors, in groups of kind tensor. X and Y are step buffers that one task writes, or
/// rows of a step buffer that one task writes (halves of halve_forward.h). No task between the two
/// conflicts with placing them side by side. Pieces of a product of the same rows (neighbours with
/// the same label) are not listed. In program order of the products. A product with a call on both
/// sides is listed with the call before it. O(operands).
std::vector<DependentProduct> find_dependent_products(const Program& program);

}  // namespace braid
