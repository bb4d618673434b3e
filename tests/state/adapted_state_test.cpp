#include "state/adapted_state.h"

#include <gtest/gtest.h>

#include <cmath>

#include "model/parameters.h"
#include "state/initial_weights.h"

namespace braid {
namespace {

/// Weights that depend on the name of the parameter and the index; all parts of a model.
class NumberedWeights final : public StateSource {
 public:
  explicit NumberedWeights(const ParameterLayout& layout) : layout_(layout) {}

  static float value(const std::string& name, int64_t index) {
    return static_cast<float>(std::sin(static_cast<double>(name.size() * 31 + name.back()) +
                                       0.37 * static_cast<double>(index)));
  }
  bool is_zero(StatePart part) const override { return part != StatePart::kWeights; }
  void read(StatePart, size_t unit, int64_t begin, std::span<float> out,
            WorkerPool&) const override {
    std::fill(out.begin(), out.end(), 0.0f);
    for (const size_t index : layout_.units[unit].slots) {
      const ParameterSlot& slot = layout_.slots[index];
      for (int64_t i = std::max(begin, slot.begin); i < std::min(begin + std::ssize(out), slot.end);
           ++i) {
        out[static_cast<size_t>(i - begin)] = value(layout_.parameters[index].name, i - slot.begin);
      }
    }
  }

