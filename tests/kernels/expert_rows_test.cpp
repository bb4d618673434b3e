#include "ops/expert_rows.h"

#include "base/expect_error.h"
#include "support/expert_rows_cases.h"

namespace braid {
namespace {

constexpr RowSizes kSplitRows = {600, 2, 8, 301};

/// A stable sort by expert.
void expect_sorted(KernelCase kernel, const RowSizes& s) {
  const auto experts = kernel.values(0);
  kernel.run(2);
  std::vector<double> pair_of;
  std::vector<double> row_of(experts.size());
  std::vector<double> offsets{0};
  std::vector<double> counts;
  for (int64_t e = 0; e < s.experts; ++e) {
    for (size_t pair = 0; pair < experts.size(); ++pair) {
      if (experts[pair] == static_cast<double>(e)) {
        row_of[pair] = static_cast<double>(pair_of.size());
        pair_of.push_back(static_cast<double>(pair));
      }
    }
    counts.push_back(static_cast<double>(pair_of.size()) - offsets.back());
    offsets.push_back(static_cast<double>(pair_of.size()));
  }
  EXPECT_EQ(kernel.values(1), row_of);
  EXPECT_EQ(kernel.values(2), pair_of);
  EXPECT_EQ(kernel.values(3), offsets);
  EXPECT_EQ(kernel.values(4), counts);
}

TEST(SortRows, IsAStableSortByExpert) {
  for (const RowSizes& s : kAwkwardRows) {
    expect_sorted(with_random_experts(sort_rows_case(s), s), s);
    for (const double expert : {0.0, static_cast<double>(s.experts - 1)}) {
      KernelCase to_one = sort_rows_case(s);
      to_one.set_all(0, expert);
      expect_sorted(std::move(to_one), s);
    }
  }
}

TEST(SortRows, NamesAnExpertThatDoesNotExist) {
  for (const double expert : {-1.0, 5.0}) {
    KernelCase kernel = sort_rows_case(kAwkwardRows[2]);
    std::vector<double> experts(14);
    experts[9] = expert;
    kernel.set(0, experts);
    EXPECT_EQ(message_of<DeviceError>([&] { kernel.run(); }),
              fmt::format("expert {} of token 4, slot 1 is outside of [0, 5)", expert));
  }
}

TEST(SortRows, AddsTheRowsOfEachExpertToItsTally) {
  for (const RowSizes& s : kAwkwardRows) {
    KernelCase kernel = with_random_experts(watched_rows_case(s), s);
    const auto experts = kernel.values(0);
    kernel.set_all(5, 7);
    kernel.run();
    kernel.run();
    std::vector<double> expected(static_cast<size_t>(s.experts), 7);
    for (const double expert : experts) {
      expected[static_cast<size_t>(expert)] += 2;
    }
    EXPECT_EQ(kernel.values(5), expected);
  }
}

TEST(GatherRows, CopiesTheTokenOfEachPair) {
  for (const DType dtype : kFloatDtypes) {
    for (const RowSizes& s : kAwkwardRows) {
      KernelCase kernel = gather_rows_case(dtype, s);
      const auto x = kernel.values(0);
      const auto pair_of = kernel.values(1);
      kernel.run(2);
      std::vector<double> expected;
      for (const double pair : pair_of) {
        const auto from = x.begin() + static_cast<int64_t>(pair) / s.per_token * s.width;
        expected.insert(expected.end(), from, from + s.width);
      }
      EXPECT_EQ(kernel.values(3), expected);
    }
  }
}

TEST(SumRows, AddsTheRowsOfEachToken) {
  for (const DType dtype : kFloatDtypes) {
    for (const RowSizes& s : kAwkwardRows) {
      KernelCase kernel = sum_rows_case(dtype, s);
      const auto x = kernel.values(0);
      const auto row_of = kernel.values(1);
      kernel.run(2);
      std::vector<double> expected(static_cast<size_t>(s.tokens * s.width));
      for (size_t pair = 0; pair < row_of.size(); ++pair) {
        for (int64_t c = 0; c < s.width; ++c) {
          const auto token = static_cast<int64_t>(pair) / s.per_token;
          expected[static_cast<size_t>(token * s.width + c)] +=
              x[static_cast<size_t>(static_cast<int64_t>(row_of[pair]) * s.width + c)];
        }
      }
      expect_close(kernel.values(3), expected,
                   sum_tolerance(dtype, static_cast<double>(s.per_token)));
    }
  }
}

// A sum in bf16 would lose each of the small addends.
TEST(SumRows, RoundsOnce) {
  const RowSizes s{.tokens = 1, .per_token = 3, .experts = 3, .width = 1};
  KernelCase kernel = sum_rows_case(DType::kBF16, s);
  kernel.set(1, {0, 1, 2});
  kernel.set(0, {1.0, 0x1.0p-8, 0x1.0p-8});
  kernel.run();
  EXPECT_EQ(kernel.values(3), std::vector<double>{1.0 + 0x1.0p-7});
}

/// NaN, as operands are before they are written, from an element on.
void expect_unwritten_from(const std::vector<double>& values, int64_t begin) {
  for (size_t i = 0; i < values.size(); ++i) {
    EXPECT_EQ(std::isnan(values[i]), std::cmp_greater_equal(i, begin)) << i;
  }
}

double silu(double x) {
  return x / (1 + std::exp(-x));
}

Tolerance activation_tolerance(DType dtype) {
  return {.absolute = 16 * rounding_error(wide(dtype)), .relative = 16 * rounding_error(dtype)};
}

TEST(PermuteElems, BringsPairsIntoTheOrderOfRows) {
  for (const DType dtype : kFloatDtypes) {
    for (const RowSizes& s : kAwkwardRows) {
      KernelCase kernel = permute_elems_case(dtype, s);
      const auto x = kernel.values(0);
      const auto pair_of = kernel.values(1);
      kernel.run(2);
      std::vector<double> expected;
      for (const double pair : pair_of) {
        expected.push_back(x[static_cast<size_t>(pair)]);
      }
      EXPECT_EQ(kernel.values(3), expected);
    }
  }
}

TEST(RoutedSwiglu, IsSwigluTimesTheWeightOfTheRow) {
  for (const DType dtype : kFloatDtypes) {
    for (const RowSizes& s : kAwkwardRows) {
      KernelCase kernel = routed_case(kRoutedActivations[0], dtype, s);
      const auto x = kernel.values(0);
      const auto weights = kernel.values(1);
      kernel.run(2);
      std::vector<double> expected;
      for (size_t i = 0; i < x.size(); i += 2) {
        const size_t row = i / static_cast<size_t>(2 * s.width);
        expected.push_back(weights[row] * silu(x[i]) * x[i + 1]);
      }
      expect_close(kernel.values(3), expected, activation_tolerance(dtype));
    }
  }
}

TEST(RoutedRelu2, IsTheSquareOfPositiveElementsTimesTheWeightOfTheRow) {
  for (const DType dtype : kFloatDtypes) {
    for (const RowSizes& s : kAwkwardRows) {
      KernelCase kernel = routed_case(kRoutedActivations[1], dtype, s);
      const auto x = kernel.values(0);
      const auto weights = kernel.values(1);
      kernel.run(2);
      std::vector<double> expected;
      for (size_t i = 0; i < x.size(); ++i) {
        const double positive = std::max(x[i], 0.0);
        expected.push_back(weights[i / static_cast<size_t>(s.width)] * positive * positive);
      }
      expect_close(kernel.values(3), expected, activation_tolerance(dtype));
    }
  }
}

TEST(RoutedActivationBackward, AgreesWithDifferences) {
  const RowSizes s{.tokens = 3, .per_token = 2, .experts = 4, .width = 5};
  for (const RoutedActivation& activation : kRoutedActivations) {
    KernelCase backward = routed_backward_case(activation, DType::kF64, s);
    backward.run();
    const auto probe = backward.values(2);
    const auto loss_of = [&](size_t operand) {
      return [&, operand](const std::vector<double>& values) {
        KernelCase forward = routed_case(activation, DType::kF64, s);
        forward.set(0, backward.values(0));
        forward.set(1, backward.values(1));
        forward.set(operand, values);
        forward.run();
        return dot(forward.values(3), probe);
      };
    };
    expect_gradient(loss_of(0), backward.values(0), backward.values(4), activation.name + " dx");
    expect_gradient(loss_of(1), backward.values(1), backward.values(5),
                    activation.name + " d_weights");
  }
}

TEST(RoutedActivationBackward, OfFloatsIsLikeThatOfDoubles) {
  for (const RoutedActivation& activation : kRoutedActivations) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      for (const RowSizes& s : kAwkwardRows) {
        KernelCase kernel = routed_backward_case(activation, dtype, s);
        KernelCase exact = routed_backward_case(activation, DType::kF64, s);
        for (const size_t operand : {0, 1, 2}) {
          exact.set(operand, kernel.values(operand));
        }
        kernel.run(2);
        exact.run();
        expect_close(kernel.values(4), exact.values(4), activation_tolerance(dtype),
                     activation.name + " dx");
        expect_close(kernel.values(5), exact.values(5),
                     sum_tolerance(DType::kF32, static_cast<double>(s.width)),
                     activation.name + " d_weights");
      }
    }
  }
}

