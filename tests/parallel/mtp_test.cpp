#include "model/mtp.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "support/stage_graphs.h"

namespace braid {
namespace {

using Row = std::vector<double>;

ModelSpec with_mtp(int64_t depth) {
  return {.layers = 2,
          .width = 8,
          .heads = 4,
          .kv_heads = 2,
          .head_size = 2,
          .ffn = 8,
          .vocabulary = 20,
          .mtp_depth = depth,
          .mtp_loss_weight = 0.7};
}

/// The loss of a model of MLPs alone, token by token, from the definition in model/mtp.h.
class Reference {
 public:
  Reference(const ModelSpec& spec, const StageGraphs& graphs)
      : spec_(spec), sequence_(graphs.options().sequence) {
    for (const Parameter& parameter : model_parameters(spec)) {
      weights_[parameter.name] = StageGraphs::some_weights(parameter);
    }
    for (size_t i = 0; i < graphs.tokens().size(); ++i) {
      tokens_.push_back(static_cast<int64_t>(graphs.tokens()[i]));
      labels_.push_back(static_cast<int64_t>(graphs.labels()[i]));
    }
  }

  double loss() const {
    std::vector<Row> hidden;
    for (const int64_t token : tokens_) {
      Row x = embedding(token);
      for (int64_t layer = 0; layer < spec_.layers.size(); ++layer) {
        x = mlp_layer(x, fmt::format("layers.{}", layer));
      }
      hidden.push_back(norm(x, "head.norm"));
    }
    double total = mean_loss(hidden, 0);
    for (int64_t k = 1; k <= spec_.mtp_depth; ++k) {
      const std::string unit = fmt::format("mtp.{}", k - 1);
      for (size_t i = 0; i < hidden.size(); ++i) {
        const Row of_token =
            product(unit + ".embedding_projection.weight",
                    norm(embedding(later(tokens_, i, k, 0)), unit + ".embedding_norm"));
        const Row of_hidden =
            product(unit + ".hidden_projection.weight", norm(hidden[i], unit + ".hidden_norm"));
        hidden[i] = norm(mlp_layer(sum(of_token, of_hidden), unit), unit + ".norm");
      }
      total += spec_.mtp_loss_weight / static_cast<double>(spec_.mtp_depth) * mean_loss(hidden, k);
    }
    return total;
  }

 private:
  int64_t later(const std::vector<int64_t>& values, size_t row, int64_t by, int64_t beyond) const {
    const bool is_inside = static_cast<int64_t>(row) % sequence_ + by < sequence_;
    return is_inside ? values[row + static_cast<size_t>(by)] : beyond;
  }

  Row embedding(int64_t token) const {
    const Row& table = weights_.at("embedding.tokens");
    return {table.begin() + token * spec_.width, table.begin() + (token + 1) * spec_.width};
  }

  static Row sum(Row a, const Row& b) {
    std::ranges::transform(a, b, a.begin(), std::plus());
    return a;
  }

  Row norm(Row x, const std::string& site) const {
    double squares = 0;
    for (const double value : x) {
      squares += value * value;
    }
    const double factor =
        1 / std::sqrt(squares / static_cast<double>(x.size()) + spec_.norm_epsilon);
    const Row& weight = weights_.at(site + ".weight");
    for (size_t i = 0; i < x.size(); ++i) {
      x[i] *= factor * weight[i];
    }
    return x;
  }

  Row product(const std::string& weight, const Row& x) const {
    const Row& w = weights_.at(weight);
    Row y(w.size() / x.size());
    for (size_t i = 0; i < w.size(); ++i) {
      y[i / x.size()] += w[i] * x[i % x.size()];
    }
    return y;
  }

  /// Rows of gate and up alternate.
  Row mlp_layer(const Row& x, const std::string& unit) const {
    const Row both = product(unit + ".mlp.fc1.weight", norm(x, unit + ".mlp_norm"));
    Row inner;
    for (size_t i = 0; i < both.size(); i += 2) {
      inner.push_back(both[i] / (1 + std::exp(-both[i])) * both[i + 1]);
    }
    return sum(x, product(unit + ".mlp.fc2.weight", inner));
  }

