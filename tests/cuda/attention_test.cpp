#include "ops/attention.h"

#include "support/cuda_kernel_case.h"

namespace braid {
namespace {

using AttentionCudaTest = CudaKernelTest;

constexpr size_t kOut = 1, kLse = 2;     // of the forward
constexpr size_t kLseIn = 2, kDQkv = 4;  // of the backward

struct AttentionCase {
  AttentionAttributes attributes;
  int64_t batches = 1;

  int64_t rows() const { return batches * attributes.sequence; }
  int64_t qkv_width() const {
    return (attributes.heads + 2 * attributes.kv_heads) * attributes.head_size;
  }
  int64_t out_width() const { return attributes.heads * attributes.head_size; }
  Shape lse_shape() const { return {batches, attributes.heads, attributes.sequence}; }

  OpSpec forward() const {
    return {
        .op = "attention",
        .attributes = to_attributes(attributes),
        .operands = {read(DType::kBF16, {rows(), qkv_width()}),
                     write(DType::kBF16, {rows(), out_width()}), write(DType::kF32, lse_shape())}};
  }
  OpSpec backward() const {
    return {.op = "attention_backward",
            .attributes = to_attributes(attributes),
            .operands = {read(DType::kBF16, {rows(), qkv_width()}),
                         read(DType::kBF16, {rows(), out_width()}), read(DType::kF32, lse_shape()),
                         read(DType::kBF16, {rows(), out_width()}),
                         write(DType::kBF16, {rows(), qkv_width()})}};
  }
};

AttentionCase make_case(int64_t heads, int64_t kv_heads, int64_t head_size, int64_t sequence,
                        int64_t batches, double scale = 0) {
  const double natural = 1.0 / std::sqrt(static_cast<double>(head_size));
  return {{.heads = heads,
           .kv_heads = kv_heads,
           .head_size = head_size,
           .sequence = sequence,
           .scale = scale > 0 ? scale : natural},
          batches};
}

/// All head sizes; one head, grouped heads, a group of all; sequences of 1, around cuDNN's tiles,
/// and primes.
std::vector<AttentionCase> awkward_cases() {
  return {
      make_case(1, 1, 64, 1, 1),    make_case(2, 2, 64, 7, 3),        make_case(4, 2, 64, 64, 2),
      make_case(3, 1, 128, 65, 2),  make_case(8, 2, 128, 127, 1),     make_case(4, 4, 96, 128, 2),
      make_case(6, 3, 96, 129, 1),  make_case(4, 1, 128, 521, 1),     make_case(12, 12, 64, 256, 2),
      make_case(2, 1, 96, 1024, 1), make_case(4, 2, 128, 192, 2, 0.3)};
}

std::string name_of(const AttentionCase& c) {
  return fmt::format("heads {} kv_heads {} head_size {} sequence {} batches {}", c.attributes.heads,
                     c.attributes.kv_heads, c.attributes.head_size, c.attributes.sequence,
                     c.batches);
}

/// The backward with the out and lse that belong to its qkv, both from the CPU in f64.
KernelCase backward_case(const AttentionCase& c, uint64_t seed = 1) {
  KernelCase backward(c.backward(), seed);
  KernelCase forward(c.forward(), seed);
  forward.set(0, backward.values(0));
  const KernelCase reference = f64_reference(forward);
  backward.set(1, reference.values(kOut));
  backward.set(kLseIn, reference.values(kLse));
  return backward;
}

// Inputs are in [-1, 1): out is a mean of such values, rounded to bf16 once, its weights twice.
TEST_F(AttentionCudaTest, ForwardEqualsTheCpu) {
  for (const AttentionCase& c : awkward_cases()) {
    KernelCase forward(c.forward());
    const KernelCase expected = f64_reference(forward);
    run_on_cuda(forward, context());
    expect_close(forward.values(kOut), expected.values(kOut), {.absolute = 4e-3, .relative = 8e-3},
                 name_of(c));
    expect_close(forward.values(kLse), expected.values(kLse), {.absolute = 2e-5, .relative = 2e-5},
                 name_of(c) + " lse");
  }
}

// cuDNN rounds probabilities and d_scores to bf16 before the products.
TEST_F(AttentionCudaTest, BackwardEqualsTheCpu) {
  for (const AttentionCase& c : awkward_cases()) {
    if (c.attributes.sequence == 1) {
      EXPECT_THROW(make_cuda_kernel(c.backward(), context()), ConfigError);
      continue;
    }
    KernelCase backward = backward_case(c);
    const KernelCase expected = f64_reference(backward);
    run_on_cuda(backward, context());
    const auto actual = backward.values(kDQkv);
    const auto reference = expected.values(kDQkv);
    expect_close(actual, reference, {.absolute = 2e-2, .relative = 2e-2}, name_of(c));
    EXPECT_LT(relative_distance(actual, reference), 6e-3) << name_of(c);
  }
}

TEST_F(AttentionCudaTest, GraphAndRerunsAreBitwiseEqual) {
  const AttentionCase c = make_case(16, 4, 128, 1024, 1);
  KernelCase first = backward_case(c);
  run_on_cuda(first, context());
  KernelCase forward(c.forward());
  run_on_cuda(forward, context());
  for (const CudaLaunch how : {CudaLaunch::kEager, CudaLaunch::kGraph}) {
    KernelCase backward_again = backward_case(c);
    run_on_cuda(backward_again, context(), how);
    EXPECT_TRUE(backward_again.bytes(kDQkv) == first.bytes(kDQkv));
    KernelCase forward_again(c.forward());
    run_on_cuda(forward_again, context(), how);
    EXPECT_TRUE(forward_again.bytes(kOut) == forward.bytes(kOut));
    EXPECT_TRUE(forward_again.bytes(kLse) == forward.bytes(kLse));
  }
}

TEST_F(AttentionCudaTest, RefusesHeadSizesThatCudnnHasNoKernelFor) {
  for (const int64_t head_size : {int64_t{12}, int64_t{264}}) {
    const AttentionCase c = make_case(2, 1, head_size, 16, 1);
    EXPECT_THROW(make_cuda_kernel(c.forward(), context()), ConfigError);
    EXPECT_THROW(make_cuda_kernel(c.backward(), context()), ConfigError);
  }
}

}  // namespace
}  // namespace braid
