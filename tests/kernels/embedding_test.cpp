#include "ops/embedding.h"

#include <gmock/gmock.h>

#include <limits>

#include "base/expect_error.h"
#include "support/kernel_harness.h"

namespace braid {
namespace {

struct Sizes {
  int64_t rows;
  int64_t sequence;
  int64_t vocabulary;
  int64_t width;
  int64_t positions;
};

constexpr Sizes kAwkward[] = {
    {1, 1, 1, 1, 1}, {6, 3, 5, 7, 3}, {35, 7, 11, 33, 13}, {64, 16, 1000, 100, 16}};
// Large enough that 3 workers share both the rows and the columns.
constexpr Sizes kSplitSizes = {600, 200, 50, 200, 300};

KernelCase with_tokens(KernelCase kernel, int64_t vocabulary) {
  TestRandom random(3);
  std::vector<double> tokens;
  for (int64_t n = 0; n < kernel.num_elems(0); ++n) {
    tokens.push_back(static_cast<double>(random.below(vocabulary)));
  }
  kernel.set(0, tokens);
  return kernel;
}

KernelCase embedding_case(DType dtype, Sizes s, bool has_positions) {
  std::vector<OperandSpec> operands = {read(DType::kI32, {s.rows}),
                                       read(dtype, {s.vocabulary, s.width})};
  if (has_positions) {
    operands.push_back(read(dtype, {s.positions, s.width}));
  }
  operands.push_back(write(dtype, {s.rows, s.width}));
  const EmbeddingAttributes attributes{.sequence = s.sequence, .has_positions = has_positions};
  return with_tokens(KernelCase({"embedding", to_attributes(attributes), std::move(operands)}),
                     s.vocabulary);
}

KernelCase wgrad_case(DType dtype, Sizes s, bool accumulate) {
  const EmbeddingWgradAttributes attributes{.accumulate = accumulate};
  return with_tokens(KernelCase({"embedding_wgrad",
                                 to_attributes(attributes),
                                 {read(DType::kI32, {s.rows}), read(dtype, {s.rows, s.width}),
                                  gradient(accumulate, wide(dtype), {s.vocabulary, s.width})}}),
                     s.vocabulary);
}

KernelCase position_wgrad_case(DType dtype, Sizes s, bool accumulate) {
  const PositionEmbeddingWgradAttributes attributes{.sequence = s.sequence,
                                                    .accumulate = accumulate};
  return KernelCase({"position_embedding_wgrad",
                     to_attributes(attributes),
                     {read(dtype, {s.rows, s.width}),
                      gradient(accumulate, wide(dtype), {s.positions, s.width})}});
}

TEST(Embedding, CopiesRowsAndAddsPositions) {
  for (const DType dtype : kFloatDtypes) {
    for (const Sizes s : kAwkward) {
      for (const bool has_positions : {false, true}) {
        KernelCase kernel = embedding_case(dtype, s, has_positions);
        const auto tokens = kernel.values(0);
        const auto table = kernel.values(1);
        const auto positions = kernel.values(has_positions ? 2 : 1);
        kernel.run(2);
        std::vector<double> expected;
        for (int64_t i = 0; i < s.rows * s.width; ++i) {
          const int64_t n = i / s.width;
          const int64_t c = i % s.width;
          const auto token = static_cast<int64_t>(tokens[static_cast<size_t>(n)]);
          double value = table[static_cast<size_t>(token * s.width + c)];
          if (has_positions) {
            value += positions[static_cast<size_t>(n % s.sequence * s.width + c)];
          }
          expected.push_back(rounded_to(dtype, rounded_to(wide(dtype), value)));
        }
        EXPECT_EQ(kernel.values(has_positions ? 3 : 2), expected);
      }
    }
  }
}

TEST(EmbeddingWgrad, SumsRowsByToken) {
  for (const DType dtype : kFloatDtypes) {
    for (const Sizes s : kAwkward) {
      for (const bool accumulate : {false, true}) {
        KernelCase kernel = wgrad_case(dtype, s, accumulate);
        const auto tokens = kernel.values(0);
        const auto d_out = kernel.values(1);
        std::vector<double> expected =
            accumulate ? kernel.values(2)
                       : std::vector<double>(static_cast<size_t>(s.vocabulary * s.width));
        for (size_t i = 0; i < d_out.size(); ++i) {
          const auto width = static_cast<size_t>(s.width);
          expected[static_cast<size_t>(tokens[i / width]) * width + i % width] += d_out[i];
        }
        kernel.run(2);
        expect_close(kernel.values(2), expected,
                     sum_tolerance(wide(dtype), static_cast<double>(s.rows)));
      }
    }
  }
}

TEST(PositionEmbeddingWgrad, SumsSequencesByPosition) {
  for (const DType dtype : kFloatDtypes) {
    for (const Sizes s : kAwkward) {
      for (const bool accumulate : {false, true}) {
        KernelCase kernel = position_wgrad_case(dtype, s, accumulate);
        const auto d_out = kernel.values(0);
        std::vector<double> expected =
            accumulate ? kernel.values(1)
                       : std::vector<double>(static_cast<size_t>(s.positions * s.width));
        for (size_t i = 0; i < d_out.size(); ++i) {
          expected[i % static_cast<size_t>(s.sequence * s.width)] += d_out[i];
        }
        kernel.run(2);
        expect_close(kernel.values(1), expected,
                     sum_tolerance(wide(dtype), static_cast<double>(s.rows)));
      }
    }
  }
}

/// The tables of `ranks` ranks: rows of one table, padded at its end so that all have equally many.
struct Split {
  int64_t vocabulary;
  int64_t ranks;
  int64_t rows() const { return (vocabulary + ranks - 1) / ranks; }
};

constexpr Split kSplits[] = {{5, 1}, {5, 2}, {11, 3}, {7, 7}, {4, 8}};

/// Rank r's case, with its rows of the table of `whole`.
KernelCase split_embedding_case(const KernelCase& whole, DType dtype, Sizes s, Split split,
                                int64_t r) {
  s.vocabulary = split.rows();
  OpSpec spec = embedding_case(dtype, s, true).spec();
  spec.attributes = to_attributes(EmbeddingAttributes{.sequence = s.sequence,
                                                      .has_positions = true,
                                                      .adds_positions = r == 0,
                                                      .vocabulary = split.vocabulary,
                                                      .vocabulary_begin = r * split.rows()});
  KernelCase kernel(spec);
  kernel.set(0, whole.values(0));
  std::vector<double> table = whole.values(1);
  table.resize(static_cast<size_t>(split.ranks * split.rows() * s.width),
               std::numeric_limits<double>::quiet_NaN());
  const auto begin = table.begin() + r * split.rows() * s.width;
  kernel.set(1, std::vector<double>(begin, begin + split.rows() * s.width));
  kernel.set(2, whole.values(2));
  return kernel;
}

TEST(SplitEmbedding, RanksAddUpToTheWhole) {
  for (const DType dtype : kFloatDtypes) {
    for (const Split split : kSplits) {
      const Sizes s{
          .rows = 14, .sequence = 7, .vocabulary = split.vocabulary, .width = 33, .positions = 9};
      KernelCase whole = embedding_case(dtype, s, true);
      KernelCase without_positions = embedding_case(dtype, s, false);
      without_positions.set(0, whole.values(0));
      without_positions.set(1, whole.values(1));
      whole.run();
      without_positions.run();
      const std::vector<double> tokens = whole.values(0);
      for (int64_t r = 0; r < split.ranks; ++r) {
        KernelCase kernel = split_embedding_case(whole, dtype, s, split, r);
        kernel.run(2);
        const std::vector<double> out = kernel.values(3);
        for (size_t i = 0; i < out.size(); ++i) {
          const size_t n = i / 33;
          const bool is_here = static_cast<int64_t>(tokens[n]) / split.rows() == r;
          const double position = r == 0 ? whole.values(2)[n % 7 * 33 + i % 33] : 0.0;
          const double row = r == 0 ? whole.values(3)[i] : without_positions.values(2)[i];
          EXPECT_EQ(out[i], is_here ? row : position) << "rank " << r << " element " << i;
        }
      }
    }
  }
}

TEST(SplitEmbedding, WgradSkipsTheRowsOfOthers) {
  for (const DType dtype : kFloatDtypes) {
    for (const Split split : kSplits) {
      for (const bool accumulate : {false, true}) {
        Sizes s{.rows = 35, .sequence = 7, .vocabulary = split.vocabulary, .width = 11};
        KernelCase whole = wgrad_case(dtype, s, false);
        whole.run();
        std::vector<double> d_table = whole.values(2);
        d_table.resize(static_cast<size_t>(split.ranks * split.rows() * s.width));
        s.vocabulary = split.rows();
        for (int64_t r = 0; r < split.ranks; ++r) {
          OpSpec spec = wgrad_case(dtype, s, accumulate).spec();
          spec.attributes =
              to_attributes(EmbeddingWgradAttributes{.accumulate = accumulate,
                                                     .vocabulary = split.vocabulary,
                                                     .vocabulary_begin = r * split.rows()});
          KernelCase kernel(spec);
          kernel.set(0, whole.values(0));
          kernel.set(1, whole.values(1));
          if (accumulate) {
            kernel.set_all(2, 0.0);
          }
          kernel.run(2);
          const auto begin = d_table.begin() + r * split.rows() * s.width;
          EXPECT_EQ(kernel.values(2), std::vector<double>(begin, begin + split.rows() * s.width))
              << "rank " << r;
        }
      }
    }
  }
}

TEST(SplitEmbedding, NamesATokenThatNoRankKnows) {
  const Sizes s{.rows = 6, .sequence = 3, .vocabulary = 4, .width = 4, .positions = 3};
  for (const bool is_wgrad : {false, true}) {
    OpSpec spec = is_wgrad ? wgrad_case(DType::kF32, s, true).spec()
                           : embedding_case(DType::kF32, s, false).spec();
    for (Attribute& attribute : spec.attributes) {
      if (attribute.name == "vocabulary") {
        attribute.value = int64_t{10};
      } else if (attribute.name == "vocabulary_begin") {
        attribute.value = int64_t{8};  // rows 10 and 11 are padding
      }
    }
    for (const double bad : {10.0, -1.0}) {
      KernelCase kernel(spec);
      kernel.set(0, {0, 9, 8, bad, 1, 2});
      EXPECT_EQ(message_of<DeviceError>([&] { kernel.run(); }),
                fmt::format("token {} at position 3 is outside of the vocabulary [0, 10)",
                            static_cast<int64_t>(bad)));
    }
  }
}

TEST(Embedding, GradientsAgreeWithDifferences) {
  const Sizes s{.rows = 8, .sequence = 4, .vocabulary = 5, .width = 3, .positions = 6};
  KernelCase forward = embedding_case(DType::kF64, s, true);
  const auto probe = TestRandom(7).uniforms(s.rows * s.width, -1, 1);
  const auto loss_of = [&](size_t operand) {
    return [&, operand](const std::vector<double>& values) {
      KernelCase changed = embedding_case(DType::kF64, s, true);
      changed.set(operand, values);
      changed.run();
      return dot(changed.values(3), probe);
    };
  };
  KernelCase table = wgrad_case(DType::kF64, s, false);
  table.set(1, probe);
  table.run();
  expect_gradient(loss_of(1), forward.values(1), table.values(2), "d_table");
  KernelCase positions = position_wgrad_case(DType::kF64, s, false);
  positions.set(0, probe);
  positions.run();
  expect_gradient(loss_of(2), forward.values(2), positions.values(1), "d_positions");
}

TEST(Embedding, NamesATokenOutsideOfTheVocabulary) {
  const Sizes s{.rows = 6, .sequence = 3, .vocabulary = 5, .width = 4, .positions = 3};
  for (const double bad : {5.0, -1.0, 2147483647.0}) {
    for (const bool is_wgrad : {false, true}) {
      KernelCase kernel =
          is_wgrad ? wgrad_case(DType::kF32, s, true) : embedding_case(DType::kF32, s, true);
      auto tokens = kernel.values(0);
      tokens[4] = bad;
      kernel.set(0, tokens);
      EXPECT_EQ(message_of<DeviceError>([&] { kernel.run(); }),
                fmt::format("token {} at position 4 is outside of the vocabulary [0, 5)",
                            static_cast<int64_t>(bad)));
    }
  }
}

TEST(Embedding, DoesNotDependOnTheNumberOfWorkers) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    expect_same_for_any_workers([&] { return embedding_case(dtype, kSplitSizes, true); });
    expect_same_for_any_workers([&] { return wgrad_case(dtype, kSplitSizes, true); });
    expect_same_for_any_workers([&] { return wgrad_case(dtype, kSplitSizes, false); });
    expect_same_for_any_workers([&] { return position_wgrad_case(dtype, kSplitSizes, true); });
  }
}