 private:
  const ParameterLayout& layout_;
};

ModelSpec adapted_llama() {
  return {.layers = 2,
          .width = 20,
          .heads = 4,
          .kv_heads = 2,
          .head_size = 6,
          .ffn = 24,
          .vocabulary = 300,
          .lora = {.rank = 3, .alpha = 6, .targets = {"k", "gate", "up", "proj"}}};
}

double product(const std::string& a, int64_t a_row, const std::string& b, int64_t row,
               int64_t column, int64_t in) {
  double sum = 0;
  for (int64_t r = 0; r < 3; ++r) {
    sum += static_cast<double>(NumberedWeights::value(b, row * 3 + r)) *
           static_cast<double>(NumberedWeights::value(a, (a_row + r) * in + column));
  }
  return 2.0 * sum;
}

TEST(MergedWeights, AddsEachAdapterToItsRows) {
  const ModelSpec spec = adapted_llama();
  const ParameterLayout layout = make_parameter_layout(model_parameters(spec));
  const ParameterLayout merged_layout = make_parameter_layout(model_parameters(base_model(spec)));
  const NumberedWeights state(layout);
  const MergedWeights merged(state, layout, spec, merged_layout);
  WorkerPool workers(2);
  const std::string layer = "layers.1.";
  const std::string qkv = layer + "attention.qkv";
  const std::string fc1 = layer + "mlp.fc1";
  const auto check = [&](const std::string& name, int64_t row, int64_t in, auto added) {
    // From the middle of a row on.
    const std::vector<float> values =
        read_weights(merged, merged_layout, name, row * in + 5, in, workers);
    for (int64_t i = 0; i < in; ++i) {
      const int64_t at = row * in + 5 + i;
      EXPECT_NEAR(values[static_cast<size_t>(i)],
                  NumberedWeights::value(name, at) + added(at / in, at % in), 1e-6)
          << name << " " << at;
    }
  };
  // q has 24 rows and no adapter, k has rows 24 to 35.
  check(qkv + ".weight", 23, 20, [&](int64_t row, int64_t column) {
    return row < 24
               ? 0.0
               : product(qkv + ".lora_a.weight", 0, qkv + ".lora_b.k.weight", row - 24, column, 20);
  });
  check(fc1 + ".weight", 6, 20, [&](int64_t row, int64_t column) {
    const bool up = row % 2 == 1;
    return product(fc1 + ".lora_a.weight", up ? 3 : 0,
                   fc1 + (up ? ".lora_b.up.weight" : ".lora_b.gate.weight"), row / 2, column, 20);
  });
  check(layer + "mlp.fc2.weight", 3, 24, [](int64_t, int64_t) { return 0.0; });
}

/// Of a row of numbered weights, and of what its adapter makes of it.
double length(int64_t in, auto value) {
  double squares = 0;
  for (int64_t column = 0; column < in; ++column) {
    squares += value(column) * value(column);
  }
  return std::sqrt(squares);
}

// Rows 24 to 35 of qkv are k's; those of fc1 alternate.
TEST(MergedWeights, GivesRowsTheirTrainedLengths) {
  ModelSpec spec = adapted_llama();
  spec.lora.magnitudes = true;
  const ParameterLayout layout = make_parameter_layout(model_parameters(spec));
  const ParameterLayout merged_layout = make_parameter_layout(model_parameters(base_model(spec)));
  const NumberedWeights state(layout);
  const MergedWeights merged(state, layout, spec, merged_layout);
  WorkerPool workers(2);
  constexpr int64_t kIn = 20;
  const auto check_row = [&](const std::string& site, const std::string& matrix, int64_t number,
                             int64_t row, int64_t a_row) {
    const auto base = [&](int64_t column) {
      return static_cast<double>(NumberedWeights::value(site + ".weight", number * kIn + column));
    };
    const auto adapted = [&](int64_t column) {
      return base(column) + product(site + ".lora_a.weight", a_row,
                                    site + ".lora_b." + matrix + ".weight", row, column, kIn);
    };
    const double trained = length(kIn, base) + static_cast<double>(NumberedWeights::value(
                                                   site + ".lora_magnitude.weight", number));
    const double gain = trained / length(kIn, adapted);
    const std::vector<float> values =
        read_weights(merged, merged_layout, site + ".weight", number * kIn + 3, kIn - 5, workers);
    for (int64_t i = 0; i < std::ssize(values); ++i) {
      EXPECT_NEAR(values[static_cast<size_t>(i)], gain * adapted(i + 3), 2e-6) << site << number;
    }
    const Parameter& weight = layout.parameters[layout.slot(site + ".weight").parameter];
    for (const AdaptedMatrix& it : adapted_matrices(spec.lora, weight)) {
      if (it.name == matrix) {
        const std::vector<float> lengths = row_magnitudes(state, layout, weight, it, workers);
        ASSERT_EQ(std::ssize(lengths), it.num_rows);
        EXPECT_NEAR(lengths[static_cast<size_t>(row)], trained, 2e-6);
      }
    }
  };
  check_row("layers.1.attention.qkv", "k", 24, 0, 0);
  check_row("layers.1.attention.qkv", "k", 35, 11, 0);
  check_row("layers.0.mlp.fc1", "gate", 14, 7, 0);
  check_row("layers.0.mlp.fc1", "up", 47, 23, 3);
  // q has no adapter, and no length to train.
  const std::vector<float> q =
      read_weights(merged, merged_layout, "layers.1.attention.qkv.weight", 0, kIn, workers);
  for (int64_t i = 0; i < kIn; ++i) {
    EXPECT_EQ(q[static_cast<size_t>(i)],
              NumberedWeights::value("layers.1.attention.qkv.weight", i));
  }
}

TEST(AdaptedState, ReadsFrozenUnitsFromTheBase) {
  const ModelSpec spec = adapted_llama();
  const ParameterLayout layout = make_parameter_layout(model_parameters(spec));
  const BaseWeights base("initial", spec, 7);
  const NumberedWeights adapters(layout);
  const AdaptedState state(base, adapters, layout);
  const InitialWeights fresh(layout, spec, 7);
  WorkerPool workers(1);
  for (const Parameter& parameter : layout.parameters) {
    const StateSource& expected =
        parameter.frozen ? static_cast<const StateSource&>(fresh) : adapters;
    const int64_t count = parameter.shape.num_elems();
    EXPECT_EQ(read_weights(state, layout, parameter.name, 0, count, workers),
              read_weights(expected, layout, parameter.name, 0, count, workers))
        << parameter.name;
  }
}

}  // namespace
}  // namespace braid
