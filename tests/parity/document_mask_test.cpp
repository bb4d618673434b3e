#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "data/document_starts.h"
#include "parity/layout_config.h"
#include "plan/run_spec.h"
#include "verify/layout_run.h"

namespace braid {
namespace {

constexpr int64_t kTokens = 12;
constexpr size_t kFirst = 5;  // tokens of the first document

/// Loss and gradients in f64 of a run with these keys, with the same weights in every layout.
struct Gradients {
  double loss;
  UnitValues values;

  Gradients(const Layout& layout, const TokenBatch& batch)
      : Gradients(LayoutRun(plan_run(resolve_run(config_of(layout), 0),
                                     {.dtype = DType::kF64, .update_weights = false}),
                            {}),
                  batch) {}

 private:
  Gradients(LayoutRun run, const TokenBatch& batch) {
    std::mt19937 random(5);
    std::normal_distribution<double> weight(0.0, 0.2);
    UnitValues weights;
    for (const ParameterUnit& unit : run.plan().layout.units) {
      std::ranges::generate(weights.emplace_back(static_cast<size_t>(unit.num_elems)),
                            [&] { return weight(random); });
    }
    run.set_weights(weights);
    loss = run.step(batch, {});
    values = run.read(StateBuffer::kMainGrad);
  }
};

/// Two documents in one sequence, beside a sequence without labels.
TokenBatch packed_batch() {
  std::mt19937 random(3);
  TokenBatch batch{.num_sequences = 2, .sequence = kTokens};
  for (int64_t i = 0; i < 2 * kTokens; ++i) {
    batch.tokens.push_back(static_cast<int32_t>(random() % 101));
    batch.labels.push_back(i < kTokens ? static_cast<int32_t>(random() % 101) : -1);
  }
  std::vector<int32_t> ends(batch.tokens.size(), 1);
  ends[kFirst - 1] = 0;
  batch.document_starts = document_starts(ends, kTokens, /*eod=*/0);
  return batch;
}

/// Each of them at the beginning of a sequence of its own. What follows it has no labels, and
/// attention is causal, so nothing depends on that.
TokenBatch separate_batch(const TokenBatch& packed) {
  TokenBatch batch{.num_sequences = 2,
                   .sequence = kTokens,
                   .tokens = packed.tokens,
                   .labels = std::vector<int32_t>(packed.labels.size(), -1)};
  const auto put = [&](size_t from, size_t count, size_t to) {
    std::copy_n(packed.tokens.begin() + static_cast<std::ptrdiff_t>(from), count,
                batch.tokens.begin() + static_cast<std::ptrdiff_t>(to));
    std::copy_n(packed.labels.begin() + static_cast<std::ptrdiff_t>(from), count,
                batch.labels.begin() + static_cast<std::ptrdiff_t>(to));
  };
  put(kFirst, kTokens - kFirst, kTokens);
  put(0, kFirst, 0);
  return batch;
}

class DocumentMask : public testing::TestWithParam<const char*> {};

// The reference knows no documents: one rank, a sequence for each. In f64 only sums differ in their
// order.
TEST_P(DocumentMask, GivesEachDocumentTheGradientsThatItHasAlone) {
  const Layout alone{GetParam(), "ranks=1 train.global_batch=2"};
  const Layout masked{GetParam(), "ranks=2 context=2 train.global_batch=2 data.document_mask=true"};
  const TokenBatch packed = packed_batch();
  const Gradients expected(alone, separate_batch(packed));
  const Gradients actual(masked, packed);
  EXPECT_NEAR(actual.loss, expected.loss, 1e-12);
  ASSERT_EQ(actual.values.size(), expected.values.size());
  for (size_t unit = 0; unit < expected.values.size(); ++unit) {
    double largest = 0;
    for (const double value : expected.values[unit]) {
      largest = std::max(largest, std::abs(value));
    }
    for (size_t i = 0; i < expected.values[unit].size(); ++i) {
      ASSERT_NEAR(actual.values[unit][i], expected.values[unit][i], 1e-12 * largest)
          << "unit " << unit << " element " << i;
    }
  }
  EXPECT_GT(std::abs(Gradients(alone, packed).loss - expected.loss), 1e-3);
}

INSTANTIATE_TEST_SUITE_P(Models, DocumentMask,
                         testing::Values(kLlamaModel, kGpt2Model, kLatentsModel));

}  // namespace
}  // namespace braid
