#include "ops/cross_entropy.h"

#include "ops/specs.h"

namespace braid {
namespace {

OpSpec forward_spec(int64_t vocabulary) {
  return {"cross_entropy",
          to_attributes(CrossEntropyAttributes{.vocabulary = vocabulary}),
          {read(DType::kBF16, {4, 128}), read(DType::kI32, {4}), read(DType::kF32, {1}),
           write(DType::kF32, {1}), write(DType::kF32, {4})}};
}

OpSpec backward_spec(int64_t vocabulary) {
  return {"cross_entropy_backward",
          to_attributes(CrossEntropyShardAttributes{.vocabulary = vocabulary}),
          {read(DType::kBF16, {4, 128}), read(DType::kI32, {4}), read(DType::kF32, {1}),
           read(DType::kF32, {4}), write(DType::kBF16, {4, 128})}};
}

OpSpec partial_spec() {
  return {"cross_entropy_partial",
          to_attributes(CrossEntropyShardAttributes{.vocabulary = 300, .vocabulary_begin = 128}),
          {read(DType::kBF16, {4, 128}), read(DType::kI32, {4}), write(DType::kF32, {4, 3})}};
}

OpSpec merge_spec(int64_t stats_rows) {
  return {"cross_entropy_merge",
          {},
          {read(DType::kF32, {stats_rows, 3}), read(DType::kI32, {4}), read(DType::kF32, {1}),
           write(DType::kF32, {1}), write(DType::kF32, {4})}};
}

TEST(CrossEntropyCheck, VocabularyLiesWithinTheColumns) {
  for (const int64_t vocabulary : {1, 100, 128}) {
    EXPECT_NO_THROW(check_spec(forward_spec(vocabulary)));
  }
  for (const int64_t vocabulary : {-1, 0, 129}) {
    expect_refused(forward_spec(vocabulary), "vocabulary must lie in [1, columns of logits]");
  }
}

// The columns may be some out of the middle of the vocabulary, its end, or nothing but padding.
TEST(CrossEntropyCheck, ShardsLieAnywhere) {
  for (const OpSpec& spec : {partial_spec(), backward_spec(100)}) {
    for (const int64_t vocabulary : {1, 128, 1000}) {
      for (const int64_t begin : {0, 64, 5000}) {
        EXPECT_NO_THROW(check_spec(with_attribute(with_attribute(spec, "vocabulary", vocabulary),
                                                  "vocabulary_begin", begin)));
      }
    }
    const char* const message = "vocabulary must be at least 1, vocabulary_begin at least 0";
    expect_refused(with_attribute(spec, "vocabulary", int64_t{0}), message);
    expect_refused(with_attribute(spec, "vocabulary_begin", int64_t{-1}), message);
  }
}

TEST(CrossEntropyCheck, ValidColumnsComeFirst) {
  const auto valid = [](int64_t vocabulary, int64_t begin) {
    return CrossEntropyShardAttributes{.vocabulary = vocabulary, .vocabulary_begin = begin}
        .valid_columns(10);
  };
  EXPECT_EQ(valid(100, 0), 10);
  EXPECT_EQ(valid(100, 90), 10);
  EXPECT_EQ(valid(100, 93), 7);
  EXPECT_EQ(valid(100, 100), 0);
  EXPECT_EQ(valid(100, 5000), 0);
}

TEST(CrossEntropyCheck, StatisticsAreThoseOfWholeRanks) {
  const char* const message = "stats must be accumulators [R*N,3] for N labels";
  for (const int64_t ranks : {1, 3}) {
    EXPECT_NO_THROW(check_spec(merge_spec(ranks * 4)));
  }
  expect_refused(merge_spec(0), message);
  expect_refused(merge_spec(7), message);
  expect_refused(with_operand(merge_spec(4), 0, read(DType::kBF16, {4, 3})), message);
  expect_refused(with_operand(merge_spec(4), 0, read(DType::kF32, {4, 2})), message);
  expect_refused(with_operand(partial_spec(), 2, write(DType::kBF16, {4, 3})),
                 "operand stats is bf16 [4,3], expected f32 [4,3]");
}

TEST(CrossEntropyCheck, LossAndScaleAreF32ForNarrowLogits) {
  expect_refused(with_operand(forward_spec(100), 2, read(DType::kBF16, {1})),
                 "operand loss_scale is bf16 [1], expected f32 [1]");
  expect_refused(with_operand(forward_spec(100), 3, write(DType::kBF16, {1})),
                 "operand loss is bf16 [1], expected f32 [1]");
  expect_refused(with_operand(forward_spec(100), 1, read(DType::kI64, {4})),
                 "operand labels is i64 [4], expected i32 [4]");
}

TEST(CrossEntropyCheck, ALossOfTheLogSumExpIsAnotherResult) {
  const double coefficient = 1e-4;
  const auto with_z = [&](OpSpec spec) {
    spec.attributes.push_back({"z_loss", coefficient});
    return spec;
  };
  for (OpSpec spec : {forward_spec(100), merge_spec(8)}) {
    expect_refused(with_z(spec), "operand 5 (z) is missing");
    spec.operands.push_back(write(DType::kF32, {1}));
    EXPECT_NO_THROW(check_spec(with_z(spec)));
    expect_refused(with_attribute(with_z(spec), "z_loss", -1.0), "z_loss must be at least 0");
    expect_refused(with_operand(with_z(spec), 5, write(DType::kF32, {4})),
                   "operand z is f32 [4], expected f32 [1]");
  }
  EXPECT_NO_THROW(check_spec(with_z(backward_spec(100))));
  expect_refused(with_attribute(with_z(backward_spec(100)), "z_loss", -1.0),
                 "z_loss must be at least 0");
}

// Programs without it have the text that they had before there was one.
TEST(CrossEntropyCheck, NoCoefficientIsNoAttribute) {
  const auto names = [](const std::vector<Attribute>& attributes) {
    std::vector<std::string> list;
    for (const Attribute& attribute : attributes) {
      list.push_back(attribute.name);
    }
    return list;
  };
  EXPECT_EQ(names(to_attributes(CrossEntropyAttributes{.vocabulary = 5})),
            std::vector<std::string>{"vocabulary"});
  EXPECT_TRUE(to_attributes(CrossEntropyMergeAttributes{}).empty());
  EXPECT_EQ(names(to_attributes(CrossEntropyBackwardAttributes{.shard = {.vocabulary = 5}})),
            (std::vector<std::string>{"vocabulary", "vocabulary_begin"}));
}

TEST(CrossEntropyCost, ReadsTheLogitsOnce) {
  expect_cost(forward_spec(100),
              {.flops = 4 * 512, .bytes_read = 2 * 512 + 4 * 4 + 4, .bytes_written = 4 + 4 * 4});
  expect_cost(partial_spec(),
              {.flops = 4 * 512, .bytes_read = 2 * 512 + 4 * 4, .bytes_written = 4 * 3 * 4});
  expect_cost(
      backward_spec(100),
      {.flops = 4 * 512, .bytes_read = 2 * 512 + 4 * 4 + 4 + 4 * 4, .bytes_written = 2 * 512});
}

}  // namespace
}  // namespace braid
