#include "parallel/pipeline_layout.h"

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <string_view>
#include <utility>

#include "base/errors.h"
#include "base/text.h"
#include "parallel/layout_string.h"

namespace braid {
namespace {

using LayerCounts = std::vector<int64_t>;  // by stage

constexpr std::string_view kBalanced = "balanced";
constexpr std::string_view kEven = "even";

template <class... Args>
void require(bool holds, fmt::format_string<Args...> format, Args&&... args) {
  if (!holds) {
    throw_config_error(format, std::forward<Args>(args)...);
  }
}

/// "4 stages (parallel.pipeline = 2 * parallel.virtual_stages = 2)".
std::string describe_stages(const PipelineLayoutOptions& options) {
  return fmt::format("{} stages (parallel.pipeline = {} * parallel.virtual_stages = {})",
                     options.schedule.num_stages(), options.schedule.num_ranks,
                     options.schedule.virtual_stages);
}

/// The embedding precedes the first layer, the head follows the last.
std::vector<StageSlice> stages_of(const LayerCounts& layers) {
  std::vector<StageSlice> stages;
  int64_t first_layer = 0;
  for (size_t stage = 0; stage < layers.size(); ++stage) {
    stages.push_back({.first_layer = first_layer,
                      .num_layers = layers[stage],
                      .has_embedding = stage == 0,
                      .has_head = stage + 1 == layers.size()});
    first_layer += layers[stage];
  }
  return stages;
}

bool has_empty_stage(const std::vector<StageSlice>& stages) {
  return std::ranges::any_of(stages, [](const StageSlice& stage) {
    return stage.num_layers == 0 && !stage.has_embedding && !stage.has_head;
  });
}

/// Returns the number of pipeline ranks nearest to the given one for which `layers` can be divided
/// evenly among all ranks except `num_given`, whose layers are given.
std::optional<int64_t> nearest_pipeline(const PipelineLayoutOptions& options, int64_t layers,
                                        int64_t num_given) {
  std::optional<int64_t> nearest;
  for (int64_t others = 1; others * options.schedule.virtual_stages <= layers; ++others) {
    const int64_t ranks = num_given + others;
    const bool nearer = !nearest || std::abs(ranks - options.schedule.num_ranks) <
                                        std::abs(*nearest - options.schedule.num_ranks);
    if (layers % (others * options.schedule.virtual_stages) == 0 && nearer) {
      nearest = ranks;
    }
  }
  return nearest;
}

/// True if every stage between the first and the last can have a layer.
bool can_be_balanced(const PipelineLayoutOptions& options) {
  return options.layers >= options.schedule.num_stages() - 2;
}

/// Text such as "parallel.pipeline_layout = "balanced" and parallel.account_for_loss = false": the
/// settings that turn off the other methods of placing layers.
std::string balanced_alone(const PipelineLayoutOptions& options) {
  std::string text = "parallel.pipeline_layout = \"balanced\"";
  text += options.first_stage_layers != 0 ? " and parallel.first_stage_layers = 0" : "";
  text += options.last_stage_layers != 0 ? " and parallel.last_stage_layers = 0" : "";
  text += options.account_for_embedding ? " and parallel.account_for_embedding = false" : "";
  text += options.account_for_loss ? " and parallel.account_for_loss = false" : "";
  return text;
}

/// Text such as "; the nearest is parallel.pipeline = 4, or set parallel.pipeline_layout =
/// "balanced"".
std::string what_would_fit(const PipelineLayoutOptions& options, int64_t layers,
                           int64_t num_given = 0) {
  std::vector<std::string> ways;
  if (const auto ranks = nearest_pipeline(options, layers, num_given)) {
    ways.push_back(fmt::format("the nearest is parallel.pipeline = {}", *ranks));
  }
  if (can_be_balanced(options)) {
    ways.push_back("set " + balanced_alone(options));
  }
  return ways.empty() ? "" : "; " + join(ways, ", or ");
}

LayerCounts balanced(const PipelineLayoutOptions& options) {
  const int64_t most_ranks = (options.layers + 2) / options.schedule.virtual_stages;
  require(
      can_be_balanced(options),
      "model.layers = {}: too few for {}, since each stage except the first and the last needs "
      "one; {}",
      options.layers, describe_stages(options),
      most_ranks > 0
          ? fmt::format("the largest is parallel.pipeline = {}", most_ranks)
          : fmt::format("the largest is parallel.virtual_stages = {} with parallel.pipeline = 1",
                        options.layers + 2));
  return balanced_layers(options.schedule, options.layers, options.costs, options.effort);
}

LayerCounts even_layers(const PipelineLayoutOptions& options) {
  const int64_t counted =
      options.layers + (options.account_for_embedding ? 1 : 0) + (options.account_for_loss ? 1 : 0);
  const int64_t stages = options.schedule.num_stages();
  require(counted % stages == 0, "model.layers = {}{}{}: {} do not divide over {}{}",
          options.layers, options.account_for_embedding ? " + 1 for the embedding" : "",
          options.account_for_loss ? " + 1 for the loss" : "",
          counted == options.layers ? "the layers" : fmt::format("{} layers", counted),
          describe_stages(options), what_would_fit(options, counted));
  LayerCounts layers(static_cast<size_t>(stages), counted / stages);
  layers.front() -= options.account_for_embedding ? 1 : 0;
  layers.back() -= options.account_for_loss ? 1 : 0;
  return layers;
}

/// Number of layers of each virtual stage of a rank whose total `key` sets.
int64_t layers_per_stage(const PipelineLayoutOptions& options, const char* key, int64_t given) {
  require(given >= 1 && given <= options.layers,
          "{} = {}: must be 1 to model.layers = {}; remove the key", key, given, options.layers);
  const int64_t stages = options.schedule.virtual_stages;
  const int64_t below = given / stages * stages;
  require(given % stages == 0,
          "{} = {}: the layers do not divide over parallel.virtual_stages = {} of the rank; the "
          "nearest {}",
          key, given, stages,
          below == 0 ? fmt::format("is {}", stages)
                     : fmt::format("are {} and {}", below, below + stages));
  return given / stages;
}

LayerCounts overridden_layers(const PipelineLayoutOptions& options) {
  const int64_t first = options.first_stage_layers;
  const int64_t last = options.last_stage_layers;
  for (const auto& [key, given] : {std::pair{"parallel.first_stage_layers", first},
                                   std::pair{"parallel.last_stage_layers", last}}) {
    require(
        options.schedule.num_ranks > 1 || given == 0 || given == options.layers,
        "{} = {}: with parallel.pipeline = 1, the only rank holds all {} layers; remove the key",
        key, given, options.layers);
  }
  LayerCounts by_rank(static_cast<size_t>(options.schedule.num_ranks), -1);  // -1: not given
  if (last != 0) {
    by_rank.back() = layers_per_stage(options, "parallel.last_stage_layers", last);
  }
  if (first != 0) {
    by_rank.front() = layers_per_stage(options, "parallel.first_stage_layers", first);
  }
  const auto others = std::ranges::count(by_rank, -1);
  const int64_t given = options.schedule.num_ranks == 1 ? std::max(first, last) : first + last;
  const int64_t rest = options.layers - given;
  const int64_t other_stages = others * options.schedule.virtual_stages;
  require(other_stages == 0 ? rest == 0 : rest > 0 && rest % other_stages == 0,
          "model.layers = {} less parallel.first_stage_layers = {} and parallel.last_stage_layers "
          "= {}: the other {} do not divide over the other {} stages{}",
          options.layers, first, last, rest, other_stages,
          what_would_fit(options, rest, options.schedule.num_ranks - others));
  std::ranges::replace(by_rank, -1, other_stages == 0 ? 0 : rest / other_stages);

  LayerCounts layers;
  for (int stage = 0; stage < options.schedule.num_stages(); ++stage) {
    layers.push_back(by_rank[static_cast<size_t>(place_of(options.schedule, stage).rank)]);
  }
  return layers;
}

/// Counts the layers of each stage. `stages` has the letters of each stage, in model order.
LayerCounts counted_layers(const PipelineLayoutOptions& options,
                           const std::vector<std::string>& stages) {
  const std::string layout = quote(options.layout, 200);
  const std::string all = join(stages, "");
  require(all.starts_with('E') && std::ranges::count(all, 'E') == 1,
          "parallel.pipeline_layout = {}: E (embedding) must come first, and once", layout);
  require(all.ends_with('L') && std::ranges::count(all, 'L') == 1,
          "parallel.pipeline_layout = {}: L (head and loss) must come last, and once", layout);
  const auto layers = std::ranges::count(all, 't');
  require(layers == options.layers,
          "parallel.pipeline_layout = {}: {} layers, but model.layers = {}", layout, layers,
          options.layers);
  LayerCounts counts;
  for (const std::string& stage : stages) {
    counts.push_back(std::ranges::count(stage, 't'));
  }
  return counts;
}

/// Text such as ", or parallel.virtual_stages = 2" if that gives `num_stages` stages with this
/// schedule; else empty.
std::string stages_that_fit(const ScheduleOptions& schedule, int64_t num_stages) {
  const int64_t by_rank = num_stages / schedule.num_ranks;
  const bool fits = num_stages % schedule.num_ranks == 0 &&
                    schedule.kind == ScheduleKind::kInterleaved && by_rank >= 2;
  return fits ? fmt::format(", or parallel.virtual_stages = {}", by_rank) : "";
}

std::vector<StageSlice> stages_of_string(const PipelineLayoutOptions& options) {
  const std::vector<std::string> letters = parse_layout_string(options.layout);
  const auto given = static_cast<int64_t>(letters.size());
  require(given == options.schedule.num_stages(),
          "parallel.pipeline_layout = {}: {} stages, not {}; set parallel.pipeline_layout = "
          "\"balanced\"{}",
          quote(options.layout, 200), given, describe_stages(options),
          stages_that_fit(options.schedule, given));
  std::vector<StageSlice> stages = stages_of(counted_layers(options, letters));
  require(letters.front().starts_with('E') && letters.back().ends_with('L'),
          "parallel.pipeline_layout = {}: the embedding must be in the first stage and the head in "
          "the last one; other stages may be empty; the nearest is {}",
          quote(options.layout, 200), quote(layout_text(stages), 200));
  return stages;
}

void check_options(const PipelineLayoutOptions& options) {
  check(options.layers >= 1 && options.schedule.num_ranks >= 1 &&
            options.schedule.virtual_stages >= 1,
        "{} layers over {} ranks of {} virtual stages", options.layers, options.schedule.num_ranks,
        options.schedule.virtual_stages);
  const bool accounts = options.account_for_embedding || options.account_for_loss;
  const bool overrides = options.first_stage_layers != 0 || options.last_stage_layers != 0;
  const bool places = !options.layout.empty() && options.layout != kEven;
  const int ways = (accounts ? 1 : 0) + (overrides ? 1 : 0) + (places ? 1 : 0);
  require(
      ways <= 1,
      "parallel.pipeline_layout = {}, parallel.first_stage_layers = {}, parallel.last_stage_layers "
      "= {}, parallel.account_for_embedding = {}, parallel.account_for_loss = {}: these keys "
      "exclude each other; give only one kind of them, or set {}",
      quote(options.layout, 60), options.first_stage_layers, options.last_stage_layers,
      options.account_for_embedding, options.account_for_loss, balanced_alone(options));
}

LayerCounts layer_counts(const PipelineLayoutOptions& options) {
  if (options.first_stage_layers != 0 || options.last_stage_layers != 0) {
    return overridden_layers(options);
  }
  const bool even =
      options.layout == kEven || options.account_for_embedding || options.account_for_loss;
  return even ? even_layers(options) : balanced(options);
}

void append_stage(std::string& text, const StageSlice& stage) {
  text += stage.has_embedding ? "E" : "";
  if (stage.num_layers >= 3) {
    text += fmt::format("t*{}", stage.num_layers);
  } else {
    text.append(static_cast<size_t>(stage.num_layers), 't');
  }
  text += stage.has_head ? "L" : "";
}

}  // namespace

std::vector<StageSlice> make_pipeline_layout(const PipelineLayoutOptions& options) {
  check_options(options);
  const bool named =
      options.layout.empty() || options.layout == kEven || options.layout == kBalanced;
  if (!named) {
    return stages_of_string(options);
  }
  const auto stages = stages_of(layer_counts(options));
  check(!has_empty_stage(stages), "layout {} has an empty stage", layout_text(stages));
  return stages;
}

std::string layout_text(std::span<const StageSlice> stages) {
  std::string text;
  for (size_t stage = 0; stage < stages.size(); ++stage) {
    text += stage == 0 ? "" : "|";
    append_stage(text, stages[stage]);
  }
  return text;
}

}  // namespace braid
