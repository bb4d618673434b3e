#include "runtime/choose_recompute.h"

#include <fmt/core.h>

#include <algorithm>
#include <iterator>
#include <limits>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/text.h"
#include "config/choices.h"
#include "memory/memory_classes.h"
#include "model/blocks/registry.h"
#include "ops/op.h"
#include "plan/exact_memory.h"
#include "plan/recompute_policies.h"
#include "plan/run_spec.h"

namespace braid {
namespace {

/// 1 / kSpareParts of a memory stays free: the memory of the driver and NCCL is estimated, and
/// other programs come and go.
constexpr int64_t kSpareParts = 128;

/// Work of a GPU in the time in which a byte crosses its memory: 700 TFLOP/s and 300 GB/s between
/// GPUs for 4.2 TB/s, as on H200. Only the order of policies depends on it, and they differ widely.
constexpr double kFlopsPerByte = 170;
constexpr double kBytesPerCommByte = 14;

/// The work of all planned ranks in a step, in bytes.
double work_of(const RunPlan& plan) {
  double bytes = 0;
  for (const RankPlan& rank : plan.ranks) {
    const Program& program = rank.programs[kTrainProgram];
    for (const Task& task : program.tasks) {
      const OpCost cost = spec_cost(program.spec(task));
      bytes += cost.bytes_read + cost.bytes_written + cost.flops / kFlopsPerByte +
               cost.comm_bytes * kBytesPerCommByte;
    }
  }
  return bytes;
}

/// Above 0 if less than the required memory is free.
int64_t missing_bytes(const MemoryUse& use) {
  return use.needs.bytes() - (use.free_bytes - use.free_bytes / kSpareParts);
}

/// Whether a longer search for offsets than a quick plan's could make it fit.
bool better_offsets_may_fit(const MemoryUse& use) {
  const auto& parts = use.needs.parts;
  const auto gaps = std::ranges::find(parts, kBetweenBuffers, &MemoryNeeds::Part::what);
  return missing_bytes(use) <= (gaps == parts.end() ? 0 : gaps->bytes);
}

struct Trial {
  RunSpec run;
  RecomputeChoice policy = RecomputeChoice::kNone;
  std::vector<MemoryUse> uses;
  double work = 0;

  /// Excess bytes of the fullest memory; above 0 if the run does not fit.
  int64_t bytes_too_many() const {
    int64_t most = std::numeric_limits<int64_t>::min();
    for (const MemoryUse& use : uses) {
      most = std::max(most, missing_bytes(use));
    }
    return most;
  }
  bool fits() const { return bytes_too_many() <= 0; }
  /// The memory that is fullest.
  const MemoryUse& fullest() const {
    return *std::ranges::max_element(
        uses, {}, [](const MemoryUse& use) { return use.needs.bytes() - use.free_bytes; });
  }
};

/// Plans a run with different policies.
class Trials {
 public:
  Trials(const RunSpec& run, const RunMemory& memory)
      : run_(run), memory_(memory), ranks_(edge_ranks(run.mesh)) {
    kept_in_front_.push_back(0);
    for (const LayerSpec& layer : run.model.layers) {
      const double kept = layer_cost(run.model, layer, run.config.train.sequence).kept_elems;
      kept_in_front_.push_back(kept_in_front_.back() + kept);
    }
  }

  int64_t num_layers() const { return run_.model.layers.size(); }

  /// With recomputation in the first `layers` layers.
  Trial run(RecomputeChoice policy, int64_t layers) const {
    Trial trial{
        .run = with(policy, layers == num_layers() ? 0 : layers), .policy = policy, .uses = {}};
    RunPlan plan = plan_run(trial.run, {.ranks = ranks_, .verify = false});
    trial.uses = memory_uses(plan, memory_);
    plan_exactly_where_it_decides(plan, trial);
    trial.work = work_of(plan);
    return trial;
  }

