#include "ops/cross_entropy.h"

#include <algorithm>
#include <limits>

#include "support/cuda_kernel_checks.h"

namespace braid {
namespace {

using CrossEntropyCudaTest = CudaKernelTest;

struct Sizes {
  int64_t rows;
  int64_t columns;
  int64_t vocabulary;
};

/// One column, primes, padding, a whole and a broken batch of vectors, Llama 3's vocabulary.
constexpr Sizes kSizes[] = {{1, 1, 1},         {3, 7, 5},           {5, 128, 100},
                            {1500, 31, 29},    {2, 16384, 16384},   {2, 20000, 16385},
                            {7, 50304, 50257}, {3, 128256, 128256}, {4, 1003, 1003}};

constexpr double kLossScale = 0.125;

std::string name_of(DType dtype, Sizes s) {
  return fmt::format("{} [{},{}] vocabulary {}", dtype_name(dtype), s.rows, s.columns,
                     s.vocabulary);
}

/// Every fifth label is ignored.
std::vector<double> make_labels(Sizes s) {
  TestRandom random(5);
  std::vector<double> labels(static_cast<size_t>(s.rows));
  for (size_t n = 0; n < labels.size(); ++n) {
    labels[n] = n % 5 == 3 ? -100.0 : static_cast<double>(random.below(s.vocabulary));
  }
  return labels;
}

/// Padding columns hold NaN: they take no part.
std::vector<double> make_logits(Sizes s) {
  TestRandom random(6);
  std::vector<double> logits = random.uniforms(s.rows * s.columns, -12.0, 12.0);
  for (size_t i = 0; i < logits.size(); ++i) {
    if (static_cast<int64_t>(i) % s.columns >= s.vocabulary) {
      logits[i] = std::numeric_limits<double>::quiet_NaN();
    }
  }
  return logits;
}

/// With z_loss, operand z is behind the others.
OpSpec with_z(OpSpec spec, double z_loss) {
  if (z_loss > 0) {
    spec.operands.push_back(write(DType::kF32, {1}));
  }
  return spec;
}

KernelCase forward_case(DType dtype, Sizes s, double z_loss = 0) {
  KernelCase kernel_case(
      with_z({"cross_entropy",
              to_attributes(CrossEntropyAttributes{.vocabulary = s.vocabulary, .z = {z_loss}}),
              {read(dtype, {s.rows, s.columns}), read(DType::kI32, {s.rows}),
               read(DType::kF32, {1}), write(DType::kF32, {1}), write(DType::kF32, {s.rows})}},
             z_loss));
  kernel_case.set(0, make_logits(s));
  kernel_case.set(1, make_labels(s));
  kernel_case.set_all(2, kLossScale);
  return kernel_case;
}

/// lse is that of the logits, from the CPU.
KernelCase backward_case(DType dtype, Sizes s, double z_loss = 0) {
  const KernelCase forward = f64_reference(forward_case(dtype, s));
  KernelCase kernel_case(
      {"cross_entropy_backward",
       to_attributes(
           CrossEntropyBackwardAttributes{.shard = {.vocabulary = s.vocabulary}, .z = {z_loss}}),
       {read(dtype, {s.rows, s.columns}), read(DType::kI32, {s.rows}), read(DType::kF32, {1}),
        read(DType::kF32, {s.rows}), write(dtype, {s.rows, s.columns})}});
  kernel_case.set(0, make_logits(s));
  kernel_case.set(1, make_labels(s));
  kernel_case.set_all(2, kLossScale);
  kernel_case.set(3, forward.values(4));
  return kernel_case;
}

// Exponentials are off by 2^-22, and so are their sums; exponents up to 24 add 24 half units.
TEST_F(CrossEntropyCudaTest, ForwardEqualsTheCpu) {
  for (const DType dtype : kCudaDtypes) {
    for (const Sizes s : kSizes) {
      expect_equals_cpu(forward_case(dtype, s), context(), rounded_once(4e-6, 1e-6),
                        name_of(dtype, s));
    }
  }
}

TEST_F(CrossEntropyCudaTest, BackwardEqualsTheCpu) {
  for (const DType dtype : kCudaDtypes) {
    for (const Sizes s : kSizes) {
      expect_equals_cpu(backward_case(dtype, s), context(), rounded_once(1e-6, 4e-6),
                        name_of(dtype, s));
    }
  }
}

// The square of lse doubles its relative error.
TEST_F(CrossEntropyCudaTest, LossOfTheLogSumExpEqualsTheCpus) {
  for (const DType dtype : kCudaDtypes) {
    for (const Sizes s : kSizes) {
      expect_equals_cpu(forward_case(dtype, s, 0.02), context(), rounded_once(4e-6, 4e-6),
                        name_of(dtype, s));
      expect_equals_cpu(backward_case(dtype, s, 0.02), context(), rounded_once(2e-6, 4e-6),
                        name_of(dtype, s));
    }
  }
}

// Without the coefficient, and with it: the loss and lse are the same bits.
TEST_F(CrossEntropyCudaTest, LossOfTheLogSumExpLeavesTheOtherResultsAsTheyAre) {
  for (const Sizes s : kSizes) {
    KernelCase plain = forward_case(DType::kBF16, s);
    KernelCase with = forward_case(DType::kBF16, s, 0.02);
    run_on_cuda(plain, context());
    run_on_cuda(with, context());
    EXPECT_TRUE(plain.bytes(3) == with.bytes(3)) << name_of(DType::kBF16, s);
    EXPECT_TRUE(plain.bytes(4) == with.bytes(4)) << name_of(DType::kBF16, s);
  }
}

TEST_F(CrossEntropyCudaTest, LogitsOfMinusInfinityTakeNoPart) {
  const Sizes sizes{2, 40000, 40000};
  for (const DType dtype : kCudaDtypes) {
    KernelCase kernel_case = forward_case(dtype, sizes);
    std::vector<double> logits = kernel_case.values(0);
    // All that some threads see in their first batches.
    std::fill_n(logits.begin(), 39000, -std::numeric_limits<double>::infinity());
    kernel_case.set(0, logits);
    kernel_case.set(1, {39999, 1});
    expect_equals_cpu(std::move(kernel_case), context(), rounded_once(4e-6, 1e-6), "masked");
  }
}

TEST_F(CrossEntropyCudaTest, LargeLogitsDoNotOverflow) {
  const Sizes sizes{3, 1000, 1000};
  KernelCase kernel_case = forward_case(DType::kF32, sizes);
  std::vector<double> logits = kernel_case.values(0);
  for (double& logit : logits) {
    logit *= 1e4;
  }
  kernel_case.set(0, logits);
  expect_equals_cpu(std::move(kernel_case), context(), rounded_once(0, 1e-6), "large");
}

TEST_F(CrossEntropyCudaTest, UnknownLabelsAndNanLogitsShowInTheLoss) {
  const Sizes sizes{3, 40, 33};
  for (const double label : {33.0, 39.0, 2147483647.0}) {
    KernelCase forward = forward_case(DType::kBF16, sizes);
    forward.set(1, {1, label, 2});
    run_on_cuda(forward, context());
    EXPECT_TRUE(std::isnan(forward.values(3)[0])) << label;

    KernelCase backward = backward_case(DType::kBF16, sizes);
    backward.set(1, {1, label, 2});
    run_on_cuda(backward, context());
    const std::vector<double> d_logits = backward.values(4);
    for (size_t i = 0; i < d_logits.size(); ++i) {
      const bool is_bad = i / 40 == 1 && i % 40 < 33;
      EXPECT_EQ(std::isnan(d_logits[i]), is_bad) << label << " element " << i;
    }
  }
  KernelCase forward = forward_case(DType::kBF16, sizes);
  std::vector<double> logits = forward.values(0);
  logits[41] = std::numeric_limits<double>::quiet_NaN();
  forward.set(0, logits);
  run_on_cuda(forward, context());
  EXPECT_TRUE(std::isnan(forward.values(3)[0]));
}

/// Columns of a vocabulary on one of several ranks.
struct Shard {
  int64_t rows;
  int64_t columns;
  CrossEntropyShardAttributes of;
};

/// First, middle and last columns, the last with padding or nothing but padding; odd widths.
const Shard kShards[] = {{5, 128, {.vocabulary = 300, .vocabulary_begin = 0}},
                         {5, 128, {.vocabulary = 300, .vocabulary_begin = 128}},
                         {5, 128, {.vocabulary = 300, .vocabulary_begin = 256}},
                         {5, 128, {.vocabulary = 300, .vocabulary_begin = 384}},
                         {3, 33, {.vocabulary = 90, .vocabulary_begin = 66}},
                         {2, 16384, {.vocabulary = 50257, .vocabulary_begin = 16384}},
                         {3, 32064, {.vocabulary = 128256, .vocabulary_begin = 96192}}};

void set_shard_inputs(KernelCase& kernel_case, const Shard& s) {
  kernel_case.set(
      0, make_logits({s.rows, s.columns, std::max<int64_t>(0, s.of.valid_columns(s.columns))}));
  kernel_case.set(1, make_labels({s.rows, s.columns, s.of.vocabulary}));
  std::vector<double> labels = kernel_case.values(1);
  labels[0] = static_cast<double>(
      std::min(s.of.vocabulary - 1, s.of.vocabulary_begin));  // surely here, if any column is
  kernel_case.set(1, labels);
}

KernelCase partial_case(DType dtype, const Shard& s) {
  KernelCase kernel_case({"cross_entropy_partial",
                          to_attributes(s.of),
                          {read(dtype, {s.rows, s.columns}), read(DType::kI32, {s.rows}),
                           write(DType::kF32, {s.rows, kCrossEntropyStats})}});
  set_shard_inputs(kernel_case, s);
  return kernel_case;
}

/// lse is about what a softmax over all ranks has.
KernelCase shard_backward_case(DType dtype, const Shard& s, double z_loss = 0) {
  KernelCase kernel_case(
      {"cross_entropy_backward",
       to_attributes(CrossEntropyBackwardAttributes{.shard = s.of, .z = {z_loss}}),
       {read(dtype, {s.rows, s.columns}), read(DType::kI32, {s.rows}), read(DType::kF32, {1}),
        read(DType::kF32, {s.rows}), write(dtype, {s.rows, s.columns})}});
  set_shard_inputs(kernel_case, s);
  kernel_case.set_all(2, kLossScale);
  kernel_case.set(3, TestRandom(8).uniforms(s.rows, 12.0, 20.0));
  return kernel_case;
}

KernelCase merge_case(int64_t rows, int64_t ranks, double z_loss = 0) {
  KernelCase kernel_case(
      with_z({"cross_entropy_merge",
              to_attributes(CrossEntropyMergeAttributes{{z_loss}}),
              {read(DType::kF32, {ranks * rows, kCrossEntropyStats}), read(DType::kI32, {rows}),
               read(DType::kF32, {1}), write(DType::kF32, {1}), write(DType::kF32, {rows})}},
             z_loss));
  TestRandom random(9);
  std::vector<double> stats;
  for (int64_t i = 0; i < ranks * rows; ++i) {
    const bool is_padding = ranks > 1 && i >= (ranks - 1) * rows && i % 3 == 0;
    stats.push_back(is_padding ? -std::numeric_limits<double>::infinity()
                               : random.uniform(-12.0, 12.0));
    stats.push_back(is_padding ? 0.0 : random.uniform(1.0, 1000.0));
    stats.push_back(i < rows ? random.uniform(-12.0, 12.0) : 0.0);
  }
  kernel_case.set(0, stats);
  kernel_case.set(1, make_labels({rows, 1, 100}));
  kernel_case.set_all(2, kLossScale);
  return kernel_case;
}

TEST_F(CrossEntropyCudaTest, StatisticsEqualTheCpus) {
  for (const DType dtype : kCudaDtypes) {
    for (const Shard& s : kShards) {
      expect_equals_cpu(partial_case(dtype, s), context(), rounded_once(1e-6, 4e-6),
                        fmt::format("{} of {}", s.of.vocabulary_begin, s.of.vocabulary));
      for (const double z_loss : {0.0, 0.02}) {
        expect_equals_cpu(shard_backward_case(dtype, s, z_loss), context(),
                          rounded_once(1e-6, 4e-6),
                          fmt::format("{} of {}", s.of.vocabulary_begin, s.of.vocabulary));
      }
    }
  }
}

TEST_F(CrossEntropyCudaTest, MergeEqualsTheCpus) {
  for (const int64_t rows : {1, 257, 3000}) {
    for (const int64_t ranks : {1, 2, 3, 8}) {
      for (const double z_loss : {0.0, 0.02}) {
        expect_equals_cpu(merge_case(rows, ranks, z_loss), context(), rounded_once(4e-6, 4e-6),
                          fmt::format("{} rows of {} ranks", rows, ranks));
      }
    }
  }
}

TEST_F(CrossEntropyCudaTest, LabelsThatNoRankKnowsAreNanOnEveryRank) {
  for (const int64_t begin : {0, 128, 384}) {
    KernelCase kernel_case =
        partial_case(DType::kBF16, {5, 128, {.vocabulary = 300, .vocabulary_begin = begin}});
    kernel_case.set(1, {1, 300, 2, 400, -100});
    run_on_cuda(kernel_case, context());
    for (size_t row = 0; row < 5; ++row) {
      EXPECT_EQ(std::isnan(kernel_case.values(2)[3 * row + 2]), row == 1 || row == 3) << row;
    }
  }
}

TEST_F(CrossEntropyCudaTest, ShardsAreBitwiseRepeatable) {
  const Shard shard{1200, 1064, {.vocabulary = 3000, .vocabulary_begin = 1064}};
  for (const DType dtype : kCudaDtypes) {
    expect_repeatable([&] { return partial_case(dtype, shard); }, context());
    expect_repeatable([&] { return shard_backward_case(dtype, shard); }, context());
  }
  expect_repeatable([&] { return merge_case(1200, 4); }, context());
}

TEST_F(CrossEntropyCudaTest, IsBitwiseRepeatable) {
  const Sizes sizes{1200, 1064, 1061};
  for (const DType dtype : kCudaDtypes) {
    expect_repeatable([&] { return forward_case(dtype, sizes); }, context());
    expect_repeatable([&] { return backward_case(dtype, sizes); }, context());
  }
}

}  // namespace
}  // namespace braid