// Tokens 0 and 1 of each sequence are at positions 3 and 4, the others at 6, 7, 8.
TEST(Embedding, AddsGivenPositions) {
  const TokenPositions at{.first_begin = 3, .second_begin = 6, .split = 2};
  constexpr size_t kPositions[] = {3, 4, 6, 7, 8};
  constexpr size_t kWidth = 7;
  KernelCase kernel(
      {"embedding",
       to_attributes(EmbeddingAttributes{.sequence = 5, .has_positions = true, .at = at}),
       {read(DType::kI32, {10}), read(DType::kF64, {4, kWidth}), read(DType::kF64, {9, kWidth}),
        write(DType::kF64, {10, kWidth})}});
  kernel.run(2);
  KernelCase wgrad({"position_embedding_wgrad",
                    to_attributes(PositionEmbeddingWgradAttributes{
                        .sequence = 5, .accumulate = false, .at = at}),
                    {read(DType::kF64, {10, kWidth}), write(DType::kF64, {9, kWidth})}});
  wgrad.run(2);
  const auto table = kernel.values(1);
  const auto positions = kernel.values(2);
  const auto out = kernel.values(3);
  const auto d_out = wgrad.values(0);
  std::vector<double> d_positions(9 * kWidth);
  for (size_t n = 0; n < 10; ++n) {
    for (size_t c = 0; c < kWidth; ++c) {
      const size_t position = kPositions[n % 5] * kWidth + c;
      EXPECT_EQ(out[n * kWidth + c], table[c] + positions[position]);  // all tokens are 0
      d_positions[position] += d_out[n * kWidth + c];
    }
  }
  EXPECT_EQ(wgrad.values(1), d_positions);
}

}  // namespace
}  // namespace braid
