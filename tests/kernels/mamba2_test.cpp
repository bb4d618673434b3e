#include "ops/mamba2.h"

#include "support/mamba2_cases.h"

namespace braid {
namespace {

double silu(double x) {
  return x / (1 + std::exp(-x));
}

/// The layer written out, row by row and step by step.
class Recurrence {
 public:
  Recurrence(const Mamba2Case& c, const KernelCase& kernel) : c_(c), a_(c.a) {
    for (size_t i = 0; i < 7; ++i) {
      in_.push_back(kernel.values(i));
    }
  }

  /// y of all rows.
  std::vector<double> y() const {
    std::vector<double> y(static_cast<size_t>(c_.rows() * a_.inner()));
    for (int64_t begin = 0; begin < c_.rows(); begin += a_.sequence) {
      for (int64_t head = 0; head < a_.heads; ++head) {
        std::vector<double> state(static_cast<size_t>(a_.head_size * a_.state));
        for (int64_t row = begin; row < begin + a_.sequence; ++row) {
          step(row, head, state, y.data() + row * a_.inner() + head * a_.head_size);
        }
      }
    }
    return y;
  }

  /// rstd and v of these y.
  std::pair<std::vector<double>, std::vector<double>> norms(const std::vector<double>& y) const {
    const int64_t size = a_.inner() / a_.norm_groups;
    std::vector<double> rstd;
    std::vector<double> v;
    for (int64_t row = 0; row < c_.rows(); ++row) {
      for (int64_t begin = 0; begin < a_.inner(); begin += size) {
        double squares = 0;
        for (int64_t c = begin; c < begin + size; ++c) {
          squares += std::pow(gated(y, row, c), 2);
        }
        rstd.push_back(1 / std::sqrt(squares / static_cast<double>(size) + a_.epsilon));
        for (int64_t c = begin; c < begin + size; ++c) {
          v.push_back(gated(y, row, c) * rstd.back() * weight(6, c));
        }
      }
    }
    return {rstd, v};
  }

 private:
  double at(size_t operand, int64_t index) const {
    return in_[operand][static_cast<size_t>(index)];
  }
  /// Of weights of heads and of channels of results, those of the op's part.
  double weight(size_t operand, int64_t index) const {
    return at(operand, a_.weights.index * (operand == 6 ? a_.inner() : a_.heads) + index);
  }
  /// The row of conv_weight: all parts of x, then those of B, then those of C.
  int64_t conv_row(int64_t channel) const {
    const int64_t factor = a_.groups * a_.state;
    const bool is_x = channel < a_.inner();
    const int64_t size = is_x ? a_.inner() : factor;
    const int64_t begin = is_x                            ? 0
                          : channel < a_.inner() + factor ? a_.inner()
                                                          : a_.inner() + factor;
    return a_.weights.count * begin + a_.weights.index * size + channel - begin;
  }
  double gated(const std::vector<double>& y, int64_t row, int64_t c) const {
    return y[static_cast<size_t>(row * a_.inner() + c)] * silu(at(0, row * a_.row_elems() + c));
  }
  double convolved(int64_t row, int64_t channel) const {
    double sum = at(2, conv_row(channel));
    for (int64_t tap = 0; tap < c_.taps; ++tap) {
      const int64_t from = row + tap - (c_.taps - 1);
      if (from >= row / a_.sequence * a_.sequence) {
        sum += at(1, conv_row(channel) * c_.taps + tap) *
               at(0, from * a_.row_elems() + a_.inner() + channel);
      }
    }
    return silu(sum);
  }
  void step(int64_t row, int64_t head, std::vector<double>& state, double* y) const {
    const double raw = at(0, row * a_.row_elems() + a_.dt_begin() + head) + weight(3, head);
    const double dt = std::clamp(std::log1p(std::exp(raw)), a_.dt_min, a_.dt_max);
    const double decay = std::exp(-dt * std::exp(weight(4, head)));
    const int64_t b = a_.inner() + head * a_.groups / a_.heads * a_.state;
    for (int64_t p = 0; p < a_.head_size; ++p) {
      const double x = convolved(row, head * a_.head_size + p);
      y[p] = weight(5, head) * x;
      for (int64_t n = 0; n < a_.state; ++n) {
        double& s = state[static_cast<size_t>(p * a_.state + n)];
        s = decay * s + dt * x * convolved(row, b + n);
        y[p] += s * convolved(row, b + a_.groups * a_.state + n);
      }
    }
  }

