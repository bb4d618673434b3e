#include "state/resumed_model.h"

#include <optional>
#include <string>

#include "base/file.h"
#include "checkpoint/checkpoint_path.h"
#include "checkpoint/state_file.h"
#include "model/families.h"
#include "state/recorded_config.h"

namespace braid {

RunConfig with_resumed_model(RunConfig config) {
  constexpr int64_t kMaxStateBytes = int64_t{64} << 20;
  const std::string& resume = config.checkpoint.resume;
  if (config.model != ModelConfig{} || resume == "auto" || resume == "none") {
    return config;
  }
  const std::optional<std::string> checkpoint = checkpoint_at(resume);
  if (!checkpoint) {
    return config;
  }
  const std::string path = *checkpoint + "/" + std::string(kStateFile);
  const StoredState stored = parse_state(read_text_file(path, kMaxStateBytes), path);
  const RunConfig saved = recorded_config(stored.state, path);
  config.model = saved.model;
  const std::string family = saved.model.family.value_or(std::string(kModelFamilies[0].name));
  if (saved.model.preset.empty() && find_family(family).style.positions != PositionKind::kLearned) {
    config.model.max_positions.reset();  // an import keeps it for `export`
  }
  if (config.data.tokenizer == DataConfig{}.tokenizer) {
    config.data.tokenizer = saved.data.tokenizer;
  }
  return config;
}

}  // namespace braid
