#include "ops/quantize.h"

#include <set>

#include "support/quantize_cases.h"

namespace braid {
namespace {

// The kernels of both backends are tested with these.
TEST(QuantizeSources, AreAllOpsWithSourceTraits) {
  std::set<std::string> with_traits;
  for (const OpDefinition* const op : all_ops()) {
    if (find_source_traits(op->name) != nullptr) {
      with_traits.emplace(op->name);
    }
  }
  EXPECT_EQ(with_traits, std::set<std::string>(kQuantizeSources.begin(), kQuantizeSources.end()));
}

TEST(QuantizeSource, IsTheOpWithItsResult) {
  const OpSpec fused = quantize_of_source({.source = {"add_layernorm"}}, DType::kBF16, 256, 384);
  const OpSpec source = *quantize_source(fused);
  EXPECT_NO_THROW(check_spec(source));
  EXPECT_EQ(source.attributes, to_attributes(NormAttributes{}));
  EXPECT_EQ(source.operands[5], write(DType::kBF16, {256, 384}));  // y
  EXPECT_EQ(quantize_source(quantize_spec({}, {read(DType::kBF16, {2, 2})}, {2, 2})), std::nullopt);
}

// One scale for all takes a pass of its own, unless the op's rows do so anyway.
TEST(BytesReadAgain, OfFp8Copies) {
  const auto of = [](const std::string& source, int64_t block) {
    return bytes_read_again(
        quantize_of_source({.block = block, .source = {source}}, DType::kBF16, 256, 384));
  };
  constexpr double kValues = 256 * 384 * 2;
  for (const int64_t block : {32, 128}) {
    EXPECT_EQ(of("", block), 0);
    EXPECT_EQ(of("swiglu", block), 0);
    EXPECT_EQ(of("add_rmsnorm", block), kValues);
  }
  EXPECT_EQ(of("", 0), kValues);
  EXPECT_EQ(of("swiglu", 0), 2 * kValues);
  EXPECT_EQ(of("add_rmsnorm", 0), kValues);
  EXPECT_EQ(bytes_read_again({"gelu", {}, {read(DType::kF32, {1}), write(DType::kF32, {1})}}), 0);
}

}  // namespace
}  // namespace braid
