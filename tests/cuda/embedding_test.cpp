#include "ops/embedding.h"

#include "support/cuda_kernel_checks.h"

namespace braid {
namespace {

using EmbeddingCudaTest = CudaKernelTest;

struct Sizes {
  int64_t sequences;
  int64_t sequence;
  int64_t vocabulary;
  int64_t width;
  int64_t rows() const { return sequences * sequence; }
};

/// The last has more rows than one block sorts.
constexpr Sizes kSizes[] = {{1, 1, 1, 1},     {2, 3, 5, 7},        {3, 37, 11, 64},
                            {1, 129, 3, 384}, {2, 512, 5003, 768}, {4, 8192, 1031, 40}};

enum class Tokens { kRandom, kAllSame, kDescending };
constexpr Tokens kTokens[] = {Tokens::kRandom, Tokens::kAllSame, Tokens::kDescending};

std::vector<double> make_tokens(Sizes s, Tokens kind) {
  TestRandom random(11);
  std::vector<double> tokens(static_cast<size_t>(s.rows()));
  for (size_t n = 0; n < tokens.size(); ++n) {
    const auto row = static_cast<int64_t>(n);
    const int64_t token = kind == Tokens::kRandom    ? random.below(s.vocabulary)
                          : kind == Tokens::kAllSame ? s.vocabulary - 1
                                                     : (s.rows() - 1 - row) % s.vocabulary;
    tokens[n] = static_cast<double>(token);
  }
  return tokens;
}

KernelCase embedding_case(DType dtype, Sizes s, bool has_positions) {
  std::vector<OperandSpec> operands = {read(DType::kI32, {s.rows()}),
                                       read(dtype, {s.vocabulary, s.width})};
  if (has_positions) {
    operands.push_back(read(dtype, {s.sequence + 2, s.width}));
  }
  operands.push_back(write(dtype, {s.rows(), s.width}));
  KernelCase kernel_case(
      {"embedding",
       to_attributes(EmbeddingAttributes{.sequence = s.sequence, .has_positions = has_positions}),
       std::move(operands)});
  kernel_case.set(0, make_tokens(s, Tokens::kRandom));
  return kernel_case;
}

KernelCase wgrad_case(DType dtype, Sizes s, Tokens tokens, bool accumulate) {
  KernelCase kernel_case(
      {"embedding_wgrad",
       to_attributes(EmbeddingWgradAttributes{.sequence = s.sequence, .accumulate = accumulate}),
       {read(DType::kI32, {s.rows()}), read(dtype, {s.rows(), s.width}),
        gradient(accumulate, DType::kF32, {s.vocabulary, s.width})}});
  kernel_case.set(0, make_tokens(s, tokens));
  return kernel_case;
}

KernelCase position_wgrad_case(DType dtype, Sizes s, bool accumulate) {
  return KernelCase(
      {"position_embedding_wgrad",
       to_attributes(EmbeddingWgradAttributes{.sequence = s.sequence, .accumulate = accumulate}),
       {read(dtype, {s.rows(), s.width}),
        gradient(accumulate, DType::kF32, {s.sequence + 2, s.width})}});
}

std::string name_of(DType dtype, Sizes s) {
  return fmt::format("{} [{},{}] of [{},{}]", dtype_name(dtype), s.sequences, s.sequence,
                     s.vocabulary, s.width);
}

// One rounding, or sums in ascending order in fp32: the same numbers as on the CPU.
TEST_F(EmbeddingCudaTest, ForwardGivesTheNumbersOfTheCpu) {
  for (const DType dtype : kCudaDtypes) {
    for (const Sizes s : kSizes) {
      for (const bool has_positions : {false, true}) {
        expect_same_as_cpu([&] { return embedding_case(dtype, s, has_positions); }, context(),
                           name_of(dtype, s));
      }
    }
  }
}

TEST_F(EmbeddingCudaTest, WgradGivesTheNumbersOfTheCpu) {
  for (const DType dtype : kCudaDtypes) {
    for (const Sizes s : kSizes) {
      for (const Tokens tokens : kTokens) {
        for (const bool accumulate : {false, true}) {
          expect_same_as_cpu([&] { return wgrad_case(dtype, s, tokens, accumulate); }, context(),
                             name_of(dtype, s));
        }
      }
    }
  }
}

TEST_F(EmbeddingCudaTest, PositionWgradGivesTheNumbersOfTheCpu) {
  for (const DType dtype : kCudaDtypes) {
    for (const Sizes s : kSizes) {
      for (const bool accumulate : {false, true}) {
        expect_same_as_cpu([&] { return position_wgrad_case(dtype, s, accumulate); }, context(),
                           name_of(dtype, s));
      }
    }
  }
}

TEST_F(EmbeddingCudaTest, UnknownTokensGiveNanAndTouchNoGradient) {
  const Sizes sizes{1, 6, 5, 24};
  const std::vector<double> tokens = {0, -1, 4, 5, 2147483647, 3};
  const std::vector<bool> known = {true, false, true, false, false, true};
  KernelCase forward = embedding_case(DType::kBF16, sizes, false);
  forward.set(0, tokens);
  run_on_cuda(forward, context());
  const std::vector<double> out = forward.values(2);
  for (size_t i = 0; i < out.size(); ++i) {
    EXPECT_EQ(std::isnan(out[i]), !known[i / 24]) << i;
  }

  KernelCase wgrad = wgrad_case(DType::kBF16, sizes, Tokens::kRandom, true);
  wgrad.set(0, tokens);
  KernelCase expected = wgrad_case(DType::kBF16, sizes, Tokens::kRandom, true);
  expected.set(0, {0, 1, 4, 1, 1, 3});
  std::vector<double> d_out = expected.values(1);
  for (size_t i = 0; i < d_out.size(); ++i) {
    d_out[i] = known[i / 24] ? d_out[i] : 0.0;
  }
  expected.set(1, d_out);
  expected.run();
  run_on_cuda(wgrad, context());
  expect_close(wgrad.values(2), expected.values(2), {}, "d_table");
}

TEST_F(EmbeddingCudaTest, IsBitwiseRepeatable) {
  const Sizes sizes{2, 4096, 1031, 72};
  for (const DType dtype : kCudaDtypes) {
    expect_repeatable([&] { return embedding_case(dtype, sizes, true); }, context());
    expect_repeatable([&] { return wgrad_case(dtype, sizes, Tokens::kRandom, true); }, context());
    expect_repeatable([&] { return wgrad_case(dtype, sizes, Tokens::kRandom, false); }, context());
    expect_repeatable([&] { return position_wgrad_case(dtype, sizes, true); }, context());
  }
}

}  // namespace
}  // namespace braid