  double mean_loss(const std::vector<Row>& hidden, int64_t depth) const {
    double total = 0;
    double count = 0;
    for (size_t i = 0; i < hidden.size(); ++i) {
      const int64_t label = later(labels_, i, depth, -1);
      if (label >= 0) {
        const Row logits = product("head.output", hidden[i]);
        double exponentials = 0;
        for (int64_t token = 0; token < spec_.vocabulary; ++token) {
          exponentials += std::exp(logits[static_cast<size_t>(token)]);
        }
        total += std::log(exponentials) - logits[static_cast<size_t>(label)];
        ++count;
      }
    }
    return total / count;
  }

  const ModelSpec& spec_;
  int64_t sequence_;
  std::map<std::string, Row> weights_;
  std::vector<int64_t> tokens_;
  std::vector<int64_t> labels_;
};

TEST(MultiTokenPrediction, HasTheLossOfItsDefinition) {
  ModelSpec spec = with_mtp(2);
  spec.layers = LayerPattern::parse("mlp*2");
  StageGraphs graphs({.spec = spec, .microbatch = 2, .sequence = 5});
  const double expected = Reference(spec, graphs).loss();
  EXPECT_NEAR(graphs.run(), expected, 1e-13 * expected);
}

void expect_same_step(StageGraphs& actual, StageGraphs& expected) {
  const double loss = expected.run();
  EXPECT_NEAR(actual.run(), loss, 1e-12 * loss);
  for (const Parameter& parameter : model_parameters(expected.options().spec)) {
    const Row whole = expected.gradient(parameter);
    const Row parts = actual.gradient(parameter);
    double squares = 0;
    double difference = 0;
    for (size_t i = 0; i < whole.size(); ++i) {
      squares += whole[i] * whole[i];
      difference += (parts[i] - whole[i]) * (parts[i] - whole[i]);
    }
    ASSERT_GT(squares, 1e-12) << parameter.name;
    EXPECT_LE(difference, 1e-24 * squares) << parameter.name;
  }
}

// A tied table has four uses on the last of two stages, and one on the first; without layers, the
// last stage has the head and the layers of multi-token prediction.
TEST(MultiTokenPrediction, OnTensorRanksAndStagesHasTheGradientsOfOneRank) {
  const StageSlice first{.num_layers = 1, .has_head = false};
  const StageSlice last{.first_layer = 1, .num_layers = 1, .has_embedding = false};
  const StageSlice all_layers{.num_layers = 2, .has_head = false};
  const StageSlice bare{.first_layer = 2, .has_embedding = false};
  for (const bool tied : {false, true}) {
    ModelSpec spec = with_mtp(2);
    spec.tied_embeddings = tied;
    StageGraphs whole({.spec = spec, .microbatch = 2, .sequence = 4});
    for (const auto& stages :
         std::vector<std::vector<StageSlice>>{{}, {first, last}, {all_layers, bare}}) {
      for (const bool sequence_parallel : {false, true}) {
        StageGraphOptions options = whole.options();
        options.tensor = 2;
        options.sequence_parallel = sequence_parallel;
        options.stages = stages;
        StageGraphs parts(options);
        expect_same_step(parts, whole);
      }
    }
  }
}

/// Central differences of the sum of all losses: step h is off by h^2 / 6 of the third derivative
/// and by 1e-16 / h, near 1e-9.
TEST(MultiTokenPrediction, HasTheGradientsOfDifferences) {
  for (const bool tied : {false, true}) {
    ModelSpec spec = with_mtp(2);
    spec.layers = 1;
    spec.tied_embeddings = tied;
    StageGraphs graphs({.spec = spec, .microbatch = 1, .sequence = 4});
    graphs.run();
    constexpr double kStep = 1e-5;
    std::map<std::string, Row> gradients;
    for (const Parameter& parameter : model_parameters(spec)) {
      gradients[parameter.name] = graphs.gradient(parameter);
    }
    for (const Parameter& parameter : model_parameters(spec)) {
      Row values = StageGraphs::some_weights(parameter);
      const auto loss_at = [&](size_t i, double value) {
        const double kept = std::exchange(values[i], value);
        graphs.set(parameter, values);
        values[i] = kept;
        return graphs.run();
      };
      const size_t stride = values.size() > 30 ? 13 : 1;  // which no row length divides
      for (size_t i = 0; i < values.size(); i += stride) {
        const double difference = loss_at(i, values[i] + kStep) - loss_at(i, values[i] - kStep);
        EXPECT_NEAR(gradients[parameter.name][i], difference / (2 * kStep), 2e-8)
            << parameter.name << " element " << i;
      }
      graphs.set(parameter, values);
    }
  }
}

}  // namespace
}  // namespace braid
