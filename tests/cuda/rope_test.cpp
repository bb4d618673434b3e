#include "ops/rope.h"

#include "support/cuda_kernel_checks.h"

namespace braid {
namespace {

using RopeCudaTest = CudaKernelTest;

const RopeAttributes kForms[] = {
    {.heads = 1, .kv_heads = 1, .head_size = 2, .sequence = 1},
    {.heads = 3, .kv_heads = 1, .head_size = 6, .sequence = 5},
    {.heads = 4, .kv_heads = 2, .head_size = 64, .sequence = 37, .theta = 500000.0},
    {.heads = 2, .kv_heads = 2, .head_size = 96, .sequence = 11},
    {.heads = 32, .kv_heads = 8, .head_size = 128, .sequence = 19, .theta = 500000.0},
    {.heads = 1, .kv_heads = 1, .head_size = 512, .sequence = 3},
    // Angles up to 131071 radians.
    {.heads = 1, .kv_heads = 1, .head_size = 16, .sequence = 131072, .theta = 500000.0},
    {.heads = 32,
     .kv_heads = 8,
     .head_size = 64,
     .sequence = 131072 / 64,
     .theta = 500000.0,
     .scaling = {.type = RopeType::kLlama3,
                 .factor = 32.0,
                 .original_max_position_embeddings = 8192}},
    {.heads = 2,
     .kv_heads = 1,
     .head_size = 64,
     .sequence = 301,
     .theta = 150000.0,
     .scaling = {.type = RopeType::kYarn,
                 .factor = 32.0,
                 .original_max_position_embeddings = 4096,
                 .truncate = false}},
    {.heads = 24, .kv_heads = 8, .head_size = 128, .sequence = 13, .part = {96}},
    {.heads = 2, .kv_heads = 1, .head_size = 30, .sequence = 7, .part = {18}},
    {.heads = 2, .kv_heads = 1, .head_size = 32, .sequence = 7, .part = {18}},
    {.heads = 2,
     .kv_heads = 1,
     .head_size = 32,
     .sequence = 9,
     .scaling = {.type = RopeType::kLongrope,
                 .factor = 32.0,
                 .original_max_position_embeddings = 4096,
                 .short_factor = "1, 1.5, 1.25, 3, 1, 8, 2, 7"},
     .part = {16}},
};

KernelCase rope_case(DType dtype, RopeAttributes attributes, int64_t sequences) {
  const Shape shape{sequences * attributes.sequence,
                    (attributes.heads + 2 * attributes.kv_heads) * attributes.head_size};
  return KernelCase({"rope", to_attributes(attributes), {read(dtype, shape), write(dtype, shape)}});
}

// An angle is off by 4e-7 at most, and two fp32 products of numbers up to 1 are added.
TEST_F(RopeCudaTest, EqualsTheCpuAtEveryPosition) {
  for (const DType dtype : kCudaDtypes) {
    for (RopeAttributes attributes : kForms) {
      for (const bool inverse : {false, true}) {
        attributes.inverse = inverse;
        expect_equals_cpu(rope_case(dtype, attributes, attributes.sequence < 1000 ? 3 : 1),
                          context(), rounded_once(1e-6),
                          fmt::format("{} head size {} sequence {}", dtype_name(dtype),
                                      attributes.head_size, attributes.sequence));
      }
    }
  }
}

// A context rank's part of sequences, in which documents begin and go on.
TEST_F(RopeCudaTest, BeginsAgainAtEachDocument) {
  const RopeAttributes attributes{.heads = 4,
                                  .kv_heads = 2,
                                  .head_size = 64,
                                  .sequence = 9,
                                  .theta = 100.0,
                                  .positions = {.first_begin = 4, .second_begin = 20, .split = 3},
                                  .documents = {.documents = true}};
  for (const DType dtype : kCudaDtypes) {
    const Shape shape{2 * attributes.sequence, 8 * attributes.head_size};
    KernelCase kernel({"rope",
                       to_attributes(attributes),
                       {read(dtype, shape), read(DType::kI32, {shape[0]}), write(dtype, shape)}});
    kernel.set(1, {1, 5, 5, 5, 21, 21, 23, 24, 24, 0, 0, 0, 0, 0, 0, 23, 24, 25});
    expect_equals_cpu(std::move(kernel), context(), rounded_once(1e-6), "documents");
  }
}

TEST_F(RopeCudaTest, IsBitwiseRepeatable) {
  for (const DType dtype : kCudaDtypes) {
    expect_repeatable([&] { return rope_case(dtype, kForms[4], 7); }, context());
  }
}

}  // namespace
}  // namespace braid
