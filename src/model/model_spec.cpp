#include "model/model_spec.h"

#include "base/errors.h"
#include "model/blocks/registry.h"
#include "model/families.h"
#include "model/parameters.h"

namespace braid {

void check_model(const ModelSpec& spec) {
  require_positive_size("layers", spec.layers.size());
  require_positive_size("width", spec.width);
  for (const BlockDefinition* const block : all_blocks()) {
    if (spec.layers.has(*block)) {
      block->check_sizes(spec);
    }
  }
  require_positive_size("vocabulary", spec.vocabulary);
  if (spec.style.positions == PositionKind::kLearned) {
    require_positive_size("max_positions", spec.max_positions);
  }
}

int64_t num_parameters(const ModelSpec& spec) {
  int64_t total = 0;
  for (const Parameter& parameter : model_parameters(spec)) {
    const bool padded = parameter.vocabulary_rows;
    total += padded ? spec.vocabulary * parameter.shape[1] : parameter.shape.num_elems();
  }
  return total;
}

int64_t num_matrix_parameters(const ModelSpec& spec) {
  return static_cast<int64_t>(model_cost(spec, 0).weights) + spec.width * spec.vocabulary;
}

double train_flops_per_token(const ModelSpec& spec, int64_t sequence) {
  return 6.0 *
         (static_cast<double>(num_matrix_parameters(spec)) + model_cost(spec, sequence).mixing);
}

std::string describe_model(const ModelSpec& spec) {
  const bool is_usual = spec.layers == LayerPattern(spec.layers.size());
  return fmt::format("{}: {} layers{}, width {}{}, ffn {}, vocabulary {}{}, {:.2f} M parameters",
                     family_name(spec.style), spec.layers.size(),
                     is_usual ? "" : fmt::format(" ({})", spec.layers.text()), spec.width,
                     spec.heads == 0 ? ""
                                     : fmt::format(", {} heads ({} kv) of {}", spec.heads,
                                                   spec.kv_heads, spec.head_size),
                     spec.ffn, spec.vocabulary, spec.tied_embeddings ? " (tied)" : "",
                     static_cast<double>(num_parameters(spec)) * 1e-6);
}

}  // namespace braid
