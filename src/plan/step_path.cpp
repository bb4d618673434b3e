#include "plan/step_path.h"

#include <algorithm>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <string_view>
#include <utility>

#include "base/parallel_for.h"
#include "base/text.h"
#include "sim/op_family.h"

namespace braid {
namespace {

using Json = nlohmann::ordered_json;

/// Causes by number; communication of each GroupKind comes last.
enum Cause : uint8_t {
  kProducts,
  kAttention,
  kMemoryBound,
  kOptimizer,
  kLaunches,
  kCopies,
  kLatency,
  kSlowedCompute,
  kSlowedCommunication,
  kHost,
  kCommunication,
};
constexpr size_t kNumCauses = kCommunication + kNumGroupKinds;

std::string cause_name(size_t cause) {
  constexpr std::array<std::string_view, kCommunication> kNames = {
      "matrix products",
      "attention",
      "memory-bound ops",
      "optimizer",
      "launches",
      "copies",
      "latency of communication",
      "compute slowed by communication",
      "communication slowed by other tasks",
      "host"};
  return cause < kCommunication
             ? std::string(kNames[cause])
             : fmt::format("{} communication",
                           group_kind_name(static_cast<GroupKind>(cause - kCommunication)));
}

/// Prices without what the cause names; nothing where several causes share a price.
std::optional<PriceChanges> prices_without(size_t cause) {
  constexpr double kNoTime = 0;
  PriceChanges changes;
  if (cause == kProducts) {
    changes.products = kNoTime;
  } else if (cause == kAttention) {
    changes.attention = kNoTime;
  } else if (cause >= kCommunication) {
    changes.group_kinds.at(cause - kCommunication) = kNoTime;
  } else {
    return std::nullopt;
  }
  return changes;
}

/// A part of a task on the path.
struct Piece {
  int64_t end_ns = 0;
  int stage = 0;
  size_t cause = 0;
};

/// The causes of the three parts of a task's time: latency, the rest of its price, and what it
/// lost.
using TaskCauses = std::array<size_t, 3>;

TaskCauses causes_of(const Program& program, const Task& task) {
  const OpSpec& spec = program.spec(task);
  const OpFamily family = family_of(spec);
  if (family == OpFamily::kCommunication) {
    const GroupKind kind = program.groups[group_of(program, spec).value().index()].kind;
    return {kLatency, kCommunication + static_cast<size_t>(kind), kSlowedCommunication};
  }
  if (!computes_on_device(family)) {
    return {kCopies, kCopies, kCopies};
  }
  const size_t kernel = task.label.phase == Phase::kOptimizer ? kOptimizer
                        : family == OpFamily::kGemm           ? kProducts
                        : family == OpFamily::kAttention      ? kAttention
                                                              : kMemoryBound;
  return {kLaunches, kernel, kSlowedCompute};
}

class PathReader {
 public:
  explicit PathReader(const SimulatedRun& run)
      : run_(run),
        num_stages_(static_cast<size_t>(run.spec().mesh.sizes().pipeline)),
        stage_ns_(kNumCauses, std::vector<int64_t>(num_stages_)) {}

  StepPath read() {
    const RankPrograms programs = run_.rank_programs();
    const SimResult& result = run_.result();
    std::vector<Piece> pieces;
    int rank = -1;
    for (const PathTask& it : run_.critical_path()) {
      const SimRank& its_rank = result.ranks[it.rank];
      const Program& program = *programs.programs[its_rank.program];
      const int stage = run_.spec().mesh.position(its_rank.rank).pipeline;
      add(it, causes_of(program, program.tasks[it.task]), stage, pieces);
      path_.num_moves += rank >= 0 && rank != its_rank.rank ? 1 : 0;
      rank = its_rank.rank;
      ++path_.num_tasks;
    }
    const int last = pieces.empty() ? 0 : pieces.back().stage;
    add(run_.step_ns(), last, kHost, pieces);
    path_.step_ns = run_.step_ns();
    list_parts();
    list_stretches(pieces);
    return std::move(path_);
  }

 private:
  void add(const PathTask& task, const TaskCauses& causes, int stage, std::vector<Piece>& pieces) {
    add(task.begin_ns + task.latency_ns, stage, causes[0], pieces);
    add(task.begin_ns + task.alone_ns, stage, causes[1], pieces);
    add(task.end_ns, stage, causes[2], pieces);
  }

  void add(int64_t end_ns, int stage, size_t cause, std::vector<Piece>& pieces) {
    const int64_t begin_ns = pieces.empty() ? 0 : pieces.back().end_ns;
    if (end_ns == begin_ns) {
      return;
    }
    stage_ns_[cause][static_cast<size_t>(stage)] += end_ns - begin_ns;
    if (!pieces.empty() && pieces.back().stage == stage && pieces.back().cause == cause) {
      pieces.back().end_ns = end_ns;
    } else {
      pieces.push_back({.end_ns = end_ns, .stage = stage, .cause = cause});
    }
  }

  void list_parts() {
    for (size_t cause = 0; cause < kNumCauses; ++cause) {
      const int64_t ns =
          std::accumulate(stage_ns_[cause].begin(), stage_ns_[cause].end(), int64_t{0});
      if (ns > 0) {
        path_.parts.push_back(
            {.cause = cause_name(cause), .ns = ns, .stage_ns = std::move(stage_ns_[cause])});
      }
    }
    std::ranges::stable_sort(path_.parts, std::greater<>(), &PathPart::ns);
  }

