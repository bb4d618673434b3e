#include <algorithm>

#include "base/errors.h"
#include "model/block_builder.h"
#include "model/blocks/registry.h"
#include "ops/activation.h"

namespace braid {
namespace {

int64_t fc1_rows(const ModelSpec& spec) {
  return spec.style.is_gated() ? 2 * spec.ffn : spec.ffn;
}

/// Default of ffn: 4 width without a gate; 8/3 width, rounded up to a multiple of 64, for SwiGLU,
/// which has a third matrix.
void derive_sizes(ModelSpec& spec) {
  if (spec.ffn == 0 && spec.layers.has(kMlpBlock)) {
    spec.ffn = spec.style.is_gated() ? (8 * spec.width / 3 + 63) / 64 * 64 : 4 * spec.width;
  }
}

void check_sizes(const ModelSpec& spec) {
  require_positive_size("ffn", spec.ffn);
}

std::optional<std::string> tensor_fault(const ModelSpec& spec, int64_t ranks) {
  return spec.ffn % ranks == 0 ? std::nullopt
                               : std::optional(fmt::format("must divide model.ffn = {}", spec.ffn));
}

void add_parameters(ParameterList& list, const ModelSpec& spec) {
  list.linear("mlp.fc1",
              {.out = fc1_rows(spec),
               .in = spec.width,
               .bias = spec.style.linear_biases,
               .gate_up_rows = spec.style.is_gated(),
               .matrices = spec.style.is_gated() ? std::vector<std::string_view>{"gate", "up"}
                                                 : std::vector<std::string_view>{"fc1"}});
  list.linear("mlp.fc2", {.out = spec.width,
                          .in = spec.ffn,
                          .bias = spec.style.linear_biases,
                          .split = TensorSplit::kColumns,
                          .std_scale = list.residual_scale(),
                          .matrices = {"fc2"}});
}

ValueId activate(BlockBuilder& builder, ValueId x) {
  switch (builder.spec().style.activation) {
    case Activation::kSwiglu:
      return swiglu(builder.graph(), x, "mlp.swiglu");
    case Activation::kGeglu:
      return geglu(builder.graph(), x, "mlp.geglu");
    case Activation::kGelu:
      return gelu(builder.graph(), x, "mlp.gelu");
    case Activation::kRelu2:
      return relu2(builder.graph(), x, "mlp.relu2");
  }
  throw_internal_error("no activation");
}

ValueId forward(BlockBuilder& builder, ValueId x) {
  const ValueId hidden =
      builder.spec().style.is_gated()
          ? builder.column_linear(
                x, "mlp.fc1", {{"gate", {.begin = 0, .step = 2}}, {"up", {.begin = 1, .step = 2}}})
          : builder.column_linear(x, "mlp.fc1", {{"fc1"}});
  return builder.row_linear(activate(builder, hidden), "mlp.fc2", {{"fc2"}});
}

BlockCost cost(const ModelSpec& spec, int64_t /*sequence*/) {
  const auto width = static_cast<double>(spec.width);
  const auto fc1 = static_cast<double>(fc1_rows(spec));
  const auto ffn = static_cast<double>(spec.ffn);
  return {.weights = width * (fc1 + ffn),
          .kept_elems = (spec.post_norms ? 3 : 2) * width + fc1 + ffn,
          .widest = std::max(width, fc1)};
}

void add_gated_tensors(HfTensorList& list, const ModelSpec& spec) {
  list.add("mlp.gate_proj.weight", {spec.ffn, spec.width}, "mlp.fc1.weight", 0, 2);
  list.add("mlp.up_proj.weight", {spec.ffn, spec.width}, "mlp.fc1.weight", 1, 2);
  list.add("mlp.down_proj.weight", {spec.width, spec.ffn}, "mlp.fc2.weight");
}

void add_hf_tensors(HfTensorList& list, const ModelSpec& spec, HfNaming naming) {
  switch (naming) {
    case HfNaming::kGemma3:
      list.add_norm("pre_feedforward_layernorm", spec, "mlp_norm");
      add_gated_tensors(list, spec);
      list.add_norm("post_feedforward_layernorm", spec, "mlp_post_norm");
      return;
    case HfNaming::kLlama:
    case HfNaming::kMixtral:
    case HfNaming::kDeepseek:
      list.add_norm("post_attention_layernorm", spec, "mlp_norm");
      return add_gated_tensors(list, spec);
    case HfNaming::kPhi3:
      list.add_norm("post_attention_layernorm", spec, "mlp_norm");
      for (const int64_t half : {0, 1}) {
        list.add("mlp.gate_up_proj.weight", {spec.ffn, spec.width}, "mlp.fc1.weight", half, 2);
        list.set_whole({2 * spec.ffn, spec.width}, half * spec.ffn);
      }
      list.add("mlp.down_proj.weight", {spec.width, spec.ffn}, "mlp.fc2.weight");
      return;
    case HfNaming::kBackbone:
      list.add_norm("norm", spec, "mlp_norm");
      list.add("mixer.up_proj.weight", {spec.ffn, spec.width}, "mlp.fc1.weight");
      list.add("mixer.down_proj.weight", {spec.width, spec.ffn}, "mlp.fc2.weight");
      return;
    case HfNaming::kGpt2:
      list.add_norm("ln_2", spec, "mlp_norm");
      list.add_conv1d("mlp.c_fc", spec.width, spec.ffn, "mlp.fc1");
      list.add_conv1d("mlp.c_proj", spec.ffn, spec.width, "mlp.fc2");
  }
}

}  // namespace

/// Two matrices with an activation between them. Tensor ranks hold an equal run of hidden features
/// each.
extern const BlockDefinition kMlpBlock{.name = "mlp",
                                       .role = BlockRole::kFeedForward,
                                       .takes_adapters = true,
                                       .derive_sizes = derive_sizes,
                                       .check_sizes = check_sizes,
                                       .tensor_fault = tensor_fault,
                                       .add_parameters = add_parameters,
                                       .forward = forward,
                                       .cost = cost,
                                       .add_hf_tensors = add_hf_tensors};

}  // namespace braid
