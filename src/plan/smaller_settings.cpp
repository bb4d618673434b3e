#include "plan/smaller_settings.h"

#include <algorithm>
#include <array>
#include <span>
#include <string_view>

#include "base/errors.h"
#include "base/text.h"
#include "config/choices.h"
#include "config/validate.h"
#include "config/value.h"
#include "plan/more_room.h"
#include "plan/recompute_policies.h"

namespace braid {
namespace {

constexpr size_t kMaxMicrobatches = 5;
constexpr std::array<std::string_view, 3> kShards = {"optimizer", "gradients", "parameters"};

const Field& field_of(const SettingChange& change) {
  const Field* const field = find_field(change.section, change.name);
  check(field != nullptr, "there is no key {}.{}", change.section, change.name);
  return *field;
}

ConfigValue value_of(const SettingChange& change) {
  return std::visit([](const auto& value) { return ConfigValue(value); }, change.value);
}

/// Whether `level` saves more than `current`. `current` is one of the levels, or precedes all of
/// them.
bool is_beyond(std::span<const std::string_view> levels, std::string_view level,
               std::string_view current) {
  return std::find(levels.begin(), levels.end(), level) >
             std::find(levels.begin(), levels.end(), current) ||
         std::find(levels.begin(), levels.end(), current) == levels.end();
}

/// Possible changes, one list per key, each from the smallest change to the largest.
class ChoicesOfRun {
 public:
  ChoicesOfRun(const RunConfig& config, int64_t layers) : config_(config), layers_(layers) {}

  std::optional<SettingChange> saves_between_steps() const {
    return copies_state(config_) ? std::optional(SettingChange{"checkpoint", "async", false})
                                 : std::nullopt;
  }

  /// Room for more rows than experts have with equal loads, instead of for all that could come.
  std::optional<SettingChange> row_capacity() const {
    const bool exchange_rows = config_.parallel.expert * config_.parallel.expert_tensor > 1;
    return exchange_rows && could_have_less_room(config_.moe)
               ? std::optional(SettingChange{"moe", "capacity", kUsualCapacity})
               : std::nullopt;
  }

  std::optional<SettingChange> recompute(RecomputeChoice policy) const {
    const auto given = choice<RecomputeChoice>(config_.memory.recompute);
    const auto policies = recompute_policies(config_.parallel);
    const bool repeats_more = given == RecomputeChoice::kAuto || policy > given;
    return repeats_more && std::ranges::find(policies, policy) != policies.end()
               ? std::optional(
                     SettingChange{"memory", "recompute", std::string(choice_name(policy))})
               : std::nullopt;
  }

  std::optional<SettingChange> shard(std::string_view kind) const {
    const bool shared = config_.parallel.data * config_.parallel.context > 1;
    return shared && is_beyond(kShards, kind, config_.parallel.shard)
               ? std::optional(SettingChange{"parallel", "shard", std::string(kind)})
               : std::nullopt;
  }

  /// Divisors of the sequences of a data-parallel rank, largest first.
  std::vector<SettingChange> microbatches() const {
    const int64_t sequences = config_.train.global_batch / config_.parallel.data;
    const bool pairs = choice<PreferenceChoice>(config_.preference.loss) != PreferenceChoice::kNone;
    const int64_t parts =
        config_.train.microbatch / microbatch_sequences(config_) * (pairs ? 2 : 1);
    std::vector<SettingChange> list;
    for (int64_t size = config_.train.microbatch - 1; size >= 1; --size) {
      if (sequences % size == 0 && size % parts == 0) {
        list.push_back({"train", "microbatch", size});
      }
    }
    if (list.size() > kMaxMicrobatches) {  // the nearest ones, and the smallest
      list[kMaxMicrobatches - 1] = list.back();
      list.resize(kMaxMicrobatches);
    }
    return list;
  }

  std::vector<SettingChange> offload() const {
    std::vector<SettingChange> list;
    for (const int64_t count : {layers_ / 2, layers_}) {
      if (count > config_.memory.offload_layers) {
        list.push_back({"memory", "offload_layers", count});
      }
    }
    return list;
  }