// Rows that no expert has hold anything; kernels leave them alone.
TEST(RoutedActivation, LeavesRowsFromTheLastOffsetOnAlone) {
  const RowSizes s{.tokens = 7, .per_token = 2, .experts = 2, .width = 33};
  for (const RoutedActivation& activation : kRoutedActivations) {
    for (const int64_t used : {int64_t{0}, int64_t{1}, int64_t{9}}) {
      KernelCase forward = routed_case(activation, DType::kF32, s);
      KernelCase backward = routed_backward_case(activation, DType::kF32, s);
      forward.set(2, offsets_to(used));
      backward.set(3, offsets_to(used));
      forward.run(2);
      backward.run(2);
      expect_unwritten_from(forward.values(3), used * s.width);
      expect_unwritten_from(backward.values(4), used * activation.elems * s.width);
      expect_unwritten_from(backward.values(5), used);
    }
  }
}

/// The values, with those of rows from `end` on replaced.
std::vector<double> with_rows_from(std::vector<double> values, int64_t end, int64_t width,
                                   double value) {
  std::fill(values.begin() + end * width, values.end(), value);
  return values;
}

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

TEST(DroppedRows, AreNotGathered) {
  for (const DType dtype : kFloatDtypes) {
    for (const RowSizes& s : kAwkwardRows) {
      KernelCase whole = gather_rows_case(dtype, s);
      whole.run();
      for (const int64_t end : ends_of_rows(s)) {
        KernelCase kernel = with_dropped_rows(whole, end);
        kernel.run(2);
        expect_unwritten_from(kernel.values(4), end * s.width);
        const auto written = kernel.values(4);
        const auto expected = whole.values(3);
        EXPECT_TRUE(std::equal(written.begin(), written.begin() + end * s.width, expected.begin()));
      }
    }
  }
}

