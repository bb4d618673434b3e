#include "ops/norm.h"

#include "support/kernel_harness.h"
#include "support/thinned.h"

namespace braid {
namespace {

struct Sizes {
  int64_t rows;
  int64_t width;
};

constexpr Sizes kAwkward[] = {{1, 1}, {1, 7}, {3, 16}, {5, 67}, {33, 130}, {2, 1031}};
constexpr Sizes kSplitSizes = {300, 257};
constexpr double kEpsilon = 1e-5;

/// Which of the four forward ops, and its operands' places.
struct Form {
  bool centred;  ///< layernorm, not rmsnorm
  bool add;      ///< with a residual

  std::string op() const {
    return std::string(add ? "add_" : "") + (centred ? "layernorm" : "rmsnorm");
  }
  size_t residual() const { return 1; }
  size_t w() const { return add ? 2 : 1; }
  size_t b() const { return w() + 1; }
  size_t sum() const { return centred ? b() + 1 : w() + 1; }
  size_t y() const { return add ? sum() + 1 : sum(); }
  size_t mean() const { return y() + 1; }
  size_t rstd() const { return centred ? y() + 2 : y() + 1; }
};

constexpr Form kForms[] = {{false, false}, {false, true}, {true, false}, {true, true}};

KernelCase forward_case(DType dtype, Sizes s, Form form, double epsilon = kEpsilon) {
  const OperandSpec in = read(dtype, {s.rows, s.width});
  const OperandSpec out = write(dtype, {s.rows, s.width});
  const OperandSpec weights = read(dtype, {s.width});
  const OperandSpec statistics = write(wide(dtype), {s.rows});
  std::vector<OperandSpec> operands = {in};
  const auto add_if = [&](bool wanted, const OperandSpec& operand) {
    if (wanted) {
      operands.push_back(operand);
    }
  };
  add_if(form.add, in);
  add_if(true, weights);
  add_if(form.centred, weights);
  add_if(form.add, out);
  add_if(true, out);
  add_if(form.centred, statistics);
  add_if(true, statistics);
  return KernelCase({form.op(), to_attributes(NormAttributes{.epsilon = epsilon}), operands});
}

struct NormResult {
  std::vector<double> sum;
  std::vector<double> y;
  std::vector<double> mean;
  std::vector<double> rstd;
};

/// The definition, in double, from the operands of a case; the sum is rounded to its dtype.
NormResult naive_norm(const KernelCase& kernel, DType dtype, Sizes s, Form form) {
  NormResult result;
  result.sum = kernel.values(0);
  if (form.add) {
    const auto residual = kernel.values(form.residual());
    for (size_t i = 0; i < residual.size(); ++i) {
      result.sum[i] = rounded_to(dtype, rounded_to(wide(dtype), result.sum[i] + residual[i]));
    }
  }
  const auto w = kernel.values(form.w());
  const auto b = form.centred ? kernel.values(form.b()) : std::vector<double>();
  const auto width = static_cast<size_t>(s.width);
  for (size_t n = 0; n < static_cast<size_t>(s.rows); ++n) {
    const double* const x = result.sum.data() + n * width;
    double mean = 0;
    for (size_t c = 0; c < width; ++c) {
      mean += form.centred ? x[c] / static_cast<double>(width) : 0.0;
    }
    double square = 0;
    for (size_t c = 0; c < width; ++c) {
      square += (x[c] - mean) * (x[c] - mean) / static_cast<double>(width);
    }
    const double rstd = 1 / std::sqrt(square + kEpsilon);
    for (size_t c = 0; c < width; ++c) {
      result.y.push_back((x[c] - mean) * rstd * w[c] + (form.centred ? b[c] : 0.0));
    }
    result.mean.push_back(mean);
    result.rstd.push_back(rstd);
  }
  return result;
}

void check_forward(DType dtype, Sizes s, Form form, int num_workers) {
  SCOPED_TRACE(fmt::format("{} {} {}x{}", form.op(), dtype_name(dtype), s.rows, s.width));
  KernelCase kernel = forward_case(dtype, s, form);
  const NormResult expected = naive_norm(kernel, dtype, s, form);
  kernel.run(num_workers);
  if (form.add) {
    EXPECT_EQ(kernel.values(form.sum()), expected.sum);
  }
  // A row of one element has variance 0 and rstd 1/sqrt(epsilon), 316: the mean's rounding error
  // is that much larger in y.
  const double gain = s.width == 1 ? 317 : 4;
  const double terms = static_cast<double>(s.width);
  const double unit = rounding_error(wide(dtype));
  // Statistics: sums of positive terms, off by about sqrt(terms) half units of themselves.
  const Tolerance statistics{.absolute = 4 * unit, .relative = (4 + std::sqrt(terms)) * unit};
  expect_close(kernel.values(form.rstd()), expected.rstd, statistics, "rstd");
  if (form.centred) {
    expect_close(kernel.values(form.mean()), expected.mean, statistics, "mean");
  }
  expect_close(
      kernel.values(form.y()), expected.y,
      {.absolute = gain * (4 + std::sqrt(terms)) * unit, .relative = 2 * rounding_error(dtype)},
      "y");
}

TEST(Norm, EqualsTheDefinition) {
  for (const DType dtype : kFloatDtypes) {
    for (const Form form : kForms) {
      for (const Sizes s : kAwkward) {
        check_forward(dtype, s, form, 1);
      }
      check_forward(dtype, kSplitSizes, form, 3);
    }
  }
}

// What recomputation relies on.
TEST(Norm, OfAKeptSumGivesTheBitsOfTheAddForm) {
  for (const DType dtype : kFloatDtypes) {
    for (const Form form : {Form{false, true}, Form{true, true}}) {
      for (const Sizes s : {Sizes{1, 1}, Sizes{5, 67}, Sizes{33, 130}, kSplitSizes}) {
        KernelCase fused = forward_case(dtype, s, form);
        fused.run(2);
        KernelCase replay = replay_of(fused);
        replay.run(1);
        expect_replayed(replay, fused, fmt::format("{} {}x{}", dtype_name(dtype), s.rows, s.width));
      }
    }
  }
}

/// The same operands with the attributes of an offset.
KernelCase with_offset(const KernelCase& kernel, size_t weight, double offset) {
  OpSpec spec = kernel.spec();
  spec.attributes.push_back({"weight_offset", offset});
  KernelCase changed(std::move(spec));
  for (size_t i = 0; i < kernel.spec().operands.size(); ++i) {
    changed.set(i, kernel.values(i));
  }
  std::vector<double> weights = kernel.values(weight);
  for (double& w : weights) {
    w -= offset;
  }
  changed.set(weight, weights);
  return changed;
}

/// Weights in [1, 2) whose sums and differences with 1 are exact in every dtype.
void set_exact_weights(KernelCase& kernel, size_t operand) {
  std::vector<double> weights;
  for (int64_t i = 0; i < kernel.num_elems(operand); ++i) {
    weights.push_back(1 + static_cast<double>(i * 37 % 128) / 128);
  }
  kernel.set(operand, weights);
}

// Weights less 1 with an offset of 1 are the weights, to the bit.
TEST(Norm, AddsTheOffsetToWeights) {
  for (const DType dtype : kFloatDtypes) {
    for (const Form form : {kForms[0], kForms[1]}) {
      KernelCase plain = forward_case(dtype, {5, 67}, form);
      set_exact_weights(plain, form.w());
      KernelCase offset = with_offset(plain, form.w(), 1.0);
      plain.run();
      offset.run(2);
      EXPECT_EQ(offset.values(form.y()), plain.values(form.y()));
      EXPECT_EQ(offset.values(form.rstd()), plain.values(form.rstd()));
    }
  }
}

// One-pass variance, mean(x^2) - mean(x)^2, would lose all digits here.
TEST(Norm, KeepsTheVarianceOfValuesFarFromZero) {
  const Sizes s{.rows = 2, .width = 384};
  const Form form{.centred = true, .add = false};
  KernelCase kernel = forward_case(DType::kF32, s, form);
  std::vector<double> x = TestRandom(4).uniforms(s.rows * s.width, 9999, 10001);
  kernel.set(0, x);
  const NormResult expected = naive_norm(kernel, DType::kF32, s, form);
  kernel.run();
  // The mean, 1e4, is off by some half units of 1e4 (2^-11): 1e-3 of the deviation, 0.58, which
  // enters the variance squared.
  expect_close(kernel.values(form.rstd()), expected.rstd, {.relative = 1e-4}, "rstd");
}

TEST(Norm, KeepsNanToItsRowAndIsZeroForZeros) {
  for (const Form form : kForms) {
    const Sizes s{.rows = 5, .width = 40};
    KernelCase kernel = forward_case(DType::kF32, s, form);
    auto x = kernel.values(0);
    x[static_cast<size_t>(2 * s.width + 3)] = std::numeric_limits<double>::quiet_NaN();
    kernel.set(0, x);
    kernel.run();
    const auto y = kernel.values(form.y());
    for (size_t i = 0; i < y.size(); ++i) {
      EXPECT_EQ(std::isnan(y[i]), i / static_cast<size_t>(s.width) == 2) << form.op() << " " << i;
    }
  }
  KernelCase zeros = forward_case(DType::kF32, {1, 9}, kForms[0], 1e-6);
  zeros.set_all(0, 0.0);
  zeros.run();
  EXPECT_EQ(zeros.values(2), std::vector<double>(9, 0.0));
  EXPECT_NEAR(zeros.values(3)[0], 1000.0, 1e-3);
}

struct BackwardForm {
  bool centred;
  bool has_d_sum;

