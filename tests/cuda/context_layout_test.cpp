#include "ops/context_layout.h"

#include <numeric>

#include "support/cuda_kernel_checks.h"

namespace braid {
namespace {

using ContextLayoutCudaTest = CudaKernelTest;

OpSpec mover(std::string op, std::vector<Attribute> attributes, DType dtype, Shape from, Shape to) {
  return {std::move(op), std::move(attributes), {read(dtype, from), write(dtype, to)}};
}

OpSpec pack(DType dtype, int64_t rows, int64_t from, int64_t to) {
  return mover("pack_kv", {}, dtype, {rows, from}, {rows, to});
}

OpSpec assemble(DType dtype, int64_t rows, int64_t q_width, int64_t kv_width) {
  return {"assemble_qkv",
          {},
          {read(DType::kF32, {rows, q_width}), read(DType::kF32, {rows, kv_width}),
           write(dtype, {rows, q_width + kv_width})}};
}

OpSpec zigzag(DType dtype, ZigzagOrderAttributes order, int64_t sequences, int64_t width) {
  const Shape shape{order.ranks * sequences * order.sequence, width};
  return mover("zigzag_order", to_attributes(order), dtype, shape, shape);
}

OpSpec swap(DType dtype, SwapBlocksAttributes blocks, int64_t rows, int64_t width) {
  const Shape shape{blocks.outer * blocks.inner * rows, width};
  return mover("swap_blocks", to_attributes(blocks), dtype, shape, shape);
}

OpSpec split(DType dtype, SplitHeadsAttributes heads, int64_t rows) {
  const auto columns = heads.parts();
  const int64_t width = std::accumulate(columns.begin(), columns.end(), int64_t{0});
  const Shape whole{rows, width};
  const Shape parts{rows * heads.ranks, width / heads.ranks};
  return heads.inverse ? mover("split_heads", to_attributes(heads), dtype, parts, whole)
                       : mover("split_heads", to_attributes(heads), dtype, whole, parts);
}

/// Rows of whole 16-byte words and of others, shorter and longer than a block takes.
std::vector<OpSpec> awkward_specs(DType dtype) {
  std::vector<OpSpec> specs = {pack(dtype, 37, 5, 2),       pack(dtype, 37, 96, 64),
                               pack(dtype, 3, 6144, 2048),  pack(dtype, 5, 100, 96),
                               pack(dtype, 2, 9000, 6001),  assemble(dtype, 37, 5, 2),
                               assemble(dtype, 37, 32, 64), assemble(dtype, 3, 4096, 2048),
                               assemble(dtype, 5, 12, 8),   assemble(dtype, 2, 3000, 6001)};
  for (const bool inverse : {false, true}) {
    for (const int64_t width : {1, 33, 64, 2048, 5000}) {
      specs.push_back(zigzag(dtype, {.ranks = 2, .sequence = 2, .inverse = inverse}, 1, width));
      specs.push_back(zigzag(dtype, {.ranks = 3, .sequence = 10, .inverse = inverse}, 2, width));
    }
    for (const int64_t head_size : {1, 5, 64, 128}) {
      const auto heads = [&](int64_t ranks, int64_t num_heads, int64_t kv_heads) {
        return SplitHeadsAttributes{.ranks = ranks,
                                    .heads = num_heads,
                                    .kv_heads = kv_heads,
                                    .head_size = head_size,
                                    .inverse = inverse};
      };
      specs.push_back(split(dtype, heads(1, 3, 1), 7));
      specs.push_back(split(dtype, heads(3, 6, 3), 7));
      specs.push_back(split(dtype, heads(8, 32, 8), 5));
      specs.push_back(split(dtype, heads(4, 8, 0), 9));  // queries only
      SplitHeadsAttributes states = heads(2, 32, 0);
      states.states = {.groups = 4, .state = 24};
      specs.push_back(split(dtype, states, 5));
      states.states.state = 7;
      specs.push_back(split(dtype, states, 5));
    }
  }
  for (const int64_t width : {1, 33, 64, 5000}) {
    specs.push_back(swap(dtype, {.outer = 3, .inner = 5}, 2, width));
    specs.push_back(swap(dtype, {.outer = 2, .inner = 8}, 1, width));
  }
  return specs;
}

TEST_F(ContextLayoutCudaTest, GivesTheNumbersOfTheCpu) {
  for (const DType dtype : kCudaDtypes) {
    size_t number = 0;
    for (const OpSpec& spec : awkward_specs(dtype)) {
      expect_same_as_cpu([&] { return KernelCase(spec); }, context(),
                         fmt::format("{} case {}", dtype_name(dtype), number++));
    }
  }
}

TEST_F(ContextLayoutCudaTest, IsBitwiseRepeatable) {
  for (const DType dtype : kCudaDtypes) {
    for (const OpSpec& spec : awkward_specs(dtype)) {
      expect_repeatable([&] { return KernelCase(spec); }, context());
    }
  }
}

}  // namespace
}  // namespace braid