  /// Two choices: half as many microbatches, and one microbatch.
  std::vector<SettingChange> batches() const {
    const int64_t together = microbatch_sequences(config_) * config_.parallel.data;
    const int64_t count = num_microbatches(config_);
    std::vector<SettingChange> list;
    for (const int64_t fewer : {count / 2, int64_t{1}}) {
      if (fewer >= 1 && fewer < count && (list.empty() || fewer < count / 2)) {
        list.push_back({"train", "global_batch", fewer * together});
      }
    }
    return list;
  }

 private:
  const RunConfig& config_;
  int64_t layers_;
};

void append(std::vector<SettingChange>& list, const std::optional<SettingChange>& one) {
  if (one) {
    list.push_back(*one);
  }
}

void append(std::vector<SettingChange>& list, const std::vector<SettingChange>& more) {
  list.insert(list.end(), more.begin(), more.end());
}

/// Single changes, cheapest first. A save that steps wait for costs nothing between saves, and less
/// room for rows nothing while loads are about equal.
/// Recomputing norms costs almost nothing, and sharding the optimizer state communicates no more
/// than all-reducing gradients. Each later change costs more: smaller microbatches lose efficiency,
/// full recompute adds a third of the step.
std::vector<SettingChange> single_changes(const ChoicesOfRun& choices) {
  std::vector<SettingChange> list;
  append(list, choices.saves_between_steps());
  append(list, choices.row_capacity());
  append(list, choices.recompute(RecomputeChoice::kNorms));
  append(list, choices.shard("optimizer"));
  append(list, choices.recompute(RecomputeChoice::kAttention));
  append(list, choices.shard("gradients"));
  append(list, choices.microbatches());
  append(list, choices.recompute(RecomputeChoice::kCompute));
  append(list, choices.recompute(RecomputeChoice::kFull));
  append(list, choices.shard("parameters"));
  append(list, choices.offload());
  append(list, choices.batches());
  return list;
}

/// The strongest change of each key, in the order of their cost.
std::vector<SettingChange> strongest_changes(const ChoicesOfRun& choices) {
  std::vector<SettingChange> list;
  const auto append_last = [&](const std::vector<SettingChange>& levels) {
    if (!levels.empty()) {
      list.push_back(levels.back());
    }
  };
  append(list, choices.saves_between_steps());
  append(list, choices.row_capacity());
  append(list, choices.shard("optimizer"));
  append_last(choices.microbatches());
  append(list, choices.recompute(RecomputeChoice::kFull));
  append(list, choices.shard("parameters"));
  append_last(choices.offload());
  return list;
}

/// Adds a change, replacing one of the same key.
void add_change(SettingChanges& changes, const SettingChange& added) {
  std::erase_if(changes,
                [&](const SettingChange& each) { return &field_of(each) == &field_of(added); });
  changes.push_back(added);
}

}  // namespace

std::string describe_changes(const SettingChanges& changes) {
  std::vector<std::string> texts;
  for (const SettingChange& each : changes) {
    texts.push_back(fmt::format("{} = {}", full_name(field_of(each)), to_text(value_of(each))));
  }
  return join(texts, ", ");
}

RunConfig with_changes(RunConfig config, const SettingChanges& changes) {
  for (const SettingChange& each : changes) {
    set_value(field_of(each), config, value_of(each));
  }
  return config;
}

std::vector<SettingChanges> smaller_settings(const RunConfig& config, int64_t layers) {
  const ChoicesOfRun choices(config, layers);
  std::vector<SettingChanges> settings;
  for (const SettingChange& each : single_changes(choices)) {
    settings.push_back({each});
  }
  SettingChanges together;
  for (const SettingChange& each : strongest_changes(choices)) {
    add_change(together, each);
    if (together.size() > 1) {
      settings.push_back(together);
    }
  }
  check(settings.size() <= kMaxSmallerSettings, "{} smaller settings", settings.size());
  return settings;
}

std::optional<FittingSetting> find_fitting_setting(const RunConfig& config, int64_t layers,
                                                   const FittingBytes& fitting_bytes) {
  for (const SettingChanges& changes : smaller_settings(config, layers)) {
    if (const auto needed_bytes = fitting_bytes(with_changes(config, changes))) {
      return FittingSetting{.changes = changes, .needed_bytes = *needed_bytes};
    }
  }
  return std::nullopt;
}

}  // namespace braid
