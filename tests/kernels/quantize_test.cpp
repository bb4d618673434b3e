#include "ops/quantize.h"

#include <bit>
#include <cmath>
#include <limits>
#include <optional>
#include <set>

#include "base/float8.h"
#include "support/quantize_cases.h"

namespace braid {
namespace {

struct Sizes {
  int64_t rows;
  int64_t columns;
};

constexpr Sizes kAwkward[] = {{1, 1}, {3, 129}, {130, 31}, {257, 260}};

struct Form {
  int64_t block = 128;
  bool square = false;
  DType format = DType::kF8E4M3;
};

constexpr Form kForms[] = {{.block = 128},
                           {.block = 128, .square = true},
                           {.block = 32},
                           {.block = 32, .square = true},
                           {.block = 0},
                           {.block = 0, .format = DType::kF8E5M2},
                           {.block = 128, .format = DType::kF8E5M2}};

KernelCase quantize_case(DType dtype, Sizes s, const Form& form,
                         std::optional<bool> accumulates_bias = {}) {
  const ScaleLayout scales{.block = form.block, .square = form.square};
  const Shape row{s.rows, s.columns};
  const Shape column{s.columns, s.rows};
  std::vector<OperandSpec> operands = {
      read(dtype, row), write(form.format, row), write(scales.dtype(), scales.shape(row)),
      write(form.format, column), write(scales.dtype(), scales.shape(column))};
  if (accumulates_bias) {
    operands.push_back(gradient(*accumulates_bias, DType::kF32, {s.columns}));
  }
  return KernelCase(
      {"quantize",
       to_attributes(QuantizeAttributes{.block = form.block,
                                        .square = form.square,
                                        .has_bias = accumulates_bias.has_value(),
                                        .accumulate = accumulates_bias.value_or(true)}),
       std::move(operands)});
}

/// Values of very different sizes: a block of small ones must not be lost beside large ones.
std::vector<double> uneven_values(int64_t count, uint64_t seed) {
  TestRandom random(seed);
  std::vector<double> values;
  for (int64_t i = 0; i < count; ++i) {
    values.push_back(std::ldexp(random.uniform(-1, 1), static_cast<int>(random.below(20)) - 10));
  }
  return values;
}

/// The index of the scale of element (r, d) of a copy [rows, depth].
size_t scale_index(const Form& form, const Shape& copy, int64_t r, int64_t d) {
  if (form.block == 0) {
    return 0;
  }
  const ScaleLayout layout{.block = form.block, .square = form.square};
  const Shape shape = layout.shape(copy);
  return static_cast<size_t>(layout.stores_squares() ? r / form.block * shape[1] + d / form.block
                                                     : d / form.block * shape[1] + r);
}

/// The first row of the block of row r.
int64_t first_row(const Form& form, int64_t r) {
  return form.square ? r / form.block * form.block : r;
}

/// Checks a copy [rows, depth] of `x`, whose element (r, d) is value(r, d).
template <class ValueAt>
void check_copy(const KernelCase& kernel, size_t operand, const Form& form, const ValueAt& value) {
  const Shape shape = kernel.spec().operands[operand].shape;
  const std::vector<double> copy = kernel.values(operand);
  const std::vector<double> scales = kernel.values(operand + 1);
  std::vector<double> largest(scales.size(), 0.0);
  for (int64_t r = 0; r < shape[0]; ++r) {
    for (int64_t d = 0; d < shape[1]; ++d) {
      double& it = largest[scale_index(form, shape, first_row(form, r), d)];
      it = std::max(it, std::abs(value(r, d)));
    }
  }
  const double max = form.format == DType::kF8E5M2 ? 57344 : 448;
  for (size_t i = 0; i < scales.size(); ++i) {
    if (largest[i] > 0) {
      EXPECT_LE(largest[i], max * scales[i]);
      EXPECT_GT(2 * largest[i], max * scales[i]);
    }
  }
  for (int64_t r = 0; r < shape[0]; ++r) {
    for (int64_t d = 0; d < shape[1]; ++d) {
      const double scale = scales[scale_index(form, shape, r, d)];
      EXPECT_EQ(scale, scales[scale_index(form, shape, first_row(form, r), d)]);
      EXPECT_EQ(copy[static_cast<size_t>(r * shape[1] + d)],
                rounded_to(form.format, value(r, d) / scale))
          << r << ", " << d;
    }
  }
}

void check_both(DType dtype, Sizes s, const Form& form, int num_workers) {
  KernelCase kernel = quantize_case(dtype, s, form);
  kernel.set(0, uneven_values(s.rows * s.columns, 7));
  kernel.run(num_workers);
  const std::vector<double> x = kernel.values(0);
  check_copy(kernel, 1, form,
             [&](int64_t r, int64_t d) { return x[static_cast<size_t>(r * s.columns + d)]; });
  check_copy(kernel, 3, form,
             [&](int64_t r, int64_t d) { return x[static_cast<size_t>(d * s.columns + r)]; });
}

TEST(Quantize, EveryFormOfAwkwardShapes) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const Sizes& sizes : kAwkward) {
      for (const Form& form : kForms) {
        check_both(dtype, sizes, form, dtype == DType::kF32 ? 1 : 3);
      }
    }
  }
}

