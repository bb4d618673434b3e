// The CPU's kernels are the definition: parts, magnitudes and scales must have their bits.
#include "ops/quantize_part.h"

#include <bit>

#include "support/cuda_operand_bytes.h"

namespace braid {
namespace {

using QuantizePartCudaTest = CudaKernelTest;

/// A part of a weight: whole chunks and whole blocks, a part of a row, odd sizes.
struct Part {
  int64_t rows;
  int64_t columns;
  int64_t begin;
  int64_t count;
};
constexpr Part kParts[] = {{256, 384, 0, 256 * 384},
                           {256, 384, 640, 128 * 384 + 64},
                           {300, 520, 8, 299 * 520},
                           {33, 31, 5, 700},
                           {144, 136, 144 * 136 - 1, 1}};

std::vector<std::byte> random_part(int64_t count, uint64_t seed) {
  TestRandom random(seed);
  std::vector<std::byte> bytes(static_cast<size_t>(count) * 2);
  for (int64_t i = 0; i < count; ++i) {
    const double value = random.uniform(-1, 1) * std::exp2(random.uniform(-30, 30));
    const uint16_t bits =
        random.below(3000) == 0 ? uint16_t{0x7F80} : BFloat16(static_cast<float>(value)).bits;
    std::memcpy(bytes.data() + 2 * i, &bits, sizeof(bits));
  }
  return bytes;
}

/// f32, a third of them halfway between two bf16.
std::vector<std::byte> random_main_weights(int64_t count, uint64_t seed) {
  TestRandom random(seed);
  std::vector<std::byte> bytes(static_cast<size_t>(count) * sizeof(float));
  for (int64_t i = 0; i < count; ++i) {
    const double value = random.uniform(-1, 1) * std::exp2(random.uniform(-30, 30));
    uint32_t bits = std::bit_cast<uint32_t>(static_cast<float>(value));
    bits = i % 3 == 0 ? (bits & 0xFFFF0000u) | 0x8000u : bits;
    std::memcpy(bytes.data() + static_cast<size_t>(i) * sizeof(bits), &bits, sizeof(bits));
  }
  return bytes;
}

/// Runs on poisoned results.
OperandBytes expect_bits_of_cpu(const OpSpec& spec, OperandBytes operands, CudaContext& context) {
  while (operands.size() < spec.operands.size()) {
    operands.push_back(poisoned_bytes(spec.operands[operands.size()]));
  }
  OperandBytes expected = run_on_cpu(spec, operands);
  EXPECT_TRUE(run_on_cuda(spec, operands, context) == expected) << spec.op;
  return expected;
}

TEST_F(QuantizePartCudaTest, AllResultsHaveTheBitsOfTheCpu) {
  uint64_t seed = 1;
  for (const Part& part : kParts) {
    for (const int64_t block : {0, 32, 128}) {
      const Shape blocks = magnitude_shape(part.rows, part.columns, block);
      const auto attributes = to_attributes(QuantizePartAttributes{
          .rows = part.rows, .columns = part.columns, .block = block, .begin = part.begin});
      const std::vector<std::byte> x = random_part(part.count, seed++);
      const OperandBytes found =
          expect_bits_of_cpu({"part_magnitudes",
                              attributes,
                              {read(DType::kBF16, {part.count}), write(DType::kI32, blocks)}},
                             {x}, context());
      expect_bits_of_cpu({"quantize_part",
                          attributes,
                          {read(DType::kBF16, {part.count}), read(DType::kI32, blocks),
                           write(DType::kF8E4M3, {part.count})}},
                         {x, found[1]}, context());
      const ScaleLayout scales{.block = block, .square = block != 0};
      expect_bits_of_cpu({"scales_of_magnitudes",
                          to_attributes(MagnitudeScalesAttributes{
                              .rows = part.rows, .columns = part.columns, .block = block}),
                          {read(DType::kI32, blocks),
                           write(scales.dtype(), scales.shape({part.rows, part.columns})),
                           write(scales.dtype(), scales.shape({part.columns, part.rows}))}},
                         {found[1]}, context());
    }
  }
}

TEST_F(QuantizePartCudaTest, PartsOfMainWeightsHaveTheBitsOfTheCpu) {
  uint64_t seed = 1;
  for (const Part& part : kParts) {
    for (const int64_t block : {0, 32, 128}) {
      for (const bool watch : {false, true}) {
        const Shape blocks = magnitude_shape(part.rows, part.columns, block);
        QuantizePartAttributes attributes{.rows = part.rows,
                                          .columns = part.columns,
                                          .block = block,
                                          .begin = part.begin,
                                          .rounds = {true}};
        const std::vector<std::byte> x = random_main_weights(part.count, seed++);
        const OperandBytes found =
            expect_bits_of_cpu({"part_magnitudes",
                                to_attributes(attributes),
                                {read(DType::kF32, {part.count}), write(DType::kI32, blocks)}},
                               {x}, context());
        attributes.watch = {watch};
        OpSpec spec{"quantize_part",
                    to_attributes(attributes),
                    {read(DType::kF32, {part.count}), read(DType::kI32, blocks),
                     write(DType::kF8E4M3, {part.count})}};
        OperandBytes operands{x, found[1], poisoned_bytes(spec.operands[2])};
        if (watch) {
          spec.operands.push_back(tally_spec(Fp8Tally::kSize));
          operands.emplace_back(Fp8Tally::kSize * sizeof(int64_t));
        }
        expect_bits_of_cpu(spec, std::move(operands), context());
      }
    }
  }
}

// Magnitudes of the part, and smaller ones, for which elements saturate.
TEST_F(QuantizePartCudaTest, TalliesHaveTheNumbersOfTheCpu) {
  uint64_t seed = 1;
  for (const Part& part : kParts) {
    for (const int64_t block : {0, 32, 128}) {
      const Shape blocks = magnitude_shape(part.rows, part.columns, block);
      const OpSpec spec{"quantize_part",
                        to_attributes(QuantizePartAttributes{.rows = part.rows,
                                                             .columns = part.columns,
                                                             .block = block,
                                                             .begin = part.begin,
                                                             .watch = {true}}),
                        {read(DType::kBF16, {part.count}), read(DType::kI32, blocks),
                         write(DType::kF8E4M3, {part.count}), tally_spec(Fp8Tally::kSize)}};
      for (const float magnitude : {1e-3F, 448.0F, 1e30F}) {
        std::vector<std::byte> magnitudes(static_cast<size_t>(blocks.num_elems()) *
                                          sizeof(magnitude));
        for (size_t i = 0; i < magnitudes.size(); i += sizeof(magnitude)) {
          std::memcpy(magnitudes.data() + i, &magnitude, sizeof(magnitude));
        }
        std::vector<std::byte> tally(Fp8Tally::kSize * sizeof(int64_t));
        tally[8] = std::byte{200};  // flushed before
        expect_bits_of_cpu(
            spec,
            {random_part(part.count, seed++), magnitudes, poisoned_bytes(spec.operands[2]), tally},
            context());
      }
    }
  }
}

TEST_F(QuantizePartCudaTest, TransposesBytes) {
  for (const auto& [rows, columns] :
       {std::pair<int64_t, int64_t>{1, 1}, {33, 31}, {4, 132}, {128, 128}, {300, 520}, {260, 7}}) {
    expect_bits_of_cpu(
        {"transpose",
         {},
         {read(DType::kF8E4M3, {rows, columns}), write(DType::kF8E4M3, {columns, rows})}},
        {random_part((rows * columns + 1) / 2, 3)}, context());
  }
}

}  // namespace
}  // namespace braid
