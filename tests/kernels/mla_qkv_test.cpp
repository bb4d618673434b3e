#include "ops/mla_qkv.h"

#include <complex>

#include "support/mla_qkv_cases.h"

namespace braid {
namespace {

/// The last columns of `row` of `part` from `begin` on, as `pairs` complex numbers multiplied by
/// exp(i angle).
void append_rotated(const MlaCase& c, const std::vector<double>& part, int64_t begin, int64_t row,
                    std::vector<double>& out) {
  const auto position = static_cast<double>(c.a.positions.of(row % c.a.sequence));
  for (int64_t i = 0; i < c.a.rotated; i += 2) {
    const double frequency =
        c.a.scaling.type == RopeType::kDefault
            ? std::pow(c.a.theta, -static_cast<double>(i) / static_cast<double>(c.a.rotated))
            : rope_frequencies(c.a.rotated, c.a.theta, c.a.scaling)[static_cast<size_t>(i / 2)];
    const auto at = static_cast<size_t>(begin + i);
    const std::complex<double> z = std::complex<double>(part[at], part[at + 1]) *
                                   std::polar(rope_amplitude(c.a.scaling), position * frequency);
    out.push_back(z.real());
    out.push_back(z.imag());
  }
}

void append(const std::vector<double>& part, int64_t begin, int64_t count,
            std::vector<double>& out) {
  out.insert(out.end(), part.begin() + begin, part.begin() + begin + count);
}

std::vector<double> naive_qkv(const MlaCase& c, const std::vector<double>& q,
                              const std::vector<double>& kv, const std::vector<double>& k_rope) {
  const MlaAttributes& a = c.a;
  const int64_t score = a.plain + a.rotated;
  std::vector<double> out;
  const auto pad = [&](int64_t used) {
    out.resize(out.size() + static_cast<size_t>(a.head_size - used), 0.0);
  };
  for (int64_t row = 0; row < c.rows(); ++row) {
    for (int64_t head = 0; head < a.heads; ++head) {
      const int64_t begin = (row * a.heads + head) * score;
      append(q, begin, a.plain, out);
      append_rotated(c, q, begin + a.plain, row, out);
      pad(score);
    }
    const auto kv_begin = [&](int64_t head) {
      return (row * a.heads + head) * (a.plain + a.value);
    };
    for (int64_t head = 0; head < a.heads; ++head) {
      append(kv, kv_begin(head), a.plain, out);
      append_rotated(c, k_rope, row * a.rotated, row, out);
      pad(score);
    }
    for (int64_t head = 0; head < a.heads; ++head) {
      append(kv, kv_begin(head) + a.plain, a.value, out);
      pad(a.value);
    }
  }
  return out;
}

// One rounding of the table and three of the arithmetic, on values up to 2.
TEST(MlaQkv, PutsPartsOfHeadsTogether) {
  for (const DType dtype : kFloatDtypes) {
    for (const MlaCase& c : awkward_mla_cases()) {
      KernelCase kernel = c.forward(dtype);
      kernel.run(2);
      expect_close(
          kernel.values(3), naive_qkv(c, kernel.values(0), kernel.values(1), kernel.values(2)),
          {.absolute = 16 * rounding_error(wide(dtype)), .relative = rounding_error(dtype)});
    }
  }
}

TEST(MlaQkvBackward, AgreesWithDifferences) {
  for (const MlaCase& c : awkward_mla_cases()) {
    KernelCase forward = c.forward(DType::kF64);
    KernelCase backward = c.backward(DType::kF64);
    backward.run();
    const std::vector<double> d_qkv = backward.values(0);
    for (const size_t operand : {0, 1, 2}) {
      const std::vector<double> at = forward.values(operand);
      const auto loss = [&](const std::vector<double>& values) {
        forward.set(operand, values);
        forward.run();
        return dot(forward.values(3), d_qkv);
      };
      expect_gradient(loss, at, backward.values(operand + 1), "of a part");
      forward.set(operand, at);
    }
  }
}

TEST(MlaQkvBackward, OfFloatsIsLikeThatOfDoubles) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const MlaCase& c : awkward_mla_cases()) {
      KernelCase kernel = c.backward(dtype);
      KernelCase exact = c.backward(DType::kF64);
      exact.set(0, kernel.values(0));
      kernel.run(2);
      exact.run();
      for (const size_t operand : {1, 2, 3}) {
        expect_close(
            kernel.values(operand), exact.values(operand),
            {.absolute = 64 * rounding_error(wide(dtype)), .relative = 2 * rounding_error(dtype)});
      }
    }
  }
}

TEST(MlaQkv, DoesNotDependOnTheNumberOfWorkers) {
  const MlaCase c{
      {.heads = 4, .plain = 32, .rotated = 16, .value = 32, .head_size = 48, .sequence = 101}, 2};
  expect_same_for_any_workers([&] { return c.forward(DType::kBF16); });
  expect_same_for_any_workers([&] { return c.backward(DType::kBF16); });
}

}  // namespace
}  // namespace braid
