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
