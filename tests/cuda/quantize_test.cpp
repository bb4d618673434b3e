// The CPU's kernel is the definition: copies and scales must have its bits.
#include "ops/quantize.h"

#include <bit>
#include <cstring>
#include <functional>

#include "support/cuda_operand_bytes.h"
#include "support/quantize_cases.h"

namespace braid {
namespace {

using QuantizeCudaTest = CudaKernelTest;

/// One block, less than a block, odd sizes, whole vectors with blocks that are cut off, and whole
/// blocks.
constexpr std::pair<int64_t, int64_t> kSizes[] = {
    {1, 1}, {7, 3}, {33, 31}, {129, 130}, {16, 8}, {144, 136}, {272, 264}, {300, 520}, {256, 384}};

struct Form {
  int64_t block;
  bool square;
};
constexpr Form kForms[] = {{0, false}, {32, false}, {32, true}, {128, false}, {128, true}};

std::string name_of(const OpSpec& spec) {
  const Shape x = quantized_value(spec).shape;
  const auto attributes = attributes_of<QuantizeAttributes>(spec);
  return fmt::format("{} {} x {} block {}{}{}{}{}", spec.op, x[0], x[1], attributes.block,
                     attributes.square ? " square" : "", attributes.row ? " row" : "",
                     attributes.column ? " column" : "", attributes.has_bias ? " db" : "") +
         (attributes.watch.watch ? " watch" : "");
}

OpSpec quantize_spec(int64_t rows, int64_t columns, const QuantizeAttributes& attributes,
                     DType row_format = DType::kF8E4M3, DType column_format = DType::kF8E4M3) {
  return quantize_spec(attributes, {read(DType::kBF16, {rows, columns})}, {rows, columns},
                       row_format, column_format);
}

std::vector<std::byte> bytes_of(const std::vector<uint16_t>& bits) {
  std::vector<std::byte> bytes(bits.size() * sizeof(uint16_t));
  std::memcpy(bytes.data(), bits.data(), bytes.size());
  return bytes;
}

/// Written operands are poisoned; what is added to is zero.
OperandBytes operands_with(const OpSpec& spec, std::vector<std::byte> x) {
  OperandBytes operands{std::move(x)};
  for (size_t i = 1; i < spec.operands.size(); ++i) {
    operands.push_back(poisoned_bytes(spec.operands[i]));
    if (reads(spec.operands[i].access)) {
      std::fill(operands[i].begin(), operands[i].end(), std::byte{0});
    }
  }
  return operands;
}

/// Elements of magnitudes from 2^-30 to 2^30, and every 64th row of zeros.
std::vector<std::byte> random_x(int64_t rows, int64_t columns, uint64_t seed) {
  TestRandom random(seed);
  std::vector<uint16_t> bits;
  for (int64_t i = 0; i < rows * columns; ++i) {
    const double exponent = random.uniform(-30, 30);
    const auto value = static_cast<float>(random.uniform(-1, 1) * std::exp2(exponent));
    bits.push_back(i / columns % 64 == 5 ? uint16_t{0} : BFloat16(value).bits);
  }
  return bytes_of(bits);
}

/// Index of the operand that has sums, which are compared with a tolerance.
int sums_of(const OpSpec& spec) {
  return QuantizeOperands(attributes_of<QuantizeAttributes>(spec)).db;
}

void expect_equal_to_cpu(const OpSpec& spec, const std::vector<std::byte>& x,
                         CudaContext& context) {
  const OperandBytes operands = operands_with(spec, x);
  const OperandBytes expected = run_on_cpu(spec, operands);
  const OperandBytes actual = run_on_cuda(spec, operands, context);
  for (size_t i = 1; i < actual.size(); ++i) {
    if (static_cast<int>(i) == sums_of(spec)) {
      continue;
    }
    const auto [a, b] = std::mismatch(actual[i].begin(), actual[i].end(), expected[i].begin());
    EXPECT_TRUE(a == actual[i].end())
        << name_of(spec) << " operand " << i << " byte " << a - actual[i].begin() << " of "
        << actual[i].size() << ": " << std::to_integer<int>(*a) << ", expected "
        << std::to_integer<int>(*b);
  }
  EXPECT_TRUE(run_on_cuda(spec, operands, context) == actual) << name_of(spec) << ": other bits";
}

TEST_F(QuantizeCudaTest, CopiesHaveTheBitsOfTheCpu) {
  uint64_t seed = 1;
  for (const auto& [rows, columns] : kSizes) {
    const std::vector<std::byte> x = random_x(rows, columns, seed++);
    for (const Form& form : kForms) {
      for (const auto& [row, column] : {std::pair(true, false), {false, true}, {true, true}}) {
        expect_equal_to_cpu(
            quantize_spec(
                rows, columns,
                {.block = form.block, .square = form.square, .row = row, .column = column}),
            x, context());
      }
    }
  }
}

TEST_F(QuantizeCudaTest, CopiesMayHaveDifferentFormats) {
  const std::vector<std::byte> x = random_x(272, 264, 1);
  for (const Form& form : kForms) {
    for (const auto& [row, column] : {std::pair(DType::kF8E5M2, DType::kF8E4M3),
                                      {DType::kF8E4M3, DType::kF8E5M2},
                                      {DType::kF8E5M2, DType::kF8E5M2}}) {
      OpSpec spec =
          quantize_spec(272, 264, {.block = form.block, .square = form.square}, row, column);
      spec.op = "quantize_weight";
      expect_equal_to_cpu(spec, x, context());
    }
  }
}

/// f32 of magnitudes from 2^-30 to 2^30, every seventh halfway between two bf16; with `bad`, some
/// rows have infinity or NaN.
std::vector<std::byte> random_main_weights(int64_t count, bool bad, uint64_t seed) {
  TestRandom random(seed);
  std::vector<std::byte> bytes(static_cast<size_t>(count) * sizeof(float));
  for (int64_t i = 0; i < count; ++i) {
    const auto value =
        static_cast<float>(random.uniform(-1, 1) * std::exp2(random.uniform(-30, 30)));
    uint32_t bits = std::bit_cast<uint32_t>(value);
    bits = i % 7 == 0 ? (bits & 0xFFFF0000u) | 0x8000u : bits;
    bits = bad && i % 5000 == 77 ? (i % 2 == 0 ? 0x7F800000u : 0xFFC00001u) : bits;
    std::memcpy(bytes.data() + static_cast<size_t>(i) * sizeof(bits), &bits, sizeof(bits));
  }
  return bytes;
}

TEST_F(QuantizeCudaTest, CopiesOfMainWeightsHaveTheBitsOfTheCpu) {
  uint64_t seed = 1;
  for (const auto& [rows, columns] : kSizes) {
    for (const auto& [block, square] :
         {Form{0, false}, Form{32, false}, Form{32, true}, Form{128, true}}) {
      for (const bool column : {false, true}) {
        for (const bool watch : {false, true}) {
          OpSpec spec = quantize_spec(QuantizeAttributes{.block = block,
                                                         .square = square,
                                                         .column = column,
                                                         .rounds = {true},
                                                         .watch = {watch}},
                                      {read(DType::kF32, {rows, columns})}, {rows, columns});
          spec.op = "quantize_weight";
          // Without NaN where there is a tally: its payload in bf16 is the device's own.
          const bool bad = column && !watch;
          expect_equal_to_cpu(spec, random_main_weights(rows * columns, bad, seed++), context());
        }
      }
    }
  }
}

/// All bit patterns in an order that `place` gives.
std::vector<std::byte> all_patterns(const std::function<uint32_t(uint32_t)>& place) {
  std::vector<uint16_t> bits(65536);
  for (uint32_t i = 0; i < bits.size(); ++i) {
    bits[i] = static_cast<uint16_t>(place(i));
  }
  return bytes_of(bits);
}

// In order, blocks along rows share an exponent; in a mixed order, a block has magnitudes of all
// sizes and often infinities; and numbers alone, so that one scale for all is finite.
TEST_F(QuantizeCudaTest, AllBitPatternsHaveTheBitsOfTheCpu) {
  const auto is_number = [](uint32_t bits) { return (bits & 0x7F80u) != 0x7F80u; };
  const std::vector<std::vector<std::byte>> orders = {
      all_patterns([](uint32_t i) { return i; }),
      all_patterns([](uint32_t i) { return i * 40503u; }),
      all_patterns([&](uint32_t i) { return is_number(i) ? i : 0x8000u; }),
      all_patterns([&](uint32_t i) { return is_number(i * 40503u) ? i * 40503u : 1u; })};
  for (const std::vector<std::byte>& x : orders) {
    for (const Form& form : kForms) {
      for (const DType format : {DType::kF8E4M3, DType::kF8E5M2}) {
        expect_equal_to_cpu(
            quantize_spec(256, 256, {.block = form.block, .square = form.square}, format, format),
            x, context());
      }
    }
  }
}

TEST_F(QuantizeCudaTest, TalliesHaveTheNumbersOfTheCpu) {
  uint64_t seed = 1;
  for (const auto& [rows, columns] : kSizes) {
    const std::vector<std::byte> x = random_x(rows, columns, seed++);
    for (const Form& form : kForms) {
      for (const auto& [row, column] : {std::pair(true, false), {false, true}, {true, true}}) {
        for (const DType format : {DType::kF8E4M3, DType::kF8E5M2}) {
          const QuantizeAttributes attributes{.block = form.block,
                                              .square = form.square,
                                              .row = row,
                                              .column = column,
                                              .has_bias = rows > 128,
                                              .watch = {true}};
          expect_equal_to_cpu(quantize_spec(rows, columns, attributes, format, format), x,
                              context());
        }
      }
    }
  }
}

// What a tally has before, and elements of all kinds.
TEST_F(QuantizeCudaTest, TalliesAreAddedTo) {
  const std::vector<std::byte> x = all_patterns([](uint32_t i) { return i * 40503u; });
  for (const Form& form : kForms) {
    const OpSpec spec =
        quantize_spec(256, 256, {.block = form.block, .square = form.square, .watch = {true}});
    expect_equal_to_cpu(spec, x, context());
    for (const int64_t largest : {int64_t{1}, int64_t{0x7FFF'FFFF}}) {
      OperandBytes operands = operands_with(spec, x);
      const int64_t before[] = {largest, int64_t{1} << 40, 5, int64_t{1} << 33};
      std::memcpy(operands.back().data(), before, sizeof(before));
      EXPECT_TRUE(run_on_cuda(spec, operands, context()).back() ==
                  run_on_cpu(spec, operands).back())
          << name_of(spec);
    }
  }
}

TEST_F(QuantizeCudaTest, ABlockThatIsNotFiniteHasTheBitsOfTheCpu) {
  constexpr int64_t kRows = 272;
  constexpr int64_t kColumns = 264;
  for (const uint16_t bits : {uint16_t{0x7F80}, uint16_t{0xFF80}, uint16_t{0x7FC0},
                              uint16_t{0xFF81}, uint16_t{0x7F7F}, uint16_t{0x0001}}) {
    for (const int64_t at : {int64_t{0}, 130 * kColumns + 200, kRows * kColumns - 1}) {
      std::vector<std::byte> x = random_x(kRows, kColumns, 1);
      std::memcpy(x.data() + at * 2, &bits, sizeof(bits));
      for (const Form& form : kForms) {
        expect_equal_to_cpu(
            quantize_spec(kRows, kColumns, {.block = form.block, .square = form.square}), x,
            context());
      }
    }
  }
}

TEST_F(QuantizeCudaTest, ZerosHaveTheScaleOne) {
  for (const Form& form : kForms) {
    const OpSpec spec = quantize_spec(144, 136, {.block = form.block, .square = form.square});
    expect_equal_to_cpu(spec, std::vector<std::byte>(144 * 136 * 2), context());
  }
}

TEST_F(QuantizeCudaTest, SumsOfColumnsAreThoseOfX) {
  for (const auto& [rows, columns] : kSizes) {
    TestRandom random(2);
    std::vector<uint16_t> bits;
    std::vector<double> sums(static_cast<size_t>(columns));
    for (int64_t i = 0; i < rows * columns; ++i) {
      const BFloat16 value(static_cast<float>(random.uniform(-1, 1)));
      bits.push_back(value.bits);
      sums[static_cast<size_t>(i % columns)] += static_cast<double>(static_cast<float>(value));
    }
    for (const Form& form : kForms) {
      for (const bool column : {false, true}) {
        for (const bool accumulate : {false, true}) {
          const OpSpec spec = quantize_spec(rows, columns,
                                            {.block = form.block,
                                             .square = form.square,
                                             .column = column,
                                             .has_bias = true,
                                             .accumulate = accumulate});
          expect_equal_to_cpu(spec, bytes_of(bits), context());
          OperandBytes operands = operands_with(spec, bytes_of(bits));
          std::vector<double> expected = sums;
          if (accumulate) {
            for (size_t i = 0; i < sums.size(); ++i) {
              store_double(DType::kF32, operands.back().data() + i * sizeof(float), 1.0);
              expected[i] += 1.0;
            }
          }
          expect_close(to_doubles(DType::kF32, run_on_cuda(spec, operands, context()).back()),
                       expected, sum_tolerance(DType::kF32, static_cast<double>(rows + 1)),
                       name_of(spec));
        }
      }
    }
  }
}

/// The operands that the fused spec would have after a run, from a run of its source that stores
/// its result, and one of the copies of that, on the device.
OperandBytes run_unfused(const OpSpec& fused, const OperandBytes& operands, CudaContext& context) {
  const OpSpec source = *quantize_source(fused);
  const auto result = static_cast<ptrdiff_t>(find_op(source.op).source.result);
  const auto num_operands = static_cast<ptrdiff_t>(source.operands.size()) - 1;
  OperandBytes of_source(operands.begin(), operands.begin() + num_operands);
  of_source.insert(of_source.begin() + result, poisoned_bytes(source.operands[result]));
  of_source = run_on_cuda(source, of_source, context);
  OpSpec copies = fused;
  auto attributes = attributes_of<QuantizeAttributes>(fused);
  attributes.source = {};
  copies.attributes = to_attributes(attributes);
  copies.operands.erase(copies.operands.begin(), copies.operands.begin() + num_operands);
  copies.operands.insert(copies.operands.begin(), read(DType::kBF16, quantized_value(fused).shape));
  OperandBytes stored = {of_source[result]};
  stored.insert(stored.end(), operands.begin() + num_operands, operands.end());
  stored = run_on_cuda(copies, stored, context);
  of_source.erase(of_source.begin() + result);
  of_source.insert(of_source.end(), stored.begin() + 1, stored.end());
  return of_source;
}

/// Inputs of ordinary sizes, some with an infinity or a NaN.
OperandBytes operands_of_source(const OpSpec& spec, uint64_t seed) {
  const size_t num_operands = quantize_source(spec)->operands.size() - 1;
  OperandBytes operands;
  TestRandom random(seed);
  for (size_t i = 0; i < spec.operands.size(); ++i) {
    const bool is_written = writes(spec.operands[i].access);
    if (is_written || i >= num_operands) {
      operands.push_back(poisoned_bytes(spec.operands[i]));
      if (reads(spec.operands[i].access)) {
        std::fill(operands[i].begin(), operands[i].end(), std::byte{0});
      }
      continue;
    }
    std::vector<uint16_t> bits;
    for (int64_t e = 0; e < spec.operands[i].shape.num_elems(); ++e) {
      bits.push_back(BFloat16(static_cast<float>(random.uniform(-6, 6))).bits);
    }
    if (seed % 3 == 0) {
      bits[bits.size() / 3] = i == 0 ? 0x7F80 : 0x7FC0;
    }
    operands.push_back(bytes_of(bits));
  }
  return operands;
}

/// The first words of 8 bytes that differ, with their places.
std::string differing_words(const std::vector<std::byte>& is,
                            const std::vector<std::byte>& wanted) {
  std::string text;
  for (size_t i = 0; i + 8 <= is.size() && text.size() < 200; i += 8) {
    uint64_t a = 0;
    uint64_t b = 0;
    std::memcpy(&a, &is[i], 8);
    std::memcpy(&b, &wanted[i], 8);
    text += a == b ? "" : fmt::format("[{}] {} instead of {} ", i / 8, a, b);
  }
  return text;
}

// The device's own rounding of the source: its exponential is not the CPU's.
TEST_F(QuantizeCudaTest, CopiesOfASourceHaveTheBitsOfItsStoredResult) {
  uint64_t seed = 1;
  for (const std::string& of : kQuantizeSources) {
    for (const auto& [rows, columns] : {std::pair<int64_t, int64_t>{1, 2},
                                        {33, 30},
                                        {129, 130},
                                        {16, 16},
                                        {272, 264},
                                        {256, 384},
                                        {16, 4104}}) {  // a norm's threads have more of a row
      for (const int64_t block : {0, 32, 128}) {
        for (const bool is_full : {false, true}) {
          const QuantizeAttributes attributes{.block = block,
                                              .row = is_full || columns != 264,
                                              .column = is_full,
                                              .has_bias = is_full && rows > 100,
                                              .source = {of},
                                              .watch = {is_full && rows != 129}};
          if (!attributes.row && !attributes.column) {
            continue;
          }
          const OpSpec spec = quantize_of_source(attributes, DType::kBF16, rows, columns);
          const OperandBytes operands = operands_of_source(spec, seed++);
          const OperandBytes fused = run_on_cuda(spec, operands, context());
          const OperandBytes expected = run_unfused(spec, operands, context());
          for (size_t i = 0; i < expected.size(); ++i) {
            EXPECT_TRUE(fused[i] == expected[i])
                << of << " " << rows << " x " << columns << " block " << block << " operand " << i
                << ": " << differing_words(fused[i], expected[i]);
          }
          EXPECT_TRUE(run_on_cuda(spec, operands, context()) == fused) << of << ": other bits";
        }
      }
    }
  }
}

TEST_F(QuantizeCudaTest, RefusesRowsThatANormCannotHold) {
  const QuantizeAttributes attributes{.source = {"rmsnorm"}};
  EXPECT_NO_THROW(
      make_cuda_kernel(quantize_of_source(attributes, DType::kBF16, 1, 32768), context()));
  EXPECT_THROW(make_cuda_kernel(quantize_of_source(attributes, DType::kBF16, 1, 32776), context()),
               InternalError);
}

TEST_F(QuantizeCudaTest, RefusesF32) {
  OpSpec spec = quantize_spec(16, 16, {});
  spec.operands[0].dtype = DType::kF32;
  EXPECT_THROW(make_cuda_kernel(spec, context()), InternalError);
}

}  // namespace
}  // namespace braid
