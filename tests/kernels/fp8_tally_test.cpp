// What quantize, quantize_weight and quantize_part count, against plain loops over their results.
#include <bit>
#include <cmath>
#include <limits>

#include "base/float8.h"
#include "ops/quantize.h"
#include "ops/quantize_part.h"
#include "support/kernel_harness.h"

namespace braid {
namespace {

constexpr int64_t kRows = 130;
constexpr int64_t kColumns = 260;

/// A copy in the spec for each of `row` and `column`.
OpSpec watched_spec(DType dtype, QuantizeAttributes attributes) {
  attributes.watch = {true};
  OpSpec spec{"quantize", to_attributes(attributes), {read(dtype, {kRows, kColumns})}};
  for (const Shape& shape : {Shape{kRows, kColumns}, Shape{kColumns, kRows}}) {
    if (shape[0] == kRows ? attributes.row : attributes.column) {
      spec.operands.push_back(write(DType::kF8E4M3, shape));
      spec.operands.push_back(write(attributes.scales().dtype(), attributes.scales().shape(shape)));
    }
  }
  spec.operands.push_back(tally_spec(Fp8Tally::kSize));
  return spec;
}

/// Magnitudes of very different sizes in each block, so that some flush to zero, and zeros.
std::vector<double> spread_values(int64_t count) {
  TestRandom random(3);
  std::vector<double> values;
  for (int64_t i = 0; i < count; ++i) {
    const int exponent = static_cast<int>(random.below(40)) - 20;
    values.push_back(i % 7 == 0 ? 0 : std::ldexp(random.uniform(-1, 1), exponent));
  }
  return values;
}

std::vector<int64_t> tally_of(const KernelCase& kernel) {
  const std::vector<double> tally = kernel.values(kernel.spec().operands.size() - 1);
  return {tally.begin(), tally.end()};
}

float largest_of(const std::vector<int64_t>& tally) {
  return std::bit_cast<float>(static_cast<uint32_t>(tally[Fp8Tally::kLargest]));
}

/// Elements of x whose copy [i] is zero although x [source(i)] is not.
template <class Source>
int64_t num_flushed(const std::vector<double>& x, const std::vector<double>& copy,
                    const Source& source) {
  int64_t count = 0;
  for (size_t i = 0; i < copy.size(); ++i) {
    count += x[source(i)] != 0 && copy[i] == 0 ? 1 : 0;
  }
  return count;
}

TEST(Fp8Tally, CountsTheElementsOfAllCopies) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const QuantizeAttributes& attributes :
         {QuantizeAttributes{}, QuantizeAttributes{.block = 0}, QuantizeAttributes{.block = 32},
          QuantizeAttributes{.square = true}, QuantizeAttributes{.block = 32, .square = true},
          QuantizeAttributes{.column = false}, QuantizeAttributes{.row = false}}) {
      KernelCase kernel(watched_spec(dtype, attributes));
      kernel.set(0, spread_values(kRows * kColumns));
      kernel.run(3);
      const std::vector<double> x = kernel.values(0);
      const QuantizeOperands at(attributes);
      int64_t flushed = 0;
      if (attributes.row) {
        flushed +=
            num_flushed(x, kernel.values(static_cast<size_t>(at.row)), [](size_t i) { return i; });
      }
      if (attributes.column) {
        flushed += num_flushed(x, kernel.values(static_cast<size_t>(at.column)),
                               [](size_t i) { return i % kRows * kColumns + i / kRows; });
      }
      double largest = 0;
      for (const double value : x) {
        largest = std::max(largest, std::abs(value));
      }
      const std::vector<int64_t> tally = tally_of(kernel);
      EXPECT_GT(flushed, 0);
      EXPECT_EQ(tally[Fp8Tally::kFlushed], flushed);
      EXPECT_EQ(largest_of(tally), largest);
      EXPECT_EQ(tally[Fp8Tally::kSaturated], 0) << "scales leave room for every element";
      EXPECT_EQ(tally[Fp8Tally::kElems],
                kRows * kColumns * ((attributes.row ? 1 : 0) + (attributes.column ? 1 : 0)));
    }
  }
}

TEST(Fp8Tally, AddsToWhatIsThere) {
  const auto tally_after = [](int num_runs, int num_workers) {
    KernelCase kernel(watched_spec(DType::kBF16, {}));
    kernel.set(0, spread_values(kRows * kColumns));
    for (int i = 0; i < num_runs; ++i) {
      kernel.run(num_workers);
    }
    return tally_of(kernel);
  };
  const std::vector<int64_t> once = tally_after(1, 1);
  EXPECT_EQ(tally_after(1, 4), once);
  const std::vector<int64_t> twice = tally_after(2, 1);
  EXPECT_EQ(twice[Fp8Tally::kLargest], once[Fp8Tally::kLargest]);
  EXPECT_EQ(twice[Fp8Tally::kFlushed], 2 * once[Fp8Tally::kFlushed]);
  EXPECT_EQ(twice[Fp8Tally::kElems], 2 * once[Fp8Tally::kElems]);
}

TEST(Fp8Tally, ABlockThatIsNotFiniteIsNeitherFlushedNorSaturated) {
  for (const double bad :
       {std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()}) {
    KernelCase kernel(watched_spec(DType::kBF16, {.block = 0}));
    std::vector<double> x = spread_values(kRows * kColumns);
    x[77] = bad;
    kernel.set(0, x);
    kernel.run();
    const std::vector<int64_t> tally = tally_of(kernel);
    EXPECT_FALSE(std::isfinite(largest_of(tally)));
    EXPECT_EQ(tally[Fp8Tally::kFlushed], 0);
    EXPECT_EQ(tally[Fp8Tally::kSaturated], 0);
  }
}

// Magnitudes smaller than those of x: the only way to saturate.
TEST(Fp8Tally, CountsWhatIsTooLargeForItsScale) {
  constexpr int64_t kElems = 70;
  const QuantizePartAttributes attributes{
      .rows = 10, .columns = 20, .block = 0, .begin = 100, .watch = {true}};
  KernelCase kernel({"quantize_part",
                     to_attributes(attributes),
                     {read(DType::kBF16, {kElems}), read(DType::kI32, {1, 1}),
                      write(DType::kF8E4M3, {kElems}), tally_spec(Fp8Tally::kSize)}});
  std::vector<double> x(kElems, 1.0);
  x[3] = 448;  // the largest with the scale 1
  x[4] = -448;
  x[5] = 450;
  x[6] = -1e30;
  x[7] = std::numeric_limits<double>::infinity();  // it was not finite before
  x[8] = 1e-6;
  kernel.set(0, x);
  kernel.set(1, {static_cast<double>(std::bit_cast<int32_t>(448.0F))});
  kernel.run();
  const std::vector<int64_t> tally = tally_of(kernel);
  EXPECT_EQ(tally[Fp8Tally::kSaturated], 2);
  EXPECT_EQ(tally[Fp8Tally::kFlushed], 1);
  EXPECT_EQ(tally[Fp8Tally::kElems], kElems);
  EXPECT_TRUE(std::isinf(largest_of(tally)));
}

}  // namespace
}  // namespace braid