  const Mamba2Case& c_;
  const Mamba2Attributes& a_;
  std::vector<std::vector<double>> in_;
};

// Sums of at most a few dozen terms up to 4.
TEST(Mamba2, IsTheRecurrence) {
  for (const DType dtype : kFloatDtypes) {
    for (const Mamba2Case& c : awkward_mamba2_cases()) {
      KernelCase kernel = c.forward(dtype);
      kernel.run(2);
      const Recurrence recurrence(c, kernel);
      const Tolerance tolerance{.absolute = 256 * rounding_error(wide(dtype)),
                                .relative = 1.01 * rounding_error(dtype)};
      expect_close(kernel.values(7), recurrence.y(), tolerance, c.name(dtype));
      const auto [rstd, v] = recurrence.norms(kernel.values(7));
      expect_close(kernel.values(8), rstd, {.relative = 64 * rounding_error(wide(dtype))},
                   c.name(dtype));
      expect_close(kernel.values(9), v, tolerance, c.name(dtype));
    }
  }
}

/// The x on the growing branch of SiLU where it is `value`.
double inverse_silu(double value) {
  double low = -1.2;
  double high = 20;
  for (int i = 0; i < 200; ++i) {
    const double middle = (low + high) / 2;
    (silu(middle) < value ? low : high) = middle;
  }
  return low;
}
double silu_slope(double x) {
  const double s = 1 / (1 + std::exp(-x));
  return s * (1 + x * (1 - s));
}

/// One head with one element and one state, whose convolution is the identity: rows (z, x, B, C,
/// dt). The values of x, B and C are a quarter of the golden ones, which are out of reach of SiLU.
struct GoldenCase {
  static constexpr double kPart = 0.25;
  Mamba2Case c{{.sequence = 4,
                .heads = 1,
                .head_size = 1,
                .groups = 1,
                .state = 1,
                .chunk = 3,
                .epsilon = 1e16},
               1,
               1};
  std::vector<double> x = {1, -1, 2, .5};
  std::vector<double> dt = {.5, .1, .2, .4};
  std::vector<double> b = {1, .5, -1, 2};
  std::vector<double> cs = {1, 2, .5, -1};

