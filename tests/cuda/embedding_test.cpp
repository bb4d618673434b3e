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
  KernelCase kernel_case({"embedding_wgrad",
                          to_attributes(EmbeddingWgradAttributes{.accumulate = accumulate}),
                          {read(DType::kI32, {s.rows()}), read(dtype, {s.rows(), s.width}),
                           gradient(accumulate, DType::kF32, {s.vocabulary, s.width})}});
  kernel_case.set(0, make_tokens(s, tokens));
  return kernel_case;
}

KernelCase position_wgrad_case(DType dtype, Sizes s, bool accumulate) {
  return KernelCase({"position_embedding_wgrad",
                     to_attributes(PositionEmbeddingWgradAttributes{.sequence = s.sequence,
                                                                    .accumulate = accumulate}),
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

/// The same ops with tokens at other positions of a table, as on a context rank.
KernelCase at_positions(const KernelCase& plain, const TokenPositions& at, size_t table,
                        std::vector<Attribute> attributes) {
  OpSpec spec = plain.spec();
  const int64_t sequence = plain.spec().operands[0].shape[0] / 3;
  spec.operands[table].shape = {at.end(sequence) + 2, spec.operands[table].shape[1]};
  spec.attributes = std::move(attributes);
  return KernelCase(spec);
}

// A zig-zag rank's two runs, in this order and the other, one run that does not begin at 0, and
// runs of one token each side.
constexpr TokenPositions kPositions[] = {
    {.first_begin = 3, .second_begin = 45, .split = 10},
    {.first_begin = 40, .second_begin = 2, .split = 20},
    {.second_begin = 5},
    {.first_begin = 7, .split = 37},
    {.first_begin = 0, .second_begin = 60, .split = 36},
};

TEST_F(EmbeddingCudaTest, PositionsOfAContextShardGiveTheNumbersOfTheCpu) {
  for (const DType dtype : kCudaDtypes) {
    for (const int64_t width : {64, 7}) {
      const Sizes s{3, 37, 11, width};
      for (const TokenPositions& at : kPositions) {
        const auto forward = [&] {
          KernelCase made =
              at_positions(embedding_case(dtype, s, true), at, 2,
                           to_attributes(EmbeddingAttributes{
                               .sequence = s.sequence, .has_positions = true, .at = at}));
          made.set(0, make_tokens(s, Tokens::kRandom));
          return made;
        };
        expect_same_as_cpu(forward, context(), name_of(dtype, s));
        for (const bool accumulate : {false, true}) {
          const auto wgrad = [&] {
            return at_positions(position_wgrad_case(dtype, s, accumulate), at, 1,
                                to_attributes(PositionEmbeddingWgradAttributes{
                                    .sequence = s.sequence, .accumulate = accumulate, .at = at}));
          };
          expect_same_as_cpu(wgrad, context(), name_of(dtype, s));
        }
      }
    }
  }
}

TEST_F(EmbeddingCudaTest, PositionsOfDocumentsGiveTheNumbersOfTheCpu) {
  const TokenPositions at{.first_begin = 2, .second_begin = 9, .split = 3};
  const std::vector<double> starts = {1, 3, 3, 3, 10, 11, 0, 2, 2, 9, 9, 9};
  for (const DType dtype : kCudaDtypes) {
    KernelCase embedding(
        {"embedding",
         to_attributes(EmbeddingAttributes{
             .sequence = 6, .has_positions = true, .at = at, .documents = {.documents = true}}),
         {read(DType::kI32, {12}), read(dtype, {30, 40}), read(dtype, {13, 40}),
          read(DType::kI32, {12}), write(dtype, {12, 40})}});
    embedding.set(3, starts);
    expect_equals_cpu(std::move(embedding), context(), rounded_once(1e-6), "embedding");
    for (const bool accumulate : {false, true}) {
      KernelCase wgrad(
          {"position_embedding_wgrad",
           to_attributes(PositionEmbeddingWgradAttributes{.sequence = 6,
                                                          .accumulate = accumulate,
                                                          .at = at,
                                                          .documents = {.documents = true}}),
           {read(dtype, {12, 40}), read(DType::kI32, {12}),
            gradient(accumulate, DType::kF32, {13, 40})}});
      wgrad.set(1, starts);
      expect_equals_cpu(std::move(wgrad), context(), rounded_once(1e-5), "position wgrad");
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

/// A part of the vocabulary's rows: the first ones, some out of the middle, padding at the end.
struct Part {
  int64_t vocabulary;
  int64_t begin;
};

constexpr Part kParts[] = {{25, 0}, {25, 7}, {25, 20}, {25, 40}, {11, 0}};

template <class Attributes>
KernelCase part_of(const KernelCase& whole, const Part& part, Attributes attributes) {
  attributes.vocabulary = part.vocabulary;
  attributes.vocabulary_begin = part.begin;
  OpSpec spec = whole.spec();
  spec.attributes = to_attributes(attributes);
  KernelCase kernel_case(spec);
  kernel_case.set(0, make_tokens({3, 37, part.vocabulary, 1}, Tokens::kRandom));
  return kernel_case;
}

TEST_F(EmbeddingCudaTest, PartOfATableGivesTheNumbersOfTheCpu) {
  for (const DType dtype : kCudaDtypes) {
    for (const int64_t width : {64, 7}) {
      const Sizes s{3, 37, 11, width};
      for (const Part& part : kParts) {
        for (const bool adds_positions : {false, true}) {
          const EmbeddingAttributes attributes{
              .sequence = s.sequence, .has_positions = true, .adds_positions = adds_positions};
          expect_same_as_cpu(
              [&] { return part_of(embedding_case(dtype, s, true), part, attributes); }, context(),
              name_of(dtype, s));
        }
        for (const bool accumulate : {false, true}) {
          const EmbeddingWgradAttributes attributes{.accumulate = accumulate};
          const auto make = [&] {
            return part_of(wgrad_case(dtype, s, Tokens::kRandom, accumulate), part, attributes);
          };
          expect_same_as_cpu(make, context(), name_of(dtype, s));
        }
      }
    }
  }
}

TEST_F(EmbeddingCudaTest, TokensThatNoRankKnowsGiveNanOnEveryRank) {
  for (const int64_t begin : {0, 10, 40}) {
    KernelCase kernel_case = part_of(embedding_case(DType::kBF16, {3, 37, 11, 24}, false),
                                     {25, begin}, EmbeddingAttributes{.sequence = 37});
    std::vector<double> tokens = kernel_case.values(0);
    tokens[5] = 25;
    tokens[6] = -1;
    kernel_case.set(0, tokens);
    run_on_cuda(kernel_case, context());
    const std::vector<double> out = kernel_case.values(2);
    for (size_t i = 0; i < out.size(); ++i) {
      EXPECT_EQ(std::isnan(out[i]), i / 24 == 5 || i / 24 == 6) << begin << " element " << i;
    }
  }
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
