#include <optional>
#include <utility>

#include "api/run_state.h"
#include "base/text.h"
#include "ir/text.h"
#include "memory/memory_classes.h"
#include "plan/run_plan.h"
#include "plan/run_spec.h"
#include "runtime/choose_settings.h"
#include "runtime/memory_check.h"

namespace braid::api {
namespace {

std::optional<RunMemory> given_memory(const PlanOptions& options) {
  if (options.device_memory_bytes < 0) {
    throw_config_error("device_memory_bytes = {}: it must be at least 0",
                       options.device_memory_bytes);
  }
  if (options.device_memory_bytes == 0) {
    return std::nullopt;
  }
  const GpuMemory gpu{.name = "a device of " + format_bytes(options.device_memory_bytes),
                      .free_bytes = options.device_memory_bytes};
  return RunMemory{.gpu = gpu, .host_bytes = std::nullopt};
}

RankPlan rank_result(const braid::RankPlan& plan, int rank, bool with_program) {
  const Program& program = plan.programs[kTrainProgram];
  RankPlan result;
  result.rank = rank;
  result.peak_bytes = plan.memory.peak_bytes();
  result.persistent_bytes = plan.memory.persistent_bytes;
  result.step_bytes = plan.memory.step_bytes;
  result.host_bytes = plan.memory.host_bytes;
  for (const braid::MemoryClass& found : memory_classes(plan.memory)) {
    result.memory.push_back({.name = std::string(found.title),
                             .persistent_bytes = found.persistent_bytes,
                             .step_bytes = found.step_bytes});
  }
  result.num_tasks = static_cast<int64_t>(program.tasks.size());
  for (const braid::PassRecord& record : plan.passes) {
    result.passes.push_back({.name = std::string(record.name),
                             .summary = record.report.summary,
                             .skipped = record.skipped,
                             .duration_ns = record.duration_ns});
  }
  if (with_program) {
    result.program = print_program(program);
  }
  return result;
}

Plan plan_result(const RunPlan& plan, bool with_programs) {
  Plan result;
  result.num_ranks = plan.run.mesh.num_ranks();
  const std::vector<int> ranks = first_rank_of_stages(plan.run.mesh);
  for (size_t i = 0; i < ranks.size(); ++i) {
    result.ranks.push_back(rank_result(plan.ranks[i], ranks[i], with_programs));
  }
  result.description = describe_run_plan(plan);
  return result;
}

}  // namespace

Plan Run::plan(const PlanOptions& options) const {
  return with_public_errors([&] {
    const std::optional<RunMemory> memory = given_memory(options);
    const auto& [config, vocabulary] = state_->planned;
    const RunSpec run = choose_settings(resolve_run(config, vocabulary), memory);
    const RunPlan plan = plan_run(run, {.one_rank_per_stage = true});
    if (memory) {
      check_memory(plan, *memory);
    }
    return plan_result(plan, options.with_programs);
  });
}

}  // namespace braid::api