TEST(DroppedRows, AddNothingWhateverTheyHold) {
  for (const DType dtype : kFloatDtypes) {
    for (const RowSizes& s : kAwkwardRows) {
      const KernelCase whole = sum_rows_case(dtype, s);
      for (const int64_t end : ends_of_rows(s)) {
        KernelCase zeros = sum_rows_case(dtype, s);
        zeros.set(0, with_rows_from(whole.values(0), end, s.width, 0));
        zeros.run();
        KernelCase kernel = with_dropped_rows(whole, end);
        kernel.set(0, with_rows_from(whole.values(0), end, s.width, kNan));
        kernel.run(2);
        EXPECT_EQ(kernel.values(4), zeros.values(3));
      }
    }
  }
}

TEST(DroppedRows, HaveWeightsAndGradientsOfZero) {
  for (const DType dtype : kFloatDtypes) {
    for (const RowSizes& s : kAwkwardRows) {
      KernelCase to_rows = permute_elems_case(dtype, s);
      to_rows.run();
      for (const int64_t end : ends_of_rows(s)) {
        KernelCase limited = with_dropped_rows(to_rows, end);
        limited.run(2);
        EXPECT_EQ(limited.values(4), with_rows_from(to_rows.values(3), end, 1, 0));
        KernelCase zeros = permute_back_case(dtype, s);
        KernelCase back = with_dropped_rows(zeros, end);
        back.set(0, with_rows_from(zeros.values(0), end, 1, kNan));
        zeros.set(0, with_rows_from(zeros.values(0), end, 1, 0));
        zeros.run();
        back.run(2);
        EXPECT_EQ(back.values(4), zeros.values(3));
      }
    }
  }
}

// The gradients of a gather are a sum, and those of a sum a gather: <G x, z> = <x, S z>.
TEST(ExpertRows, GatherAndSumAreAdjoint) {
  for (const RowSizes& s : kAwkwardRows) {
    KernelCase gather = gather_rows_case(DType::kF64, s);
    KernelCase sum = sum_rows_case(DType::kF64, s);
    gather.run();
    sum.run();
    EXPECT_NEAR(dot(gather.values(3), sum.values(0)), dot(gather.values(0), sum.values(3)), 1e-9);
  }
}

TEST(ExpertRows, DoNotDependOnTheNumberOfWorkers) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    expect_same_for_any_workers([&] { return gather_rows_case(dtype, kSplitRows); });
    expect_same_for_any_workers([&] { return sum_rows_case(dtype, kSplitRows); });
    expect_same_for_any_workers([&] { return permute_elems_case(dtype, kSplitRows); });
    for (const RoutedActivation& activation : kRoutedActivations) {
      expect_same_for_any_workers([&] { return routed_case(activation, dtype, kSplitRows); });
      expect_same_for_any_workers(
          [&] { return routed_backward_case(activation, dtype, kSplitRows); });
    }
  }
}

}  // namespace
}  // namespace braid
