#include "ops/head_norm.h"

#include "support/kernel_harness.h"
#include "support/thinned.h"

namespace braid {
namespace {

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

std::vector<HeadCase> awkward() {
  std::vector<HeadCase> cases;
  for (const bool whole : {false, true}) {
    cases.push_back({1, 1, 1, 1, whole});
    cases.push_back({1, 3, 1, 7, whole});
    cases.push_back({5, 2, 2, 67, whole});
    cases.push_back({70, 6, 2, 16, whole});
  }
  return cases;
}

constexpr double kEpsilon = 1e-5;

KernelCase forward_case(DType dtype, const HeadCase& c) {
  return KernelCase({"head_norm",
                     to_attributes(HeadNormAttributes{.heads = c.heads,
                                                      .kv_heads = c.kv_heads,
                                                      .head_size = c.head_size,
                                                      .whole = c.whole,
                                                      .epsilon = kEpsilon}),
                     {read(dtype, {c.rows, c.width()}), read(dtype, {c.query_weight()}),
                      read(dtype, {c.key_weight()}), write(dtype, {c.rows, c.width()}),
                      write(wide(dtype), {c.rows, c.norms()})}});
}

KernelCase backward_case(DType dtype, const HeadCase& c, bool accumulate) {
  return KernelCase({"head_norm_backward",
                     to_attributes(HeadNormBackwardAttributes{.heads = c.heads,
                                                              .kv_heads = c.kv_heads,
                                                              .head_size = c.head_size,
                                                              .whole = c.whole,
                                                              .accumulate = accumulate}),
                     {read(dtype, {c.rows, c.width()}), read(dtype, {c.query_weight()}),
                      read(dtype, {c.key_weight()}), read(wide(dtype), {c.rows, c.norms()}),
                      read(dtype, {c.rows, c.width()}), write(dtype, {c.rows, c.width()}),
                      gradient(accumulate, wide(dtype), {c.query_weight()}),
                      gradient(accumulate, wide(dtype), {c.key_weight()})}});
}

/// Where the element `at` of a row belongs.
struct Place {
  bool is_value = false;
  bool is_key = false;
  size_t norm = 0;    // of the row
  size_t weight = 0;  // index into the weight of queries or of keys
};

Place place_of(const HeadCase& c, int64_t at) {
  const int64_t head = at / c.head_size;
  Place place{.is_value = head >= c.heads + c.kv_heads, .is_key = head >= c.heads};
  place.norm = static_cast<size_t>(c.whole ? (place.is_key ? 1 : 0) : head);
  const int64_t in_whole = at - (place.is_key ? c.heads * c.head_size : 0);
  place.weight = static_cast<size_t>(c.whole ? in_whole : at % c.head_size);
  return place;
}

/// Both weights less 1, with an offset of 1.
KernelCase with_offset(KernelCase& kernel) {
  OpSpec spec = kernel.spec();
  spec.attributes.push_back({"weight_offset", 1.0});
  KernelCase changed(std::move(spec));
  for (const size_t weight : {1, 2}) {
    std::vector<double> exact;
    for (int64_t i = 0; i < kernel.num_elems(weight); ++i) {
      exact.push_back(1 + static_cast<double>(i * 37 % 128) / 128);
    }
    kernel.set(weight, exact);
  }
  for (size_t i = 0; i < kernel.spec().operands.size(); ++i) {
    std::vector<double> values = kernel.values(i);
    if (i == 1 || i == 2) {
      std::ranges::transform(values, values.begin(), [](double w) { return w - 1; });
    }
    changed.set(i, values);
  }
  return changed;
}

TEST(HeadNorm, AddsTheOffsetToWeights) {
  for (const DType dtype : kFloatDtypes) {
    for (const HeadCase& c : awkward()) {
      for (const bool backward : {false, true}) {
        KernelCase plain = backward ? backward_case(dtype, c, true) : forward_case(dtype, c);
        KernelCase offset = with_offset(plain);
        plain.run();
        offset.run(2);
        for (size_t i = 3; i < plain.spec().operands.size(); ++i) {
          EXPECT_EQ(offset.values(i), plain.values(i)) << c.name(dtype) << " operand " << i;
        }
      }
    }
  }
}

TEST(HeadNorm, EqualsTheNormWrittenOut) {
  for (const DType dtype : kFloatDtypes) {
    for (const HeadCase& c : awkward()) {
      KernelCase kernel = forward_case(dtype, c);
      const auto x = kernel.values(0);
      const std::vector<double> weights[] = {kernel.values(1), kernel.values(2)};
      kernel.run(2);
      std::vector<double> y;
      std::vector<double> rstd;
      for (int64_t n = 0; n < c.rows; ++n) {
        std::vector<double> squares(static_cast<size_t>(c.norms()));
        std::vector<double> sizes(squares.size());
        const auto value = [&](int64_t at) { return x[static_cast<size_t>(n * c.width() + at)]; };
        for (int64_t at = 0; at < c.width(); ++at) {
          const Place p = place_of(c, at);
          if (!p.is_value) {
            squares[p.norm] += value(at) * value(at);
            sizes[p.norm] += 1;
          }
        }
        for (size_t g = 0; g < squares.size(); ++g) {
          rstd.push_back(1 / std::sqrt(squares[g] / sizes[g] + kEpsilon));
        }
        for (int64_t at = 0; at < c.width(); ++at) {
          const Place p = place_of(c, at);
          y.push_back(p.is_value ? value(at)
                                 : value(at) * weights[p.is_key ? 1 : 0][p.weight] *
                                       rstd[rstd.size() - squares.size() + p.norm]);
        }
      }
      expect_close(kernel.values(4), rstd, {.relative = 64 * rounding_error(wide(dtype))},
                   c.name(dtype));
      expect_close(kernel.values(3), y,
                   {.relative = 64 * rounding_error(wide(dtype)) + 1.01 * rounding_error(dtype)},
                   c.name(dtype));
    }
  }
}

struct Gradients {
  std::vector<double> rows;
  std::vector<double> weights[2];
};

/// The derivative written out per element, in double, from the operands of a case.
Gradients naive_backward(const KernelCase& kernel, const HeadCase& c, bool accumulate) {
  const auto x = kernel.values(0);
  const std::vector<double> weights[] = {kernel.values(1), kernel.values(2)};
  const auto rstd = kernel.values(3);
  const auto dy = kernel.values(4);
  Gradients result;
  for (const size_t kind : {0, 1}) {
    result.weights[kind] =
        accumulate ? kernel.values(6 + kind) : std::vector<double>(weights[kind].size());
  }
  for (int64_t n = 0; n < c.rows; ++n) {
    std::vector<double> means(static_cast<size_t>(c.norms()));
    const auto row = static_cast<size_t>(n * c.width());
    const auto h = [&](size_t at, const Place& p) {
      return x[row + at] * rstd[static_cast<size_t>(n * c.norms()) + p.norm];
    };
    for (size_t at = 0; at < static_cast<size_t>(c.width()); ++at) {
      const Place p = place_of(c, static_cast<int64_t>(at));
      if (!p.is_value) {
        const size_t kind = p.is_key ? 1 : 0;
        const double size =
            !c.whole ? static_cast<double>(c.head_size) : static_cast<double>(weights[kind].size());
        means[p.norm] += dy[row + at] * weights[kind][p.weight] * h(at, p) / size;
        result.weights[kind][p.weight] += dy[row + at] * h(at, p);
      }
    }
    for (size_t at = 0; at < static_cast<size_t>(c.width()); ++at) {
      const Place p = place_of(c, static_cast<int64_t>(at));
      const double g = p.is_value ? 0 : dy[row + at] * weights[p.is_key ? 1 : 0][p.weight];
      result.rows.push_back(p.is_value ? dy[row + at]
                                       : rstd[static_cast<size_t>(n * c.norms()) + p.norm] *
                                             (g - h(at, p) * means[p.norm]));
    }
  }
  return result;
}

TEST(HeadNormBackward, EqualsTheDerivativeWrittenOut) {
  for (const DType dtype : kFloatDtypes) {
    for (const HeadCase& c : awkward()) {
      for (const bool accumulate : {false, true}) {
        KernelCase kernel = backward_case(dtype, c, accumulate);
        const Gradients expected = naive_backward(kernel, c, accumulate);
        kernel.run(2);
        // rstd is random in [-1, 1): products of three such and their means over a run.
        expect_close(
            kernel.values(5), expected.rows,
            {.absolute = 16 * rounding_error(wide(dtype)), .relative = 4 * rounding_error(dtype)},
            c.name(dtype));
        const Tolerance sums = sum_tolerance(wide(dtype), static_cast<double>(c.rows * c.heads), 2);
        expect_close(kernel.values(6), expected.weights[0], sums, c.name(dtype));
        expect_close(kernel.values(7), expected.weights[1], sums, c.name(dtype));
      }
    }
  }
}

TEST(HeadNormBackward, AgreesWithDifferences) {
  for (const bool whole : {false, true}) {
    const HeadCase c{3, 3, 2, 5, whole};
    KernelCase forward = forward_case(DType::kF64, c);
    forward.run();
    KernelCase backward = backward_case(DType::kF64, c, false);
    for (const size_t operand : {0, 1, 2}) {
      backward.set(operand, forward.values(operand));
    }
    backward.set(3, forward.values(4));
    backward.run();
    const auto dy = backward.values(4);
    for (const size_t operand : {0, 1, 2}) {
      const auto loss = [&](const std::vector<double>& values) {
        KernelCase probe = forward_case(DType::kF64, c);
        probe.set(operand, values);
        probe.run();
        return dot(probe.values(3), dy);
      };
      expect_gradient(loss, forward.values(operand), backward.values(5 + operand),
                      fmt::format("operand {} whole {}", operand, whole));
    }
  }
}

TEST(HeadNorm, WorkersDoNotChangeResults) {
  for (const DType dtype : thinned<DType>({DType::kBF16, DType::kF32}, 2)) {
    for (const bool whole : {false, true}) {
      const HeadCase c{700, 6, 2, 32, whole};
      expect_same_for_any_workers([&] { return forward_case(dtype, c); });
      expect_same_for_any_workers([&] { return backward_case(dtype, c, true); });
    }
  }
}

}  // namespace
}  // namespace braid