  double raw(const std::vector<double>& values, size_t row) const {
    return inverse_silu(kPart * values[row]);
  }
  /// Squares are nothing beside this epsilon, so that the norm multiplies by 1e-8; with weight and
  /// gate, v = y.
  KernelCase forward() const {
    KernelCase kernel = c.forward(DType::kF64);
    std::vector<double> rows;
    for (size_t row = 0; row < 4; ++row) {
      rows.insert(rows.end(),
                  {1.0, raw(x, row), raw(b, row), raw(cs, row), inverse_softplus(dt[row])});
    }
    kernel.set(0, rows);
    kernel.set_all(1, 1);
    for (const size_t zero : {2, 3, 4, 5}) {
      kernel.set_all(zero, 0);
    }
    kernel.set_all(6, 1e8 / silu(1));
    kernel.run();
    return kernel;
  }
  static double inverse_softplus(double value) { return std::log(std::expm1(value)); }
};

void expect_scaled(const std::vector<double>& actual, const std::vector<double>& expected,
                   double scale, const char* what) {
  std::vector<double> unscaled;
  for (const double value : actual) {
    unscaled.push_back(value / scale);
  }
  expect_close(unscaled, expected, {.absolute = 1e-6}, what);  // their last digit
}

// Values of the published formulas, computed in Python in f64.
TEST(Mamba2, HasTheGoldenValues) {
  const GoldenCase golden;
  const double part = GoldenCase::kPart;
  KernelCase forward = golden.forward();
  expect_scaled(forward.values(7), {.5, .8048374, -.0352637, -.3527241}, std::pow(part, 3), "y");
  expect_close(forward.values(9), forward.values(7), {.relative = 1e-14}, "v");
  KernelCase backward = golden.c.backward(forward);
  backward.set(9, {1, -1, .5, 2});
  backward.run();
  const std::vector<double> d_rows = backward.values(10);
  std::vector<double> dx, db, dc, ddt;
  for (size_t row = 0; row < 4; ++row) {
    const auto column = [&](size_t index) { return d_rows[row * 5 + index]; };
    dx.push_back(column(1) / silu_slope(golden.raw(golden.x, row)));
    db.push_back(column(2) / silu_slope(golden.raw(golden.b, row)));
    dc.push_back(column(3) / silu_slope(golden.raw(golden.cs, row)));
    ddt.push_back(column(4) * (1 + std::exp(-GoldenCase::inverse_softplus(golden.dt[row]))));
  }
  expect_scaled(dx, {-.80882, -.144647, .218128, -1.6}, part * part, "dx");
  expect_scaled(db, {-.80882, .289294, -.436256, -.4}, part * part, "dB");
  expect_scaled(dc, {.5, -.402419, -.035264, .705448}, part * part, "dC");
  expect_scaled(ddt, {-1.617641, 2.755291, 2.540616, -2.094552}, std::pow(part, 3), "d_dt");
  expect_scaled(backward.values(14), {.164928}, std::pow(part, 3), "d_a_log");  // A = -1
}

TEST(Mamba2Backward, AgreesWithDifferencesOfEveryInput) {
  for (const Mamba2Case& c : awkward_mamba2_cases()) {
    KernelCase forward = c.forward(DType::kF64);
    forward.run();
    KernelCase backward = c.backward(forward);
    backward.run();
    const std::vector<double> dv = backward.values(9);
    for (size_t operand = 0; operand < 7; ++operand) {
      const std::vector<double> at = forward.values(operand);
      const auto loss = [&](const std::vector<double>& values) {
        forward.set(operand, values);
        forward.run();
        return dot(forward.values(9), dv);
      };
      expect_gradient(loss, at, backward.values(10 + operand),
                      fmt::format("{}: of input {}", c.name(DType::kF64), operand));
      forward.set(operand, at);
    }
  }
}

TEST(Mamba2Backward, OfFloatsIsLikeThatOfDoubles) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const Mamba2Case& c : awkward_mamba2_cases()) {
      KernelCase forward = c.forward(dtype);
      forward.run();
      KernelCase kernel = c.backward(forward, true);
      KernelCase exact_forward = c.forward(DType::kF64);
      exact_forward.run();
      KernelCase exact = c.backward(exact_forward, true);
      for (size_t i = 0; i < 17; ++i) {
        if (i < 10 || i > 10) {
          exact.set(i, kernel.values(i));
        }
      }
      kernel.run(2);
      exact.run();
      for (size_t i = 10; i < 17; ++i) {
        const double relative = i == 10 ? rounding_error(dtype) : 0;
        expect_close(kernel.values(i), exact.values(i),
                     {.absolute = 1024 * rounding_error(wide(dtype)), .relative = 1.01 * relative},
                     fmt::format("{}: {}", c.name(dtype), i));
      }
    }
  }
}

Mamba2Case long_case(int64_t sequence, int64_t chunk) {
  return {{.sequence = sequence,
           .heads = 6,
           .head_size = 8,
           .groups = 1,
           .state = 16,
           .chunk = chunk,
           .norm_groups = 2},
          2,
          4};
}