  /// With the fewest layers that fit; nullopt if even all layers do not. The required memory is
  /// nearly linear in what the layers keep, so each next guess is by linear interpolation.
  std::optional<Trial> fewest_layers(RecomputeChoice policy, const Trial& none) const {
    Trial fitting = run(policy, num_layers());
    if (!fitting.fits()) {
      return std::nullopt;
    }
    int64_t too_few = 0;
    int64_t enough = num_layers();
    int64_t missing = none.bytes_too_many();
    while (enough - too_few > 1) {
      const auto spare = static_cast<double>(-fitting.bytes_too_many());
      const double part = static_cast<double>(missing) / (static_cast<double>(missing) + spare);
      const int64_t layers =
          std::clamp(layers_that_keep(part, too_few, enough), too_few + 1, enough - 1);
      Trial trial = run(policy, layers);
      if (trial.fits()) {
        enough = layers;
        fitting = std::move(trial);
      } else {
        too_few = layers;
        missing = trial.bytes_too_many();
      }
    }
    return fitting;
  }

 private:
  /// Quick plans need more memory than the final ones: plans of ranks that prevent the run from
  /// fitting are made again exactly, the fullest first. Each takes long.
  void plan_exactly_where_it_decides(RunPlan& plan, Trial& trial) const {
    std::set<std::optional<int>> exact;
    while (!trial.fits() && better_offsets_may_fit(trial.fullest()) &&
           exact.insert(trial.fullest().rank).second) {
      const std::optional<int> fullest = trial.fullest().rank;
      for (RankPlan& rank : plan.ranks) {
        if (!fullest || rank.programs.front().rank == *fullest) {
          rank.memory = exact_memory(rank);
        }
      }
      trial.uses = memory_uses(plan, memory_);
    }
  }

  /// The number of first layers that keep as much as the first `less` layers plus the given
  /// fraction of what layers `less` to `more` keep.
  int64_t layers_that_keep(double part, int64_t less, int64_t more) const {
    const double low = kept_in_front_[static_cast<size_t>(less)];
    const double high = kept_in_front_[static_cast<size_t>(more)];
    return std::ranges::lower_bound(kept_in_front_, low + part * (high - low)) -
           kept_in_front_.begin();
  }

  RunSpec with(RecomputeChoice policy, int64_t layers) const {
    RunConfig config = run_.config;
    config.memory.recompute = choice_name(policy);
    config.memory.recompute_layers = layers;
    return resolve_again(run_, config);
  }

  const RunSpec& run_;
  const RunMemory& memory_;
  std::vector<double> kept_in_front_;  // prefix sums of activation elements per token, by layer
  std::vector<int> ranks_;
};

std::string describe_needs(const Trial& trial) {
  const MemoryUse& use = trial.fullest();
  return fmt::format("{} of {}", format_bytes(use.needs.bytes()), format_bytes(use.free_bytes));
}

std::string describe(const Trial& chosen, const Trial& none, int64_t num_layers) {
  const MemoryConfig& memory = chosen.run.config.memory;
  if (chosen.policy == RecomputeChoice::kNone) {
    return fmt::format("recompute none: everything fits, {}\n", describe_needs(none));
  }
  const int64_t layers = memory.recompute_layers == 0 ? num_layers : memory.recompute_layers;
  return fmt::format("recompute {} in {} of {} layers: {}, would be {} without{}\n",
                     memory.recompute, layers, num_layers, describe_needs(chosen),
                     format_bytes(none.fullest().needs.bytes()),
                     chosen.fits() ? "" : "; no policy fits");
}

}  // namespace

bool wants_auto_recompute(const RunConfig& config) {
  return choice<RecomputeChoice>(config.memory.recompute) == RecomputeChoice::kAuto;
}

RunSpec choose_recompute(const RunSpec& run, const RunMemory& memory,
                         const std::function<void(std::string_view)>& print) {
  if (!wants_auto_recompute(run.config)) {
    return run;
  }
  const Trials trials(run, memory);
  const Trial none = trials.run(RecomputeChoice::kNone, trials.num_layers());
  std::optional<Trial> chosen = none.fits() ? std::optional(none) : std::nullopt;
  if (!chosen) {
    for (const RecomputeChoice policy : recompute_policies(run.config.parallel)) {
      if (policy == RecomputeChoice::kNone) {
        continue;
      }
      std::optional<Trial> trial = trials.fewest_layers(policy, none);
      if (trial && (!chosen || trial->work < chosen->work)) {
        chosen = std::move(trial);
      }
    }
  }
  if (!chosen) {
    chosen = trials.run(RecomputeChoice::kFull, trials.num_layers());
  }
  if (print) {
    print(describe(*chosen, none, trials.num_layers()));
  }
  return std::move(chosen->run);
}

}  // namespace braid
