#include "passes/reduction_parts.h"

#include "ops/attributes.h"
#include "ops/blocks.h"
#include "ops/collectives.h"

namespace braid {
namespace {

OperandSpec flat(DType dtype, Access access, int64_t num_elems) {
  return {.dtype = dtype, .access = access, .shape = Shape{num_elems}};
}

OpSpec sum_spec(DType dtype, int64_t num_ranks, int64_t block_elems) {
  OpSpec spec{.op = "sum_blocks", .attributes = {}, .operands = {}};
  for (int64_t i = 0; i < num_ranks; ++i) {
    spec.operands.push_back(flat(dtype, Access::kRead, block_elems));
  }
  spec.operands.push_back(flat(dtype, Access::kWrite, block_elems));
  return spec;
}

}  // namespace

std::optional<ReductionParts> reduction_parts(const OpSpec& spec, int64_t num_ranks) {
  const bool scatters = spec.op == "reduce_scatter";
  if ((!scatters && spec.op != "all_reduce") || spec.operands.empty()) {
    return std::nullopt;
  }
  const int64_t num_elems = spec.operands.front().shape.num_elems();
  if (num_ranks < 2 || num_ranks > static_cast<int64_t>(kMaxBlocks) || num_elems == 0 ||
      num_elems % num_ranks != 0) {
    return std::nullopt;
  }
  const DType dtype = spec.operands.front().dtype;
  const int64_t block_elems = num_elems / num_ranks;
  ReductionParts parts{.exchange = {.op = "all_to_all",
                                    .attributes = spec.attributes,
                                    .operands = {flat(dtype, Access::kRead, num_elems),
                                                 flat(dtype, Access::kWrite, num_elems)}},
                       .sum = sum_spec(dtype, num_ranks, block_elems),
                       .gather = std::nullopt,
                       .num_ranks = num_ranks,
                       .block_elems = block_elems};
  if (!scatters) {
    parts.gather = OpSpec{.op = "all_gather",
                          .attributes = spec.attributes,
                          .operands = {flat(dtype, Access::kRead, block_elems),
                                       flat(dtype, Access::kWrite, num_elems)}};
  }
  return parts;
}

}  // namespace braid