  size_t rstd() const { return centred ? 3 : 2; }
  size_t dy() const { return rstd() + 1; }
  size_t d_sum() const { return dy() + 1; }
  size_t dx() const { return has_d_sum ? dy() + 2 : dy() + 1; }
  size_t dw() const { return dx() + 1; }
  size_t db() const { return dx() + 2; }
};

constexpr BackwardForm kBackwardForms[] = {
    {false, false}, {false, true}, {true, false}, {true, true}};

KernelCase backward_case(DType dtype, Sizes s, BackwardForm form, bool accumulate) {
  const OperandSpec in = read(dtype, {s.rows, s.width});
  const OperandSpec statistics = read(wide(dtype), {s.rows});
  const OperandSpec sums = gradient(accumulate, wide(dtype), {s.width});
  std::vector<OperandSpec> operands = {in, read(dtype, {s.width})};
  const auto add_if = [&](bool wanted, const OperandSpec& operand) {
    if (wanted) {
      operands.push_back(operand);
    }
  };
  add_if(form.centred, statistics);
  add_if(true, statistics);
  add_if(true, in);
  add_if(form.has_d_sum, in);
  add_if(true, write(dtype, {s.rows, s.width}));
  add_if(true, sums);
  add_if(form.centred, sums);
  const NormBackwardAttributes attributes{.has_d_sum = form.has_d_sum, .accumulate = accumulate};
  return KernelCase({form.centred ? "layernorm_backward" : "rmsnorm_backward",
                     to_attributes(attributes), operands});
}

TEST(NormBackward, AddsTheOffsetToWeights) {
  for (const DType dtype : kFloatDtypes) {
    for (const BackwardForm form : {kBackwardForms[0], kBackwardForms[1]}) {
      KernelCase plain = backward_case(dtype, {40, 67}, form, true);
      set_exact_weights(plain, 1);
      KernelCase offset = with_offset(plain, 1, 1.0);
      plain.run();
      offset.run(2);
      EXPECT_EQ(offset.values(form.dx()), plain.values(form.dx()));
      EXPECT_EQ(offset.values(form.dw()), plain.values(form.dw()));
    }
  }
}

struct NormGradients {
  std::vector<double> dx;
  std::vector<double> dw;
  std::vector<double> db;
};

/// The derivative written out per element, in double, from the operands of a case.
NormGradients naive_backward(const KernelCase& kernel, Sizes s, BackwardForm form,
                             bool accumulate) {
  const auto x = kernel.values(0);
  const auto w = kernel.values(1);
  const auto rstd = kernel.values(form.rstd());
  const auto dy = kernel.values(form.dy());
  const auto means = form.centred ? kernel.values(2) : std::vector<double>();
  const auto d_sum = form.has_d_sum ? kernel.values(form.d_sum()) : std::vector<double>();
  const auto width = static_cast<size_t>(s.width);
  NormGradients result;
  result.dw = accumulate ? kernel.values(form.dw()) : std::vector<double>(width);
  result.db = accumulate && form.centred ? kernel.values(form.db()) : std::vector<double>(width);
  for (size_t n = 0; n < static_cast<size_t>(s.rows); ++n) {
    const double mean = form.centred ? means[n] : 0.0;
    double mean_g = 0;
    double mean_gh = 0;
    const auto h = [&](size_t c) { return (x[n * width + c] - mean) * rstd[n]; };
    const auto g = [&](size_t c) { return dy[n * width + c] * w[c]; };
    for (size_t c = 0; c < width; ++c) {
      mean_g += form.centred ? g(c) / static_cast<double>(width) : 0.0;
      mean_gh += g(c) * h(c) / static_cast<double>(width);
      result.dw[c] += dy[n * width + c] * h(c);
      result.db[c] += dy[n * width + c];
    }
    for (size_t c = 0; c < width; ++c) {
      const double through = form.has_d_sum ? d_sum[n * width + c] : 0.0;
      result.dx.push_back(rstd[n] * (g(c) - mean_g - h(c) * mean_gh) + through);
    }
  }
  return result;
}

void check_backward(DType dtype, Sizes s, BackwardForm form, bool accumulate, int num_workers) {
  SCOPED_TRACE(
      fmt::format("{} {}x{} accumulate {}", dtype_name(dtype), s.rows, s.width, accumulate));
  KernelCase kernel = backward_case(dtype, s, form, accumulate);
  const NormGradients expected = naive_backward(kernel, s, form, accumulate);
  kernel.run(num_workers);
  // Means and rstd are random in [-1, 1): products of three such and their means over a row.
  expect_close(
      kernel.values(form.dx()), expected.dx,
      {.absolute = 16 * rounding_error(wide(dtype)), .relative = 4 * rounding_error(dtype)}, "dx");
  const Tolerance sums = sum_tolerance(wide(dtype), static_cast<double>(s.rows), 2);
  expect_close(kernel.values(form.dw()), expected.dw, sums, "dw");
  if (form.centred) {
    expect_close(kernel.values(form.db()), expected.db, sums, "db");
  }
}

TEST(NormBackward, EqualsTheDerivativeWrittenOut) {
  for (const DType dtype : kFloatDtypes) {
    for (const BackwardForm form : kBackwardForms) {
      for (const Sizes s : kAwkward) {
        check_backward(dtype, s, form, false, 1);
        check_backward(dtype, s, form, true, 2);
      }
      check_backward(dtype, {2083, 9}, form, true, 3);
    }
  }
}

/// A forward case of doubles with one operand replaced and run: the sum of y times `dy`.
double loss_with(Sizes s, Form form, size_t operand, const std::vector<double>& values,
                 const std::vector<double>& dy) {
  KernelCase kernel = forward_case(DType::kF64, s, form);
  kernel.set(operand, values);
  kernel.run();
  return dot(kernel.values(form.y()), dy);
}

TEST(NormBackward, AgreesWithDifferences) {
  const Sizes s{.rows = 4, .width = 11};
  for (const Form form : kForms) {
    const BackwardForm back{.centred = form.centred, .has_d_sum = false};
    KernelCase forward = forward_case(DType::kF64, s, form);
    forward.run();
    KernelCase backward = backward_case(DType::kF64, s, back, false);
    backward.set(0, forward.values(form.add ? form.sum() : 0));
    backward.set(1, forward.values(form.w()));
    if (form.centred) {
      backward.set(2, forward.values(form.mean()));
    }
    backward.set(back.rstd(), forward.values(form.rstd()));
    backward.run();
    const auto dy = backward.values(back.dy());
    const auto loss_of = [&](size_t operand) {
      return [&, operand](const std::vector<double>& values) {
        return loss_with(s, form, operand, values, dy);
      };
    };
    expect_gradient(loss_of(0), forward.values(0), backward.values(back.dx()), form.op() + " dx");
    expect_gradient(loss_of(form.w()), forward.values(form.w()), backward.values(back.dw()),
                    form.op() + " dw");
    if (form.add) {
      expect_gradient(loss_of(form.residual()), forward.values(form.residual()),
                      backward.values(back.dx()), form.op() + " d_residual");
    }
    if (form.centred) {
      expect_gradient(loss_of(form.b()), forward.values(form.b()), backward.values(back.db()),
                      form.op() + " db");
    }
  }
}

// The sum is used twice, by the norm and by the residual path: loss = y . dy + sum . d_sum.
TEST(NormBackward, AddsTheGradientOfTheSum) {
  const Sizes s{.rows = 3, .width = 7};
  for (const bool centred : {false, true}) {
    KernelCase without = backward_case(DType::kF64, s, {centred, false}, false);
    const BackwardForm form{.centred = centred, .has_d_sum = true};
    KernelCase with = backward_case(DType::kF64, s, form, false);
    for (size_t i = 0; i <= form.dy(); ++i) {
      with.set(i, without.values(i));
    }
    without.run();
    with.run();
    auto expected = without.values(form.dy() + 1);
    const auto d_sum = with.values(form.d_sum());
    for (size_t i = 0; i < expected.size(); ++i) {
      expected[i] += d_sum[i];
    }
    expect_close(with.values(form.dx()), expected, {.absolute = 1e-15, .relative = 1e-15});
  }
}

TEST(Norm, DoesNotDependOnTheNumberOfWorkers) {
  for (const DType dtype : thinned<DType>({DType::kBF16, DType::kF32}, 2)) {
    for (const Form form : kForms) {
      expect_same_for_any_workers([&] { return forward_case(dtype, kSplitSizes, form); });
    }
    for (const BackwardForm form : kBackwardForms) {
      expect_same_for_any_workers([&] { return backward_case(dtype, {2083, 257}, form, true); });
    }
  }
}

}  // namespace
}  // namespace braid