TEST(Quantize, ZeroPaddingOfSquareScales) {
  KernelCase kernel = quantize_case(DType::kBF16, {130, 260}, {.square = true});
  kernel.run();
  const std::vector<double> scales = kernel.values(2);
  ASSERT_EQ(scales.size(), 8u);  // 2 x 3 blocks, and one for alignment
  EXPECT_EQ(scales[3], 0.0);
  EXPECT_EQ(scales[7], 0.0);
  EXPECT_GT(scales[6], 0.0);
}

TEST(Quantize, BlockWithInfinityOrNaNIsNaN) {
  for (const double bad :
       {std::numeric_limits<double>::infinity(), -std::numeric_limits<double>::infinity(),
        std::numeric_limits<double>::quiet_NaN()}) {
    KernelCase kernel = quantize_case(DType::kBF16, {2, 256}, {});
    std::vector<double> x = uneven_values(512, 3);
    x[128 + 5] = bad;
    kernel.set(0, x);
    kernel.run();
    const std::vector<double> row = kernel.values(1);
    const std::vector<double> scales = kernel.values(2);  // [2 blocks, 2 rows]
    EXPECT_TRUE(std::isnan(scales[2]));
    EXPECT_FALSE(std::isnan(scales[0]) || std::isnan(scales[1]) || std::isnan(scales[3]));
    for (size_t i = 0; i < row.size(); ++i) {
      EXPECT_EQ(std::isnan(row[i]), i >= 128 && i < 256) << i;
    }
  }
}

TEST(Quantize, ZerosHaveTheScaleOne) {
  for (const Form& form : kForms) {
    KernelCase kernel = quantize_case(DType::kF32, {4, 64}, form);
    kernel.set_all(0, 0.0);
    kernel.run();
    EXPECT_EQ(kernel.values(1), std::vector<double>(256, 0.0));
    EXPECT_EQ(kernel.values(2)[0], 1.0);
  }
}

// Row blocks of one rank's rows are those of all rows, so ranks need not agree on anything.
TEST(Quantize, PartOfTheRowsHasTheBitsOfTheWhole) {
  for (const int64_t block : {32, 128}) {
    const Form form{.block = block};
    KernelCase whole = quantize_case(DType::kBF16, {256, 128}, form);
    KernelCase part = quantize_case(DType::kBF16, {128, 128}, form);
    const std::vector<double> x = uneven_values(256 * 128, 11);
    whole.set(0, x);
    part.set(0, {x.begin() + 128 * 128, x.end()});
    whole.run();
    part.run();
    const std::vector<double> rows = whole.values(1);
    EXPECT_EQ(part.values(1), std::vector<double>(rows.begin() + 128 * 128, rows.end()));
    const std::vector<double> columns = whole.values(3);
    const std::vector<double> own = part.values(3);
    for (size_t c = 0; c < 128; ++c) {
      for (size_t r = 0; r < 128; ++r) {
        ASSERT_EQ(own[c * 128 + r], columns[c * 256 + 128 + r]);
      }
    }
  }
}

