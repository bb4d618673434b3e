#include "ops/quantize.h"

#include "ops/attributes.h"
#include "ops/norm.h"
#include "ops/specs.h"

namespace braid {
namespace {

constexpr int64_t kValueRows = 256;
constexpr int64_t kValueColumns = 384;
const Shape kValue{kValueRows, kValueColumns};

/// The copy by rows of a matrix [kValueRows, kValueColumns] that a source makes of these operands.
OpSpec copies_of(int64_t block, const SourceAttribute& source, std::vector<OperandSpec> operands) {
  const QuantizeAttributes attributes{.block = block, .column = false, .source = source};
  const ScaleLayout scales = attributes.scales();
  operands.push_back(write(DType::kF8E4M3, kValue));
  operands.push_back(write(scales.dtype(), scales.shape(kValue)));
  OpSpec spec{"quantize", to_attributes(attributes), std::move(operands)};
  check_spec(spec);
  return spec;
}

OpSpec copies_of_norm(int64_t block) {
  const OperandSpec x = read(DType::kBF16, kValue);
  const OperandSpec w = read(DType::kBF16, {kValueColumns});
  const OperandSpec statistic = write(DType::kF32, {kValueRows});
  return copies_of(block, {"add_layernorm", to_attributes(NormAttributes{.epsilon = 1e-3})},
                   {x, x, w, w, write(DType::kBF16, kValue), statistic, statistic});
}

TEST(QuantizeSource, IsTheOpWithItsResult) {
  const OpSpec source = *quantize_source(copies_of_norm(128));
  EXPECT_NO_THROW(check_spec(source));
  EXPECT_EQ(source.op, "add_layernorm");
  EXPECT_EQ(source.attributes, to_attributes(NormAttributes{.epsilon = 1e-3}));
  EXPECT_EQ(source.operands.at(5), write(DType::kBF16, kValue));  // y
  EXPECT_EQ(quantize_source(copies_of(128, {}, {read(DType::kBF16, kValue)})), std::nullopt);
}

// One scale for all takes a pass of its own, unless the op's rows take one anyway.
TEST(BytesReadAgain, OfFp8Copies) {
  constexpr double kBytes = 2.0 * kValueRows * kValueColumns;
  const auto of_stored = [](int64_t block) {
    return bytes_read_again(copies_of(block, {}, {read(DType::kBF16, kValue)}));
  };
  const auto of_swiglu = [](int64_t block) {
    return bytes_read_again(
        copies_of(block, {"swiglu"}, {read(DType::kBF16, {kValueRows, 2 * kValueColumns})}));
  };
  for (const int64_t block : {0, 32, 128}) {
    EXPECT_EQ(of_stored(block), block == 0 ? kBytes : 0);
    EXPECT_EQ(of_swiglu(block), block == 0 ? 2 * kBytes : 0);
    EXPECT_EQ(bytes_read_again(copies_of_norm(block)), kBytes);
  }
  EXPECT_EQ(bytes_read_again({"gelu", {}, {read(DType::kF32, {1}), write(DType::kF32, {1})}}), 0);
}

}  // namespace
}  // namespace braid
