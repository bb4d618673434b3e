#include "ops/attention_step.h"

#include "ops/context_attention.h"
#include "support/cuda_kernel_checks.h"

namespace braid {
namespace {

using AttentionStepCudaTest = CudaKernelTest;

constexpr size_t kQkv = 0, kKv = 1, kSum = 2, kLse = 3;  // of a step
constexpr size_t kOutIn = 2, kLseIn = 3, kDq = 5, kDkv = 6;
constexpr double kNothing = -std::numeric_limits<double>::infinity();

struct StepCase {
  AttentionStepAttributes a;
  int64_t batches = 1;

  Shape qkv() const { return {batches * a.sequence, (a.heads + 2 * a.kv_heads) * a.head_size}; }
  Shape kv() const { return {batches * a.kv_sequence, 2 * a.kv_heads * a.head_size}; }
  Shape out() const { return {batches * a.sequence, a.heads * a.head_size}; }
  Shape lse() const { return {batches, a.heads, a.sequence}; }

  OpSpec forward(bool accumulate) const {
    AttentionStepAttributes attributes = a;
    attributes.accumulate = accumulate;
    return {.op = "attention_step",
            .attributes = to_attributes(attributes),
            .operands = {read(DType::kBF16, qkv()), read(DType::kBF16, kv()),
                         gradient(accumulate, DType::kF32, out()),
                         gradient(accumulate, DType::kF32, lse())}};
  }
  OpSpec backward(bool accumulate_q, bool accumulate_kv) const {
    const AttentionStepBackwardAttributes attributes{
        .step = a, .accumulate_q = accumulate_q, .accumulate_kv = accumulate_kv};
    return {.op = "attention_step_backward",
            .attributes = to_attributes(attributes),
            .operands = {read(DType::kBF16, qkv()), read(DType::kBF16, kv()),
                         read(DType::kBF16, out()), read(DType::kF32, lse()),
                         read(DType::kBF16, out()), gradient(accumulate_q, DType::kF32, out()),
                         gradient(accumulate_kv, DType::kF32, kv())}};
  }
  std::string name() const {
    return fmt::format("heads {}/{} x {}, queries {}+{} of {}, keys {}+{} of {}{}, batches {}",
                       a.heads, a.kv_heads, a.head_size, a.query_begin, a.queries, a.sequence,
                       a.key_begin, a.keys, a.kv_sequence, a.causal ? ", causal" : "", batches);
  }
};

StepCase make_case(AttentionStepAttributes a, int64_t batches) {
  a.scale = 1.0 / std::sqrt(static_cast<double>(a.head_size));
  return {a, batches};
}

/// What a ring does (all, the first half of the keys, the second half of the queries), what a rank
/// with gathered keys does, and ranges that neither begin nor end at a tile; all head sizes, one
/// head, grouped heads.
std::vector<StepCase> awkward_cases() {
  using A = AttentionStepAttributes;
  return {
      make_case(A{4, 2, 128, 64, 64, 0, 0, 64, 0, 64, true}, 2),
      make_case(A{4, 2, 128, 64, 64, 0, 0, 64, 0, 32, false}, 2),
      make_case(A{4, 2, 128, 64, 64, 0, 32, 32, 0, 64, false}, 2),
      make_case(A{4, 2, 64, 64, 256, 0, 0, 32, 0, 96, true}, 3),
      make_case(A{4, 2, 64, 64, 256, 0, 32, 32, 0, 224, true}, 3),
      make_case(A{3, 1, 96, 130, 130, 0, 0, 130, 0, 65, false}, 2),
      make_case(A{3, 3, 96, 130, 390, 0, 65, 65, 0, 325, true}, 1),
      make_case(A{8, 2, 64, 257, 300, 0, 1, 129, 7, 257, false}, 2),
      make_case(A{1, 1, 128, 66, 400, 0, 3, 61, 5, 321, true}, 1),
      make_case(A{2, 1, 64, 6, 6, 0, 3, 3, 0, 6, false}, 3),
      make_case(A{8, 1, 128, 512, 512, 0, 0, 512, 0, 512, true}, 1),
  };
}

/// Rows [begin, begin + count) of each run of `rows` keep their values, the others become `other`.
std::vector<double> within(std::vector<double> values, int64_t rows, int64_t begin, int64_t count,
                           int64_t width, double other) {
  for (size_t i = 0; i < values.size(); ++i) {
    const int64_t row = static_cast<int64_t>(i) / width % rows;
    values[i] = row >= begin && row < begin + count ? values[i] : other;
  }
  return values;
}

// Inputs are in [-1, 1), as are sum and lse so far: a mean of such values, of which this step's
// part is rounded to bf16 once, its weights twice.
TEST_F(AttentionStepCudaTest, ForwardEqualsTheCpu) {
  for (const StepCase& c : awkward_cases()) {
    for (const bool accumulate : {false, true}) {
      KernelCase step(c.forward(accumulate));
      const KernelCase expected = f64_reference(step);
      run_on_cuda(step, context());
      const std::string name = c.name() + (accumulate ? ", merged" : "");
      expect_close(step.values(kSum), expected.values(kSum), {.absolute = 4e-3, .relative = 8e-3},
                   name);
      expect_close(step.values(kLse), expected.values(kLse), {.absolute = 2e-5, .relative = 2e-5},
                   name + " lse");
    }
  }
}

// The other queries get those of no key, whatever was there.
TEST_F(AttentionStepCudaTest, OtherQueriesHaveSeenNothing) {
  const StepCase c = make_case({4, 2, 64, 24, 24, 0, 5, 13, 0, 24, false}, 2);
  KernelCase step(c.forward(false));
  run_on_cuda(step, context());
  const auto sum = step.values(kSum);
  EXPECT_EQ(within(sum, 24, 5, 13, 256, 0.0), sum);
  const auto lse = step.values(kLse);
  EXPECT_EQ(within(lse, 24, 5, 13, 1, kNothing), lse);
  for (const double value : within(lse, 24, 5, 13, 1, 0.0)) {
    EXPECT_TRUE(std::isfinite(value));
  }
}

// One part is negligible beside the other, in both directions: no weight overflows.
TEST_F(AttentionStepCudaTest, PartsOfAnyWeightAreMerged) {
  const StepCase c = make_case({2, 1, 64, 32, 32, 0, 0, 32, 0, 32, false}, 1);
  for (const double lse : {-1e30, -200.0, 200.0, 1e30, kNothing}) {
    KernelCase step(c.forward(true));
    step.set_all(kLse, lse);
    if (lse == kNothing) {
      step.set_all(kSum, 0.0);
    }
    const KernelCase expected = f64_reference(step);
    run_on_cuda(step, context());
    expect_close(step.values(kSum), expected.values(kSum), {.absolute = 4e-3, .relative = 8e-3},
                 fmt::format("lse {}", lse));
    expect_close(step.values(kLse), expected.values(kLse), {.absolute = 2e-5, .relative = 2e-5},
                 fmt::format("lse {}", lse));
  }
}

/// out and lse belong to the queries, with as many further keys as halve the probabilities.
KernelCase backward_case(const StepCase& c, bool accumulate_q, bool accumulate_kv) {
  KernelCase backward(c.backward(accumulate_q, accumulate_kv));
  KernelCase forward(c.forward(false));
  forward.set(kQkv, backward.values(kQkv));
  forward.set(kKv, backward.values(kKv));
  const KernelCase reference = f64_reference(forward);
  std::vector<double> lse = reference.values(kLse);
  for (double& value : lse) {
    value = std::isfinite(value) ? value + std::log(2.0) : 0.0;
  }
  backward.set(kOutIn, reference.values(kSum));
  backward.set(kLseIn, lse);
  return backward;
}

// As in attention_test.cpp: cuDNN rounds probabilities and d_scores to bf16 before the products,
// and each result once.
TEST_F(AttentionStepCudaTest, BackwardEqualsTheCpu) {
  for (const StepCase& c : awkward_cases()) {
    for (const bool accumulate : {false, true}) {
      KernelCase backward = backward_case(c, accumulate, !accumulate);
      const KernelCase expected = f64_reference(backward);
      run_on_cuda(backward, context());
      for (const size_t operand : {kDq, kDkv}) {
        const std::string name = fmt::format("{} operand {}", c.name(), operand);
        const auto actual = backward.values(operand);
        const auto reference = expected.values(operand);
        expect_close(actual, reference, {.absolute = 2e-2, .relative = 2e-2}, name);
        EXPECT_LT(relative_distance(actual, reference), 7e-3) << name;
      }
    }
  }
}

// What no pair of the step belongs to becomes 0, or stays.
TEST_F(AttentionStepCudaTest, OtherRowsOfGradientsAreZeroOrStay) {
  const StepCase c = make_case({4, 2, 64, 24, 40, 0, 5, 13, 8, 24, false}, 2);
  for (const bool accumulate : {false, true}) {
    KernelCase backward = backward_case(c, accumulate, accumulate);
    const auto q_before = backward.values(kDq);
    const auto kv_before = backward.values(kDkv);
    run_on_cuda(backward, context());
    const auto expect_outside = [&](size_t operand, const std::vector<double>& before, int64_t rows,
                                    int64_t begin, int64_t count, int64_t width) {
      const auto after = backward.values(operand);
      for (size_t i = 0; i < after.size(); ++i) {
        const int64_t row = static_cast<int64_t>(i) / width % rows;
        if (row < begin || row >= begin + count) {
          ASSERT_EQ(after[i], accumulate ? before[i] : 0.0) << "operand " << operand << " at " << i;
        }
      }
    };
    expect_outside(kDq, q_before, 24, 5, 13, 256);
    expect_outside(kDkv, kv_before, 40, 8, 24, 256);
  }
}

TEST_F(AttentionStepCudaTest, GraphAndRerunsAreBitwiseEqual) {
  const StepCase c = make_case({16, 4, 128, 1024, 1024, 0, 512, 512, 0, 1024, false}, 1);
  const auto expect_same = [&](const std::function<KernelCase()>& make) {
    KernelCase first = make();
    run_on_cuda(first, context());
    for (const CudaLaunch how : {CudaLaunch::kEager, CudaLaunch::kGraph}) {
      KernelCase again = make();
      run_on_cuda(again, context(), how);
      for (size_t i = 0; i < first.spec().operands.size(); ++i) {
        EXPECT_TRUE(again.bytes(i) == first.bytes(i)) << first.spec().op << " operand " << i;
      }
    }
  };
  expect_same([&] { return KernelCase(c.forward(true)); });
  expect_same([&] { return backward_case(c, true, true); });
}

TEST_F(AttentionStepCudaTest, FinishRoundsAsTheCpuDoes) {
  for (const int64_t columns : {8, 31, 4096}) {
    const AttentionFinishAttributes attributes{.ranks = 2, .index = 1};
    const auto make = [&] {
      return KernelCase({"attention_finish",
                         to_attributes(attributes),
                         {read(DType::kF32, {37, columns}), write(DType::kBF16, {37, columns})}});
    };
    expect_same_as_cpu(make, context(), fmt::format("[37,{}]", columns));
    expect_repeatable(make, context());
  }
}

TEST_F(AttentionStepCudaTest, RefusesWhatCudnnHasNoKernelFor) {
  for (const int64_t head_size : {int64_t{12}, int64_t{264}}) {
    const StepCase c = make_case({2, 1, head_size, 16, 16, 0, 0, 16, 0, 8, false}, 1);
    EXPECT_THROW(make_cuda_kernel(c.forward(false), context()), ConfigError);
    EXPECT_THROW(make_cuda_kernel(c.backward(false, false), context()), ConfigError);
  }
  const StepCase single = make_case({2, 1, 64, 2, 4, 0, 0, 1, 0, 1, true}, 1);
  EXPECT_THROW(make_cuda_kernel(single.backward(false, false), context()), ConfigError);
}

}  // namespace
}  // namespace braid
