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
          to_attributes(CrossEntropyAttributes{.vocabulary = vocabulary}),
          {read(DType::kBF16, {4, 128}), read(DType::kI32, {4}), read(DType::kF32, {1}),
           read(DType::kF32, {4}), write(DType::kBF16, {4, 128})}};
}

TEST(CrossEntropyCheck, VocabularyLiesWithinTheColumns) {
  for (const int64_t vocabulary : {1, 100, 128}) {
    EXPECT_NO_THROW(check_spec(forward_spec(vocabulary)));
    EXPECT_NO_THROW(check_spec(backward_spec(vocabulary)));
  }
  for (const int64_t vocabulary : {-1, 0, 129}) {
    expect_refused(forward_spec(vocabulary), "vocabulary must lie in [1, columns of logits]");
    expect_refused(backward_spec(vocabulary), "vocabulary must lie in [1, columns of logits]");
  }
}

TEST(CrossEntropyCheck, LossAndScaleAreF32ForNarrowLogits) {
  expect_refused(with_operand(forward_spec(100), 2, read(DType::kBF16, {1})),
                 "operand loss_scale is bf16 [1], expected f32 [1]");
  expect_refused(with_operand(forward_spec(100), 3, write(DType::kBF16, {1})),
                 "operand loss is bf16 [1], expected f32 [1]");
  expect_refused(with_operand(forward_spec(100), 1, read(DType::kI64, {4})),
                 "operand labels is i64 [4], expected i32 [4]");
}

TEST(CrossEntropyCost, ReadsTheLogitsOnce) {
  expect_cost(forward_spec(100),
              {.flops = 4 * 512, .bytes_read = 2 * 512 + 4 * 4 + 4, .bytes_written = 4 + 4 * 4});
  expect_cost(
      backward_spec(100),
      {.flops = 4 * 512, .bytes_read = 2 * 512 + 4 * 4 + 4 + 4 * 4, .bytes_written = 2 * 512});
}

}  // namespace
}  // namespace braid
