#include "ops/rope.h"

#include <complex>

#include "support/kernel_harness.h"

namespace braid {
namespace {

struct RopeCase {
  RopeAttributes attributes;
  int64_t batches = 1;

  int64_t rows() const { return batches * attributes.sequence; }
  int64_t width() const {
    return (attributes.heads + 2 * attributes.kv_heads) * attributes.head_size;
  }
  OpSpec spec(DType dtype) const {
    return {.op = "rope",
            .attributes = to_attributes(attributes),
            .operands = {read(dtype, {rows(), width()}), write(dtype, {rows(), width()})}};
  }
};

std::string name_of(const RopeCase& c) {
  return fmt::format("heads {} kv_heads {} head_size {} ({}) sequence {} batches {} inverse {}",
                     c.attributes.heads, c.attributes.kv_heads, c.attributes.head_size,
                     c.attributes.rotated(), c.attributes.sequence, c.batches,
                     c.attributes.inverse);
}

/// Tests of ops/rope_scaling.h know the scaled ones.
double frequency_of(const RopeAttributes& a, int64_t pair) {
  if (a.scaling.type != RopeType::kDefault) {
    return rope_frequencies(a.rotated(), a.theta, a.scaling)[static_cast<size_t>(pair)];
  }
  return 1.0 /
         std::pow(a.theta, 2.0 * static_cast<double>(pair) / static_cast<double>(a.rotated()));
}

const RopeScaling kScaled[] = {
    {.type = RopeType::kLinear, .factor = 3.0},
    {.type = RopeType::kLlama3, .factor = 8.0, .original_max_position_embeddings = 64},
    {.type = RopeType::kYarn,
     .factor = 4.0,
     .original_max_position_embeddings = 128,
     .attention_factor = 1.25},
    {.type = RopeType::kLongrope,
     .factor = 4.0,
     .original_max_position_embeddings = 128,
     .short_factor = "1, 1.5, 1.25, 3, 1, 8, 2, 7"},
};

/// A pair is a complex number that is multiplied by exp(i angle).
std::vector<double> naive_rope(const RopeCase& c, const std::vector<double>& in) {
  const RopeAttributes& a = c.attributes;
  std::vector<double> out = in;
  for (int64_t row = 0; row < c.rows(); ++row) {
    for (int64_t head = 0; head < a.heads + a.kv_heads; ++head) {
      for (int64_t i = 0; i < a.rotated() / 2; ++i) {
        const auto real = static_cast<size_t>(row * c.width() + head * a.head_size + i);
        const auto imaginary = real + static_cast<size_t>(a.rotated() / 2);
        const double angle = static_cast<double>(row % a.sequence) * frequency_of(a, i);
        const std::complex<double> z =
            std::complex<double>(in[real], in[imaginary]) *
            std::polar(rope_amplitude(a.scaling), a.inverse ? -angle : angle);
        out[real] = z.real();
        out[imaginary] = z.imag();
      }
    }
  }
  return out;
}

std::vector<RopeCase> awkward_cases() {
  std::vector<RopeCase> cases;
  for (const bool inverse : {false, true}) {
    const auto add = [&](int64_t heads, int64_t kv_heads, int64_t head_size, int64_t sequence,
                         int64_t batches) {
      cases.push_back({{.heads = heads,
                        .kv_heads = kv_heads,
                        .head_size = head_size,
                        .sequence = sequence,
                        .theta = 10000.0,
                        .inverse = inverse},
                       batches});
    };
    add(1, 1, 2, 1, 1);
    add(1, 1, 2, 7, 3);
    add(6, 2, 14, 13, 2);
    add(5, 5, 34, 31, 1);
    add(4, 1, 64, 67, 5);
    add(2, 1, 96, 5, 1);
    for (const RopeScaling& scaling : kScaled) {
      add(3, 1, 16, 23, 2);
      cases.back().attributes.scaling = scaling;
    }
    for (const int64_t rotated : {2, 12, 22}) {
      add(3, 2, 24, 9, 2);
      cases.back().attributes.part = {rotated};
    }
    add(2, 1, 20, 11, 2);
    cases.back().attributes.part = {16};
    cases.back().attributes.scaling = kScaled[3];
  }
  return cases;
}

TEST(Rope, MatchesComplexMultiplication) {
  for (const DType dtype : {DType::kF64, DType::kF32, DType::kBF16}) {
    for (const RopeCase& c : awkward_cases()) {
      KernelCase kernel(c.spec(dtype));
      kernel.run(2);
      // One rounding of the table and three of the arithmetic, on values up to 2; angles, which are
      // doubles up to `sequence`, after a division and a power.
      const double arithmetic =
          8 * rounding_error(wide(dtype)) +
          4 * static_cast<double>(c.attributes.sequence) * rounding_error(DType::kF64);
      expect_close(kernel.values(1), naive_rope(c, kernel.values(0)),
                   {.absolute = arithmetic, .relative = rounding_error(dtype)}, name_of(c));
    }
  }
}

TEST(Rope, KeepsAnglesExactAtFarPositions) {
  const RopeCase c{{.heads = 1, .kv_heads = 1, .head_size = 2, .sequence = 131072}, 1};
  KernelCase kernel(c.spec(DType::kF32));
  kernel.run(1);
  expect_close(kernel.values(1), naive_rope(c, kernel.values(0)),
               {.absolute = 8 * rounding_error(DType::kF32)}, name_of(c));
}

TEST(Rope, InverseUndoesIt) {
  RopeCase c{{.heads = 3, .kv_heads = 1, .head_size = 10, .sequence = 17, .theta = 5e5}, 2};
  KernelCase forward(c.spec(DType::kF64));
  forward.run();
  c.attributes.inverse = true;
  KernelCase inverse(c.spec(DType::kF64));
  inverse.set(0, forward.values(1));
  inverse.run();
  expect_close(inverse.values(1), forward.values(0), {.absolute = 1e-15});
}

TEST(Rope, InverseIsTheGradient) {
  RopeCase c{{.heads = 2,
              .kv_heads = 1,
              .head_size = 6,
              .sequence = 5,
              .scaling = {.type = RopeType::kYarn,
                          .factor = 4.0,
                          .original_max_position_embeddings = 64,
                          .attention_factor = 1.5}},
             2};
  KernelCase forward(c.spec(DType::kF64));
  c.attributes.inverse = true;
  KernelCase backward(c.spec(DType::kF64), 2);
  backward.run();
  const std::vector<double> d_out = backward.values(0);
  const auto loss = [&](const std::vector<double>& x) {
    forward.set(0, x);
    forward.run();
    return dot(forward.values(1), d_out);
  };
  expect_gradient(loss, forward.values(0), backward.values(1), "d_qkv");
}

TEST(Rope, WorkersDoNotChangeResults) {
  const RopeCase c{{.heads = 4, .kv_heads = 2, .head_size = 64, .sequence = 211}, 3};
  for (const DType dtype : {DType::kF64, DType::kF32, DType::kBF16}) {
    KernelCase kernel(c.spec(dtype));
    kernel.run(1);
    const std::vector<std::byte> alone = kernel.bytes(1);
    for (const int workers : {2, 3}) {
      kernel.run(workers);
      EXPECT_TRUE(kernel.bytes(1) == alone) << workers << " workers, " << dtype_name(dtype);
    }
  }
}

// Each document is rotated as one that begins a sequence; also a rank's part, in which one goes on.
TEST(Rope, BeginsAgainAtEachDocument) {
  RopeCase c{{.heads = 3, .kv_heads = 1, .head_size = 6, .sequence = 7, .theta = 100.0}, 2};
  c.attributes.positions = {.first_begin = 4, .second_begin = 12, .split = 3};
  c.attributes.documents.documents = true;
  const std::vector<double> starts = {1, 5, 5, 9, 9, 14, 14, 0, 0, 0, 0, 13, 14, 15};
  const std::vector<int64_t> positions = {4, 5, 6, 12, 13, 14, 15};
  for (const DType dtype : kFloatDtypes) {
    OpSpec spec = c.spec(dtype);
    spec.operands.insert(spec.operands.begin() + 1, read(DType::kI32, {c.rows()}));
    KernelCase kernel(spec);
    kernel.set(1, starts);
    kernel.run(2);
    for (int64_t row = 0; row < c.rows(); ++row) {
      RopeCase alone = c;
      alone.batches = 1;
      alone.attributes.documents = {};
      alone.attributes.sequence = 1;
      const auto at = static_cast<size_t>(row);
      const auto distance = positions[at % positions.size()] - static_cast<int64_t>(starts[at]);
      alone.attributes.positions = {.second_begin = distance};
      KernelCase one(alone.spec(dtype));
      const auto width = static_cast<std::ptrdiff_t>(c.width());
      const std::vector<double> in = kernel.values(0);
      const std::vector<double> out = kernel.values(2);
      one.set(0, {in.begin() + row * width, in.begin() + (row + 1) * width});
      one.run();
      EXPECT_EQ(one.values(1),
                std::vector<double>(out.begin() + row * width, out.begin() + (row + 1) * width))
          << row;
    }
  }
}

// A part of a sequence is rotated as it is inside of the whole.
TEST(Rope, RotatesByGivenPositions) {
  const RopeCase whole{{.heads = 3, .kv_heads = 1, .head_size = 6, .sequence = 12, .theta = 100.0},
                       2};
  RopeCase part = whole;
  part.attributes.sequence = 5;  // positions 3, 4, 9, 10, 11
  part.attributes.positions = {.first_begin = 3, .second_begin = 9, .split = 2};
  for (const DType dtype : kFloatDtypes) {
    KernelCase all(whole.spec(dtype));
    all.run();
    KernelCase some(part.spec(dtype));
    std::vector<double> in;
    std::vector<double> expected;
    for (const int64_t batch : {0, 1}) {
      for (const int64_t position : {3, 4, 9, 10, 11}) {
        for (int64_t i = 0; i < whole.width(); ++i) {
          const auto at = static_cast<size_t>((batch * 12 + position) * whole.width() + i);
          in.push_back(all.values(0)[at]);
          expected.push_back(all.values(1)[at]);
        }
      }
    }
    some.set(0, in);
    some.run(2);
    EXPECT_EQ(some.values(1), expected) << dtype_name(dtype);
  }
}

}  // namespace
}  // namespace braid
