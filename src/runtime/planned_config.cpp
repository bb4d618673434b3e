#include "runtime/planned_config.h"

#include <utility>

#include "config/load.h"
#include "config/validate.h"
#include "data/tokenizer.h"
#include "state/resumed_model.h"

namespace braid {

int64_t tokenizer_vocabulary(const RunConfig& config) {
  const bool has_vocabulary =
      !config.model.preset.empty() || config.model.vocabulary.value_or(0) > 0;
  return has_vocabulary ? 0 : load_tokenizer(config.data.tokenizer)->vocabulary_size();
}

PlannedConfig plan_config(RunConfig config) {
  validate(config);
  config = resolved(std::move(config));
  const int64_t vocabulary = tokenizer_vocabulary(config);
  return {.config = std::move(config), .tokenizer_vocabulary = vocabulary};
}

PlannedConfig load_planned_config(const std::string& path, std::span<const std::string> overrides) {
  return plan_config(with_resumed_model(load_config(path, overrides)));
}

}  // namespace braid
