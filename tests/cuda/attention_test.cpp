#include "ops/attention.h"

#include "backends/cuda/kernels/attention.h"
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

/// Heads of latent attention, whose values are padded with zeros.
AttentionCase latent_case(int64_t heads, int64_t sequence, int64_t batches, int64_t value_size) {
  AttentionCase c = make_case(heads, heads, 192, sequence, batches);
  c.attributes.padding.value_size = value_size;
  return c;
}

/// All head sizes; one head, grouped heads, a group of all; sequences of 1, around cuDNN's tiles,
/// and primes.
std::vector<AttentionCase> awkward_cases() {
  return {make_case(1, 1, 64, 1, 1),         make_case(2, 2, 64, 7, 3),
          make_case(4, 2, 64, 64, 2),        make_case(3, 1, 128, 65, 2),
          make_case(8, 2, 128, 127, 1),      make_case(4, 4, 96, 128, 2),
          make_case(6, 3, 96, 129, 1),       make_case(4, 1, 128, 521, 1),
          make_case(12, 12, 64, 256, 2),     make_case(2, 1, 96, 1024, 1),
          make_case(4, 2, 128, 192, 2, 0.3), latent_case(3, 97, 2, 128),
          latent_case(2, 333, 1, 100)};
}

std::string name_of(const AttentionCase& c) {
  return fmt::format("heads {} kv_heads {} head_size {} sequence {} batches {}", c.attributes.heads,
                     c.attributes.kv_heads, c.attributes.head_size, c.attributes.sequence,
                     c.batches);
}

/// Zeros where rows of `operand` hold the padding of the heads from `first_head` on.
void zero_padding(KernelCase& backward, size_t operand, const AttentionCase& c,
                  int64_t first_head) {
  const int64_t value_size = c.attributes.padding.value_size;
  if (value_size == 0) {
    return;
  }
  std::vector<double> values = backward.values(operand);
  const int64_t width = static_cast<int64_t>(values.size()) / c.rows();
  for (size_t i = 0; i < values.size(); ++i) {
    const int64_t at = static_cast<int64_t>(i) % width;
    const bool is_value = at >= first_head * c.attributes.head_size;
    if (is_value && at % c.attributes.head_size >= value_size) {
      values[i] = 0;
    }
  }
  backward.set(operand, values);
}

/// The backward with the out and lse that belong to its qkv, both from the CPU in f64.
KernelCase backward_case(const AttentionCase& c, uint64_t seed = 1) {
  KernelCase backward(c.backward(), seed);
  zero_padding(backward, 0, c, c.attributes.heads + c.attributes.kv_heads);
  zero_padding(backward, 3, c, 0);
  KernelCase forward(c.forward(), seed);
  forward.set(0, backward.values(0));
  const KernelCase reference = f64_reference(forward);
  backward.set(1, reference.values(kOut));
  backward.set(kLseIn, reference.values(kLse));
  return backward;
}

std::string_view name_of(AttentionMethod method) {
  return method == AttentionMethod::kCudnn ? "cuDNN" : "sm90";
}

/// The methods that this build has for the case.
std::vector<AttentionMethod> methods_of(bool has_sm90) {
  std::vector<AttentionMethod> methods = {AttentionMethod::kCudnn};
  if (has_sm90) {
    methods.push_back(AttentionMethod::kSm90);
  }
  return methods;
}
std::vector<AttentionMethod> forward_methods_of(const AttentionCase& c) {
  return methods_of(has_attention_sm90(AttentionSizes(c.forward())));
}
std::vector<AttentionMethod> backward_methods_of(const AttentionCase& c) {
  return methods_of(has_attention_backward_sm90(AttentionSizes(c.backward())));
}

/// Runs the backward by one method, and expects the scratch that memory checks count with.
void run_backward_by(AttentionMethod method, KernelCase& backward, CudaContext& context,
                     CudaLaunch how = CudaLaunch::kEager) {
  const AttentionBackwardOptions options{.method = method};
  const CudaKernel kernel = make_cuda_attention_backward(backward.spec(), context, options);
  EXPECT_LE(static_cast<int64_t>(kernel.scratch_bytes),
            max_attention_scratch_bytes(backward.spec(), options));
  run_on_cuda(backward, kernel, how);
}

// Inputs are in [-1, 1): out is a mean of such values, rounded to bf16 once, its weights twice.
TEST_F(AttentionCudaTest, ForwardEqualsTheCpu) {
  for (const AttentionCase& c : awkward_cases()) {
    const KernelCase expected = f64_reference(KernelCase(c.forward()));
    for (const AttentionMethod method : forward_methods_of(c)) {
      SCOPED_TRACE(fmt::format("{} by {}", name_of(c), name_of(method)));
      KernelCase forward(c.forward());
      run_on_cuda(forward, make_cuda_attention(c.forward(), context(), method));
      expect_close(forward.values(kOut), expected.values(kOut),
                   {.absolute = 4e-3, .relative = 8e-3}, name_of(c));
      expect_close(forward.values(kLse), expected.values(kLse),
                   {.absolute = 2e-5, .relative = 2e-5}, name_of(c) + " lse");
    }
  }
}