TEST(Quantize, SumsColumnsForTheBias) {
  for (const bool accumulate : {false, true}) {
    const Sizes s{67, 33};
    KernelCase kernel = quantize_case(DType::kBF16, s, {}, accumulate);
    std::vector<double> expected = accumulate ? kernel.values(5) : std::vector<double>(33, 0.0);
    const std::vector<double> x = kernel.values(0);
    for (size_t i = 0; i < x.size(); ++i) {
      expected[i % 33] += x[i];
    }
    kernel.run(2);
    expect_close(kernel.values(5), expected, {.absolute = 1e-5, .relative = 1e-5});
  }
}

/// Runs the source, and then the copies of its stored result; expects the bits of `fused`, which
/// has run.
void expect_copies_of_stored(const KernelCase& fused, QuantizeAttributes attributes) {
  KernelCase source(*quantize_source(fused.spec()));
  const size_t result = find_op(source.spec().op).source.result;
  const size_t num_operands = source.spec().operands.size() - 1;
  for (size_t i = 0; i < num_operands; ++i) {
    if (reads(fused.spec().operands[i].access)) {
      source.set(operand_of_source(fused.spec(), i), fused.values(i));
    }
  }
  source.run();
  for (size_t i = 0; i < num_operands; ++i) {
    EXPECT_TRUE(source.bytes(operand_of_source(fused.spec(), i)) == fused.bytes(i))
        << source.spec().op << " operand " << i;
  }
  const OperandSpec& stored = source.spec().operands[result];
  attributes.source = {};
  KernelCase copies(quantize_spec(attributes, {read(stored.dtype, stored.shape)}, stored.shape));
  copies.set(0, source.values(result));
  if (attributes.has_bias) {
    copies.set_all(5, 0.25);
  }
  copies.run();
  for (size_t i = 1; i < copies.spec().operands.size(); ++i) {
    EXPECT_TRUE(copies.bytes(i) == fused.bytes(i + num_operands - 1))
        << source.spec().op << " operand " << i;
  }
}

// So that those below, and GPU tests, leave none out.
TEST(Quantize, SourcesAreAllOpsWithSourceTraits) {
  std::set<std::string> with_traits;
  for (const OpDefinition* const op : all_ops()) {
    if (find_source_traits(op->name) != nullptr) {
      with_traits.emplace(op->name);
    }
  }
  EXPECT_EQ(with_traits, std::set<std::string>(kQuantizeSources.begin(), kQuantizeSources.end()));
}

TEST(Quantize, OfTheResultOfAnOpAsOfTheStoredOne) {
  for (const std::string& of : kQuantizeSources) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      for (const int64_t block : {0, 32, 128}) {
        const QuantizeAttributes attributes{
            .block = block, .has_bias = block == 128, .source = {of}};
        KernelCase fused(quantize_of_source(attributes, dtype, 130, 262));
        const size_t num_operands = quantize_source(fused.spec())->operands.size() - 1;
        for (size_t i = 0; i < num_operands; ++i) {
          if (reads(fused.spec().operands[i].access)) {
            fused.set(i, uneven_values(fused.num_elems(i), 11 + i));
          }
        }
        if (attributes.has_bias) {
          fused.set_all(num_operands + 4, 0.25);
        }
        fused.run(2);
        expect_copies_of_stored(fused, attributes);
      }
    }
  }
}

TEST(Quantize, ReplayOfCopiesOfANormHasTheirBits) {
  for (const char* const of : {"add_rmsnorm", "add_layernorm"}) {
    KernelCase original(quantize_of_source({.source = {of}}, DType::kBF16, 130, 262));
    original.run(2);
    KernelCase replay = replay_of(original);
    EXPECT_LT(replay.spec().operands.size(), original.spec().operands.size());
    replay.run(2);
    expect_replayed(replay, original, of);
  }
}

TEST(Quantize, RefusesAnOpThatItCannotDo) {
  OpSpec spec = quantize_of_source({.source = {"gelu"}}, DType::kBF16, 16, 16);
  spec.attributes = to_attributes(QuantizeAttributes{.source = {"rope"}});
  EXPECT_THROW(check_spec(spec), InternalError);
  // An input of another width than the source needs.
  spec = quantize_of_source({.source = {"swiglu_backward"}}, DType::kBF16, 16, 16);
  spec.operands[1] = read(DType::kBF16, {16, 16});
  EXPECT_THROW(check_spec(spec), InternalError);
}

}  // namespace
}  // namespace braid
