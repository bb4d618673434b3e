#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <string_view>
#include <vector>

#include "model/parameters.h"
#include "parallel/parameter_layout.h"
#include "support/engine_runs.h"

namespace braid {
namespace {

RunConfig muon_config() {
  RunConfig config = small_config();
  config.optimizer.name = "muon";
  config.optimizer.muon_dtype = "float32";
  return config;
}

/// Row-major.
struct Matrix {
  int64_t rows = 0;
  int64_t columns = 0;
  std::vector<double> elems;

  double at(int64_t row, int64_t column) const {
    return elems[static_cast<size_t>(row * columns + column)];
  }
};

Matrix product(const Matrix& a, const Matrix& b) {
  Matrix c{a.rows, b.columns, std::vector<double>(static_cast<size_t>(a.rows * b.columns))};
  for (int64_t i = 0; i < a.rows; ++i) {
    for (int64_t k = 0; k < a.columns; ++k) {
      for (int64_t j = 0; j < b.columns; ++j) {
        c.elems[static_cast<size_t>(i * b.columns + j)] += a.at(i, k) * b.at(k, j);
      }
    }
  }
  return c;
}

Matrix transposed(const Matrix& a) {
  Matrix b{a.columns, a.rows, a.elems};
  for (int64_t i = 0; i < a.rows; ++i) {
    for (int64_t j = 0; j < a.columns; ++j) {
      b.elems[static_cast<size_t>(j * a.rows + i)] = a.at(i, j);
    }
  }
  return b;
}

/// As Keller Jordan's zeropower_via_newtonschulz5, in double.
Matrix newton_schulz(Matrix x) {
  const bool turned = x.rows > x.columns;
  x = turned ? transposed(x) : x;
  double squares = 0;
  for (const double value : x.elems) {
    squares += value * value;
  }
  for (double& value : x.elems) {
    value /= std::sqrt(squares) + 1e-7;
  }
  for (int step = 0; step < 5; ++step) {
    const Matrix a = product(x, transposed(x));
    Matrix b = product(a, a);
    for (size_t i = 0; i < b.elems.size(); ++i) {
      b.elems[i] = -4.7750 * a.elems[i] + 2.0315 * b.elems[i];
    }
    const Matrix bx = product(b, x);
    for (size_t i = 0; i < x.elems.size(); ++i) {
      x.elems[i] = 3.4445 * x.elems[i] + bx.elems[i];
    }
  }
  return turned ? transposed(x) : x;
}

/// A matrix of the model: rows first_row, first_row + stride, ... of a weight.
struct Place {
  std::string weight;
  int64_t first_row = 0;
  int64_t rows = 0;
  int64_t stride = 1;
};

Matrix take(const ParameterLayout& layout, const std::vector<std::vector<float>>& units,
            const Place& place) {
  const ParameterSlot& slot = layout.slot(place.weight);
  const int64_t columns = layout.parameters[slot.parameter].shape[1];
  Matrix matrix{place.rows, columns, {}};
  for (int64_t row = 0; row < place.rows; ++row) {
    const auto begin =
        units[slot.unit].begin() + slot.begin + (place.first_row + row * place.stride) * columns;
    matrix.elems.insert(matrix.elems.end(), begin, begin + columns);
  }
  return matrix;
}

// The first mean of gradients is what exp_avg holds then, times a factor, which a direction does
// not depend on. Rounding in f32 moves singular values that start near 0 by some 1e-6, and the five
// steps multiply that by up to 3.4445^5 = 485.
TEST(Muon, MovesEachMatrixByNewtonSchulzOfItsMean) {
  const RunConfig config = muon_config();
  const ModelSpec model = resolve_run(resolved(config), 50).model;
  const ParameterLayout layout = make_parameter_layout(model_parameters(model));
  const ModelState before = initial_state(layout, model, 5);
  const ModelState after = run(config, 1).state;
  const int64_t ffn = model.ffn;
  for (const Place& place :
       {Place{"layers.0.attention.qkv.weight", 0, 32},
        Place{"layers.0.attention.qkv.weight", 32, 16},
        Place{"layers.1.attention.qkv.weight", 48, 16},
        Place{"layers.1.attention.proj.weight", 0, 32}, Place{"layers.0.mlp.fc1.weight", 0, ffn, 2},
        Place{"layers.0.mlp.fc1.weight", 1, ffn, 2}, Place{"layers.1.mlp.fc2.weight", 0, 32}}) {
    const Matrix direction = newton_schulz(take(layout, after.exp_avg, place));
    const Matrix old = take(layout, before.weights, place);
    const Matrix now = take(layout, after.weights, place);
    const double rate = config.optimizer.learning_rate;
    const auto largest = static_cast<double>(std::max(old.rows, old.columns));
    const double step = rate * 0.2 * std::sqrt(largest);
    double worst = 0;
    for (size_t i = 0; i < now.elems.size(); ++i) {
      const double expected =
          old.elems[i] * (1 - rate * config.optimizer.weight_decay) - step * direction.elems[i];
      worst = std::max(worst, std::abs(now.elems[i] - expected));
    }
    EXPECT_LT(worst, 2e-3 * step) << place.weight << " " << place.first_row;
  }
}

TEST(Muon, KeepsOneMomentOfMatricesAndTwoOfAllElse) {
  const RunConfig config = muon_config();
  const Outcome outcome = run(config, 2);
  const ModelSpec model = resolve_run(resolved(config), 50).model;
  const ParameterLayout layout = make_parameter_layout(model_parameters(model));
  for (size_t i = 0; i < layout.parameters.size(); ++i) {
    const ParameterSlot& slot = layout.slots[i];
    const auto is_zero = [&](const std::vector<std::vector<float>>& moments) {
      const std::vector<float>& unit = moments[slot.unit];
      return std::all_of(unit.begin() + slot.begin, unit.begin() + slot.end,
                         [](float value) { return value == 0.0f; });
    };
    const Parameter& parameter = layout.parameters[i];
    const bool is_matrix = parameter.layer >= 0 && parameter.shape.rank() == 2;
    EXPECT_FALSE(is_zero(outcome.state.exp_avg)) << parameter.name;
    EXPECT_EQ(is_zero(outcome.state.exp_avg_sq), is_matrix) << parameter.name;
  }
}

TEST(Muon, TrainsInBf16WithBf16Moments) {
  RunConfig config = muon_config();
  config.optimizer.muon_dtype = "bfloat16";
  config.optimizer.moments_dtype = "bfloat16";
  config.train.dtype = "bfloat16";
  const Outcome outcome = run(config, 20);
  EXPECT_LT(outcome.losses.back(), 0.75 * outcome.losses.front());
}

// One microbatch on each of four ranks: main grads have the same bits in all kinds of shards.
TEST(Muon, HasTheSameBitsInAnyShardAndOverlap) {
  RunConfig config = muon_config();
  config.parallel.ranks = config.parallel.data = 4;
  config.optimizer.clip_norm = 0;  // the norm's sum, and so its scale, depends on the shards
  config.overlap.mode = "off";
  const Outcome copies = run(config, 2);
  for (const std::string shard : {"none", "optimizer", "gradients", "parameters"}) {
    for (const std::string mode : {"off", "auto"}) {
      SCOPED_TRACE(shard + " " + mode);
      config.parallel.shard = shard;
      config.overlap.mode = mode;
      const Outcome outcome = run(config, 2);
      EXPECT_EQ(outcome.losses, copies.losses);
      EXPECT_EQ(outcome.state.weights, copies.state.weights);
      EXPECT_EQ(outcome.state.exp_avg, copies.state.exp_avg);
    }
  }
}

/// Of four experts, the part of the first rank has three of the first matrices, and that of the
/// second the last of them and all of the second matrices.
RunConfig experts_config() {
  RunConfig config = muon_config();
  config.model.family = "qwen3";
  config.model.pattern = "attention+moe*2";
  config.model.layers.reset();
  config.model.experts = 4;
  config.model.experts_per_token = 2;
  config.model.expert_ffn = 16;
  config.train.global_batch = 4;  // one microbatch, as above
  config.parallel.ranks = 2;
  config.optimizer.clip_norm = 0;
  config.overlap.mode = "off";
  return config;
}

/// Calls that send the beginnings or the directions of experts.
int64_t num_sent(const RunConfig& config) {
  const RunPlan plan = plan_run(resolve_run(resolved(config), 50));
  const Program& program = plan.ranks.front().programs[kTrainProgram];
  return std::ranges::count_if(program.tasks, [&](const Task& task) {
    const std::string_view site =
        task.label.site.valid() ? std::string_view(program.sites[task.label.site.index()]) : "";
    return task.label.phase == Phase::kComm && site.find("experts.muon.") != std::string_view::npos;
  });
}

// Each rank orthogonalises what it updates, with the bits that any rank would give.
TEST(Muon, SendsNoExpertsThatShardsHaveWhole) {
  RunConfig config = experts_config();
  EXPECT_EQ(num_sent(config), 2);  // the directions of each layer
  const Outcome copies = run(config, 2);
  for (const std::string shard : {"optimizer", "gradients", "parameters"}) {
    SCOPED_TRACE(shard);
    config.parallel.shard = shard;
    EXPECT_EQ(num_sent(config), 0);
    const Outcome outcome = run(config, 2);
    EXPECT_EQ(outcome.losses, copies.losses);
    EXPECT_EQ(outcome.state.weights, copies.state.weights);
    EXPECT_EQ(outcome.state.exp_avg, copies.state.exp_avg);
  }
  config.model.experts = 3;
  config.parallel.shard = "optimizer";
  EXPECT_EQ(num_sent(config), 4);  // the second matrix lies in both parts
}

/// Every product of layers is FP8: sizes are multiples of 16.
RunConfig fp8_config() {
  RunConfig config = muon_config();
  config.model.ffn = 64;
  config.train.dtype = "bfloat16";
  config.train.fp8 = "tensor";
  config.optimizer.clip_norm = 0;
  return config;
}

RunConfig over_four_ranks(RunConfig config, const std::string& shard) {
  config.parallel.ranks = config.parallel.data = 4;
  config.parallel.shard = shard;
  return config;
}

// Main weights of FP8 products have no bf16 copy; ranks gather FP8 copies of what Muon has written.
TEST(Muon, OfFp8WeightsHasTheSameBitsInAnyShard) {
  const Outcome copies = run(over_four_ranks(fp8_config(), "none"), 2);
  for (const std::string shard : {"optimizer", "gradients", "parameters"}) {
    SCOPED_TRACE(shard);
    const Outcome outcome = run(over_four_ranks(fp8_config(), shard), 2);
    EXPECT_EQ(outcome.losses, copies.losses);
    EXPECT_EQ(outcome.state.weights, copies.state.weights);
    EXPECT_EQ(outcome.state.exp_avg, copies.state.exp_avg);
  }
}

// One step: the same products of the same microbatches, whose gradients are summed in another
// order. Newton-Schulz makes the rounding of small singular values as large as the others. Of all
// else AdamW moves an element by the sign of its gradient, so one that is nearly 0 may go the other
// way.
TEST(Muon, OfFp8WeightsEqualsOneRank) {
  const Outcome one = run(fp8_config(), 1);
  const ModelSpec model = resolve_run(resolved(fp8_config()), 50).model;
  const ParameterLayout layout = make_parameter_layout(model_parameters(model));
  const ModelState start = initial_state(layout, model, 5);
  for (const std::string shard : {"none", "parameters"}) {
    const Outcome many = run(over_four_ranks(fp8_config(), shard), 1);
    EXPECT_NEAR(many.losses[0], one.losses[0], 1e-6);
    for (size_t index = 0; index < layout.parameters.size(); ++index) {
      const Parameter& parameter = layout.parameters[index];
      const ParameterSlot& slot = layout.slots[index];
      double step = 0;
      double worst = 0;
      for (auto i = static_cast<size_t>(slot.begin); i < static_cast<size_t>(slot.end); ++i) {
        const double weight = one.state.weights[slot.unit][i];
        step = std::max(step, std::abs(weight - start.weights[slot.unit][i]));
        worst = std::max(worst, std::abs(weight - many.state.weights[slot.unit][i]));
      }
      if (parameter.layer >= 0 && parameter.shape.rank() == 2) {
        EXPECT_LT(worst, 5e-3 * step) << parameter.name;
      }
    }
  }
}

}  // namespace
}  // namespace braid