// Both methods round probabilities and d_scores to bf16 before the products.
TEST_F(AttentionCudaTest, BackwardEqualsTheCpu) {
  for (const AttentionCase& c : awkward_cases()) {
    if (c.attributes.sequence == 1) {
      EXPECT_THROW(make_cuda_kernel(c.backward(), context()), ConfigError);
      continue;
    }
    const KernelCase expected = f64_reference(backward_case(c));
    for (const AttentionMethod method : backward_methods_of(c)) {
      SCOPED_TRACE(fmt::format("{} by {}", name_of(c), name_of(method)));
      KernelCase backward = backward_case(c);
      run_backward_by(method, backward, context());
      const auto actual = backward.values(kDQkv);
      const auto reference = expected.values(kDQkv);
      expect_close(actual, reference, {.absolute = 2e-2, .relative = 2e-2}, name_of(c));
      EXPECT_LT(relative_distance(actual, reference), 6e-3);
    }
  }
}

/// More blocks than the device has room for at once, so that some begin when others have ended and
/// all wait for each other in the order of keys: heads of their own, groups, last tiles in part.
std::vector<AttentionCase> many_block_cases() {
  return {make_case(12, 12, 64, 1024, 5), make_case(28, 4, 64, 1000, 2),
          make_case(16, 16, 128, 900, 4), make_case(14, 2, 128, 2100, 2),
          latent_case(16, 500, 6, 128)};
}

TEST_F(AttentionCudaTest, ForwardOfManyBlocksIsRepeatableAndTheSameByBothMethods) {
  for (const AttentionCase& c : many_block_cases()) {
    SCOPED_TRACE(name_of(c));
    std::vector<KernelCase> results;
    for (const AttentionMethod method : forward_methods_of(c)) {
      const CudaKernel kernel = make_cuda_attention(c.forward(), context(), method);
      KernelCase& first = results.emplace_back(c.forward());
      run_on_cuda(first, kernel);
      for (const CudaLaunch how : {CudaLaunch::kEager, CudaLaunch::kGraph}) {
        KernelCase again(c.forward());
        run_on_cuda(again, kernel, how);
        EXPECT_TRUE(again.bytes(kOut) == first.bytes(kOut)) << name_of(method);
        EXPECT_TRUE(again.bytes(kLse) == first.bytes(kLse)) << name_of(method);
      }
    }
    const KernelCase& a = results.back();
    const KernelCase& b = results.front();
    EXPECT_LT(relative_distance(a.values(kOut), b.values(kOut)), 6e-3);
    expect_close(a.values(kLse), b.values(kLse), {.absolute = 4e-5, .relative = 4e-5}, "lse");
  }
}

TEST_F(AttentionCudaTest, BackwardOfManyBlocksIsRepeatableAndTheSameByBothMethods) {
  for (const AttentionCase& c : many_block_cases()) {
    SCOPED_TRACE(name_of(c));
    const auto padded = [&] {
      KernelCase backward(c.backward());
      zero_padding(backward, 0, c, c.attributes.heads + c.attributes.kv_heads);
      zero_padding(backward, 3, c, 0);
      return backward;
    };
    KernelCase forward(c.forward());
    forward.set(0, padded().values(0));
    run_on_cuda(forward, context());
    const auto make_backward = [&] {
      KernelCase backward = padded();
      backward.set(1, forward.values(kOut));
      backward.set(kLseIn, forward.values(kLse));
      return backward;
    };
    std::vector<std::vector<double>> results;
    for (const AttentionMethod method : backward_methods_of(c)) {
      SCOPED_TRACE(name_of(method));
      KernelCase first = make_backward();
      run_backward_by(method, first, context());
      for (const CudaLaunch how : {CudaLaunch::kEager, CudaLaunch::kEager, CudaLaunch::kGraph}) {
        KernelCase again = make_backward();
        run_backward_by(method, again, context(), how);
        EXPECT_TRUE(again.bytes(kDQkv) == first.bytes(kDQkv));
      }
      results.push_back(first.values(kDQkv));
    }
    EXPECT_LT(relative_distance(results.back(), results.front()), 6e-3);
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

// What a step runs is what the rule names: the same bits, and another scratch than the other's.
TEST_F(AttentionCudaTest, StepsTakeTheMethodOfTheRule) {
  for (const AttentionCase& c :
       {make_case(8, 2, 64, 300, 1), make_case(8, 2, 128, 300, 1), make_case(4, 4, 96, 300, 1)}) {
    const AttentionMethod method = attention_backward_method(AttentionSizes(c.backward()));
    KernelCase chosen = backward_case(c);
    run_on_cuda(chosen, context());
    KernelCase named = backward_case(c);
    run_backward_by(method, named, context());
    EXPECT_TRUE(chosen.bytes(kDQkv) == named.bytes(kDQkv)) << name_of(c);
    const auto scratch_of = [&](AttentionMethod of) {
      return make_cuda_attention_backward(c.backward(), context(), {.method = of}).scratch_bytes;
    };
    const CudaKernel kernel = make_cuda_kernel(c.backward(), context());
    EXPECT_EQ(kernel.scratch_bytes, scratch_of(method)) << name_of(c);
    if (backward_methods_of(c).size() == 2) {
      EXPECT_NE(scratch_of(AttentionMethod::kCudnn), scratch_of(AttentionMethod::kSm90));
    }
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
