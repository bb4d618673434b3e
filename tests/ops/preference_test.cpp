#include "ops/preference.h"

#include "ops/forward_graph.h"
#include "ops/pair_loss.h"
#include "ops/specs.h"

namespace braid {
namespace {

using testing::ElementsAre;

OpSpec sequence_spec(int64_t sequences) {
  return {"sequence_losses",
          to_attributes(SequenceLossesAttributes{sequences}),
          {read(DType::kF32, {12, 3}), read(DType::kI32, {6}), write(DType::kF32, {sequences}),
           write(DType::kF32, {6})}};
}

OpSpec pair_spec(const PreferenceLossAttributes& attributes, int64_t sequences = 4) {
  return {"preference_loss",
          to_attributes(attributes),
          {read(DType::kF32, {sequences}), read(DType::kF32, {sequences, 2}),
           write(DType::kF32, {1}), write(DType::kF32, {5}), write(DType::kF32, {sequences})}};
}

TEST(PreferenceCheck, SequencesDivideTheRows) {
  for (const int64_t sequences : {1, 2, 3, 6}) {
    EXPECT_NO_THROW(check_spec(sequence_spec(sequences)));
  }
  for (const int64_t sequences : {-1, 0, 4, 12}) {
    expect_refused(sequence_spec(sequences), "sequences must divide the rows");
  }
}

TEST(PreferenceCheck, LossesAreThoseOfPairs) {
  EXPECT_NO_THROW(check_spec(pair_spec({}, 2)));
  for (const int64_t sequences : {0, 3}) {
    expect_refused(pair_spec({}, sequences), "losses must be those of whole pairs");
  }
  for (int64_t kind = 0; kind < kNumPreferenceKinds; ++kind) {
    EXPECT_NO_THROW(check_spec(pair_spec({.kind = kind})));
  }
  for (const int64_t kind : {int64_t{-1}, kNumPreferenceKinds}) {
    expect_refused(pair_spec({.kind = kind}), "there is no such kind");
  }
  const char* const numbers = "beta and pairs must be above 0, label_smoothing in [0, 0.5)";
  expect_refused(pair_spec({.beta = 0}), numbers);
  expect_refused(pair_spec({.pairs = 0}), numbers);
  expect_refused(pair_spec({.label_smoothing = 0.5}), numbers);
}

TEST(PreferenceCheck, ScalesOfSequencesDivideTheRows) {
  const auto backward = [](int64_t sequences) {
    return OpSpec{
        "cross_entropy_backward",
        to_attributes(
            CrossEntropyBackwardAttributes{.shard = {.vocabulary = 7}, .scales = {sequences}}),
        {read(DType::kBF16, {6, 8}), read(DType::kI32, {6}), read(DType::kF32, {sequences}),
         read(DType::kF32, {6}), write(DType::kBF16, {6, 8})}};
  };
  for (const int64_t sequences : {1, 2, 3, 6}) {
    EXPECT_NO_THROW(check_spec(backward(sequences)));
  }
  expect_refused(backward(4), "sequences must divide the rows");
  expect_refused(with_operand(backward(2), 2, read(DType::kF32, {1})),
                 "operand loss_scale is f32 [1], expected f32 [2]");
}

/// With the sequences of one rank's rows, and with tokens and columns over ranks.
StageGraph graph_of(int64_t num_ranks, std::vector<std::string_view> token_groups) {
  Forward forward(DType::kF32);
  GraphBuilder& b = forward.builder();
  const auto number = [&](const char* name, Shape shape, ValueKind kind) {
    return forward.value(kind, name, std::move(shape));
  };
  preference_loss(b,
                  {.logits = forward.activation("logits", {kRows, kVocabulary}),
                   .labels = forward.tokens("labels"),
                   .reference = number("reference", {2, 2}, ValueKind::kInput),
                   .loss = number("loss", {1}, ValueKind::kOutput),
                   .figures = number("preference", {5}, ValueKind::kOutput),
                   .shard = {.vocabulary = kVocabulary * num_ranks},
                   .group = "tensor",
                   .num_ranks = num_ranks,
                   .token_groups = std::move(token_groups)},
                  "loss");
  return forward.differentiated();
}

std::vector<std::string> forward_of(const StageGraph& graph) {
  std::vector<std::string> list;
  for (const Node& node : graph.forward) {
    list.push_back(describe(graph, node));
  }
  return list;
}

TEST(PreferenceLoss, IsMadeOfStatisticsOfRows) {
  const StageGraph graph = graph_of(1, {});
  EXPECT_THAT(forward_of(graph),
              ElementsAre("cross_entropy_partial(logits, labels -> loss.stats)",
                          "sequence_losses(loss.stats, labels -> loss.sequences, loss.lse)",
                          "preference_loss(loss.sequences, reference -> loss, preference, "
                          "loss.d_sequences)"));
  EXPECT_THAT(backward_of(graph),
              ElementsAre("cross_entropy_backward(logits, labels, loss.d_sequences, loss.lse -> "
                          "logits.grad)"));
  EXPECT_EQ(std::get<int64_t>(*graph.backward.front().spec.find_attribute("sequences")), 2);
}

// The gradient needs no communication.
TEST(PreferenceLoss, RanksExchangeStatisticsAndSums) {
  const StageGraph graph = graph_of(2, {"context.inner", "context.outer"});
  EXPECT_THAT(forward_of(graph),
              ElementsAre("cross_entropy_partial(logits, labels -> loss.stats)",
                          "all_gather(loss.stats -> loss.all_stats)",
                          "sequence_losses(loss.all_stats, labels -> loss.sequences, loss.lse)",
                          "all_reduce(loss.sequences -> loss.context.inner)",
                          "all_reduce(loss.context.inner -> loss.context.outer)",
                          "preference_loss(loss.context.outer, reference -> loss, preference, "
                          "loss.d_sequences)"));
  EXPECT_THAT(backward_of(graph),
              ElementsAre("cross_entropy_backward(logits, labels, loss.d_sequences, loss.lse -> "
                          "logits.grad)"));
}

TEST(PreferenceCost, IsThatOfTheStatistics) {
  expect_cost(sequence_spec(2),
              {.flops = 2 * 36, .bytes_read = 4 * 36 + 4 * 6, .bytes_written = 4 * 2 + 4 * 6});
}

/// d/dz by central differences.
double slope_of(PreferenceKind kind, double z, double beta, double smoothing) {
  constexpr double kStep = 1e-5;
  return (pair_loss(kind, z + kStep, beta, smoothing).loss -
          pair_loss(kind, z - kStep, beta, smoothing).loss) /
         (2 * kStep);
}

TEST(PairLoss, SlopesAreThoseOfTheLosses) {
  for (const PreferenceKind kind :
       {PreferenceKind::kDpo, PreferenceKind::kHinge, PreferenceKind::kIpo}) {
    for (const double z : {-30.0, -2.5, -0.1, 0.0, 0.3, 1.7, 25.0}) {
      for (const double smoothing : {0.0, 0.2}) {
        const double slope = pair_loss(kind, z, 0.3, smoothing).slope;
        EXPECT_NEAR(slope, slope_of(kind, z, 0.3, smoothing), 1e-7 * (1 + std::abs(slope)))
            << static_cast<int64_t>(kind) << " " << z;
      }
    }
  }
}

// As TRL's DPOTrainer computes them: torch.nn.functional.logsigmoid, relu and a square.
TEST(PairLoss, AreThoseOfTheirPapers) {
  EXPECT_NEAR(pair_loss(PreferenceKind::kDpo, 0, 0.1, 0).loss, std::log(2), 1e-15);
  EXPECT_NEAR(pair_loss(PreferenceKind::kDpo, 1.5, 0.1, 0).loss, std::log1p(std::exp(-1.5)), 1e-15);
  EXPECT_NEAR(pair_loss(PreferenceKind::kDpo, 1.5, 0.1, 0.1).loss,
              0.9 * std::log1p(std::exp(-1.5)) + 0.1 * std::log1p(std::exp(1.5)), 1e-15);
  EXPECT_EQ(pair_loss(PreferenceKind::kHinge, 0.25, 0.1, 0).loss, 0.75);
  EXPECT_EQ(pair_loss(PreferenceKind::kHinge, 1.25, 0.1, 0).loss, 0);
  EXPECT_NEAR(pair_loss(PreferenceKind::kIpo, 0.3, 0.1, 0).loss, (3.0 - 5.0) * (3.0 - 5.0), 1e-13);
}

TEST(PairLoss, IsFiniteForPairsThatAreFarApart) {
  for (const double z : {-1e6, 1e6}) {
    const PairLoss loss = pair_loss(PreferenceKind::kDpo, z, 0.1, 0);
    EXPECT_EQ(loss.loss, z < 0 ? 1e6 : 0.0);
    EXPECT_EQ(loss.slope, z < 0 ? -1.0 : 0.0);
  }
}

}  // namespace
}  // namespace braid
