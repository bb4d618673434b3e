#include "passes/pipeline/pair_forward_backward.h"

#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "passes/analysis/job_spans.h"
#include "passes/pipeline/pair_choice.h"
#include "passes/pipeline/region_weaver.h"
#include "passes/pipeline/stage_messages.h"
#include "passes/pipeline_options.h"
#include "passes/tensor/tensor_sites.h"

namespace braid {
namespace {

/// Finds the tasks of a pair's jobs, if the two jobs are neighbours.
class Regions {
 public:
  explicit Regions(const Program& program) : program_(program), spans_(program) {
    for (uint32_t job = 0; job < spans_.jobs().size(); ++job) {
      const JobSpans::JobSpan& span = spans_.jobs()[job];
      positions_[job_key(program.tasks[span.first].label)] = job;
    }
  }

  std::optional<JobRegion> find(const JobPair& pair) const {
    const auto first = positions_.find(job_key(pair.first));
    const auto second = positions_.find(job_key(pair.second));
    if (first == positions_.end() || second == positions_.end() ||
        second->second != first->second + 1) {
      return std::nullopt;
    }
    const auto& jobs = spans_.jobs();
    const JobRegion region{jobs[first->second].begin, jobs[second->second].begin,
                           end_of(second->second)};
    const bool is_sound = region.begin < region.middle && region.middle < region.end;
    return is_sound ? std::optional(region) : std::nullopt;
  }

 private:
  /// The beginning of the next job; for the last job, one past the last task of any job.
  uint32_t end_of(uint32_t job) const {
    if (job + 1 < spans_.jobs().size()) {
      return spans_.jobs()[job + 1].begin;
    }
    auto end = static_cast<uint32_t>(program_.tasks.size());
    while (spans_.job_of(end - 1) == JobSpans::kNone) {
      --end;
    }
    return end;
  }

  const Program& program_;
  JobSpans spans_;
  std::map<JobKey, uint32_t> positions_;  // in spans_.jobs()
};

}  // namespace

PassResult pair_forward_backward(Program program, const PairForwardBackwardOptions& options,
                                 const PassContext& context) {
  if (options.pairs.empty()) {
    return {std::move(program), {false, 0, "there are no pairs"}};
  }
  const Regions regions(program);
  RegionWeaver weaver(program, context.cost_model);
  const int64_t num_woven = std::ranges::count_if(options.pairs, [&](const JobPair& pair) {
    const std::optional<JobRegion> region = regions.find(pair);
    return region && weaver.weave_region(*region);
  });
  std::string summary =
      fmt::format("interleaved {} of {} pairs of jobs", num_woven, options.pairs.size());
  if (num_woven == 0) {
    return {std::move(program), {false, 0, std::move(summary)}};
  }
  program = reorder_tasks(program, weaver.order());
  move_tensor_communication(program, options.comm_priority);
  return {std::move(program), {true, num_woven, std::move(summary)}};
}

Pass pair_forward_backward_pass(const PipelineOptions& options) {
  return {.name = "pair_forward_backward",
          .summary =
              "Interleaves the tasks of a forward and a backward, or of the two halves of a "
              "microbatch, so that each computes while the other communicates between tensor or "
              "context ranks.",
          .run = run_of(pair_forward_backward, options),
          .only_overlaps = true,
          .keys = {"overlap.pair_forward_backward"},
          .is_wanted =
              [](const OverlapConfig& overlap) { return job_pairs(overlap) != JobPairs::kNone; },
          .axes = pair_axes};
}

}  // namespace braid
