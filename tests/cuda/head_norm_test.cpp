#include "ops/head_norm.h"

#include "support/cuda_kernel_checks.h"

namespace braid {
namespace {

using HeadNormCudaTest = CudaKernelTest;

struct HeadCase {
  int64_t rows;
  int64_t heads;
  int64_t kv_heads;
  int64_t head_size;
  bool whole;

  int64_t width() const { return (heads + 2 * kv_heads) * head_size; }
  int64_t query_weight() const { return whole ? heads * head_size : head_size; }
  int64_t key_weight() const { return whole ? kv_heads * head_size : head_size; }
  int64_t norms() const { return whole ? 2 : heads + kv_heads; }
  std::string name(DType dtype) const {
    return fmt::format("{} rows {} heads {} + {} of {} whole {}", dtype_name(dtype), rows, heads,
                       kv_heads, head_size, whole);
  }
};

/// One element, heads that are no multiple of a vector, every number of vectors per thread, more
/// heads than warps of a block, more rows than blocks of the backward, those of models.
std::vector<HeadCase> cases() {
  std::vector<HeadCase> list;
  for (const bool whole : {false, true}) {
    list.push_back({1, 1, 1, 1, whole});
    list.push_back({5, 3, 2, 7, whole});
    list.push_back({33, 16, 16, 128, whole});
    list.push_back({1100, 3, 1, 64, whole});
    list.push_back({9, 4, 2, 256, whole});
    list.push_back({3, 2, 1, 512, whole});
  }
  list.push_back({7, 32, 4, 128, true});
  list.push_back({17, 64, 8, 128, true});
  return list;
}

KernelCase forward_case(DType dtype, const HeadCase& c) {
  return KernelCase({"head_norm",
                     to_attributes(HeadNormAttributes{.heads = c.heads,
                                                      .kv_heads = c.kv_heads,
                                                      .head_size = c.head_size,
                                                      .whole = c.whole,
                                                      .epsilon = 1e-5}),
                     {read(dtype, {c.rows, c.width()}), read(dtype, {c.query_weight()}),
                      read(dtype, {c.key_weight()}), write(dtype, {c.rows, c.width()}),
                      write(DType::kF32, {c.rows, c.norms()})}});
}

KernelCase backward_case(DType dtype, const HeadCase& c, bool accumulate) {
  return KernelCase({"head_norm_backward",
                     to_attributes(HeadNormBackwardAttributes{.heads = c.heads,
                                                              .kv_heads = c.kv_heads,
                                                              .head_size = c.head_size,
                                                              .whole = c.whole,
                                                              .accumulate = accumulate}),
                     {read(dtype, {c.rows, c.width()}), read(dtype, {c.query_weight()}),
                      read(dtype, {c.key_weight()}), read(DType::kF32, {c.rows, c.norms()}),
                      read(dtype, {c.rows, c.width()}), write(dtype, {c.rows, c.width()}),
                      gradient(accumulate, DType::kF32, {c.query_weight()}),
                      gradient(accumulate, DType::kF32, {c.key_weight()})}});
}

TEST_F(HeadNormCudaTest, AddsTheOffsetToWeights) {
  const auto with_offset = [](const KernelCase& kernel) {
    OpSpec spec = kernel.spec();
    spec.attributes.push_back({"weight_offset", 1.0});
    return KernelCase(std::move(spec));
  };
  for (const DType dtype : kCudaDtypes) {
    for (const HeadCase& c : {HeadCase{5, 3, 2, 7, false}, {9, 4, 1, 256, false}}) {
      expect_equals_cpu(with_offset(forward_case(dtype, c)), context(), rounded_once(2e-6, 8e-6),
                        c.name(dtype));
      expect_equals_cpu(with_offset(backward_case(dtype, c, true)), context(),
                        rounded_once(2e-4, 2e-4), c.name(dtype));
    }
  }
}

TEST_F(HeadNormCudaTest, ForwardEqualsTheCpu) {
  for (const DType dtype : kCudaDtypes) {
    for (const HeadCase& c : cases()) {
      expect_equals_cpu(forward_case(dtype, c), context(), rounded_once(1e-6, 4e-6), c.name(dtype));
    }
  }
}

// rstd is random in [-1, 1): products of three such and their means over a run; and sums of such
// over rows and heads.
TEST_F(HeadNormCudaTest, BackwardEqualsTheCpu) {
  for (const DType dtype : kCudaDtypes) {
    for (const HeadCase& c : cases()) {
      for (const bool accumulate : {false, true}) {
        const double terms = static_cast<double>(c.rows * (c.whole ? 1 : c.heads));
        expect_equals_cpu(backward_case(dtype, c, accumulate), context(),
                          rounded_once(8 * (terms + 8) * rounding_error(DType::kF32), 4e-6),
                          c.name(dtype));
      }
    }
  }
}

TEST_F(HeadNormCudaTest, IsBitwiseRepeatable) {
  for (const DType dtype : kCudaDtypes) {
    for (const bool whole : {false, true}) {
      const HeadCase c{1100, 6, 2, 128, whole};
      expect_repeatable([&] { return forward_case(dtype, c); }, context());
      expect_repeatable([&] { return backward_case(dtype, c, true); }, context());
    }
  }
}

TEST_F(HeadNormCudaTest, RefusesMoreThanItHoldsInRegisters) {
  EXPECT_THROW(
      make_cuda_kernel(forward_case(DType::kBF16, {1, 1, 1, 516, false}).spec(), context()),
      InternalError);
  EXPECT_THROW(
      make_cuda_kernel(forward_case(DType::kBF16, {1, 33, 1, 512, true}).spec(), context()),
      InternalError);
}

}  // namespace
}  // namespace braid