TEST(Mamba2, ChangesOnlyRoundingWithTheChunk) {
  const Mamba2Case steps = long_case(150, 1);
  KernelCase forward = steps.forward(DType::kF64);
  forward.run(2);
  KernelCase backward = steps.backward(forward);
  backward.run(2);
  for (const int64_t chunk : {7, 64, 128}) {
    const Mamba2Case c = long_case(150, chunk);
    KernelCase other = c.forward(DType::kF64);
    other.run(2);
    for (size_t i = 7; i < 10; ++i) {
      expect_close(other.values(i), forward.values(i), {.absolute = 1e-13, .relative = 1e-13},
                   c.name(DType::kF64));
    }
    KernelCase other_backward = c.backward(forward);
    other_backward.run(2);
    for (size_t i = 10; i < 17; ++i) {
      expect_close(other_backward.values(i), backward.values(i),
                   {.absolute = 1e-11, .relative = 1e-12}, c.name(DType::kF64));
    }
  }
}

// Row 9 of the second of three sequences changes: y changes there and in all later rows of that
// sequence, and nowhere else by a single bit.
TEST(Mamba2, SeesEarlierRowsOfItsSequenceOnly) {
  Mamba2Case c = long_case(13, 4);
  c.batches = 3;
  KernelCase before = c.forward(DType::kF32);
  KernelCase after = c.forward(DType::kF32);
  std::vector<double> rows = after.values(0);
  const int64_t changed = 13 + 9;
  for (int64_t i = 0; i < c.a.row_elems(); ++i) {
    rows[static_cast<size_t>(changed * c.a.row_elems() + i)] += 0.5;
  }
  after.set(0, rows);
  before.run();
  after.run();
  const auto y = before.values(7);
  const auto other = after.values(7);
  for (int64_t row = 0; row < c.rows(); ++row) {
    const auto begin = row * c.a.inner();
    const bool same =
        std::equal(y.begin() + begin, y.begin() + begin + c.a.inner(), other.begin() + begin);
    EXPECT_EQ(same, row < changed || row >= 26) << row;
  }
}

// Steps of 1e4 and of exactly 0, decays from none to exp(-1e6) per row: all factors are in [0, 1].
TEST(Mamba2, StaysFiniteForExtremeStepsAndDecays) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const Mamba2Case c = long_case(70, 32);
    KernelCase forward = c.forward(dtype);
    std::vector<double> rows = forward.values(0);
    for (int64_t row = 0; row < c.rows(); ++row) {
      for (int64_t head = 0; head < c.a.heads; ++head) {
        const double extremes[] = {1e4, -1e4, 25, -120, 0, 88.9};
        rows[static_cast<size_t>(row * c.a.row_elems() + c.a.dt_begin() + head)] =
            extremes[(row + head) % 6];
      }
    }
    forward.set(0, rows);
    forward.set(4, {-20, 5, 2.77, 0, -5, 4});
    forward.run();
    KernelCase backward = c.backward(forward);
    backward.run();
    const auto expect_finite = [&](const KernelCase& kernel, size_t first) {
      for (size_t i = first; i < kernel.spec().operands.size(); ++i) {
        const auto values = kernel.values(i);
        EXPECT_TRUE(std::ranges::all_of(values, [](double x) { return std::isfinite(x); }))
            << kernel.spec().op << " " << i;
      }
    };
    expect_finite(forward, 7);
    expect_finite(backward, 10);
  }
}

TEST(Mamba2, DoesNotDependOnTheNumberOfWorkers) {
  const Mamba2Case c = long_case(301, 64);
  expect_same_for_any_workers([&] { return c.forward(DType::kBF16); });
  KernelCase forward = c.forward(DType::kBF16);
  forward.run(2);
  expect_same_for_any_workers([&] { return c.backward(forward); });
}

}  // namespace
}  // namespace braid
