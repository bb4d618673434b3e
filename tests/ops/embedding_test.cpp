#include "ops/embedding.h"

#include "ops/forward_graph.h"
#include "ops/specs.h"

namespace braid {
namespace {

constexpr int64_t kWidth = 6;

OpSpec embedding_spec(int64_t vocabulary, int64_t positions) {
  OpSpec spec{
      "embedding",
      to_attributes(EmbeddingAttributes{.sequence = kSequence, .has_positions = positions > 0}),
      {read(DType::kI32, {kRows}), read(DType::kBF16, {vocabulary, kWidth})}};
  if (positions > 0) {
    spec.operands.push_back(read(DType::kBF16, {positions, kWidth}));
  }
  spec.operands.push_back(write(DType::kBF16, {kRows, kWidth}));
  return spec;
}

OperandSpec table_grad(bool accumulate, int64_t rows) {
  return accumulate ? read_write(DType::kF32, {rows, kWidth}) : write(DType::kF32, {rows, kWidth});
}

OpSpec wgrad_spec(bool accumulate, int64_t vocabulary) {
  return {"embedding_wgrad",
          to_attributes(EmbeddingWgradAttributes{.accumulate = accumulate}),
          {read(DType::kI32, {kRows}), read(DType::kBF16, {kRows, kWidth}),
           table_grad(accumulate, vocabulary)}};
}

OpSpec positions_wgrad_spec(bool accumulate, int64_t positions) {
  return {"position_embedding_wgrad",
          to_attributes(
              PositionEmbeddingWgradAttributes{.sequence = kSequence, .accumulate = accumulate}),
          {read(DType::kBF16, {kRows, kWidth}), table_grad(accumulate, positions)}};
}

TEST(EmbeddingCost, ReadsRowsAndNotTheTable) {
  for (const int64_t vocabulary : {5, 100000}) {
    expect_cost(embedding_spec(vocabulary, 0),
                {.bytes_read = 4 * 8 + 2 * 8 * 6, .bytes_written = 2 * 8 * 6});
  }
}

TEST(EmbeddingCost, ReadsThePositionsOfOneSequence) {
  for (const int64_t positions : {4, 1000}) {
    expect_cost(
        embedding_spec(100, positions),
        {.flops = 8 * 6, .bytes_read = 4 * 8 + 2 * 8 * 6 + 2 * 4 * 6, .bytes_written = 2 * 8 * 6});
  }
}

// 8 tokens touch at most 8 rows; an overwritten gradient is written as a whole.
TEST(EmbeddingWgradCost, TouchesTheRowsOfItsTokens) {
  constexpr double kInput = 4 * 8 + 2 * 8 * 6;
  expect_cost(wgrad_spec(true, 1000),
              {.flops = 8 * 6, .bytes_read = kInput + 4 * 8 * 6, .bytes_written = 4 * 8 * 6});
  expect_cost(wgrad_spec(true, 5),
              {.flops = 8 * 6, .bytes_read = kInput + 4 * 5 * 6, .bytes_written = 4 * 5 * 6});
  expect_cost(wgrad_spec(false, 1000),
              {.flops = 8 * 6, .bytes_read = kInput, .bytes_written = 4 * 1000 * 6});
}

TEST(PositionEmbeddingWgradCost, TouchesTheRowsOfOneSequence) {
  expect_cost(positions_wgrad_spec(true, 1000),
              {.flops = 8 * 6, .bytes_read = 2 * 8 * 6 + 4 * 4 * 6, .bytes_written = 4 * 4 * 6});
  expect_cost(positions_wgrad_spec(false, 1000),
              {.flops = 8 * 6, .bytes_read = 2 * 8 * 6, .bytes_written = 4 * 1000 * 6});
}

TEST(EmbeddingCheck, TokensAreAMultipleOfTheSequence) {
  for (const int64_t sequence : {-4, 0, 3, 16}) {
    expect_refused(with_attribute(embedding_spec(100, 0), "sequence", sequence),
                   "the number of tokens must be a multiple of sequence");
    expect_refused(with_attribute(positions_wgrad_spec(true, 16), "sequence", sequence),
                   "rows must be a multiple of sequence");
  }
}

TEST(EmbeddingCheck, PartOfATableKnowsTheVocabularyOfAll) {
  const char* const message =
      "a table that does not begin with token 0 needs the vocabulary of all ranks";
  for (const OpSpec& spec : {embedding_spec(100, 0), wgrad_spec(true, 100)}) {
    const auto part = [&](int64_t vocabulary, int64_t begin) {
      return with_attribute(with_attribute(spec, "vocabulary", vocabulary), "vocabulary_begin",
                            begin);
    };
    EXPECT_NO_THROW(check_spec(part(1000, 0)));
    EXPECT_NO_THROW(check_spec(part(1000, 300)));
    EXPECT_NO_THROW(check_spec(part(1000, 2000)));
    expect_refused(part(0, 300), message);
    expect_refused(part(1000, -1), message);
    expect_refused(part(-1, 0), message);
  }
}

TEST(EmbeddingCheck, LeavesOutOnlyWhatIsThere) {
  expect_refused(with_attribute(embedding_spec(100, 0), "adds_positions", false),
                 "there are no positions to leave out");
  const OpSpec spec = with_attribute(embedding_spec(100, 4), "adds_positions", false);
  EXPECT_NO_THROW(check_spec(spec));
  expect_cost(spec, {.bytes_read = 4 * 8 + 2 * 8 * 6, .bytes_written = 2 * 8 * 6});
}

TEST(TableRows, AreWholeWhereEveryTokenHasARow) {
  EXPECT_TRUE(TableRows(0, 0, 128).is_whole());
  EXPECT_TRUE(TableRows(100, 0, 128).is_whole());
  EXPECT_FALSE(TableRows(200, 0, 128).is_whole());
  EXPECT_FALSE(TableRows(200, 128, 128).is_whole());
  EXPECT_EQ(TableRows(0, 0, 128).vocabulary, 128);
}

TEST(EmbeddingCheck, TokensAreI32) {
  expect_refused(with_operand(embedding_spec(100, 0), 0, read(DType::kI64, {kRows})),
                 "tokens must be i32");
  expect_refused(with_operand(wgrad_spec(true, 100), 0, read(DType::kI64, {kRows})),
                 "tokens must be i32");
}

TEST(EmbeddingCheck, PositionsCoverTheSequence) {
  const char* const message = "positions must be [at least sequence, C] of the table's dtype";
  expect_refused(embedding_spec(100, 3), message);
  expect_refused(with_operand(embedding_spec(100, 4), 2, read(DType::kBF16, {4, 7})), message);
  expect_refused(with_operand(embedding_spec(100, 4), 2, read(DType::kF32, {4, 6})), message);
  expect_refused(positions_wgrad_spec(true, 3), "d_positions hold at least sequence rows");
}

TEST(EmbeddingCheck, TableGradientsAreMainGradsOfTheSameWidth) {
  EXPECT_NO_THROW(
      check_spec(with_operand(wgrad_spec(true, 100), 2, read_write(DType::kBF16, {100, kWidth}))));
  for (const OperandSpec& wrong :
       {read_write(DType::kF64, {100, kWidth}), read_write(DType::kF32, {100, kWidth + 1})}) {
    expect_refused(with_operand(wgrad_spec(true, 100), 2, wrong),
                   "d_table must be a main grad of d_out's width");
    expect_refused(with_operand(positions_wgrad_spec(true, 100), 1, wrong),
                   "d_positions must be an accumulator of d_out's width");
  }
  expect_refused(
      with_operand(positions_wgrad_spec(true, 100), 1, read_write(DType::kBF16, {100, kWidth})),
      "d_positions must be an accumulator of d_out's width");
}

}  // namespace
}  // namespace braid