  /// Cuts the step into equal slices, each of which shows what took most of it.
  void list_stretches(const std::vector<Piece>& pieces) {
    size_t at = 0;
    int64_t begin_ns = 0;
    for (int64_t slice = 1; slice <= kMaxPathStretches; ++slice) {
      const int64_t end_ns = static_cast<int64_t>(static_cast<double>(path_.step_ns) *
                                                  static_cast<double>(slice) / kMaxPathStretches);
      std::map<std::pair<int, size_t>, int64_t> sums;
      while (begin_ns < end_ns) {
        const Piece& piece = pieces[at];
        const int64_t until_ns = std::min(piece.end_ns, end_ns);
        sums[{piece.stage, piece.cause}] += until_ns - begin_ns;
        begin_ns = until_ns;
        at += until_ns == piece.end_ns ? 1 : 0;
      }
      if (!sums.empty()) {
        const auto most =
            std::ranges::max_element(sums, {}, [](const auto& it) { return it.second; });
        add_stretch({.end_ns = end_ns,
                     .stage = most->first.first,
                     .cause = cause_name(most->first.second)});
      }
    }
  }

  void add_stretch(PathStretch stretch) {
    std::vector<PathStretch>& list = path_.stretches;
    if (!list.empty() && list.back().stage == stretch.stage && list.back().cause == stretch.cause) {
      list.back().end_ns = stretch.end_ns;
    } else {
      list.push_back(std::move(stretch));
    }
  }

  const SimulatedRun& run_;
  size_t num_stages_;
  std::vector<std::vector<int64_t>> stage_ns_;  // by cause
  StepPath path_;
};

std::string percent_text(int64_t ns, int64_t step_ns) {
  return fmt::format("{:.1f}%", 100.0 * static_cast<double>(ns) / static_cast<double>(step_ns));
}

/// The stages with most of a part: "3 (40%), 0 (22%)".
std::string stages_text(const PathPart& part) {
  constexpr size_t kMostStages = 3;
  constexpr int64_t kSmallPart = 100;  // 1% is worth no mention
  std::vector<size_t> stages(part.stage_ns.size());
  std::iota(stages.begin(), stages.end(), size_t{0});
  std::ranges::stable_sort(stages, std::greater<>(),
                           [&](size_t stage) { return part.stage_ns[stage]; });
  std::vector<std::string> texts;
  for (const size_t stage : stages) {
    if (part.stage_ns[stage] * kSmallPart < part.ns || texts.size() == kMostStages) {
      break;
    }
    texts.push_back(fmt::format(
        "{} ({:.0f}%)", stage,
        100.0 * static_cast<double>(part.stage_ns[stage]) / static_cast<double>(part.ns)));
  }
  return join(texts, ", ");
}

}  // namespace

StepPath step_path(const SimulatedRun& run) {
  return PathReader(run).read();
}

StepPath step_path_with_gains(const SimulatedRun& run, int num_threads) {
  StepPath path = step_path(run);
  std::map<std::string, PriceChanges> without;
  for (size_t cause = 0; cause < kNumCauses; ++cause) {
    if (const std::optional<PriceChanges> changes = prices_without(cause)) {
      without[cause_name(cause)] = *changes;
    }
  }
  parallel_for(path.parts.size(), num_threads, [&](size_t index) {
    PathPart& part = path.parts[index];
    if (const auto found = without.find(part.cause); found != without.end()) {
      part.gain_ns = run.step_ns() - run.step_ns_with(found->second);
    }
  });
  return path;
}

std::string describe_path(const StepPath& path) {
  constexpr int64_t kSmallestRow = 2000;  // what would be 0.0%
  const bool has_gains =
      std::ranges::any_of(path.parts, [](const PathPart& part) { return part.gain_ns >= 0; });
  const bool has_stages = !path.parts.empty() && path.parts.front().stage_ns.size() > 1;
  std::string text = fmt::format(
      "path      {} tasks that each waited for the one before it, {} moves between ranks\n",
      format_count(path.num_tasks), format_count(path.num_moves));
  text += fmt::format("{:<36} {:>8} {:>7}{}{}\n", "cause", "time", "part",
                      has_gains ? " without it" : "", has_stages ? "  most on stages" : "");
  for (const PathPart& part : path.parts) {
    if (part.ns < path.step_ns / kSmallestRow) {
      continue;
    }
    const std::string gain =
        part.gain_ns >= 0 ? "-" + percent_text(part.gain_ns, path.step_ns) : "";
    std::string line = fmt::format(
        "{:<36} {:>8} {:>7}{}{}", part.cause, format_duration(static_cast<double>(part.ns) * 1e-9),
        percent_text(part.ns, path.step_ns), has_gains ? fmt::format("{:>11}", gain) : "",
        has_stages && part.cause != cause_name(kHost) ? "  " + stages_text(part) : "");
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

Json path_json(const StepPath& path) {
  Json parts = Json::array();
  for (const PathPart& part : path.parts) {
    parts.push_back({{"cause", part.cause}, {"ns", part.ns}, {"stage_ns", part.stage_ns}});
    if (part.gain_ns >= 0) {
      parts.back()["gain_ns"] = part.gain_ns;
    }
  }
  Json stretches = Json::array();
  for (const PathStretch& it : path.stretches) {
    stretches.push_back({{"end_ns", it.end_ns}, {"stage", it.stage}, {"cause", it.cause}});
  }
  return {{"step_ns", path.step_ns},
          {"tasks", path.num_tasks},
          {"moves", path.num_moves},
          {"parts", parts},
          {"stretches", stretches}};
}

}  // namespace braid
