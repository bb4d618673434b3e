#include "programs/published_rows.h"

#include <charconv>
#include <filesystem>
#include <map>
#include <set>

#include "base/errors.h"
#include "base/file.h"
#include "base/text.h"
#include "config/load.h"
#include "config/validate.h"
#include "programs/fitting_half.h"
#include "sim/cluster.h"

namespace braid {
namespace {

constexpr int64_t kMaxFileBytes = 1 << 20;
constexpr char kSeparator = '|';

struct Line {
  std::string where;
  std::vector<std::string> fields;
};

std::vector<Line> lines_of(const std::string& path, size_t num_fields) {
  std::vector<Line> lines;
  const std::vector<std::string> texts = split_text(read_text_file(path, kMaxFileBytes), '\n');
  for (size_t i = 0; i < texts.size(); ++i) {
    if (texts[i].empty() || texts[i].front() == '#') {
      continue;
    }
    Line line{.where = fmt::format("{}:{}", path, i + 1),
              .fields = split_text(texts[i], kSeparator)};
    if (line.fields.size() != num_fields) {
      throw_data_error("{}: {} fields instead of {}", line.where, line.fields.size(), num_fields);
    }
    lines.push_back(std::move(line));
  }
  return lines;
}

template <class T>
T number_of(const Line& line, std::string_view text) {
  T number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || number <= 0) {
    throw_data_error("{}: {} is not a number above 0", line.where, quote(text, 60));
  }
  return number;
}

std::map<std::string, ModelConfig> models_of(const std::string& path) {
  std::map<std::string, ModelConfig> models;
  for (const Line& line : lines_of(path, 10)) {
    const std::vector<std::string>& f = line.fields;
    models[f[0]] = {.family = f[1],
                    .layers = number_of<int64_t>(line, f[2]),
                    .width = number_of<int64_t>(line, f[3]),
                    .heads = number_of<int64_t>(line, f[4]),
                    .kv_heads = number_of<int64_t>(line, f[5]),
                    .ffn = number_of<int64_t>(line, f[6]),
                    .vocabulary = number_of<int64_t>(line, f[7]),
                    .tied_embeddings = f[8] == "true"};
  }
  return models;
}

/// What rows do not say: as published runs of all stacks have it.
RunConfig usual_config(const std::vector<std::string>& settings) {
  std::vector<std::string> overrides{"train.dtype=bfloat16", "parallel.shard=optimizer",
                                     "parallel.grad_reduce_dtype=bfloat16",
                                     "parallel.pipeline_layout=even"};
  overrides.insert(overrides.end(), settings.begin(), settings.end());
  return parse_config("", "rows", overrides);
}

RunConfig config_of(const Line& line, const ModelConfig& model, int num_ranks) {
  const std::vector<std::string>& f = line.fields;
  const std::vector<std::string> layout = split_text(f[7], '-');
  if (layout.size() != 4) {
    throw_data_error("{}: layout {} is not tensor-pipeline-context-virtual", line.where, f[7]);
  }
  std::vector<std::string> settings;
  const auto tensor = number_of<int64_t>(line, layout[0]);
  const auto virtual_stages = number_of<int64_t>(line, layout[3]);
  settings.push_back(fmt::format("parallel.sequence_parallel={}", tensor > 1));
  for (const std::string& setting : split_text(f[8], ' ')) {
    if (!setting.empty()) {
      settings.push_back(setting);
    }
  }
  RunConfig config = usual_config(settings);
  config.model = model;
  config.train.sequence = number_of<int64_t>(line, f[4]);
  if (model.family == "gpt2") {
    config.model.max_positions = config.train.sequence;
  }
  config.train.global_batch = number_of<int64_t>(line, f[5]);
  config.train.microbatch = number_of<int64_t>(line, f[6]);
  config.parallel.ranks = num_ranks;
  config.parallel.tensor = tensor;
  config.parallel.pipeline = number_of<int64_t>(line, layout[1]);
  config.parallel.context = number_of<int64_t>(line, layout[2]);
  config.parallel.virtual_stages = virtual_stages;
  config.parallel.schedule = virtual_stages > 1 ? "interleaved" : "1f1b";
  config.logging.run_folder = "unused";
  validate(config);
  return resolved(config);
}

PublishedRow row_of(const Line& line, const std::map<std::string, ModelConfig>& models,
                    const std::string& root) {
  const std::vector<std::string>& f = line.fields;
  const std::string cluster = names_device_file(f[2]) ? root + "/" + f[2] : f[2];
  const auto model = models.find(f[3]);
  if (model == models.end()) {
    throw_data_error("{}: models.txt has no model {}", line.where, quote(f[3], 60));
  }
  try {
    return {.name = f[0],
            .stack = f[1],
            .cluster = cluster,
            .model = f[3],
            .config = config_of(line, model->second, parse_cluster(cluster).num_devices),
            .layout = f[7],
            .seconds = number_of<double>(line, f[9]),
            .is_fitted = is_fitting_row(f[0])};
  } catch (const ConfigError& error) {
    throw_config_error("{}: {}", line.where, error.what());
  }
}

}  // namespace

std::vector<PublishedRow> load_published_rows(const std::string& folder) {
  const std::map<std::string, ModelConfig> models = models_of(folder + "/models.txt");
  const std::string root = std::filesystem::path(folder).parent_path().parent_path().string();
  std::vector<PublishedRow> rows;
  std::set<std::string> names;
  for (const Line& line : lines_of(folder + "/rows.txt", 11)) {
    rows.push_back(row_of(line, models, root));
    if (!names.insert(rows.back().name).second) {
      throw_data_error("{}: a second row {}", line.where, rows.back().name);
    }
  }
  return rows;
}

}  // namespace braid
