#include "plan/schedule_plan.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <string_view>
#include <utility>

#include "base/errors.h"
#include "passes/all_ranks.h"
#include "passes/runner.h"
#include "passes/schedule/schedule_step.h"
#include "plan/memory_needs.h"

namespace braid {
namespace {

bool is_named(const std::vector<std::string>& names, std::string_view pass) {
  return std::ranges::find(names, pass) != names.end();
}

PassReport nothing_asked_for(AllRanks&, const PassContext&) {
  return {false, 0, "not asked for"};
}

/// All passes. Passes over all ranks do nothing unless a key asks for them.
std::vector<Pass> passes_for(const OverlapConfig& overlap, PipelineOptions options,
                             const std::vector<std::string>& disabled) {
  WholeStepOptions& step = options.of<WholeStepOptions>();  // shared by both passes
  step.orders = step.orders && !is_named(disabled, kListSchedule);
  step.chooses_engines = step.chooses_engines && !is_named(disabled, kChooseEngines);
  std::vector<Pass> passes = default_pipeline(options);
  for (Pass& pass : passes) {
    if (pass.run_all && !is_on(pass, overlap)) {
      pass.run_all = nothing_asked_for;
    }
  }
  return passes;
}

void check_costs(const std::vector<Pass>& passes, const OverlapConfig& overlap,
                 const std::vector<std::string>& disabled) {
  for (const Pass& pass : passes) {
    if (pass.run_all && !pass.needs_costs.empty() && is_on(pass, overlap) &&
        !is_named(disabled, pass.name)) {
      throw_config_error("{}, or set overlap.cost to a cluster like \"h200x8\"", pass.needs_costs);
    }
  }
}

/// `cost_model` may be null.
AllRanks all_ranks_of(RunPlan& plan, bool repeatable, const CostModel* cost_model) {
  AllRanks all;
  for (RankPlan& rank : plan.ranks) {
    PlannedStep& planned = all.planned.emplace_back();
    planned.programs = &rank.programs;
    planned.memory = &rank.memory;
    if (cost_model != nullptr) {
      planned.beside_bytes =
          rank_bytes(cost_model->cluster().device, rank, repeatable) - rank.memory.step_bytes;
    }
  }
  all.ranks = rank_programs(plan);
  all.has_pipeline = plan.run.mesh.sizes().pipeline > 1;
  return all;
}

void add_records(RunPlan& plan, const std::vector<PassRecord>& records) {
  for (RankPlan& rank : plan.ranks) {
    rank.passes.insert(rank.passes.end(), records.begin(), records.end());
  }
}

/// Copies the programs of a rank of the same kind, but keeps the groups of `to`.
void take_order(const RankPlan& from, RankPlan& to) {
  for (size_t i = 0; i < to.programs.size(); ++i) {
    const int rank = to.programs[i].rank;
    std::vector<Group> groups = std::move(to.programs[i].groups);
    to.programs[i] = from.programs[i];
    to.programs[i].rank = rank;
    to.programs[i].groups = std::move(groups);
  }
  to.memory = from.memory;
  to.passes = from.passes;
}

}  // namespace

std::vector<std::string> disabled_passes(const OverlapSetup& setup,
                                         const std::vector<std::string>& by_key,
                                         const DebugOptions& debug) {
  std::vector<std::string> disabled = setup.disabled_passes;
  for (const auto* names : {&by_key, &debug.disabled_passes}) {
    disabled.insert(disabled.end(), names->begin(), names->end());
  }
  return disabled;
}

bool is_scheduled(const OverlapConfig& overlap) {
  return std::ranges::any_of(all_ranks_passes(default_pipeline()), [&](const Pass& pass) {
    return is_on(pass, overlap) && !is_named(overlap.disable_passes, pass.name);
  });
}

void schedule_plan(RunPlan& plan, const RunSpec& run, const CostModel* cost_model, bool verify) {
  const DebugOptions debug = read_debug_options();
  const OverlapConfig& overlap = run.config.overlap;
  const RunOptions options{
      .disabled_passes = disabled_passes(run.passes, overlap.disable_passes, debug),
      .verify = debug.verify.value_or(verify),
      .dump_folder = debug.dump_program_folder};
  const std::vector<Pass> passes = passes_for(overlap, run.passes.options, options.disabled_passes);
  if (cost_model == nullptr) {
    check_costs(passes, overlap, options.disabled_passes);
  }
  PassContext context = run.passes.context;
  context.cost_model = cost_model;
  AllRanks all = all_ranks_of(plan, run.config.runtime.repeatable, cost_model);
  all.quick_memory = !verify;
  add_records(plan, run_all_passes(all, passes, context, options));
}

void note_unscheduled(RunPlan& plan, const OverlapConfig& overlap) {
  const std::vector<std::string> disabled = read_debug_options().disabled_passes;
  std::vector<PassRecord> records;
  for (const Pass& pass : all_ranks_passes(default_pipeline())) {
    const bool skipped =
        is_named(overlap.disable_passes, pass.name) || is_named(disabled, pass.name);
    records.push_back({.name = pass.name,
                       .skipped = skipped,
                       .report = {.summary = skipped ? "disabled" : "not asked for"}});
  }
  add_records(plan, records);
}

void schedule_kinds(RunPlan& plan, const RunSpec& run, const CostModel* cost_model, bool verify) {
  const std::vector<uint32_t> planned_of = rank_programs(plan).program_of;
  std::vector<RankPlan> planned = std::exchange(plan.ranks, {});
  std::vector<uint64_t> hashes;
  for (const RankPlan& rank : planned) {
    hashes.push_back(structure_hash(rank));
  }
  const AlikeRanks kinds = alike_ranks(hashes);  // of planned ranks, by index
  const AlikeRanks given = std::exchange(plan.alike, {});
  for (const int index : kinds.stand_ins) {
    plan.ranks.push_back(planned[static_cast<size_t>(index)]);
    plan.alike.stand_ins.push_back(plan.ranks.back().programs[kTrainProgram].rank);
  }
  for (const uint32_t index : planned_of) {
    plan.alike.kind_of.push_back(kinds.kind_of[index]);
  }
  schedule_plan(plan, run, cost_model, verify);
  for (size_t i = 0; i < planned.size(); ++i) {
    take_order(plan.ranks[kinds.kind_of[i]], planned[i]);
  }
  plan.ranks = std::move(planned);
  plan.alike = given;
}

}  // namespace braid
