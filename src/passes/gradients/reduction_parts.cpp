#include "passes/gradients/reduction_parts.h"

#include "ops/attributes.h"
#include "ops/blocks.h"
#include "ops/collectives.h"
#include "ops/op.h"

namespace braid {
namespace {

/// Writes the parts of one spec.
class PartsOf {
 public:
  PartsOf(const OpSpec& spec, int64_t num_ranks)
      : attributes_(spec.attributes),
        combine_(communicates_as(spec, CommOp::kAllReduceMax) ? kLargestOfBlocksOp : kSumBlocksOp),
        dtype_(spec.operands.front().dtype),
        num_ranks_(num_ranks) {}

  /// A sum of n*k elements; each rank adds one block.
  ReductionParts in_shares(int64_t num_elems, bool scatters) const {
    const int64_t block = num_elems / num_ranks_;
    ReductionParts parts = make(kAllToAllOp, num_elems, block);
    if (!scatters) {
      parts.gather = moves(kAllGatherOp, block, num_elems);
    }
    return parts;
  }

  /// A sum of k elements; each rank adds all of them.
  ReductionParts gathered(int64_t num_elems, int64_t first_elem) const {
    ReductionParts parts = make(kAllGatherOp, num_elems, num_elems);
    parts.first_elem = first_elem;
    return parts;
  }

 private:
  OperandSpec flat(Access access, int64_t num_elems) const {
    return {.dtype = dtype_, .access = access, .shape = Shape{num_elems}};
  }

  OpSpec moves(const OpDefinition& op, int64_t x_elems, int64_t y_elems) const {
    return {.op = std::string(op.name),
            .attributes = attributes_,
            .operands = {flat(Access::kRead, x_elems), flat(Access::kWrite, y_elems)}};
  }

  ReductionParts make(const OpDefinition& exchange, int64_t x_elems, int64_t block_elems) const {
    OpSpec sum{.op = std::string(combine_.name), .attributes = {}, .operands = {}};
    sum.operands.assign(static_cast<size_t>(num_ranks_), flat(Access::kRead, block_elems));
    sum.operands.push_back(flat(Access::kWrite, block_elems));
    return {.exchange = moves(exchange, x_elems, num_ranks_ * block_elems),
            .sum = std::move(sum),
            .gather = std::nullopt,
            .num_ranks = num_ranks_,
            .block_elems = block_elems};
  }

  std::vector<Attribute> attributes_;
  const OpDefinition& combine_;
  DType dtype_;
  int64_t num_ranks_;
};

}  // namespace

std::vector<ReductionParts> reduction_parts(const OpSpec& spec, int64_t num_ranks) {
  const bool scatters = communicates_as(spec, CommOp::kReduceScatter);
  const bool keeps_size =
      communicates_as(spec, CommOp::kAllReduce) || communicates_as(spec, CommOp::kAllReduceMax);
  if ((!scatters && !keeps_size) || spec.operands.empty()) {
    return {};
  }
  const int64_t num_elems = spec.operands.front().shape.num_elems();
  if (num_ranks < 2 || num_ranks > static_cast<int64_t>(kMaxBlocks) || num_elems == 0) {
    return {};
  }
  const PartsOf parts(spec, num_ranks);
  if (scatters) {
    return {parts.in_shares(num_elems, true)};
  }
  const auto bytes = num_elems * static_cast<int64_t>(dtype_bytes(spec.operands.front().dtype));
  if (bytes < kGatheredSumBytes) {
    return {parts.gathered(num_elems, 0)};
  }
  const int64_t left = num_elems % num_ranks;
  std::vector<ReductionParts> all{parts.in_shares(num_elems - left, false)};
  if (left > 0) {
    all.push_back(parts.gathered(left, num_elems - left));
  }
  return all;
}

}  // namespace braid
