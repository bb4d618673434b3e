#include "state/import_weights.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <utility>

#include "base/errors.h"
#include "base/file.h"
#include "checkpoint/checkpoint_folder.h"
#include "checkpoint/folder_lock.h"
#include "config/reference.h"
#include "hugging_face/companions.h"
#include "hugging_face/model_config.h"
#include "hugging_face/tensor_folder.h"
#include "hugging_face/tensor_names.h"
#include "plan/model_setup.h"
#include "state/checkpointing.h"
#include "state/hugging_face_source.h"
#include "state/recorded_config.h"

namespace braid {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMaxConfigBytes = int64_t{16} << 20;
constexpr int64_t kLongestSequence = 1024;  // default context of generation

/// The companions with config.json itself, which has more than a checkpoint records.
HfCompanions carried_files(const std::string& hf_folder, const std::string& config,
                           const ModelSpec& model) {
  HfCompanions companions = find_companions(hf_folder, model.vocabulary);
  companions.files.emplace("config.json", config);
  return companions;
}

std::string tokenizer_of(const HfCompanions& companions, const std::string& folder,
                         const ModelSpec& model) {
  const std::string name = tokenizer_file(companions);
  return name.empty() ? fmt::format("ids:{}", model.vocabulary)
                      : (fs::absolute(folder) / name).lexically_normal().string();
}

RunConfig run_of(const HfConfig& config, std::string tokenizer) {
  RunConfig run;
  run.model = model_keys(config.model);
  run.model.max_positions = config.model.max_positions;  // for `export`, also without a table
  const int64_t positions = config.model.max_positions;  // 0: states have no limit
  run.train.sequence = positions == 0 ? kLongestSequence : std::min(positions, kLongestSequence);
  run.data.tokenizer = std::move(tokenizer);
  return run;
}

std::vector<std::string> names_of(const HfCompanions& companions) {
  std::vector<std::string> names;
  for (const auto& [name, path] : companions.files) {
    names.push_back(name);
  }
  return names;
}

void check_no_checkpoint(const std::string& folder) {
  if (const auto latest = find_latest_checkpoint(folder)) {
    throw_config_error("'{}' already has the checkpoint {}; give another folder", folder, *latest);
  }
}

}  // namespace

HfConfig read_hf_config(const std::string& hf_folder) {
  const std::string path = hf_folder + "/config.json";
  return parse_hf_config(read_text_file(path, kMaxConfigBytes), path);
}

RunConfig imported_run(const HfConfig& config, const std::string& folder) {
  const HfCompanions companions = find_companions(folder, config.model.vocabulary);
  return run_of(config, tokenizer_of(companions, folder, config.model));
}

ImportSummary import_weights(const std::string& hf_folder, const std::string& folder) {
  check_no_checkpoint(folder);
  HfConfig config = read_hf_config(hf_folder);
  const HfTensorFolder files(hf_folder);
  config.model.mtp_depth = stored_mtp_depth(config.model, files.names());
  const ParameterLayout layout = make_parameter_layout(model_parameters(config.model));
  const HuggingFaceSource source(files, layout, config.model);
  const HfCompanions companions =
      carried_files(hf_folder, hf_folder + "/config.json", config.model);
  const std::string carried_folder = (fs::path(folder) / kCompanionFolder).string();
  const RunConfig run = run_of(config, tokenizer_of(companions, carried_folder, config.model));
  make_folders(folder);
  const FolderLock lock("FOLDER", folder);
  check_no_checkpoint(folder);  // again: nobody else can write one now
  make_folders(carried_folder);
  copy_companions(companions, carried_folder);
  const std::string checkpoint = save_model_state(
      folder,
      {.model = describe_model(config.model),
       .config = to_toml(run),
       .extra = with_current_folder({})},
      layout, config.model, std::array{whole_shard(layout, config.model, source)}, {.keep = 0});
  return {.model = config.model,
          .keys = model_keys(config.model),
          .ignored = config.ignored,
          .checkpoint = checkpoint,
          .tokenizer = run.data.tokenizer,
          .carried = names_of(companions)};
}

}  // namespace braid
